"""Writes the outcome of every test as JSON, and draws the tests that run."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.runners import ONLY, OUTPUT, SAMPLE

if TYPE_CHECKING:
    import pytest

outcomes: dict[str, tuple[str, str]] = {}
errors: list[str] = []
collected = 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that are named, or a sample that depends on their names only."""
    global collected
    collected = len(items)
    only, sample = json.loads(Path(os.environ[ONLY]).read_text()), int(os.environ[SAMPLE])
    kept = items
    if only is not None:
        kept = [item for item in items if item.nodeid in set(only)]
    elif sample:
        drawn = {id(item) for item in sorted(items, key=_random)[:sample]}
        kept = [item for item in items if id(item) in drawn]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _random(item: pytest.Item) -> str:
    return hashlib.sha256(item.nodeid.encode()).hexdigest()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Files that cannot be imported."""
    if report.failed:
        errors.append(str(report.longrepr)[-2000:])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The first phase that does not pass decides."""
    known = outcomes.get(report.nodeid, ("passed", ""))
    if known[0] == "passed":
        status = report.outcome if not hasattr(report, "wasxfail") else "skipped"
        outcomes[report.nodeid] = (status, "" if status == "passed" else _message(report.longrepr))


def _message(longrepr: Any) -> str:
    if isinstance(longrepr, tuple):  # of a skipped test: file, line, reason
        return str(longrepr[2])
    crash = getattr(longrepr, "reprcrash", None)
    message = str(longrepr if crash is None else crash.message)
    return message.partition("\nTo execute this test")[0].strip()  # which PyTorch appends


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes, with pytest-xdist in the process that starts the others."""
    if not hasattr(session.config, "workerinput"):
        content = {"outcomes": outcomes, "errors": errors, "of": collected}
        Path(os.environ[OUTPUT]).write_text(json.dumps(content))
