"""The text of docs/conformance.md, computed from the results."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks.figures import MissingResultError
from benchmarks.measure import table
from conformance.results import RESULTS
from conformance.suites import SUITES

if TYPE_CHECKING:
    from pathlib import Path

    Results = dict[str, dict[str, Any]]

FAMILIES = "transformers."
COUNTS = ["run", "pass with the original", "pass with maskwright"]
INTRODUCTION = """\
# Conformance

The tests of other libraries, run with maskwright in place of their attention or masks. Every test runs
twice, with the library's attention and with maskwright, so that only differences count; a test that differs
runs once more. Tests that the library skips on this machine do not count as run. All differences are
[below](#differences), with their reasons.

`make conformance` runs these tests. The tests of PyTorch, transformers, flash-attention, MagiAttention and
NATTEN are in no package: clone the repositories at the versions that the command names, and pass the
folder, `make conformance SUITES=folder`. No test of another library is part of maskwright."""
NO_DIFFERENCES = "Every test that passes with the original passes with maskwright."


def load(path: Path = RESULTS) -> Results:
    """The results of all suites that were run.

    Raises:
        MissingResultError: If there is no file of results.
    """
    if not path.exists():
        raise MissingResultError(f"{path.name} is missing. Run `python -m conformance`.")
    results: Results = json.loads(path.read_text())
    return results


def page(results: Results) -> str:
    """The whole page."""
    ran = {name: result for name, result in results.items() if not result["not_run"]}
    families = {name: result for name, result in ran.items() if name.startswith(FAMILIES)}
    others = {name: result for name, result in ran.items() if name not in families}
    parts = [INTRODUCTION]
    if others:
        parts += ["## Suites", suites_table(others)]
    if families:
        parts += ["## transformers", families_text(families)]
    parts += ["## Differences", differences_text(ran)]
    if any(result["only_maskwright"] for result in ran.values()):
        parts += ["## Passing with maskwright only", only_maskwright_text(ran)]
    if missing := [name for name in SUITES if name not in ran]:
        parts += ["## Not run", not_run_text(missing, results)]
    return "\n\n".join([*parts, "## Runs", runs_text(ran)]) + "\n"


def suites_table(results: Results) -> str:
    """One row per suite."""
    head = ["suite", "tests", "replaced", "from", *COUNTS]
    return table(head, [[f"`{name}`", *_cells(result)] for name, result in results.items()])


def families_text(results: Results) -> str:
    """One row per model family, and their sums."""
    versions = sorted({result["version"] for result in results.values()})
    columns = ("run", "original", "maskwright")
    rows = [
        [f"`{name.removeprefix(FAMILIES)}`", *(f"{result[column]:,}" for column in columns)]
        for name, result in results.items()
    ]
    sums = [f"{sum(result[column] for result in results.values()):,}" for column in columns]
    head = f"Model tests, number of families: {len(results)}. Tests of {', '.join(versions)}."
    return f"{head}\n\n{table(['family', *COUNTS], [*rows, ['all', *sums]])}"


def differences_text(results: Results) -> str:
    """One row per reason: whose it is, the number of tests, and the suites."""
    counts: Counter[tuple[str, str]] = Counter()
    suites: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        for difference in result["differences"]:
            key = (difference["cause"] or "not known", difference["reason"] or "no reason is known")
            counts[key] += 1
            if name not in suites.setdefault(key, []):
                suites[key].append(name)
    if not counts:
        return NO_DIFFERENCES
    rows = [
        [reason.replace("|", "\\|"), cause, f"{count:,}", _names(suites[cause, reason])]
        for (cause, reason), count in counts.most_common()
    ]
    return table(["reason", "cause", "tests", "suites"], rows)


def only_maskwright_text(results: Results) -> str:
    """The tests that fail with the original and pass with maskwright."""
    rows = [
        [f"`{name}`", ", ".join(f"`{_short(test)}`" for test in result["only_maskwright"])]
        for name, result in results.items()
        if result["only_maskwright"]
    ]
    return table(["suite", "tests"], rows)


def not_run_text(names: list[str], results: Results) -> str:
    """The suites that were not run by reason."""
    reasons: dict[str, list[str]] = {}
    for name in names:
        reason = (
            results[name]["not_run"]
            if name in results
            else "not run yet, run `make conformance SUITES=folder`"
        )
        reasons.setdefault(reason, []).append(name)
    return "\n".join(f"- {_names(names)}: {reason}." for reason, names in reasons.items())


def runs_text(results: Results) -> str:
    """When and at which commits the suites ran."""
    runs: dict[str, list[str]] = {}
    for name, result in results.items():
        commit = (result["commit"] or "an unrecorded commit")[:10]
        state = "" if result["clean"] else " with uncommitted changes"
        versions = ", ".join(
            f"{package} {number}" for package, number in result["versions"].items()
        )
        runs.setdefault(f"{result['date'][:10]}, {commit}{state}, {versions}", []).append(name)
    return "\n".join(f"- {run}: {_names(names)}" for run, names in runs.items())


def _cells(result: dict[str, Any]) -> list[str]:
    drawn = f" (drawn from {result['of']:,})" if result["of"] else ""
    counts = (f"{result[name]:,}" for name in ("run", "original", "maskwright"))
    return [result["title"] + drawn, result["replaced"], result["version"], *counts]


def _names(names: list[str]) -> str:
    """Names of suites; those of one library stand together."""
    libraries: dict[str, list[str]] = {}
    for name in names:
        library, _, part = name.partition(".")
        libraries.setdefault(library, []).append(part)
    return "; ".join(
        f"`{library}`" if parts == [""] else f"{library}: {', '.join(f'`{p}`' for p in parts)}"
        for library, parts in libraries.items()
    )


def _short(test: str) -> str:
    """The name of a test without its file and class."""
    return test.rpartition("::")[2]
