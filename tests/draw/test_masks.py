"""Scenes of masks: cells, blocks, differences, tiles, labels and views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.draw.masks import (
    GridOptions,
    View,
    difference_grid,
    difference_of,
    grid_of,
    scene_of,
    tiles_scene,
)
from maskwright.draw.scene import Kind
from maskwright.engine.cost import WorkEstimate
from tests._helpers.strategies import bound_masks


def tiled(cells: np.ndarray, block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and visible shares of blocks, from their cells."""
    shape = tuple(math.ceil(n / b) for n, b in zip(cells.shape, block, strict=True))
    kinds, shares = np.zeros(shape, np.uint8), np.zeros(shape)
    for i in range(shape[0]):
        for j in range(shape[1]):
            part = cells[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            shares[i, j] = part.mean()
            kinds[i, j] = (
                Kind.VISIBLE if part.all() else Kind.PARTIAL if part.any() else Kind.MASKED
            )
    return kinds, shares


@given(bound_masks(), st.data())
def test_a_grid_shows_the_cells_of_the_dense_mask(bound: mw.BoundMask, data: st.DataObject) -> None:
    dense = np.broadcast_to(bound.dense(), (bound.frame.batch, bound.frame.heads, *bound.shape[2:]))
    if not dense.shape[0] * dense.shape[1]:
        return
    batch = data.draw(st.integers(0, dense.shape[0] - 1))
    head = data.draw(st.integers(0, dense.shape[1] - 1))
    row, key = (data.draw(st.integers(0, n)) for n in dense.shape[2:])
    rows, keys = (
        data.draw(st.integers(0, n - first))
        for n, first in zip(dense.shape[2:], (row, key), strict=True)
    )
    max_cells = data.draw(st.integers(1, 12))
    view = View(row, rows, key, keys)
    grid = grid_of(bound, GridOptions(batch, head, view, max_cells))
    cells = dense[batch, head, row : row + rows, key : key + keys]
    kinds, shares = tiled(cells, grid.block)
    assert grid.kinds.tolist() == kinds.tolist()
    assert max(grid.shape, default=0) <= max_cells
    if grid.block != (1, 1):
        assert grid.shades == pytest.approx(shares)
    assert (grid.start, grid.extent) == ((row, key), (rows, keys))


@given(st.data())
def test_a_difference_marks_cells_of_only_one_mask(data: st.DataObject) -> None:
    first = data.draw(bound_masks())
    size = first.shape[2:]
    other = data.draw(st.sampled_from(["causal()", "window(back=2)", "nothing()", "stride(2)"]))
    frame = first.frame
    second = mw.parse(other).on(*size, frame.batch, frame.heads, frame.q_start)
    grid = difference_grid(first, second, GridOptions(max_cells=256))
    mine, theirs = (
        np.broadcast_to(b.dense(), (frame.batch, frame.heads, *size))[0, 0]
        if frame.batch * frame.heads
        else np.zeros(size, bool)
        for b in (first, second)
    )
    want = np.where(mine & theirs, Kind.VISIBLE, np.where(mine, Kind.FIRST_ONLY, Kind.MASKED))
    want = np.where(theirs & ~mine, Kind.SECOND_ONLY, want)
    if frame.batch * frame.heads:
        assert grid.kinds.tolist() == want.tolist()


def test_a_tile_in_which_both_differ_is_mixed() -> None:
    grid = difference_grid(mw.causal().on(4), mw.causal().T.on(4), GridOptions(max_cells=1))
    assert grid.kinds.tolist() == [[Kind.BOTH_DIFFER]]


def test_a_million_tokens_are_drawn_from_tiles() -> None:
    bound = mw.window(back=4095).on(2**20)
    scene = scene_of(bound)
    (grid,) = scene.grids
    assert grid.shape == (256, 256)
    assert grid.block == (4096, 4096)
    shown = float((grid.shades * 4096.0**2).sum())
    assert shown == pytest.approx(bound.count())


def test_too_many_intervals_are_refused_and_a_view_is_drawn() -> None:
    bound = mw.stride(2).on(2**20)
    with pytest.raises(mw.SizeError, match="Draw fewer rows"):
        grid_of(bound)
    part = grid_of(bound, GridOptions(view=View(1000, 4, 1000, 4)))
    assert part.kinds.tolist() == [[2, 0, 2, 0], [0, 2, 0, 2], [2, 0, 2, 0], [0, 2, 0, 2]]


def test_planes_have_names_and_omitted_ones_are_counted() -> None:
    mask = mw.by_head([mw.causal(), mw.everything()]) & mw.padding(lengths=[1, 2, 3, 4, 4])
    scene = scene_of(mask.on(4))
    titles = ["batch 0, head 0", "batch 0, head 1", "batch 1, head 0"]
    assert [grid.title for grid in scene.grids[:3]] == titles
    assert len(scene.grids) == 8
    assert scene.note.endswith("2 more batch rows and heads are not drawn")
    few = scene_of(mask.on(4), max_planes=3)
    assert [grid.title for grid in few.grids] == titles
    assert few.note.endswith("7 more batch rows and heads are not drawn")
    one = scene_of(mask.on(4), batch=4, head=1)
    assert [grid.title for grid in one.grids] == ["batch 4, head 1"]


def test_tokens_name_rows_and_columns() -> None:
    scene = scene_of(mw.padding(lengths=[1, 2]).on(2), tokens=[["我", "<PAD>"], ["a", "b"]])
    assert [grid.rows for grid in scene.grids] == [("我", "<PAD>"), ("a", "b")]
    assert scene.grids[0].columns == ("我", "<PAD>")
    assert scene.grids[0].describe_cell(0, 1) == "query 0 我, key 1 <PAD>: masked"
    cross = scene_of(mw.everything().on(1, 2), tokens=["x"], key_tokens=["a", "b"])
    assert (cross.grids[0].rows, cross.grids[0].columns) == (("x",), ("a", "b"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tokens": ["a"]}, "expected 2 tokens, got 1"),
        ({"tokens": [["a", "b"]] * 3}, "got 3 lists"),
        ({"view": View(0, 3, 0, 2)}, "view.*2 queries and 2 keys"),
        ({"max_planes": 0}, "max_planes.*got 0"),
        ({"max_cells": 0}, "max_cells.*got 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(mw.MaskError, match=match):
        scene_of(mw.padding(lengths=[1, 2]).on(2), **options)


def test_the_text_alternative_has_every_row_of_a_small_mask() -> None:
    text = scene_of((mw.window(back=1) | mw.keys([0])).on(4)).description
    assert "query 3 attends to keys 0, 2 to 3" in text
    assert "query 0 attends to key 0" in text
    assert "attends to no key" in scene_of(mw.nothing().on(2)).description


def test_a_difference_counts_cells() -> None:
    scene = difference_of(mw.causal().on(3), mw.window(back=1).on(3))
    assert "visible only in the first: 1, only in the second: 0" in scene.note
    assert scene.title == "causal() compared with window(back=1)"
    with pytest.raises(mw.FrameError, match="Bind both to the same frame"):
        difference_of(mw.causal().on(3), mw.causal().on(4))


@pytest.mark.parametrize("block", [(8, 32), (128, 1), (16, 16)])
@pytest.mark.parametrize(
    "mask",
    [
        mw.window(back=20) | (mw.keys([0, 1]) & mw.causal()),
        mw.causal() & mw.documents(lengths=[[60, 100, 40, 50]]),
        mw.by_head([mw.causal(), mw.window(back=3)]),
        mw.nothing(),
    ],
)
def test_tiles_are_those_of_the_kernel(mask: mw.Mask, block: tuple[int, int]) -> None:
    bound = mask.on(250)
    scene = tiles_scene(bound, WorkEstimate(*block, 64, 32, 1000, 500, 1.0), head=1)
    (grid,) = scene.grids
    assert grid.block == block
    kinds, _ = tiled(bound.dense()[0, -1], block)
    assert grid.kinds.tolist() == kinds.tolist()
    assert "32 of 64 tiles" in scene.note


def test_small_tiles_of_a_long_sequence_are_joined() -> None:
    work = WorkEstimate(8, 32, 64, 32, 1000, 500, 1.0)
    (grid,) = tiles_scene(mw.causal().on(65536), work).grids
    assert grid.block == (256, 256)
