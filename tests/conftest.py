"""Number of Hypothesis examples, the backend of Keras, and the limit on skipped tests.

`make fuzz` sets MASKWRIGHT_FUZZ and MASKWRIGHT_TARGET_CASES; `make test` sets
MASKWRIGHT_MAX_SKIPPED, the number of skipped tests above which a run fails.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")

FUZZ = int(os.environ.get("MASKWRIGHT_FUZZ", "0"))
CASES = FUZZ or 200  # of the one test that compares everything with the oracle
TARGET_CASES = int(os.environ.get("MASKWRIGHT_TARGET_CASES", "350"))  # mask × target
SHARES = 2  # it runs in so many parts, side by side

settings.register_profile(
    "maskwright",
    max_examples=max(FUZZ // 10, 32),
    deadline=None,
    database=None if FUZZ else settings.default.database,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("maskwright")


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
