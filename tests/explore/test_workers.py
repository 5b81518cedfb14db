"""The worker pool: real processes with limits of time and memory, replaced when they die."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maskwright.explore.error_responses import HTTPError, Response
from maskwright.explore.workers import MAX_MEMORY, Worker, WorkerPool
from tests._helpers.run_python import run_python
from tests._helpers.waiting_jobs import MAX_WAIT, WaitingJobs, dispatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory needs Linux")
QUICK = ("tokens", b'{"text": "a b"}')


def mask(expression: str, size: int) -> tuple[str, bytes]:
    return "mask", json.dumps({"subject": {"expression": expression, "size": size}}).encode()


def with_pool(
    wait: bool = True, timeout: float = MAX_WAIT, **options: Any
) -> Callable[[Callable[[WorkerPool], Awaitable[None]]], Any]:
    """Runs an async test with a pool, by default once its workers are ready."""

    async def run(test: Callable[[WorkerPool], Awaitable[None]]) -> None:
        pool = WorkerPool(timeout=timeout, handler=dispatch, **options)
        pool.start()
        try:
            if wait:
                await pool.wait_ready()
            await test(pool)
        finally:
            await pool.stop()

    def decorate(test: Callable[[WorkerPool], Awaitable[None]]) -> Callable[[], None]:
        def run_test() -> None:
            asyncio.run(asyncio.wait_for(run(test), MAX_WAIT))

        return run_test

    return decorate


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def wait_until_started(jobs: WaitingJobs) -> None:
    await asyncio.to_thread(jobs.wait_until_started)


async def error_of(job: Awaitable[Response]) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        await job
    return caught.value.status, caught.value.kind


@with_pool()
async def test_jobs_run_in_parallel(pool: WorkerPool) -> None:
    assert len(pool.pids) == 2
    assert all(alive(pid) for pid in pool.pids)
    responses = await asyncio.gather(*(pool.submit(*QUICK) for _ in range(10)))
    assert all(json.loads(response.body)["lengths"] == [2] for response in responses)
    assert pool.num_jobs == 0


@with_pool(wait=False, num_workers=1)
async def test_a_job_waits_until_a_worker_is_ready(pool: WorkerPool) -> None:
    assert (await pool.submit(*QUICK)).status == 200


@with_pool(num_workers=1)
async def test_a_job_that_exceeds_its_time_is_killed(pool: WorkerPool) -> None:
    (before,) = pool.pids
    with WaitingJobs() as jobs:
        assert await error_of(pool.submit("mask", jobs.body, timeout=0.2)) == (504, "Timeout")
        assert not alive(before)
    assert (await pool.submit(*QUICK)).status == 200
    assert pool.pids != {before}
    assert len(pool.pids) == 1


@with_pool(num_workers=1, timeout=0.2)
async def test_a_pool_has_a_timeout_for_all_jobs(pool: WorkerPool) -> None:
    with WaitingJobs() as jobs:
        assert await error_of(pool.submit("mask", jobs.body)) == (504, "Timeout")


@with_pool(num_workers=1)
async def test_a_worker_that_dies_is_replaced(pool: WorkerPool) -> None:
    (before,) = pool.pids
    with WaitingJobs() as jobs:
        job = asyncio.ensure_future(pool.submit("mask", jobs.body))
        await wait_until_started(jobs)
        os.kill(before, signal.SIGKILL)
        assert await error_of(job) == (503, "WorkerDied")
    assert (await pool.submit(*QUICK)).status == 200
    assert before not in pool.pids


@with_pool(num_workers=1)
async def test_a_worker_that_dies_idle_fails_no_job(pool: WorkerPool) -> None:
    (before,) = pool.pids
    (process,) = (p for p in multiprocessing.active_children() if p.pid == before)
    process.kill()
    await asyncio.to_thread(process.join)
    assert (await pool.submit(*QUICK)).status == 200
    assert before not in pool.pids


@with_pool(num_workers=1, max_waiting=2)
async def test_too_many_jobs_are_refused(pool: WorkerPool) -> None:
    with WaitingJobs() as jobs:
        tasks = [asyncio.ensure_future(pool.submit("mask", jobs.body)) for _ in range(3)]
        await until(lambda: pool.num_jobs == 3)
        assert await error_of(pool.submit(*QUICK)) == (503, "Busy")
        for task in tasks:
            task.cancel()


@with_pool(num_workers=1, max_waiting=2)
async def test_a_cancelled_job_frees_its_worker(pool: WorkerPool) -> None:
    (pid,) = pool.pids
    with WaitingJobs() as jobs:
        running, waiting = (asyncio.ensure_future(pool.submit("mask", jobs.body)) for _ in range(2))
        await wait_until_started(jobs)
        waiting.cancel()
        await until(lambda: pool.num_jobs == 1)
        running.cancel()
        next_job = asyncio.ensure_future(pool.submit(*QUICK))
        await until(lambda: running.cancelled() and pool.num_jobs == 2)
        jobs.release()
        assert (await next_job).status == 200  # after the cancelled one
    assert pool.pids == {pid}
    assert pool.num_jobs == 0


@with_pool(num_workers=1)
async def test_a_cancelled_job_that_exceeds_its_time_is_killed(pool: WorkerPool) -> None:
    (before,) = pool.pids
    with WaitingJobs() as jobs:
        job = asyncio.ensure_future(pool.submit("mask", jobs.body, timeout=0.2))
        await until(lambda: pool.num_jobs == 1)
        job.cancel()
        await until(lambda: pool.num_jobs == 0)
        assert not alive(before)
    assert (await pool.submit(*QUICK)).status == 200


@with_pool(num_workers=2)
async def test_slow_jobs_leave_a_worker_for_the_others(pool: WorkerPool) -> None:
    with WaitingJobs() as jobs:
        slow = [asyncio.ensure_future(pool.submit("cost", jobs.body, MAX_WAIT)) for _ in range(3)]
        await wait_until_started(jobs)
        assert (await pool.submit(*QUICK)).status == 200
        assert not any(job.done() for job in slow)
        for job in slow[1:]:
            job.cancel()
        jobs.release()
        assert (await slow[0]).status == 200


def test_slow_jobs_prefer_the_worker_with_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    run = Worker.run

    def recorded(worker: Worker, name: str, body: bytes, timeout: float) -> Response:
        pids.append(worker.pid)
        return run(worker, name, body, timeout)

    monkeypatch.setattr(Worker, "run", recorded)
    slow_job = ("cost", mask("causal()", 8)[1])

    @with_pool(num_workers=2)
    async def test(pool: WorkerPool) -> None:
        for job in (slow_job, QUICK, slow_job, slow_job, QUICK, QUICK, slow_job):
            assert (await pool.submit(*job, MAX_WAIT)).status == 200
        slow, quick = pids[:2]
        assert slow != quick
        assert pids == [slow, quick, slow, slow, quick, quick, slow]
        await asyncio.gather(*(pool.submit(*QUICK) for _ in range(10)))
        assert set(pids) == {slow, quick}

    test()


@with_pool()
async def test_stopping_kills_all_workers_and_fails_all_jobs(pool: WorkerPool) -> None:
    pids = pool.pids
    with WaitingJobs() as jobs:
        names = ("mask", "mask", "mask", "mask", "cost", "cost")
        tasks = [asyncio.ensure_future(pool.submit(name, jobs.body)) for name in names]
        for _ in pids:
            await wait_until_started(jobs)
        await pool.stop()
    assert not any(alive(pid) for pid in pids)
    for job in (*tasks, pool.submit(*QUICK)):
        assert await error_of(job) == (503, "Busy")
    assert pool.num_jobs == 0
    await pool.stop()


@with_pool(wait=False)
async def test_a_pool_can_be_stopped_before_it_is_ready(pool: WorkerPool) -> None:
    await asyncio.sleep(0)
    pids = pool.pids
    await pool.stop()
    assert not any(alive(pid) for pid in pids)


@with_pool(num_workers=1)
async def test_workers_ignore_ctrl_c(pool: WorkerPool) -> None:
    (pid,) = pool.pids
    os.kill(pid, signal.SIGINT)
    assert (await pool.submit(*QUICK)).status == 200
    assert pool.pids == {pid}


@LINUX
@with_pool(num_workers=1, max_memory=2**24)
async def test_a_job_that_exceeds_its_memory_is_refused(pool: WorkerPool) -> None:
    assert (await pool.submit(*mask("causal()", 2**20))).status == 413
    assert (await pool.submit(*QUICK)).status == 200


@LINUX
@with_pool(num_workers=1)
async def test_the_peak_memory_of_a_worker_is_limited(pool: WorkerPool) -> None:
    (pid,) = pool.pids
    before = memory(pid, "VmRSS")
    _, large = mask("window(back=15) | keys([0])", 2**20)
    assert (await pool.submit("cost", large, MAX_WAIT)).status == 413
    assert (await pool.submit(*mask("window(back=9) | keys([0, 5, 9])", 2**20))).status == 200
    assert pool.pids == {pid}
    assert memory(pid, "VmHWM") < before + MAX_MEMORY + 2**25  # and what cost imports


def memory(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if name in line)


def test_a_worker_imports_neither_a_server_nor_a_framework() -> None:
    code = "import sys, maskwright.explore.handlers; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in run_python(code).stdout.split()}
    assert "maskwright" in loaded
    assert not loaded & {"starlette", "uvicorn", "anyio", "torch", "jax", "typer", "PIL"}
