"""Run a subset of many similar cases in `make test`, and all of them in `make test-all`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = bool(os.environ.get("MASKWRIGHT_ALL_CASES"))
Case = TypeVar("Case")


def subset_of_cases(cases: Sequence[Case], every: int, first: int = 0) -> list[Case]:
    """Every `every`-th case from `first`; all cases if MASKWRIGHT_ALL_CASES is set."""
    return list(cases if ALL else cases[first::every])
