"""A few processes that are joined by gloo and stay alive over many tests."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


class JobError(Exception):
    """What a rank said when a job failed there; `said` has every rank's word."""

    def __init__(self, said: list[str | None]) -> None:
        super().__init__("\n".join(f"rank {n}: {text}" for n, text in enumerate(said) if text))
        self.said = said


class Pool:
    """So many processes; `run` has the first `count` of them do a job together."""

    def __init__(self, ranks: int, seconds: float = 30.0) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tests.parallel.worker"]
        self.workers = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), f"{self._folder.name}/store", str(seconds)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]

    def run(self, job: Callable[..., Any], count: int, *args: Any) -> list[Any]:
        """What each of the first `count` ranks answers to `job(group, *args)`."""
        return self.run_each(job, [args] * count)

    def run_each(self, job: Callable[..., Any], each: list[tuple[Any, ...]]) -> list[Any]:
        """The same, with arguments of its own for every rank."""
        workers = self.workers[: len(each)]
        for worker, args in zip(workers, each, strict=True):
            assert worker.stdin is not None
            pickle.dump((job.__module__, job.__name__, len(each), args), worker.stdin)
            worker.stdin.flush()
        with ThreadPoolExecutor(len(workers)) as readers:
            answers = list(readers.map(_answer, workers))
        if not all(fine for fine, _ in answers):
            raise JobError([None if fine else str(text) for fine, text in answers])
        return [answer for _, answer in answers]

    def close(self) -> None:
        """Let all of them go; those that don't are ended."""
        for worker in self.workers:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.close()
        for worker in self.workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()
        self._folder.cleanup()


def _answer(worker: subprocess.Popen[bytes]) -> tuple[bool, Any]:
    assert worker.stdout is not None
    try:
        answer: tuple[bool, Any] = pickle.load(worker.stdout)
    except EOFError:
        return False, f"the process ended with {worker.wait()}"
    return answer
