"""Comparison of the cells of masks, for suites whose cases are objects of a library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.runners import Side


def check_cells(theirs: Callable[[], Any], ours: Callable[[], Any], side: Side) -> None:
    """Raise if maskwright's cells are not those of the library, True where a query attends.

    Args:
        theirs: Returns the cells of the library's object, by its own functions.
        ours: Returns the cells of maskwright's, called for "maskwright" only.
        side: Which of the two runs.

    Raises:
        AssertionError: If cells differ.
    """
    expected = np.asarray(theirs(), np.bool_)
    if side == "maskwright":
        cells, expected = np.broadcast_arrays(ours(), expected)
        if cells.dtype != np.bool_:
            raise AssertionError(f"the cells have dtype {cells.dtype}")
        if count := int((cells != expected).sum()):
            raise AssertionError(f"{count} of {expected.size} cells differ")
