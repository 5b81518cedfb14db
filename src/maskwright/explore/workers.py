"""A pool of worker processes, with limits of time and memory for each job.

A job is the name and the body of a request, sent over a pipe; the worker replies with a status, a
media type and bytes. A worker that exceeds its time is killed and replaced, as is one that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maskwright.explore.error_responses import ADVICE, HTTPError, Response
from maskwright.explore.handlers import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from multiprocessing.connection import Connection

    Handler = Callable[[str, bytes], Response]

NUM_WORKERS: Final = 2
MAX_WAITING: Final = 8
TIMEOUT: Final = 5.0  # seconds for a job
START_TIMEOUT: Final = 60.0  # seconds for a worker to import the library
MAX_MEMORY: Final = 256 * 2**20  # bytes that a job may allocate
RESTART_DELAY: Final = 1.0  # seconds
READY: Final = b"ready"
STATM: Final = Path("/proc/self/statm")

# Jobs that import frameworks when a worker does them first. They have their own timeout in seconds,
# and run one at a time, so that a worker is left for the others.
SLOW_JOBS: Final = {"code": 45.0, "cost": 20.0}
# Done once before the limit of memory is set, so that it does not count imports and thread stacks.
WARM_UP: Final = {
    **dict.fromkeys(("mask", "steps"), b'{"subject": {"expression": "causal()"}}'),
    **dict.fromkeys(SLOW_JOBS, b'{"subject": {"expression": "causal()", "size": 256}}'),
    "recognize": b'{"array": [[1, 0], [1, 1]]}',
}


class WorkerPool:
    """Worker processes and the jobs that wait for one. Used from one event loop.

    Args:
        num_workers: The number of worker processes.
        max_waiting: The number of jobs that may wait for a worker.
        timeout: Seconds for a job.
        max_memory: Bytes that a job may allocate.
        handler: The function of a module that workers call with the name and body of a request.
    """

    def __init__(
        self,
        num_workers: int = NUM_WORKERS,
        max_waiting: int = MAX_WAITING,
        timeout: float = TIMEOUT,
        max_memory: int = MAX_MEMORY,
        handler: Handler = dispatch,
    ) -> None:
        self._num_workers, self._max_jobs = num_workers, num_workers + max_waiting
        self._timeout, self._max_memory, self._handler = timeout, max_memory, handler
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._slow_job = False  # whether one is running
        self._changed = asyncio.Condition()  # of _idle, _slow_job or _closed
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(2 * num_workers, "maskwright-worker")
        self._closed = False
        self.num_jobs = 0  # running and waiting

    @property
    def pids(self) -> set[int]:
        """The process ids of the workers."""
        return {worker.pid for worker in self._workers}

    def start(self) -> None:
        """Starts the workers. Jobs may be submitted at once, and wait until one is ready."""
        for _ in range(self._num_workers):
            self._spawn(self._start_worker())

    async def wait_ready(self) -> None:
        """Waits until all workers are ready."""
        while len(self._workers) < self._num_workers or not all(w.ready for w in self._workers):
            await asyncio.sleep(0.01)

    async def submit(self, name: str, body: bytes, timeout: float | None = None) -> Response:
        """The response to a job.

        A job that is cancelled while it waits is removed. One that is running continues until it
        is done or exceeds its time; then its worker is free for others.

        Args:
            name: The name of the request.
            body: The body of the request.
            timeout: Seconds, if not the timeout of the job's kind.

        Raises:
            HTTPError: If there are too many jobs, the time is exceeded, or the worker dies.
        """
        if self._closed:
            raise _stopped()
        if self.num_jobs >= self._max_jobs:
            raise HTTPError(503, "The explorer is busy. Try again in a moment.", "Busy")
        slow = name in SLOW_JOBS
        seconds = timeout or SLOW_JOBS.get(name, self._timeout)
        self.num_jobs += 1
        try:
            worker = await self._acquire(slow)
        except BaseException:
            self.num_jobs -= 1
            raise
        task = self._spawn(self._run(worker, name, body, seconds, slow))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _stopped() from None
            raise

    async def stop(self) -> None:
        """Kills all workers and fails all jobs."""
        self._closed = True
        await self._notify()
        for worker in self._workers:
            worker.kill()  # a thread that waits for it returns
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # An exception counts as retrieved: the client may have disconnected.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _acquire(self, slow: bool) -> Worker:
        """Waits for a worker that is alive."""
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._closed or self._choose(slow) is not None)
                worker = self._choose(slow)
                if self._closed or worker is None:
                    raise _stopped()
                self._idle.remove(worker)
                if worker.alive:
                    worker.has_frameworks |= slow
                    self._slow_job |= slow
                    return worker
                self._replace(worker)

    def _choose(self, slow: bool) -> Worker | None:
        """An idle worker: for slow jobs preferably the one that has imported the frameworks."""
        if slow and self._slow_job:
            return None
        return min(self._idle, key=lambda worker: worker.has_frameworks != slow, default=None)

    async def _run(
        self, worker: Worker, name: str, body: bytes, seconds: float, slow: bool
    ) -> Response:
        loop = asyncio.get_running_loop()
        try:
            response = await loop.run_in_executor(self._threads, worker.run, name, body, seconds)
        except Exception as error:
            self._replace(worker)
            if isinstance(error, TimeoutError):
                message = f"This takes longer than {seconds:g} seconds. {ADVICE}"
                raise HTTPError(504, message, "Timeout") from None
            if isinstance(error, (EOFError, OSError)):
                message = f"The worker process died and was replaced. {ADVICE}"
                raise HTTPError(503, message, "WorkerDied") from None
            raise
        else:
            if worker.retired:
                self._replace(worker)
            else:
                self._idle.append(worker)
            return response
        finally:
            self.num_jobs -= 1
            self._slow_job &= not slow
            if not self._closed:
                await self._notify()

    def _replace(self, worker: Worker) -> None:
        worker.close()
        self._workers.discard(worker)
        if not self._closed:
            self._spawn(self._start_worker())

    async def _start_worker(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            worker = Worker(self._max_memory, self._handler)
            self._workers.add(worker)
            try:
                await loop.run_in_executor(self._threads, worker.wait_ready)
            except (EOFError, OSError):
                worker.close()
                self._workers.discard(worker)
                await asyncio.sleep(RESTART_DELAY)
                continue
            self._idle.append(worker)
            await self._notify()
            return


def _stopped() -> HTTPError:
    return HTTPError(503, "The explorer is being stopped. Start it again.", "Busy")


class Worker:
    """A process and the pipe to it."""

    def __init__(self, max_memory: int, handler: Handler) -> None:
        context = multiprocessing.get_context("spawn")  # inherits no locks and no sockets
        self._pipe, other_end = context.Pipe()
        self._process = context.Process(
            target=run_jobs,
            args=(other_end, max_memory, handler),
            daemon=True,
            name="maskwright-worker",
        )
        with _sigint_blocked():
            self._process.start()
        other_end.close()
        self.ready = False
        self.has_frameworks = False
        self.retired = False  # whether it holds so much memory that it must be replaced

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.is_alive()

    def wait_ready(self) -> None:
        """Waits until the process has imported the library."""
        if not self._pipe.poll(START_TIMEOUT) or self._pipe.recv_bytes() != READY:
            raise EOFError
        self.ready = True

    def run(self, name: str, body: bytes, timeout: float) -> Response:
        """The response to a job. Raises TimeoutError, or EOFError or OSError if the process died."""
        self._pipe.send_bytes(name.encode() + b"\n" + body)
        if not self._pipe.poll(timeout):
            raise TimeoutError
        head, _, content = self._pipe.recv_bytes().partition(b"\n")
        status, retired, media_type = head.decode().split(" ", 2)
        self.retired = retired == "True"
        return Response(int(status), media_type, content)

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()

    def close(self) -> None:
        """Kills the process, waits for its end, and closes the pipe. No thread may use it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Processes started within ignore Ctrl+C from the beginning."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would unblock SIGINT if started within
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── in the worker process ─────────────────────────────────────────────────────────────────────


