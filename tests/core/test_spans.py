"""Interval arithmetic against the same arithmetic on bool arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.core.spans import Spans, intersection, union

Sizes = tuple[int, int, int, int]


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return batch, heads, draw(st.integers(0, 9)), draw(st.sampled_from([0, 1, 2, 7, 16, 33]))


@st.composite
def cells(draw: st.DrawFn, size: Sizes) -> np.ndarray:
    """Random cells, dense, sparse or one interval per row, possibly constant along an axis."""
    batch, heads, rows, keys = size
    shape = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), rows, keys)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["sparse", "half", "full", "band"]))
    if kind == "band":
        ends = np.sort(rng.integers(0, keys + 1, (2, *shape[:3])), axis=0)
        place = np.arange(keys)
        return (place >= ends[0][..., None]) & (place < ends[1][..., None])
    return rng.random(shape) < {"sparse": 0.1, "half": 0.5, "full": 0.95}[kind]


def as_spans(array: np.ndarray) -> Spans:
    """Through the public door, so that one-interval rows come in either layout."""
    return mw.dense(array).on(*array.shape[2:]).spans if array.size else empty(array)


def empty(array: np.ndarray) -> Spans:
    return Spans.from_cells(array, array.shape[3])


def as_band(array: np.ndarray) -> Spans:
    """The one-interval layout, for arrays that have one stretch a row at most."""
    low = np.where(array.any(axis=3), array.argmax(axis=3) if array.shape[3] else 0, 0)
    return Spans.from_band(low, low + array.sum(axis=3), array.shape[3], array.shape[2])


def painted(spans: Spans) -> np.ndarray:
    out = np.ones((*spans.shape, spans.kv_len), np.bool_)
    spans.write_dense(out)
    return out


@given(st.data())
def test_set_operations_are_those_of_bool_arrays(data: st.DataObject) -> None:
    size = data.draw(sizes())
    arrays = [data.draw(cells(size)) for _ in range(data.draw(st.integers(2, 4)))]
    parts = [as_spans(array) for array in arrays]
    whole_and = np.logical_and.reduce(np.broadcast_arrays(*arrays))
    whole_or = np.logical_or.reduce(np.broadcast_arrays(*arrays))
    assert np.array_equal(painted(intersection(parts)), whole_and)
    assert np.array_equal(painted(union(parts)), whole_or)
    one, other = parts[:2]
    assert np.array_equal(painted(one - other), arrays[0] & ~arrays[1])
    assert np.array_equal(painted(~one), ~arrays[0])
    assert (one == other) == np.array_equal(*np.broadcast_arrays(*arrays[:2]))


@given(st.data())
def test_both_layouts_answer_equally(data: st.DataObject) -> None:
    batch, heads, rows, keys = data.draw(sizes())
    ends = [data.draw(cells((batch, heads, rows, keys)).filter(one_stretch)) for _ in range(2)]
    bands, flats = [as_band(array) for array in ends], [as_spans(array) for array in ends]
    for band, flat, array in zip(bands, flats, ends, strict=True):
        assert band == flat
        assert band.cells() == flat.cells() == int(array.sum())
        assert np.array_equal(band.empty_rows(), flat.empty_rows())
        assert band.reach() == flat.reach()
        assert ~band == ~flat
        assert band.transpose() == flat.transpose()
        assert band.clip(keys // 2) == flat.clip(keys // 2)
        assert np.array_equal(painted(band), array)
    mixed = [bands[0], flats[1]]
    assert intersection(mixed) == intersection(bands) == intersection(flats)
    assert union(mixed) == union(bands) == union(flats)


def one_stretch(array: np.ndarray) -> bool:
    edges = np.diff(np.pad(array.astype(np.int8), [(0, 0)] * 3 + [(1, 1)]), axis=3)
    return bool(((edges == 1).sum(axis=3) <= 1).all())


@given(st.data())
def test_reshaping_keeps_cells(data: st.DataObject) -> None:
    size = data.draw(sizes())
    array = data.draw(cells(size))
    spans = as_spans(array)
    rows, keys = array.shape[2:]
    assert np.array_equal(painted(spans.transpose()), array.swapaxes(2, 3))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    assert np.array_equal(painted(spans.rows(start, stop)), array[:, :, start:stop])
    assert np.array_equal(painted(spans.clip(keys // 2)), array[..., : keys // 2])
    expanded = spans.expand((size[0], size[1], rows))
    assert np.array_equal(painted(expanded), np.broadcast_to(array, size))
    for axis in (0, 1, 2):
        joined = np.concatenate([array, array[::-1]], axis=axis)
        assert np.array_equal(painted(Spans.stack([spans, as_spans(array[::-1])], axis)), joined)


@given(st.data())
def test_reaches_cover_visible_cells(data: st.DataObject) -> None:
    array = data.draw(cells(data.draw(sizes())))
    reaches = as_spans(array).reaches(most=3)
    assert len(reaches) <= 3
    covered = np.zeros(array.shape[3] + 1, np.bool_)
    for start, stop in reaches:
        assert start < stop
        assert not covered[max(start - 1, 0) : stop].any()  # apart, and in order
        covered[start:stop] = True
    seen = array.any(axis=(0, 1, 2))
    assert not (seen & ~covered[:-1]).any()
    for start, stop in reaches:
        assert seen[start]
        assert seen[stop - 1]


def test_spans_of_bound_mask_cannot_be_written_to() -> None:
    for mask in (mw.causal(), mw.window(back=1) | mw.keys([0])):
        spans = mask.on(4).spans
        for array in (spans.starts, spans.stops, spans.offsets):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
