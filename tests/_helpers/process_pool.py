"""Processes that are joined by gloo, for tests over ranks.

They are forked from a server that has imported everything once: importing takes longer than most
tests.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import tempfile
import traceback
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

ROOT = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("tests._helpers.parallel_attention", "tests._helpers.parallel_training"),
        *(
            "tests._helpers.tiny_training",
            "maskwright.apps.language",
            "maskwright.parallel.checkpoint",
        ),
        *("transformers.models.llama.modeling_llama", "maskwright.cli.main"),
        "torch._dynamo",  # which the first optimizer would import
    ]
)


class JobError(Exception):
    """A job failed; `messages` has the error of each rank, or None."""

    def __init__(self, messages: list[str | None]) -> None:
        super().__init__("\n".join(f"rank {n}: {x}" for n, x in enumerate(messages) if x))
        self.messages = messages

    def first_lines(self) -> list[str]:
        """The type and the message of each rank's error."""
        return [str(message).partition("\n")[0] for message in self.messages]


class Pool:
    """Several processes; `run` runs a job on the first `count` of them."""

    def __init__(self, ranks: int, timeout: float = 30.0, by_tcp: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        method = f"tcp://127.0.0.1:{free_port()}" if by_tcp else f"file://{self._folder.name}/store"
        self.workers, self.pipes = _start(
            _serve, [(rank, ranks, method, timeout) for rank in range(ranks)]
        )

    def run(self, job: Callable[..., Any], count: int, *args: Any) -> list[Any]:
        """The results of `job(group, *args)` on each of the first `count` ranks."""
        return self.run_each(job, [args] * count)

    def run_each(self, job: Callable[..., Any], each: list[tuple[Any, ...]]) -> list[Any]:
        """The same, with arguments per rank."""
        self.start_each(job, each)
        return self.results(len(each))

    def start_each(self, job: Callable[..., Any], each: list[tuple[Any, ...]]) -> None:
        """Start a job, for `results`."""
        for pipe, args in zip(self.pipes, each, strict=False):
            pipe.send((job.__module__, job.__name__, len(each), args))

    def results(self, count: int) -> list[Any]:
        """The results of the first `count` ranks."""
        return _results(self.pipes[:count])

    def close(self) -> None:
        """End all processes."""
        _end(self.workers, self.pipes)
        self._folder.cleanup()


def launch(count: int, job: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of `job(*args)` in new processes with the environment that torchrun sets."""
    name, port = (job.__module__, job.__name__), free_port()
    workers, pipes = _start(_run_one, [(rank, count, port, name, args) for rank in range(count)])
    try:
        return _results(pipes)
    finally:
        _end(workers, pipes)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _start(
    target: Callable[..., None], each: list[tuple[Any, ...]]
) -> tuple[list[Any], list[Connection]]:
    workers, pipes = [], []
    for args in each:
        here, there = SERVER.Pipe()
        process = SERVER.Process(target=target, args=(there, *args), daemon=True)
        with import_path():
            process.start()
        there.close()
        workers.append(process)
        pipes.append(here)
    return workers, pipes


def _results(pipes: list[Connection]) -> list[Any]:
    results = [_receive(pipe) for pipe in pipes]
    if not all(is_ok for is_ok, _ in results):
        raise JobError([None if is_ok else str(text) for is_ok, text in results])
    return [result for _, result in results]


def _receive(pipe: Connection) -> tuple[bool, Any]:
    try:
        result: tuple[bool, Any] = pipe.recv()
    except (EOFError, ConnectionResetError):
        return False, "the process ended without a result"
    return result


def _end(workers: list[Any], pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in workers:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def import_path() -> Iterator[None]:
    """The server starts with the first process; it must find the tests, and use one thread."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with mock.patch.dict(os.environ, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}):
        yield


def _serve(pipe: Connection, rank: int, ranks: int, method: str, timeout: float) -> None:
    """Run the jobs that arrive by the pipe, each on a group of the first n ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks, timeout=limit)
    groups = {n: dist.new_group(list(range(n)), timeout=limit) for n in range(1, ranks + 1)}
    with suppress(EOFError):
        while True:
            module, name, count, args = pipe.recv()
            pipe.send(_run(module, name, groups[count], *args))
    dist.destroy_process_group()


def _run_one(
    pipe: Connection, rank: int, ranks: int, port: int, job: tuple[str, str], args: tuple[Any, ...]
) -> None:
    """Run one job, with the environment that torchrun sets."""
    import torch

    torch.set_num_threads(1)
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    pipe.send(_run(*job, *args))


def _run(module: str, name: str, *args: Any) -> tuple[bool, Any]:
    try:
        return True, getattr(importlib.import_module(module), name)(*args)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
