"""The comparison of cells, and cases of suites that need no other package."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.cells import check_cells
from conformance.suites import flash_attention

CELLS = np.tri(3, dtype=np.bool_)


def test_cells_that_differ() -> None:
    check_cells(lambda: CELLS, lambda: CELLS[None], "maskwright")
    check_cells(lambda: CELLS, lambda: ~CELLS, "original")
    with pytest.raises(AssertionError, match="3 of 9 cells"):
        check_cells(lambda: CELLS, lambda: np.ones((3, 3), np.bool_), "maskwright")
    with pytest.raises(AssertionError, match="int64"):
        check_cells(lambda: CELLS, lambda: CELLS.astype(np.int64), "maskwright")


def test_padding_on_both_sides() -> None:
    case = flash_attention.Case(
        q_len=3,
        kv_len=6,
        kv_heads=1,
        causal=True,
        window=(1, 5),
        chunk=0,
        sink=1,
        softcap=0.0,
        q_lengths=[2, 3],
        kv_lengths=[5, 6],
        left=[1, 0],
    )
    # Keys 1 … 4 for 2 queries, the last of which is aligned with key 4; key 1 is the sink.
    assert flash_attention.cells_of(case, 0).astype(int).tolist() == [
        [0, 1, 1, 1, 0, 0],
        [0, 1, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
