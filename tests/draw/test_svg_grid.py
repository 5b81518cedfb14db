"""Grids of an SVG: cells that are alike are one rectangle."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maskwright.draw.svg_grid import merge

SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, max_side=8)


def test_equal_cells_are_merged() -> None:
    kinds = np.zeros((200, 200), np.uint8)
    kinds[50:150, 20:80] = 2
    assert len(list(merge(kinds))) == 5


@given(arrays.arrays(np.uint8, SHAPES, elements=st.integers(0, 2)))
def test_rectangles_cover_every_cell_once(keys: np.ndarray) -> None:
    drawn, times = np.full(keys.shape, 9), np.zeros(keys.shape, int)
    for key, row, column, rows, columns in merge(keys):
        drawn[row : row + rows, column : column + columns] = key
        times[row : row + rows, column : column + columns] += 1
    assert (times == 1).all()
    assert (drawn == keys).all()
