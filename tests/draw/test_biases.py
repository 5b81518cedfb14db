"""Pictures of biases: signs, one scale, masks, planes, and blocks of many cells."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.matrices import bias_scene
from maskwright.draw.scene import Kind


def test_signs_shades_and_numbers() -> None:
    scene = bias_scene(mw.bias.tensor([[-1.0, 0.0, 2.0]]).on(1, 3))
    (grid,) = scene.grids
    assert grid.kinds.tolist() == [[Kind.FIRST_ONLY, Kind.VISIBLE, Kind.VISIBLE]]
    assert grid.fill.tolist() == [[0.5, 0.0, 1.0]]
    assert grid.texts == (("−1.00", "0.00", "2.00"),)
    assert "negative" in grid.describe_cell(0, 0)


def test_all_heads_have_one_scale() -> None:
    first, second = bias_scene(mw.bias.alibi([1.0, 0.5]).on(2)).grids
    assert first.fill.max() == 1.0
    assert second.fill.max() == 0.5
    assert (first.title, second.title) == ("head 0", "head 1")


def test_one_head_or_batch_row() -> None:
    bound = mw.bias.alibi([1.0, 0.5]).on(2, batch=3)
    (grid,) = bias_scene(bound, head=1, batch=2).grids
    assert grid.texts is not None
    assert grid.texts[0][1] == "−0.50"
    with pytest.raises(mw.ArgumentError):
        bias_scene(bound, head=2)


def test_mask_hides_values_and_does_not_set_the_scale() -> None:
    bound = mw.bias.tensor([[1.0, 100.0], [2.0, 4.0]]).on(2)
    (grid,) = bias_scene(bound, mask=mw.causal().on(2)).grids
    assert grid.kinds[0, 1] == Kind.MASKED
    assert grid.fill.tolist() == [[0.25, 0.0], [0.5, 1.0]]
    with pytest.raises(mw.ArgumentError):
        bias_scene(bound, mask=mw.causal().on(3))


def test_blocks_show_the_value_of_the_largest_size() -> None:
    values = np.zeros((1, 600))
    values[0, 300], values[0, 301] = 1.0, -2.0
    (grid,) = bias_scene(mw.bias.tensor(values).on(1, 600)).grids
    assert grid.block == (1, 3)
    assert grid.kinds[0, 100] == Kind.FIRST_ONLY
    assert grid.fill[0, 100] == 1.0
    assert (grid.kinds == Kind.FIRST_ONLY).sum() == 1


def test_left_out_planes_are_stated() -> None:
    scene = bias_scene(mw.bias.alibi(32).on(2))
    assert len(scene.grids) == 8
    assert "8 of 32" in scene.note


@pytest.mark.parametrize("form", ["svg", "html", "text", "png"])
def test_every_form(form: str) -> None:
    drawn = mw.picture(mw.bias.alibi(2).on(4), form=form)  # type: ignore[arg-type]
    assert len(drawn) > 50
    if form == "svg":
        ET.fromstring(drawn)


def test_notebooks_and_empty_frames() -> None:
    assert mw.bias.alibi(2).on(3)._repr_svg_().startswith("<svg")  # type: ignore[union-attr]
    assert mw.bias.alibi(2).on(0)._repr_svg_()
    with pytest.raises(mw.ArgumentError, match=r"\.on"):
        mw.picture(mw.bias.alibi(2))
