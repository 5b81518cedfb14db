"""Decode steps: one row evaluated in plain Python, and `next()`, which is the same as binding again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.core import evaluate
from maskwright.core.evaluate import RowReader
from maskwright.core.interval_ops import complement_row, intersect_rows, unite_rows
from tests._helpers.strategies import FEW, bind, frames, masks

T = 24
KEEP = np.arange(T) >= np.array([[5], [0]])
MASKS: dict[str, mw.Mask] = {
    "everything": mw.everything(),
    "nothing": mw.nothing(),
    "causal": mw.causal(),
    "window": mw.window(back=3),
    "window ahead": mw.window(back=3, ahead=2),
    "sinks": mw.recipes.sinks(4),
    "chunks": mw.chunks(5) & mw.causal(),
    "prefix": mw.causal() | mw.prefix([3, 0]),
    "keys": mw.causal() & mw.keys([0, 2, 3]),
    "holes": mw.causal() - mw.keys([1, 2, 7]),
    "padding": mw.causal() & mw.padding(lengths=[3, 4]),
    "stride": mw.stride(3),
    "by head": mw.by_head([mw.causal(), mw.window(back=1)]),
    "by batch": mw.by_batch([mw.causal(), mw.nothing()]),
    "transposed": mw.window(back=0, ahead=4).T & mw.causal(),
    "queries": mw.queries([5, 7]) & mw.causal(),
    "where": mw.where(lambda b, h, q, k: (q + k) % 3 == 0),
}
# Their data describes each token, so it has to include the tokens to come.
OF_TOKENS: dict[str, mw.Mask] = {
    "left padding": mw.causal() & mw.padding(keep=KEEP),
    "documents": mw.causal() & mw.documents(ids=np.arange(T)[None] // 7),
    "keys by token": mw.causal() & mw.keys(KEEP),
    "tree": mw.tree([-1, *range(T - 1)]),
    "documents by length": mw.causal() & mw.documents(lengths=[9, 15]),
}


def cells(bound: mw.BoundMask) -> list[Any]:
    return [bound.shape, bound.dense().tolist(), bound.spans.cells()]


@pytest.mark.parametrize("name", MASKS)
def test_next_is_binding_again(name: str) -> None:
    mask = MASKS[name]
    step = mask.on(5)
    for n in range(5, 12):
        step = step.next()
        again = mask.on(1, n + 1)
        assert step == again
        assert cells(step) == cells(again)
        assert cells(step)[1] == mask.on(n + 1).rows(n, n + 1).dense().tolist()


@pytest.mark.parametrize("name", [*MASKS, *OF_TOKENS])
@pytest.mark.parametrize("known", [False, True])
def test_next_within_bound_mask(name: str, known: bool) -> None:
    mask = (MASKS | OF_TOKENS)[name]
    bound = mask.on(T)
    if known:
        assert bound.spans is not None
    growing, static = bound.step(4, kv_len=5), bound.step(4)
    for n in range(5, T):
        growing, static = growing.next(), static.next()
        assert growing.frame == bound.step(n, kv_len=n + 1).frame
        assert static.frame == bound.step(n).frame
        right = bound.dense()[:, :, n : n + 1]
        assert np.array_equal(growing.dense(), right[..., : n + 1])
        assert np.array_equal(static.dense(), right)


@pytest.mark.parametrize("name", ["left padding", "documents", "keys by token", "tree"])
def test_next_beyond_data_is_error(name: str) -> None:
    with pytest.raises(mw.FrameError, match="maximum length"):
        OF_TOKENS[name].on(T).next()


@pytest.mark.parametrize(
    ("bound", "frame"),
    [
        (mw.causal().on(0), (1, 1, 0)),
        (mw.causal().on(1), (1, 2, 1)),
        (mw.causal().on(2, kv_len=7), (1, 8, 7)),
        (mw.causal().on(2, kv_len=7, q_start=0), (1, 7, 2)),
        (mw.causal().on(6, kv_len=7, q_start=0), (1, 7, 6)),
        (mw.causal().on(7, kv_len=7, q_start=0), (1, 8, 7)),
        (mw.causal().on(2, kv_len=3, q_start=9), (1, 4, 11)),
        (mw.causal().on(9).rows(2, 4, kv_len=4), (1, 5, 4)),
        (mw.causal().on(9).rows(2, 4), (1, 9, 4)),
    ],
)
def test_frame_of_next(bound: mw.BoundMask, frame: tuple[int, int, int]) -> None:
    found = bound.next().frame
    assert (found.q_len, found.kv_len, found.q_start) == frame


def test_next_keeps_batch_and_heads() -> None:
    found = mw.causal().on(4, batch=3, heads=2).next().frame
    assert (found.batch, found.heads) == (3, 2)


@given(st.data())
def test_next_of_any_mask(data: st.DataObject) -> None:
    frame = data.draw(frames())
    mask = data.draw(masks(frame, depth=4))
    bound = bind(mask, frame)
    keys = frame.kv_len if frame.kv_len > frame.q_stop else frame.kv_len + 1
    try:
        again = mask.on(1, keys, frame.batch, frame.heads, frame.q_stop)
    except mw.FrameError:
        with pytest.raises(mw.FrameError):
            bound.next()
        return
    assert cells(bound.next()) == cells(again)


@given(st.data())
def test_one_row_equals_numpy(data: st.DataObject) -> None:
    """Every row of any mask, alone in plain Python and with all others in numpy."""
    frame = data.draw(frames())
    bound = bind(data.draw(masks(frame)), frame)
    whole = bound.dense()
    for row in range(min(frame.q_len, 5)):
        part = bound.rows(row, row + 1, kv_len=data.draw(st.integers(0, frame.kv_len)))
        keys = part.frame.kv_len
        assert np.array_equal(part.dense(), whole[:, :, row : row + 1, :keys])
        assert np.array_equal(part.spans.empty_rows(), ~part.dense().any(-1))
        assert part.count() == part.dense().sum() * (
            frame.batch // part.shape[0] * (frame.heads // part.shape[1])
        )


@pytest.mark.parametrize("name", ["causal", "window", "sinks", "padding", "left padding"])
def test_decode_steps_need_no_numpy_evaluation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = (MASKS | OF_TOKENS)[name].on(T)
    monkeypatch.setattr(RowReader, "_evaluate", None)
    assert bound.step(4, kv_len=5).next().spans.kv_len == 6


def test_many_planes_are_evaluated_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = mw.causal() & mw.padding(lengths=list(range(2, 8)))
    expected = mask.on(1, 9).spans
    monkeypatch.setattr(evaluate, "MAX_ROW_PLANES", 5)
    assert mask.on(1, 9).spans == expected


rows = st.lists(st.integers(0, 30), unique=True, max_size=10).map(
    lambda edges: unite_rows([], list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False)))
)


def keys_of(intervals: list[tuple[int, int]]) -> set[int]:
    return {key for start, stop in intervals for key in range(start, stop)}


@given(rows, rows, FEW)
def test_interval_lists(one: Any, other: Any, first: int) -> None:
    both, either = intersect_rows(one, other), unite_rows(one, other)
    inside = intersect_rows(one, [(first, 30)])
    gaps = complement_row(inside, first, 30)
    assert keys_of(both) == keys_of(one) & keys_of(other)
    assert keys_of(either) == keys_of(one) | keys_of(other)
    assert keys_of(gaps) == set(range(first, 30)) - keys_of(inside)
    for found in (both, either, gaps):
        ends = [end for interval in found for end in interval]
        assert ends == sorted(set(ends))  # sorted, not empty, neither overlapping nor touching
