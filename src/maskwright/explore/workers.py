"""Worker processes: they compute, and can be ended when time is up.

A worker is told a job as JSON over a pipe and answers with a status, a content type and bytes. It
never hears of sockets, and shares nothing with the server. One that takes too long or dies is
replaced by a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from maskwright.explore.faults import ADVICE, Fault, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

WORKERS: Final = 2
WAITING: Final = 8
SECONDS: Final = 5.0
START_SECONDS: Final = 60.0  # for a worker to import the library on a slow disk
MEMORY: Final = 3 * 2**30  # bytes of address space that a job may add
PAUSE: Final = 1.0  # seconds before a worker that can't start is tried again
READY: Final = b"ready"


class Crew:
    """Some workers, and the jobs that wait for one. Used from one event loop."""

    def __init__(
        self,
        workers: int = WORKERS,
        waiting: int = WAITING,
        seconds: float = SECONDS,
        memory: int = MEMORY,
    ) -> None:
        self._number, self._most = workers, workers + waiting
        self._seconds, self._memory = seconds, memory
        self._jobs = 0
        self._free: asyncio.Queue[Worker | None] = asyncio.Queue()  # None when all is stopped
        self._workers: set[Worker] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(2 * workers, "maskwright-worker")
        self._slow = asyncio.Lock()
        self._open = True

    @property
    def jobs(self) -> int:
        """How many jobs are worked on or wait."""
        return self._jobs

    @property
    def pids(self) -> set[int]:
        """The process ids of the workers that are there."""
        return {worker.pid for worker in self._workers}

    def start(self) -> None:
        """Start the workers; jobs may be given at once, and wait until one is ready."""
        for _ in range(self._number):
            self._go(self._hire())

    async def ready(self) -> None:
        """Wait until all workers are there."""
        while len(self._workers) < self._number or any(not w.ready for w in self._workers):
            await asyncio.sleep(0.01)

    async def ask(self, name: str, data: Any, seconds: float | None = None) -> Reply:
        """The answer to a job; a `Fault` if all are busy, time is up, or the worker died.

        Of jobs that are given `seconds` of their own only one is worked on at a time, so that a
        worker is left for all others. Cancelling while the job waits takes it out of the line. One
        that is being worked on is finished, or ended when its time is up, and the worker is free
        again either way.
        """
        if not self._open:
            raise _stopped()
        if self._jobs >= self._most:
            raise Fault(503, "The explorer is busy. Try again in a moment.", "Busy")
        self._jobs += 1
        try:
            worker = await self._take(slow=seconds is not None)
        except BaseException:
            self._jobs -= 1
            raise
        job = json.dumps({"name": name, "data": data}).encode()
        task = self._go(self._do(worker, job, seconds or self._seconds))
        if seconds is not None:
            task.add_done_callback(lambda _: self._slow.release())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _stopped() from None
            raise

    async def stop(self) -> None:
        """End all workers, whatever they are doing, and refuse all jobs."""
        self._open = False
        self._free.put_nowait(None)
        for worker in self._workers:
            worker.kill()  # what waits for it hears of that
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _go(self, step: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(step)
        self._tasks.add(task)
        task.add_done_callback(self._gone)
        return task

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: who asked may have left

    async def _take(self, slow: bool) -> Worker:
        """The next worker that is free and lives."""
        if slow:
            await self._slow.acquire()
        try:
            while True:
                worker = await self._next(slow)
                if worker is None:
                    self._free.put_nowait(None)  # for the next in line
                    raise _stopped()
                if worker.lives:
                    worker.slow |= slow
                    return worker
                self._replace(worker)
        except BaseException:
            if slow:
                self._slow.release()
            raise

    async def _next(self, slow: bool) -> Worker | None:
        """Of those that are free, for slow jobs the one that had some before.

        It has imported the frameworks that they need; another would take seconds to do so again.
        """
        free = [await self._free.get()]
        while not self._free.empty():
            free.append(self._free.get_nowait())
        fit = [each for each in free if each is None or each.slow == slow] or free
        chosen = None if None in fit else fit[0]
        for each in free:
            if each is not chosen:
                self._free.put_nowait(each)
        return chosen

    def _replace(self, worker: Worker) -> None:
        worker.end()
        self._workers.discard(worker)
        if self._open:
            self._go(self._hire())

    async def _do(self, worker: Worker, job: bytes, seconds: float) -> Reply:
        loop = asyncio.get_running_loop()
        try:
            reply = await loop.run_in_executor(self._threads, worker.ask, job, seconds)
        except asyncio.CancelledError:  # all is being stopped, which ends the worker too
            self._jobs -= 1
            raise
        except Exception as error:
            self._jobs -= 1
            self._replace(worker)
            if isinstance(error, TimeoutError):
                message = f"This takes longer than {seconds:g} seconds. {ADVICE}"
                raise Fault(504, message, "TimeUp") from None
            if isinstance(error, (EOFError, OSError)):
                message = f"The process that computed this died, and was replaced. {ADVICE}"
                raise Fault(503, message, "WorkerDied") from None
            raise
        self._jobs -= 1
        self._free.put_nowait(worker)
        return reply

    async def _hire(self) -> None:
        """Start a worker, and let it take jobs once it is ready."""
        loop = asyncio.get_running_loop()
        while self._open:
            worker = Worker(self._memory)
            self._workers.add(worker)
            try:
                await loop.run_in_executor(self._threads, worker.wait_ready)
            except (EOFError, OSError):
                worker.end()
                self._workers.discard(worker)
                await asyncio.sleep(PAUSE)
                continue
            self._free.put_nowait(worker)
            return


def _stopped() -> Fault:
    return Fault(503, "The explorer is being stopped. Start it again.", "Busy")


class Worker:
    """One process, and the pipe to it."""

    def __init__(self, memory: int) -> None:
        context = multiprocessing.get_context("spawn")  # no lock or socket is inherited
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=work_on, args=(far, memory), daemon=True, name="maskwright-worker"
        )
        with _deaf():
            self._process.start()
        far.close()
        self.ready = False
        self.slow = False  # has it ever had a slow job?

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid or 0

    @property
    def lives(self) -> bool:
        """Is the process still there?"""
        return self._process.is_alive()

    def wait_ready(self) -> None:
        """Wait until the process has imported what it needs."""
        if not self._pipe.poll(START_SECONDS) or self._pipe.recv_bytes() != READY:
            raise EOFError
        self.ready = True

    def ask(self, job: bytes, seconds: float) -> Reply:
        """The answer; TimeoutError when time is up, EOFError or OSError if the process died."""
        self._pipe.send_bytes(job)
        if not self._pipe.poll(seconds):
            raise TimeoutError
        head, _, body = self._pipe.recv_bytes().partition(b"\n")
        status, kind = json.loads(head)
        return Reply(status, kind, body)

    def kill(self) -> None:
        """End the process, at once."""
        self._process.kill()

    def end(self) -> None:
        """End the process, wait until it is gone, and close the pipe. No thread may be asking."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """What is started here does not hear Ctrl+C, from its very first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # else it starts in here, and lets Ctrl+C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work_on(pipe: Connection, memory: int) -> None:
    """What a worker process does, until its pipe is closed."""
    from maskwright.explore.desk import answer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all; the server ends its workers
    limit_memory(memory)
    pipe.send_bytes(READY)
    while True:
        try:
            job = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        reply = answer(job["name"], job["data"])
        head = json.dumps([reply.status, reply.kind]).encode()
        pipe.send_bytes(head + b"\n" + reply.body)


def limit_memory(more: int) -> None:
    """Let this process have so many more bytes of address space, where the system can say so."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    except (ImportError, OSError, ValueError):
        return
