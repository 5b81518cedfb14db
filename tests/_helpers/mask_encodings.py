"""Cells encoded as an array in any convention, and a check that a result is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests._helpers.strategies import bind

if TYPE_CHECKING:
    from maskwright import Frame, Mask, Recognized

CONVENTIONS = (
    "keep", "drop", "int keep", "int drop", "float keep", "float drop", "-inf", "-1e9", "-1e4", "min",
)  # fmt: skip


def encode(cells: np.ndarray, convention: str) -> tuple[Any, str | None]:
    """The cells in this convention, and the polarity argument for it."""
    if convention.endswith(("keep", "drop")):
        values = cells if convention.endswith("keep") else ~cells
        dtype = {"i": np.int64, "f": np.float32}[convention[0]] if " " in convention else np.bool_
        return values.astype(dtype), convention.split()[-1]
    fill = np.finfo(np.float32).min if convention == "min" else float(convention)
    return np.where(cells, 0.0, fill).astype(np.float32), None


def check_exact(found: Recognized, cells: np.ndarray) -> None:
    """Asserts that the mask has exactly these cells on its frame."""
    dense = bind(found.mask, found.frame).dense()
    assert np.array_equal(np.broadcast_to(dense, cells.shape), cells), repr(found.mask)


def cells_on(mask: Mask, frame: Frame) -> np.ndarray:
    """The visible cells of a mask, (batch, heads, queries, keys)."""
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    return np.array(np.broadcast_to(bind(mask, frame).dense(), shape))
