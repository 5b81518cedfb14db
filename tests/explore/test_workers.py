"""The workers: real processes that are ended when time is up, and replaced when they die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from maskwright.explore.faults import Fault, Reply
from maskwright.explore.workers import Crew, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

QUICK = ("tokens", {"text": "a b"})
# More than a second of work, which no test waits for.
TWO_INTERVALS = "window(back=255) | keys(range(4))"
SLOW = ("cost", {"subject": {"expression": TWO_INTERVALS, "size": 2**19}})
SHORTER = ("cost", {"subject": {"expression": TWO_INTERVALS, "size": 2**18}})  # to be waited for


@contextlib.asynccontextmanager
async def working(**options: Any) -> AsyncIterator[Crew]:
    crew = Crew(**options)
    crew.start()
    try:
        await crew.ready()
        yield crew
    finally:
        await crew.stop()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


async def fault(asking: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        await asking
    assert caught.value.message.endswith(".")
    return caught.value


def test_jobs_are_answered_side_by_side() -> None:
    async def test() -> None:
        async with working() as crew:
            assert len(crew.pids) == 2
            assert all(lives(pid) for pid in crew.pids)
            replies = await asyncio.gather(*(crew.ask(*QUICK) for _ in range(10)))
            assert all(json.loads(reply.body)["lengths"] == [2] for reply in replies)
            assert crew.jobs == 0

    run(test)


def test_jobs_given_before_a_worker_is_ready_wait_for_it() -> None:
    async def test() -> None:
        crew = Crew(workers=1)
        crew.start()
        assert (await crew.ask(*QUICK)).status == 200
        await crew.stop()

    run(test)


def test_a_job_that_takes_too_long_is_ended_and_its_worker_replaced() -> None:
    async def test() -> None:
        async with working(workers=1) as crew:
            (before,) = crew.pids
            error = await fault(crew.ask(*SLOW, seconds=0.2))
            assert (error.status, error.kind) == (504, "TimeUp")
            assert "0.2 seconds" in error.message
            assert not lives(before)
            assert (await crew.ask("tokens", {"text": "a"})).status == 200
            assert crew.pids != {before}
            assert len(crew.pids) == 1

    run(test)


def test_a_crew_has_a_time_for_all_jobs() -> None:
    async def test() -> None:
        async with working(workers=1, seconds=0.2) as crew:
            assert (await fault(crew.ask(*SLOW))).status == 504

    run(test)


def test_a_worker_that_dies_at_work_is_told_and_replaced() -> None:
    async def test() -> None:
        async with working(workers=1, seconds=60) as crew:
            (before,) = crew.pids
            asking = asyncio.ensure_future(crew.ask(*SLOW))
            await asyncio.sleep(0.1)
            os.kill(before, signal.SIGKILL)
            error = await fault(asking)
            assert (error.status, error.kind) == (503, "WorkerDied")
            assert (await crew.ask(*QUICK)).status == 200
            assert before not in crew.pids

    run(test)


def test_a_worker_that_died_idle_is_not_noticed_by_the_next_job() -> None:
    async def test() -> None:
        async with working(workers=1) as crew:
            (before,) = crew.pids
            os.kill(before, signal.SIGKILL)
            await asyncio.sleep(0.1)
            assert (await crew.ask(*QUICK)).status == 200
            assert before not in crew.pids

    run(test)


def test_too_many_jobs_are_refused_at_once() -> None:
    async def test() -> None:
        async with working(workers=1, waiting=2, seconds=60) as crew:
            asking = [asyncio.ensure_future(crew.ask(*SLOW)) for _ in range(3)]
            await asyncio.sleep(0)
            assert crew.jobs == 3
            error = await fault(crew.ask(*QUICK))
            assert (error.status, error.kind) == (503, "Busy")
            for task in asking:
                task.cancel()

    run(test)


def test_a_job_that_nobody_waits_for_leaves_the_line_and_frees_its_worker() -> None:
    async def test() -> None:
        async with working(workers=1, waiting=2, seconds=60) as crew:
            (pid,) = crew.pids
            working_on, waiting = (asyncio.ensure_future(crew.ask(*SHORTER)) for _ in range(2))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.sleep(0)
            assert crew.jobs == 1
            working_on.cancel()
            assert (await crew.ask(*QUICK)).status == 200  # after the job that nobody wants
            assert crew.pids == {pid}
            assert crew.jobs == 0

    run(test)


def test_a_job_that_nobody_waits_for_is_ended_when_its_time_is_up() -> None:
    async def test() -> None:
        async with working(workers=1) as crew:
            (before,) = crew.pids
            asking = asyncio.ensure_future(crew.ask(*SLOW, seconds=0.2))
            await asyncio.sleep(0.05)
            asking.cancel()
            await until(lambda: crew.jobs == 0)
            assert not lives(before)
            await crew.ready()
            assert (await crew.ask("tokens", {"text": "a"})).status == 200

    run(test)


def test_slow_jobs_leave_a_worker_for_the_others() -> None:
    async def test() -> None:
        async with working(workers=2) as crew:
            slow = [asyncio.ensure_future(crew.ask(*SHORTER, seconds=60)) for _ in range(3)]
            await asyncio.sleep(0.05)
            assert (await crew.ask(*QUICK)).status == 200
            assert not any(task.done() for task in slow)
            for task in slow[1:]:
                task.cancel()
            assert (await slow[0]).status == 200
            assert (await crew.ask(*QUICK, seconds=60)).status == 200  # it is free again

    run(test)


def test_slow_jobs_go_to_the_worker_that_had_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has imported the frameworks already."""
    asked: list[int] = []
    ask = Worker.ask

    def noted(worker: Worker, job: bytes, seconds: float) -> Reply:
        asked.append(worker.pid)
        return ask(worker, job, seconds)

    monkeypatch.setattr(Worker, "ask", noted)

    async def test() -> None:
        async with working(workers=2) as crew:
            for seconds in (60, None, 60, 60, None, None, 60):
                assert (await crew.ask(*QUICK, seconds=seconds)).status == 200
            slow, quick = asked[:2]
            assert slow != quick
            assert asked == [slow, quick, slow, slow, quick, quick, slow]
            await asyncio.gather(*(crew.ask(*QUICK) for _ in range(10)))
            assert set(asked) == {slow, quick}  # for quick ones both are there

    run(test)


