"""What a suite is, and the comparison of its two runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.sources import Sources

Status: TypeAlias = Literal["passed", "failed", "skipped", "missing"]
Cause: TypeAlias = Literal["ours", "theirs", "by design"]

CAUSES: tuple[Cause, ...] = ("ours", "theirs", "by design")
MAX_MESSAGE = 300  # letters of a message in the results


@dataclass(frozen=True)
class Outcome:
    """What happened to a test, with the message of its error or the reason why it was skipped."""

    status: Status
    message: str = ""


MISSING = Outcome("missing", "not collected")


@dataclass(frozen=True)
class Runs:
    """The outcomes of all tests by name: with the library's attention, and with maskwright.

    Attributes:
        version: Library and version from which the tests come.
        original: The outcomes with the library's attention.
        maskwright: The outcomes with maskwright in its place.
        unstable: Tests that differed once, and not when they ran again.
        of: The number of tests from which the tests that ran were drawn, or None for all.
    """

    version: str
    original: dict[str, Outcome]
    maskwright: dict[str, Outcome]
    unstable: tuple[str, ...] = ()
    of: int | None = None


@dataclass(frozen=True)
class Reason:
    """Why tests differ.

    Attributes:
        cause: Whose behaviour it is: a defect of ours, one of theirs, or by design.
        pattern: A regular expression that is searched in the name of a test and its message.
        text: One sentence for the page.
    """

    cause: Cause
    pattern: str
    text: str


@dataclass(frozen=True)
class Suite:
    """The tests of a library.

    Attributes:
        name: The name on the command line: the library, a dot, the part.
        title: What the tests are.
        replaced: What maskwright replaces.
        run: Runs all tests twice. Raises NotRunError if the tests are not there.
        reasons: Why tests differ; the first that matches counts.
    """

    name: str
    title: str
    replaced: str
    run: Callable[[Sources], Runs]
    reasons: tuple[Reason, ...] = ()


def compare(suite: Suite, runs: Runs) -> dict[str, Any]:
    """The numbers of tests that pass, and every test that passes with the original only.

    Tests that are skipped with the original do not count as run.
    """
    ran = {name: outcome for name, outcome in runs.original.items() if outcome.status != "skipped"}
    ours = {name: runs.maskwright.get(name, MISSING) for name in ran}
    passes = [
        {n for n, outcome in run.items() if outcome.status == "passed"} for run in (ran, ours)
    ]
    return {
        "title": suite.title,
        "replaced": suite.replaced,
        "version": runs.version,
        "of": runs.of,
        "skipped": len(runs.original) - len(ran),
        "run": len(ran),
        "original": len(passes[0]),
        "maskwright": len(passes[1]),
        "differences": [
            explain(suite.reasons, name, ours[name]) for name in sorted(passes[0] - passes[1])
        ],
        "only_maskwright": sorted(passes[1] - passes[0]),
        "unstable": sorted(runs.unstable),
    }


def explain(reasons: tuple[Reason, ...], name: str, outcome: Outcome) -> dict[str, str | None]:
    """A test that differs with its cause and reason, None where no reason matches."""
    text = f"{name}: {outcome.status}: {outcome.message}"
    reason = next((r for r in reasons if re.search(r.pattern, text)), None)
    return {
        "test": name,
        "message": outcome.message[:MAX_MESSAGE],
        "cause": reason and reason.cause,
        "reason": reason and reason.text,
    }


def unexplained(result: dict[str, Any]) -> list[str]:
    """The differing tests of a result that have no reason."""
    return [f"{d['test']}: {d['message']}" for d in result["differences"] if not d["reason"]]
