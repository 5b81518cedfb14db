"""A rank that dies or hangs: the others stop within the timeout, and say which one it is."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import pytest

import maskwright as mw
from maskwright.parallel import silence
from tests.parallel import jobs
from tests.parallel.jobs import Case
from tests.parallel.pool import JobError, Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 2.0
GRACE = 1.5  # the others are on the same machine


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

    silence.GRACE = GRACE  # type: ignore[misc]
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
    doomed.ask_each(struck, [(Case(mw.causal(), 12), 1, int(blow))] * 3)
    for rank in (0, 2):
        assert wait([doomed.pipes[rank]], 60)
    victim.kill()  # its answer is waited for too, and a stopped one would give none
    with pytest.raises(JobError) as error:
        doomed.answers(3)
    for rank in (0, 2):
        said = error.value.said[rank]
        assert said is not None
        assert said.startswith("RankError: Rank 1 does not answer")
