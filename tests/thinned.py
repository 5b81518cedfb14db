"""Fewer of many cases that are alike, so that `make test` is soon done; `make test-all` runs all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = bool(os.environ.get("MASKWRIGHT_ALL_CASES"))
Case = TypeVar("Case")


def thinned(cases: Sequence[Case], every: int, first: int = 0) -> list[Case]:
    """Each `every`-th case, counted from `first`; all of them where that is asked for."""
    return list(cases if ALL else cases[first::every])