def test_stopping_ends_all_workers_whatever_they_do() -> None:
    async def test() -> None:
        crew = Crew(seconds=60)
        crew.start()
        await crew.ready()
        pids = crew.pids
        asking = [asyncio.ensure_future(crew.ask(*SLOW)) for _ in range(4)]
        asking += [asyncio.ensure_future(crew.ask(*SLOW, seconds=60)) for _ in range(2)]
        await asyncio.sleep(0.05)
        await crew.stop()
        assert not any(lives(pid) for pid in pids)
        for task in asking:  # at work or in the line
            assert "being stopped" in (await fault(task)).message
        assert (await fault(crew.ask(*QUICK))).status == 503
        assert crew.jobs == 0
        await crew.stop()

    run(test)


def test_a_crew_can_be_stopped_before_it_is_ready() -> None:
    async def test() -> None:
        crew = Crew()
        crew.start()
        await asyncio.sleep(0)
        pids = crew.pids
        await crew.stop()
        assert not any(lives(pid) for pid in pids)

    run(test)


def test_workers_do_not_hear_ctrl_c() -> None:
    async def test() -> None:
        async with working(workers=1) as crew:
            (pid,) = crew.pids
            os.kill(pid, signal.SIGINT)
            assert (await crew.ask(*QUICK)).status == 200
            assert crew.pids == {pid}

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_job_that_takes_too_much_memory_is_refused_and_the_worker_lives() -> None:
    async def test() -> None:
        async with working(workers=1, memory=2**24, seconds=60) as crew:
            (pid,) = crew.pids
            reply = await crew.ask("mask", {"subject": {"expression": "causal()", "size": 2**20}})
            assert reply.status == 413
            assert "memory" in json.loads(reply.body)["error"]["message"]
            assert (await crew.ask(*QUICK)).status == 200
            assert crew.pids == {pid}

    run(test)


def test_a_worker_needs_neither_a_server_nor_a_framework() -> None:
    code = "import sys, maskwright.explore.desk; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"starlette", "uvicorn", "anyio", "torch", "jax", "typer", "PIL"}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_the_limit_is_above_what_a_process_has_already() -> None:
    code = (
        "import resource; from maskwright.explore.workers import limit_memory; "
        "limit_memory(2**30); print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 2**30 < int(done.stdout) < 2**40
