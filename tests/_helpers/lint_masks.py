"""Masks that the tests of lint share."""

from __future__ import annotations

from typing import Any

import numpy as np

INF = np.inf
LOWEST = float(np.finfo(np.float32).min)
LENGTHS = [3, 6]

PAST = np.tril(np.ones((6, 6), bool))
REAL = np.arange(6) < np.array(LENGTHS)[:, None]  # (2, 6)
KEYS = np.broadcast_to(REAL[:, None, None], (2, 1, 6, 6))
BOTH = PAST & KEYS
SORTED = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]], bool)
PACKED = np.kron(np.eye(2), np.ones((3, 3))).astype(bool) & PAST
EMPTY = PAST & (np.arange(6) > 0)  # row 0 is fully masked


def added(keep: Any, fill: float, dtype: Any = np.float32) -> Any:
    return np.where(keep, 0.0, fill).astype(dtype)