def run_jobs(pipe: Connection, max_memory: int, handler: Handler) -> None:
    """Runs jobs until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server stops its workers
    for name in WARM_UP.keys() - SLOW_JOBS.keys():
        handler(name, WARM_UP[name])
    cold = set(SLOW_JOBS)
    baseline = limit_memory(max_memory)
    pipe.send_bytes(READY)
    while True:
        try:
            head, _, body = pipe.recv_bytes().partition(b"\n")
        except EOFError:
            return
        name = head.decode()
        if name in cold:
            cold.discard(name)
            limit_memory(None)
            handler(name, WARM_UP[name])
            baseline = limit_memory(max_memory)
        status, media_type, content = handler(name, body)
        retired = data_size() - baseline > max_memory // 2
        pipe.send_bytes(f"{status} {retired} {media_type}\n".encode() + content)


def limit_memory(extra: int | None) -> int:
    """Limits the memory of this process to what it has now and `extra` bytes; None: no limit.

    The limit is on data (private writable memory), because frameworks map large files. It has an
    effect on Linux only.

    Returns:
        The size of the data now.
    """
    size = data_size()
    if size:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = hard if extra is None else size + extra
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return size


def data_size() -> int:
    """Bytes of private writable memory of this process; 0 where it cannot be measured."""
    try:
        import resource

        return int(STATM.read_text().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        return 0
