"""Run tests twice, with the original and with maskwright: functions in this process, or pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from conformance.suite import MISSING, Outcome, Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Side: TypeAlias = Literal["original", "maskwright"]

ROOT = Path(__file__).resolve().parent.parent
RECORD = "conformance.plugins.record"
TIMEOUT = "pytest-timeout==2.4.0"  # a package that tests may need
LIMITED = ("--timeout", "120")  # seconds per test, with that package
OUTPUT, SAMPLE, ONLY = (f"MASKWRIGHT_CONFORMANCE_{name}" for name in ("OUTPUT", "SAMPLE", "ONLY"))
WORKERS = "MASKWRIGHT_CONFORMANCE_WORKERS"  # the number of processes of pytest


class RunError(Exception):
    """The runner itself failed, as when pytest cannot collect the tests."""


def run_functions(version: str, tests: Mapping[str, Callable[[Side], None]]) -> Runs:
    """Call each test with "original" and "maskwright"; it raises if it fails."""
    return Runs(
        version,
        {name: _call(test, "original") for name, test in tests.items()},
        {name: _call(test, "maskwright") for name, test in tests.items()},
    )


def _call(test: Callable[[Side], None], side: Side) -> Outcome:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test(side)
    except Exception as error:
        return Outcome("failed", "".join(traceback.format_exception_only(error)).strip())
    return Outcome("passed")


@dataclass(frozen=True)
class Pytest:
    """A call of pytest.

    Attributes:
        folder: The working directory.
        paths: The files, relative to it.
        plugin: The module that puts maskwright in place of the original.
        packages: A folder with further packages that the tests import, or None.
        also: Further plugins, for both runs.
        options: Further arguments.
        environment: Further variables.
        sample: Draw so many tests, always the same; None runs all.
        workers: The number of processes; None stands for the variable `WORKERS`, or 2.
    """

    folder: Path
    paths: tuple[str, ...]
    plugin: str
    packages: Path | None = None
    also: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    sample: int | None = None
    workers: int | None = None

    def run(self, version: str) -> Runs:
        """Run all tests twice, then those that differ once more, of which only the stable count."""
        original, of = self.outcomes("original")
        maskwright, _ = self.outcomes("maskwright")
        unstable = []
        if differing := _differing(original, maskwright):
            again = [
                replace(self, workers=1).outcomes(side, differing)[0]
                for side in ("original", "maskwright")
            ]
            unstable = sorted(set(differing) - set(_differing(*again)))
            original.update({name: again[0].get(name, MISSING) for name in unstable})
            maskwright.update({name: again[1].get(name, MISSING) for name in unstable})
        return Runs(version, original, maskwright, tuple(unstable), of if self.sample else None)

    def outcomes(
        self, side: Side, only: Iterable[str] | None = None
    ) -> tuple[dict[str, Outcome], int]:
        """The outcome of each test, and the number of tests before the sample was drawn."""
        workers = int(os.environ.get(WORKERS, "2")) if self.workers is None else self.workers
        plugins = [RECORD, *self.also, *((self.plugin,) if side == "maskwright" else ())]
        with tempfile.TemporaryDirectory() as temporary:
            output, names = Path(temporary) / "outcomes.json", Path(temporary) / "names.json"
            names.write_text(json.dumps(only and list(only)))
            command = [
                *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull),
                *("--rootdir", str(self.folder)),
                *("-p", "no:cacheprovider"),
                *(word for name in plugins for word in ("-p", name)),
                *(("-n", str(workers)) if workers > 1 else ()),
                *self.options,
                *self.paths,
            ]
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment(output, names),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            if not output.exists():
                raise RunError(f"pytest failed ({side}):\n{done.stdout[:3000]}")
            recorded = json.loads(output.read_text())
        if recorded["errors"]:
            raise RunError(f"pytest cannot collect ({side}):\n{recorded['errors'][0]}")
        outcomes = {name: Outcome(*outcome) for name, outcome in recorded["outcomes"].items()}
        return outcomes, recorded["of"]

    def _environment(self, output: Path, names: Path) -> dict[str, str]:
        paths = filter(None, (ROOT, ROOT / "src", self.packages, self.folder))
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            OUTPUT: str(output),
            ONLY: str(names),
            SAMPLE: str(self.sample or 0),
            **dict(self.environment),
        }


def _differing(original: dict[str, Outcome], maskwright: dict[str, Outcome]) -> list[str]:
    """The tests that pass with the original only, or with maskwright only."""
    return [
        name
        for name, outcome in original.items()
        if outcome.status != "skipped"
        and (outcome.status == "passed") != (maskwright.get(name, MISSING).status == "passed")
    ]
