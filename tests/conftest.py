"""Number of Hypothesis examples, the backend of Keras, what is collected, and the limit on skipped tests.

`make fuzz` sets MASKWRIGHT_FUZZ and MASKWRIGHT_TARGET_CASES, `make test-fast` MASKWRIGHT_FAST;
`make test` sets MASKWRIGHT_MAX_SKIPPED, the number of skipped tests above which a run fails.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator

os.environ.setdefault("KERAS_BACKEND", "torch")
gc.disable()  # until all tests are collected

FUZZ = int(os.environ.get("MASKWRIGHT_FUZZ", "0"))
FAST = bool(os.environ.get("MASKWRIGHT_FAST"))
CASES = FUZZ or (40 if FAST else 200)  # of the test that compares masks with the oracle
TARGET_CASES = int(os.environ.get("MASKWRIGHT_TARGET_CASES", "60" if FAST else "350"))
SHARES = 2  # parts of these tests, which run in parallel
MAX_FAST_CASES = 4  # of each parametrised test in fast mode

settings.register_profile(
    "maskwright",
    max_examples=max(FUZZ // 10, 8 if FAST else 32),
    deadline=None,
    database=None if FUZZ else settings.default.database,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("maskwright")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Doctests are in src/ only: to look for them here would import all helpers at once."""
    found = yield
    return [one for one in found if type(one) is pytest.Module]


def pytest_collection_finish() -> None:
    """Leave out of garbage collection what was imported: it is a million objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # frameworks report at exit what was not collected


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In fast mode, drop slow tests and all but a few cases of each parametrised test."""
    if not FAST:
        return
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item for own in cases.values() for item in own[:: -(-len(own) // MAX_FAST_CASES)]}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run that skips more tests than expected: a missing package would hide its tests."""
    limit = os.environ.get("MASKWRIGHT_MAX_SKIPPED")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if limit is None or reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = len(reporter.stats.get("skipped", []))
    if skipped > int(limit) and exitstatus == 0:
        reporter.write_line(f"{skipped} tests were skipped, expected at most {limit}", red=True)
        session.exitstatus = 1
