"""Tiny models of all families of the installed transformers; the original is their eager attention."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks import measure
from conformance.runners import ROOT, RunError
from conformance.sources import NotRunError, installed
from conformance.suite import Outcome, Reason, Runs, Suite
from maskwright._atomic_write import create_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from conformance.sources import Sources

SWEEP = "tests.integrations.sweep"
PASSED = ("equal", "not used")
REASONS = (
    Reason(
        "theirs",
        "attentions: failed: by design: ",
        "The weights of eager leave the sinks out, which are in its output.",
    ),
    Reason(
        "by design",
        "recurrent_gemma, generate_padded: failed: refused: ",
        "A cache that makes a mask of one key for a decode step is refused.",
    ),
    Reason("by design", "failed: refused: ", "The model is in the list of unsupported models."),
)


def run(sources: Sources) -> Runs:
    """All checks of all families. A run that was ended goes on where it stopped, at the same commit."""
    release = installed("transformers")
    if find_spec(SWEEP) is None:
        raise NotRunError(f"{SWEEP} does not exist")
    commit = measure.source()["commit"]
    lines = run_sweep(sources.cache / f"families-{release}-{commit}.jsonl")
    sweep = import_module(SWEEP)
    original, maskwright = read_outcomes(lines, sweep.unlisted([sweep.Result(**x) for x in lines]))
    families = {name.partition(", ")[0] for name, x in original.items() if x.status == "passed"}
    total = len({line["family"] for line in lines})
    version = f"transformers {release}, {len(families)} of {total} model types"
    return Runs(version, original, maskwright)


def read_outcomes(
    lines: Iterable[dict[str, str]], unlisted: Collection[str]
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """The outcomes with eager attention, and with maskwright.

    Args:
        lines: The lines of the sweep.
        unlisted: Families that maskwright refuses or that do not use it, and that are not in the list of
            unsupported models. These checks fail.
    """
    original, maskwright = {}, {}
    for line in lines:
        name, result = f"{line['family']}, {line['check']}", line["result"]
        if result in ("refused", "not used") and line["family"] in unlisted:
            result = f"not in the list of unsupported models, {result}"
        message = f"{result}: {line['reason']}"
        ran = result != "not run"
        original[name] = Outcome("passed") if ran else Outcome("skipped", message)
        passed = result in PASSED
        maskwright[name] = Outcome("passed") if passed else Outcome("failed", message)
    return original, maskwright


def run_sweep(output: Path, families: Iterable[str] = ()) -> list[dict[str, str]]:
    """The lines of the sweep, one per family and check.

    Args:
        output: A file for the lines while the sweep runs. Families that it has do not run again.
        families: The families; all without any.

    Raises:
        RunError: If a family is missing in the end.
    """
    sweep = import_module(SWEEP)
    lines = read_lines(output, len(sweep.CHECKS))
    expected, ran = {*families} or {*sweep.families()}, {line["family"] for line in lines}
    if remaining := sorted(expected - ran):
        create_folder(output.parent)
        with output.open("w") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
            file.flush()
            command = [sys.executable, "-m", SWEEP, *remaining]
            done = subprocess.run(
                command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE, text=True, check=False
            )
        lines = read_lines(output, len(sweep.CHECKS))
        if {line["family"] for line in lines} != expected:
            raise RunError(f"{SWEEP} failed:\n{done.stderr[-3000:]}")
    output.unlink()
    return lines


def read_lines(output: Path, checks: int) -> list[dict[str, str]]:
    """The lines of the families of which the file has all checks; none without the file."""
    if not output.exists():
        return []
    text = output.read_text().splitlines()
    lines = [json.loads(line) for line in text if line.startswith("{") and line.endswith("}")]
    counts = Counter(line["family"] for line in lines)
    return [line for line in lines if counts[line["family"]] == checks]


SUITE = Suite(
    "families",
    "tiny models of all families of transformers: forward, padded, generate, gradients, weights",
    '"eager" of the attention interface',
    run,
    REASONS,
)
