from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.draw.masks import View, difference_grid, difference_of, grid_of, scene_of
from maskwright.draw.scene import Kind
from tests.strategies import bound_masks


def tiled(cells: np.ndarray, block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and shares of every tile, by looking at its cells."""
    shape = tuple(math.ceil(n / b) for n, b in zip(cells.shape, block, strict=True))
    kinds, shares = np.zeros(shape, np.uint8), np.zeros(shape)
    for i in range(shape[0]):
        for j in range(shape[1]):
            part = cells[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            shares[i, j] = part.mean()
            kinds[i, j] = Kind.SEEN if part.all() else Kind.SOME if part.any() else Kind.HIDDEN
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
    most = data.draw(st.integers(1, 12))
    view = View(row, rows, key, keys)
    grid = grid_of(bound, batch=batch, head=head, view=view, most=most)
    cells = dense[batch, head, row : row + rows, key : key + keys]
    kinds, shares = tiled(cells, grid.block)
    assert grid.kinds.tolist() == kinds.tolist()
    assert max(grid.shape, default=0) <= most
    if grid.block != (1, 1):
        assert grid.shades == pytest.approx(shares)
    assert (grid.start, grid.extent) == ((row, key), (rows, keys))


@given(st.data())
def test_a_difference_marks_what_only_one_sees(data: st.DataObject) -> None:
    first = data.draw(bound_masks())
    size = first.shape[2:]
    other = data.draw(st.sampled_from(["causal()", "window(back=2)", "nothing()", "stride(2)"]))
    frame = first.frame
    second = mw.parse(other).on(*size, frame.batch, frame.heads, frame.q_start)
    grid = difference_grid(first, second, most=256)
    mine, theirs = (
        np.broadcast_to(b.dense(), (frame.batch, frame.heads, *size))[0, 0]
        if frame.batch * frame.heads
        else np.zeros(size, bool)
        for b in (first, second)
    )
    want = np.where(mine & theirs, Kind.SEEN, np.where(mine, Kind.FIRST, Kind.HIDDEN))
    want = np.where(theirs & ~mine, Kind.SECOND, want)
    if frame.batch * frame.heads:
        assert grid.kinds.tolist() == want.tolist()


def test_a_tile_in_which_both_differ_is_mixed() -> None:
    grid = difference_grid(mw.causal().on(4), mw.causal().T.on(4), most=1)
    assert grid.kinds.tolist() == [[Kind.MIXED]]


def test_a_million_tokens_are_drawn_from_tiles() -> None:
    bound = mw.window(back=4095).on(2**20)
    scene = scene_of(bound)
    (grid,) = scene.grids
    assert grid.shape == (256, 256)
    assert grid.block == (4096, 4096)
    assert "a sign is 4,096 × 4,096 cells" in scene.note
    shown = float((grid.shades * 4096.0**2).sum())
    assert shown == pytest.approx(bound.count())


def test_what_has_too_many_intervals_is_refused_and_a_part_of_it_drawn() -> None:
    bound = mw.stride(2).on(2**20)
    with pytest.raises(mw.SizeError, match="Draw fewer rows"):
        grid_of(bound)
    part = grid_of(bound, view=View(1000, 4, 1000, 4))
    assert part.kinds.tolist() == [[2, 0, 2, 0], [0, 2, 0, 2], [2, 0, 2, 0], [0, 2, 0, 2]]


def test_planes_that_differ_have_names_and_too_many_are_told() -> None:
    mask = mw.by_head([mw.causal(), mw.everything()]) & mw.padding(lengths=[1, 2, 3, 4, 4])
    scene = scene_of(mask.on(4))
    assert [grid.title for grid in scene.grids[:3]] == [
        "batch 0, head 0",
        "batch 0, head 1",
        "batch 1, head 0",
    ]
    assert len(scene.grids) == 8
    assert scene.note.endswith("2 more batch rows and heads are not drawn")
    few = scene_of(mask.on(4), planes=3)
    assert [grid.title for grid in few.grids] == [grid.title for grid in scene.grids[:3]]
    assert few.note.endswith("7 more batch rows and heads are not drawn")
    with pytest.raises(mw.ArgumentError, match="planes=0 is less than 1"):
        scene_of(mask.on(4), planes=0)
    one = scene_of(mask.on(4), batch=4, head=1)
    assert [grid.title for grid in one.grids] == ["batch 4, head 1"]


def test_tokens_name_rows_and_columns() -> None:
    scene = scene_of(mw.padding(lengths=[1, 2]).on(2), tokens=[["我", "<PAD>"], ["a", "b"]])
    assert [grid.rows for grid in scene.grids] == [("我", "<PAD>"), ("a", "b")]
    assert scene.grids[0].columns == ("我", "<PAD>")
    assert scene.grids[0].says(0, 1) == "query 0 我, key 1 <PAD>: hidden"
    cross = scene_of(mw.everything().on(1, 2), tokens=["x"], key_tokens=["a", "b"])
    assert (cross.grids[0].rows, cross.grids[0].columns) == (("x",), ("a", "b"))


@pytest.mark.parametrize(
    ("given_tokens", "says"),
    [(["a"], "a list has 1 tokens but the mask has 2"), ([["a", "b"]] * 3, "there are 3 lists")],
)
def test_tokens_that_do_not_fit_are_refused(given_tokens: list[str], says: str) -> None:
    with pytest.raises(mw.FrameError, match=says):
        scene_of(mw.padding(lengths=[1, 2]).on(2), tokens=given_tokens)


def test_a_view_that_is_not_there_is_refused() -> None:
    with pytest.raises(mw.FrameError, match="Give some of 4 queries and 4 keys"):
        grid_of(mw.causal().on(4), view=View(0, 5, 0, 4))


def test_the_words_tell_every_row_of_a_small_mask() -> None:
    words = scene_of((mw.window(back=1) | mw.keys([0])).on(4)).description
    assert "query 3 sees keys 0, 2 to 3" in words
    assert "query 0 sees key 0" in words
    assert "sees nothing" in scene_of(mw.nothing().on(2)).description


def test_a_difference_says_how_much_differs() -> None:
    scene = difference_of(mw.causal().on(3), mw.window(back=1).on(3))
    assert "only the first sees 1 cell, only the second 0" in scene.note
    assert scene.title == "causal() against window(back=1)"
    with pytest.raises(mw.FrameError, match="Bind both to the same frame"):
        difference_of(mw.causal().on(3), mw.causal().on(4))
