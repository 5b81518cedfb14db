"""Everything a bound mask answers, against the scalar oracle, over free compositions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from maskwright.core import evaluate, expr, operators
from maskwright.core.atoms import array as atoms_array
from maskwright.core.atoms.array import Where
from maskwright.core.expr import brief, walk
from maskwright.core.operators import And, Or
from maskwright.core.oracle import truth
from tests._helpers.strategies import bind, cases
from tests.conftest import CASES, SHARES


def cells(mask: Mask, frame: Frame) -> np.ndarray:
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    return np.array(truth(mask, frame), np.bool_).reshape(shape)


@pytest.mark.parametrize("share", range(SHARES))
@settings(max_examples=CASES // SHARES)
@given(case=cases(), data=st.data())
def test_every_answer_is_oracles(share: int, case: tuple[Mask, Frame], data: st.DataObject) -> None:
    mask, frame = case
    note(f"{mask!r}\n{frame}")
    event(f"depth {mask._depth}")
    right = cells(mask, frame)
    with pytest.MonkeyPatch.context() as patch:
        read_in_small_parts(patch, data)
        check_everything(mask, frame, right, data)


def read_in_small_parts(patch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """What a large mask goes through, on a small one: many blocks of rows, and narrowed terms."""
    if data.draw(st.booleans()):
        rows, cells = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 300))
        patch.setattr(evaluate, "MAX_ROWS", rows)
        patch.setattr(evaluate, "MAX_INTERVALS", data.draw(st.integers(1, 300)))
        patch.setattr(evaluate, "MAX_CELLS", cells)
        patch.setattr(evaluate, "MIN_KEYS", data.draw(st.integers(1, 8)))
        if data.draw(st.booleans()):  # count by formula
            patch.setattr(evaluate, "INTERVALS_PER_REGION", -(2**20))
        patch.setattr(expr, "MAX_TRANSPOSED", data.draw(st.integers(1, 20)))
        patch.setattr(atoms_array, "MAX_CELLS", cells)
        patch.setattr(operators, "MAX_CHEAP_INTERVALS", data.draw(st.sampled_from([0, 1, 8])))


def check_everything(mask: Mask, frame: Frame, right: np.ndarray, data: st.DataObject) -> None:
    bound = bind(mask, frame)

    # dense, and which axes vary
    dense = bound.dense()
    assert dense.shape == bound.shape
    assert np.array_equal(np.broadcast_to(dense, right.shape), right)

    check_spans(bound.spans, right)
    assert np.diff(bound.spans.offsets).max(initial=0) <= mask._max_intervals
    fresh = bind(mask, frame)  # its spans are not read yet: answers come in blocks of rows
    assert fresh.count() == bound.count() == int(right.sum())
    assert fresh.density == (right.mean() if right.size else 0.0)
    planes = (frame.batch, frame.heads)
    empty = np.broadcast_to(fresh.empty_rows(), (*planes, frame.q_len))
    assert np.array_equal(empty, ~right.any(axis=3))
    unseen = np.broadcast_to(fresh.unseen_keys(), (*planes, frame.kv_len))
    assert np.array_equal(unseen, ~right.any(axis=2))

    tall, broad = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1, 3, 16, 32, 64, 100]))
    check_tiles(fresh.tiles(tall, broad), right)
    check_parts(bound if data.draw(st.booleans()) else fresh, right, data)
    check_why(bound, right, data)
    check_unbound_parts(mask, frame, data)

    assert bound.equals(mw.dense(right))
    simple = mw.simplify(mask)
    assert np.array_equal(cells(simple, frame), right)
    assert mw.simplify(simple) == simple
    if not any(isinstance(part, Where) for part in walk(mask)):
        for said in (mask, simple):
            check_text(said)


@given(cases(), st.data())
def test_equals_names_first_differing_cell(case: tuple[Mask, Frame], data: st.DataObject) -> None:
    mask, frame = case
    right = cells(mask, frame)
    if not right.size:
        return
    index = data.draw(st.integers(0, right.size - 1))
    other = right.copy()
    other.flat[index] ^= True
    where = tuple(int(i) for i in np.unravel_index(index, right.shape))
    found = bind(mask, frame).equals(mw.dense(other))
    assert not found
    assert found.cell == where
    assert found.left == right[where]


def check_text(mask: Mask) -> None:
    for again in (mw.parse(repr(mask)), mw.from_json(mw.to_json(mask))):
        assert again == mask
        assert hash(again) == hash(mask)


def check_spans(spans: mw.Spans, right: np.ndarray) -> None:
    b, h, rows = spans.shape
    offsets, starts, stops = spans.offsets, spans.starts, spans.stops
    assert offsets.shape == (b * h * rows + 1,)
    assert starts.size == stops.size == offsets[-1]
    assert bool((starts < stops).all())
    for row in range(b * h * rows):  # sorted, disjoint, and never touching
        mine = slice(offsets[row], offsets[row + 1])
        assert bool((starts[mine][1:] > stops[mine][:-1]).all())
    for batch in range(right.shape[0]):
        for head in range(right.shape[1]):
            for row in range(right.shape[2]):
                seen = [
                    k for start, stop in spans.row(row, batch, head) for k in range(start, stop)
                ]
                assert seen == np.flatnonzero(right[batch, head, row]).tolist()


def check_tiles(tiles: mw.Tiles, right: np.ndarray) -> None:
    batch, heads, q_len, kv_len = right.shape
    tall, broad = tiles.q_block, tiles.kv_block
    grid = (-(-q_len // tall), -(-kv_len // broad))
    kinds = np.broadcast_to(tiles.kinds(), (batch, heads, *grid))
    for b in range(batch):
        for h in range(heads):
            for i in range(grid[0]):
                for j in range(grid[1]):
                    tile = right[b, h, i * tall : (i + 1) * tall, j * broad : (j + 1) * broad]
                    expected = 2 if tile.all() else 1 if tile.any() else 0
                    assert kinds[b, h, i, j] == expected
    held = tiles.kinds()
    assert tiles.counts() == {
        "empty": int((held == 0).sum()),
        "partial": int((held == 1).sum()),
        "full": int((held == 2).sum()),
    }


def check_parts(bound: mw.BoundMask, right: np.ndarray, data: st.DataObject) -> None:
    q_len, kv_len = right.shape[2:]
    start = data.draw(st.integers(0, q_len))
    stop = data.draw(st.integers(start, q_len))
    keys = data.draw(st.sampled_from([kv_len, kv_len // 2]))
    part = bound.rows(start, stop, keys)
    expected = right[:, :, start:stop, :keys]
    assert np.array_equal(np.broadcast_to(part.dense(), expected.shape), expected)
    assert part.count() == int(expected.sum())
    check_spans(part.spans, expected)
    if q_len:
        row = data.draw(st.integers(0, q_len - 1))
        few = data.draw(st.integers(0, kv_len))
        short = bound.step(bound.frame.q_start + row, kv_len=few)
        row_of = right[:, :, row : row + 1, :few]
        assert np.array_equal(np.broadcast_to(short.dense(), row_of.shape), row_of)
        step = bound.step(bound.frame.q_start + row)
        assert step.frame.q_start == bound.frame.q_start + row
        one = right[:, :, row : row + 1]
        assert np.array_equal(np.broadcast_to(step.dense(), one.shape), one)


def check_unbound_parts(mask: Mask, frame: Frame, data: st.DataObject) -> None:
    """Rows and steps straight from the expression, where its data fits such a frame."""
    start = data.draw(st.integers(0, 12))
    stop = data.draw(st.integers(start, 14))
    try:
        part = mask.rows(start, stop, batch=frame.batch, heads=frame.heads)
        step = mask.step(start, batch=frame.batch, heads=frame.heads)
    except mw.FrameError:
        return
    for bound in (part, step):
        expected = cells(mask, bound.frame)
        assert np.array_equal(np.broadcast_to(bound.dense(), expected.shape), expected)
    assert part.frame.q_start == step.frame.q_start == start
    assert (part.frame.kv_len, step.frame.kv_len) == (stop, start + 1)


def check_why(bound: mw.BoundMask, right: np.ndarray, data: st.DataObject) -> None:
    if not right.size:
        return
    index = data.draw(st.integers(0, right.size - 1))
    b, h, q, k = (int(i) for i in np.unravel_index(index, right.shape))
    why = bound.why(q, k, batch=b, head=h)
    assert why.visible == right[b, h, q, k]
    verb = "attends to" if why.visible else "does not attend to"
    assert str(why).startswith(f"query {q} ")
    assert f" {verb} key {k}: " in str(why)
    terms = bound.mask.terms if isinstance(bound.mask, (And, Or)) else ()
    for term in terms:
        if cells(term, bound.frame)[b, h, q, k] == why.visible:
            verdict = "allows it" if why.visible else "masks it"
        elif not why.visible:
            verdict = "would allow it"
        else:
            continue
        assert any(f"{text} {verdict}" in str(why) for text in (brief(term), f"({brief(term)})"))
