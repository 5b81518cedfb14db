"""A rank that dies or hangs: the others stop within the timeout, and say which one it is."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import maskwright as mw
from maskwright.parallel.silence import GRACE
from tests.parallel import jobs
from tests.parallel.jobs import Case
from tests.parallel.pool import JobError, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 3.0


@pytest.fixture
def doomed() -> Iterator[Pool]:
    """Three processes that wait for each other for a few seconds only."""
    made = Pool(3, SECONDS)
    made.run(jobs.part, 3, Case(mw.causal(), 12))  # all are there
    yield made
    for worker in made.workers:
        worker.kill()  # stopped ones too
    made.close()
    assert not any(worker.is_alive() for worker in made.workers)


def struck(group: Any, case: Case, victim: int, blow: int) -> Any:
    """Attention in which a rank is struck between the way there and the way back."""
    import torch
    import torch.distributed as dist

    from maskwright.parallel.context import context_parallel_attention

    rank = dist.get_rank(group)
    layout = case.layout(dist.get_world_size(group))
    rows = torch.from_numpy(layout.positions(rank))
    q, k, v, *_ = (x[:, :, rows].requires_grad_() for x in case.tensors())
    out = context_parallel_attention(q, k, v, case.bound(), group, layout=layout)
    if rank == victim:
        os.kill(os.getpid(), blow)
    out.sum().backward()
    context_parallel_attention(q, k, v, case.bound(), group, layout=layout)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_others_name_the_rank_that_does_not_answer(doomed: Pool, blow: int) -> None:
    victim = doomed.workers[1]
    waking = None
    if blow == signal.SIGSTOP:  # its answer is waited for too, so it is ended in the end
        waking = threading.Timer(SECONDS + GRACE + 2, victim.kill)
        waking.start()
    with pytest.raises(JobError) as error:
        doomed.run(struck, 3, Case(mw.causal(), 12), 1, int(blow))
    if waking is not None:
        waking.join()
    for rank in (0, 2):
        said = error.value.said[rank]
        assert said is not None
        assert said.startswith("RankError: Rank 1 does not answer")
