"""A few processes that are joined by gloo and stay alive over many tests.

They are forked off a server that has imported everything once: importing takes longer than most
tests do.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.parallel import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

ROOT = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        *("tests.parallel.worker", "tests.parallel.jobs", "tests.parallel.training"),
        *("tests.parallel.tiny_task", "maskwright.apps.language", "maskwright.parallel.checkpoint"),
        *("maskwright.apps.weights_over_ranks", "transformers.models.llama.modeling_llama"),
        *("maskwright.cli.app", "torch._dynamo"),  # which the first optimizer would import
    ]
)


class JobError(Exception):
    """What a rank said when a job failed there; `said` has every rank's word."""

    def __init__(self, said: list[str | None]) -> None:
        super().__init__("\n".join(f"rank {n}: {text}" for n, text in enumerate(said) if text))
        self.said = said


class Pool:
    """So many processes; `run` has the first `count` of them do a job together."""

    def __init__(self, ranks: int, seconds: float = 30.0) -> None:
        self._folder = tempfile.TemporaryDirectory()
        store = f"{self._folder.name}/store"
        self.workers, self.pipes = _started(
            worker.serve, [(rank, ranks, store, seconds) for rank in range(ranks)]
        )

    def run(self, job: Callable[..., Any], count: int, *args: Any) -> list[Any]:
        """What each of the first `count` ranks answers to `job(group, *args)`."""
        return self.run_each(job, [args] * count)

    def run_each(self, job: Callable[..., Any], each: list[tuple[Any, ...]]) -> list[Any]:
        """The same, with arguments of its own for every rank."""
        self.ask_each(job, each)
        return self.answers(len(each))

    def ask_each(self, job: Callable[..., Any], each: list[tuple[Any, ...]]) -> None:
        """The same, but wait for nothing; `answers` does that."""
        for pipe, args in zip(self.pipes, each, strict=False):
            pipe.send((job.__module__, job.__name__, len(each), args))

    def answers(self, count: int) -> list[Any]:
        """What each of the first `count` ranks answers to what it was asked."""
        return _answers(self.pipes[:count])

    def close(self) -> None:
        """Let all of them go; those that don't are ended."""
        _let_go(self.workers, self.pipes)
        self._folder.cleanup()


def launch(count: int, job: Callable[..., Any], *args: Any) -> list[Any]:
    """What so many fresh processes answer to `job(*args)`, started as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = (job.__module__, job.__name__)
    workers, pipes = _started(
        worker.launched, [(rank, count, port, name, args) for rank in range(count)]
    )
    try:
        return _answers(pipes)
    finally:
        _let_go(workers, pipes)


def _started(
    target: Callable[..., None], each: list[tuple[Any, ...]]
) -> tuple[list[Any], list[Connection]]:
    workers, pipes = [], []
    for args in each:
        here, there = SERVER.Pipe()
        process = SERVER.Process(target=target, args=(there, *args), daemon=True)
        with own_path():
            process.start()
        there.close()
        workers.append(process)
        pipes.append(here)
    return workers, pipes


def _answers(pipes: list[Connection]) -> list[Any]:
    answers = [_answer(pipe) for pipe in pipes]
    if not all(fine for fine, _ in answers):
        raise JobError([None if fine else str(text) for fine, text in answers])
    return [answer for _, answer in answers]


def _answer(pipe: Connection) -> tuple[bool, Any]:
    try:
        answer: tuple[bool, Any] = pipe.recv()
    except (EOFError, ConnectionResetError):
        return False, "the process ended without an answer"
    return answer


def _let_go(workers: list[Any], pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in workers:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


@contextmanager
def own_path() -> Iterator[None]:
    """The server, started with the first process, finds the tests, and computes with one thread."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    changed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
