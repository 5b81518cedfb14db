"""A rank that dies or stops: all others end in time, and name exactly that rank."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import wait
from typing import Any

import pytest
import torch
import torch.distributed as dist

import maskwright as mw
from maskwright.parallel import comm
from maskwright.parallel.context_parallel import context_parallel_attention
from tests._helpers.parallel_attention import Case, context_parallel
from tests._helpers.process_pool import JobError, Pool
from tests._helpers.sampling import subset_of_cases

TIMEOUT = 3.0  # seconds, of collective operations


def attend_until_lost(group: Any, case: Case, victim: int, number: int) -> None:
    """Attention again and again, during which a rank sends itself a signal."""
    comm.MAX_SILENCE = 2.0  # type: ignore[misc] # all ranks are on one machine
    rank = dist.get_rank(group)
    layout = case.layout(dist.get_world_size(group))
    rows = torch.from_numpy(layout.positions(rank))
    q, k, v, *_ = (x[:, :, rows].requires_grad_() for x in case.tensors())
    for step in range(3):
        out = context_parallel_attention(q, k, v, case.bound(), group, layout=layout)
        if rank == victim and step == 1:
            os.kill(os.getpid(), number)
        out.sum().backward()


KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@pytest.mark.parametrize(
    ("ranks", "victim", "number", "by_tcp"),
    subset_of_cases(
        [
            *((ranks, victim, KILL, True) for ranks in (2, 3, 4) for victim in range(ranks)),
            *((3, victim, STOP, True) for victim in (0, 1)),  # rank 0 has the store
            *((3, 1, number, False) for number in (KILL, STOP)),
        ],
        every=3,
    ),
)
def test_survivors_name_the_rank_that_is_lost(
    ranks: int, victim: int, number: signal.Signals, by_tcp: bool
) -> None:
    pool = Pool(ranks, TIMEOUT, by_tcp)
    try:
        pool.run(context_parallel, ranks, Case(mw.causal(), 12))
        pool.start_each(attend_until_lost, [(Case(mw.causal(), 12), victim, int(number))] * ranks)
        survivors = [rank for rank in range(ranks) if rank != victim]
        for rank in survivors:
            assert wait([pool.pipes[rank]], 60)
        pool.workers[victim].kill()  # a stopped process, too
        with pytest.raises(JobError) as error:
            pool.results(ranks)
        lines = error.value.first_lines()
        for rank in survivors:
            assert lines[rank].startswith(f"RankError: Rank {victim} "), lines
    finally:
        for worker in pool.workers:
            worker.kill()
        pool.close()
    assert not any(worker.is_alive() for worker in pool.workers)


def fail_alone(group: Any) -> None:
    """A rank fails by itself while others are fine."""
    comm.MAX_SILENCE = 0.5  # type: ignore[misc]
    with comm.report_peer_failure():
        dist.barrier(group)
        if dist.get_rank(group) == 1:
            raise RuntimeError("out of memory")


def test_an_error_of_one_rank_names_no_other_rank(pool: Pool) -> None:
    with pytest.raises(JobError) as error:
        pool.run(fail_alone, 3)
    messages = error.value.messages
    assert messages[0] is messages[2] is None
    assert "out of memory" in error.value.first_lines()[1]
    assert "Rank" not in error.value.first_lines()[1].removeprefix("RankError")
