"""Scenes of matrices: numbers, shades and blocks."""

from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.matrices import matrix_grid, matrix_scene
from maskwright.draw.scene import Kind


def test_numbers_are_written_while_they_are_few() -> None:
    grid = matrix_grid([[1.0, -0.5]], hidden=[[False, True]])
    assert grid.texts == (("1.00", "−0.50"),)
    assert grid.kinds.tolist() == [[Kind.VISIBLE, Kind.MASKED]]
    assert matrix_grid(np.zeros((17, 2))).texts is None


def test_the_largest_visible_number_is_the_darkest() -> None:
    grid = matrix_grid([[1.0, -4.0, 9.0]], hidden=[[False, False, True]])
    assert grid.fill.tolist() == [[0.25, 1.0, 0.0]]
    assert matrix_grid([[1.0, -np.inf, np.nan]]).fill.tolist() == [[1.0, 0.0, 0.0]]


def test_blocks_of_large_matrices_show_their_maximum() -> None:
    values = np.zeros((600, 300))
    values[599, 299] = 2.0
    scene = matrix_scene(values, title="influence")
    (grid,) = scene.grids
    assert grid.block == (3, 2)
    assert grid.shape == (200, 150)
    assert grid.fill[-1, -1] == 1.0
    assert grid.fill.sum() == 1.0
    assert "maximum of each block" in scene.note


def test_the_text_alternative_has_every_number() -> None:
    text = matrix_scene(
        [[0.5, 0.5]], title="weights", rows=["a"], hidden=[[False, True]]
    ).description
    assert text == "weights, 1 × 2. query a: 0.50, 0.50 masked."


def test_invalid_matrices_are_refused() -> None:
    with pytest.raises(mw.ArgumentError, match=r"two axes.*\(3,\)"):
        matrix_grid(np.zeros(3))
    with pytest.raises(mw.ArgumentError, match=r"hidden.*\(2, 2\).*\(1, 2\)"):
        matrix_grid(np.zeros((2, 2)), hidden=np.zeros((1, 2)))
