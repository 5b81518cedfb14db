"""How much Hypothesis tries, and which backend Keras runs on; both before anything is imported.

`make fuzz` sets MASKWRIGHT_FUZZ and MASKWRIGHT_TARGET_CASES.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

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
