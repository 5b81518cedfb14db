"""Cells written as an array in any convention, and the check that an answer is exactly them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.strategies import bind

if TYPE_CHECKING:
    from maskwright import Recognized

CONVENTIONS = (
    "keep", "drop", "int keep", "int drop", "float keep", "float drop", "-inf", "-1e9", "-1e4", "min",
)  # fmt: skip


def written(cells: np.ndarray, convention: str) -> tuple[Any, str | None]:
    """The cells in this convention, and the polarity that says how to read them."""
    if convention.endswith(("keep", "drop")):
        lit = cells if convention.endswith("keep") else ~cells
        kind = {"i": np.int64, "f": np.float32}[convention[0]] if " " in convention else np.bool_
        return lit.astype(kind), convention.split()[-1]
    fill = np.finfo(np.float32).min if convention == "min" else float(convention)
    return np.where(cells, 0.0, fill).astype(np.float32), None


def check_exact(found: Recognized, cells: np.ndarray) -> None:
    """The mask, on its frame, is exactly the cells."""
    again = bind(found.mask, found.frame).dense()
    assert np.array_equal(np.broadcast_to(again, cells.shape), cells), repr(found.mask)
