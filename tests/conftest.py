"""How much Hypothesis tries: as `make test` wants it, or MASKWRIGHT_FUZZ cases for `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FUZZ = int(os.environ.get("MASKWRIGHT_FUZZ", "0"))
CASES = FUZZ or 2_000  # of the one test that compares everything with the oracle
SHARES = 2  # it runs in so many parts, side by side

settings.register_profile(
    "maskwright",
    max_examples=max(FUZZ // 10, 200),
    deadline=None,
    database=None if FUZZ else settings.default.database,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("maskwright")
