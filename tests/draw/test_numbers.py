from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.numbers import in_short, matrix_grid, matrix_scene
from maskwright.draw.scene import Kind


def test_numbers_are_written_while_they_are_few() -> None:
    grid = matrix_grid([[1.0, -0.5]], hidden=[[False, True]])
    assert grid.texts == (("1.00", "−0.50"),)
    assert grid.kinds.tolist() == [[Kind.SEEN, Kind.HIDDEN]]
    assert matrix_grid(np.zeros((17, 2))).texts is None


def test_the_largest_number_seen_is_the_darkest() -> None:
    grid = matrix_grid([[1.0, -4.0, 9.0]], hidden=[[False, False, True]])
    assert grid.shades is not None
    assert grid.shades.tolist() == [[0.25, 1.0, 0.0]]
    endless = matrix_grid([[1.0, -np.inf, np.nan]])
    assert endless.shades is not None
    assert endless.shades.tolist() == [[1.0, 0.0, 0.0]]


def test_large_arrays_become_tiles_that_show_their_largest() -> None:
    values = np.zeros((600, 300))
    values[599, 299] = 2.0
    scene = matrix_scene(values, title="influence")
    (grid,) = scene.grids
    assert grid.block == (3, 2)
    assert grid.shape == (200, 150)
    assert grid.shades is not None
    assert grid.shades[-1, -1] == 1.0
    assert grid.shades.sum() == 1.0
    assert "a sign is 3 × 2 numbers" in scene.note


def test_the_words_have_every_number() -> None:
    words = matrix_scene(
        [[0.5, 0.5]], title="weights", rows=["a"], hidden=[[False, True]]
    ).description
    assert words == "weights, 1 × 2. query a: 0.50, 0.50 hidden."


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(mw.ArgumentError, match="needs two axes"):
        matrix_grid(np.zeros(3))
    with pytest.raises(mw.ArgumentError, match="hidden has shape"):
        matrix_grid(np.zeros((2, 2)), hidden=np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.00"), (-0.0, "0.00"), (1e9, "1e9"), (-3.4e38, "−3e38"), (99999.0, "99999.00")],
)
def test_numbers_in_short(number: float, text: str) -> None:
    assert in_short(number) == text
