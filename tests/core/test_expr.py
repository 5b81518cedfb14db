"""Masks as values: equality, hashing, copies, foreign arrays, and what stays untouched."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.core import evaluate, expr, operators
from tests._helpers.strategies import bind, cases

MASKS = [
    mw.causal() & mw.padding(lengths=[3, 4]),
    mw.window(back=2) | ~mw.keys(range(4)),
    mw.by_head([mw.causal(), mw.documents(ids=[[0, 0, 1, -1]])]),
    mw.dense(np.tri(4, dtype=bool)).T - mw.tree([-1, 0, 0, 2]),
    mw.blocks([[1, 0], [1, 1]], size=2) & mw.graph([(0, 1)]) & mw.image(2, 2, 1),
]


def test_bound_masks_compare_by_mask_and_frame() -> None:
    for mask in MASKS:
        bound = mask.on(4)
        assert (bound, hash(bound)) == (mask.on(4), hash(mask.on(4)))
    assert mw.causal().on(4) != mw.causal().on(4, q_start=1)


def test_different_masks_differ() -> None:
    assert len(set(MASKS)) == len(MASKS)
    assert mw.window(back=2) != mw.window(back=3)
    assert mw.padding(lengths=[3]) != mw.padding(lengths=[3, 3])
    assert mw.padding(lengths=[3]) != mw.prefix([3])
    assert mw.causal() != "causal()"


def test_causal_is_window() -> None:
    assert mw.causal() == mw.window(back=None, ahead=0)
    assert mw.everything() == mw.window(back=None, ahead=None)
    assert repr(mw.window(None)) == "causal()"


def test_callers_array_is_copied() -> None:
    keep = np.array([[True, True, False]])
    mask = mw.padding(keep=keep)
    said = repr(mask)
    keep[:] = False
    assert repr(mask) == said


def test_masks_array_cannot_be_written_to() -> None:
    data = mw.dense(np.ones((2, 2), bool)).array.data  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="read-only"):
        data[:] = False
    with pytest.raises(ValueError, match="WRITEABLE"):
        data.setflags(write=True)


def test_masks_and_bound_masks_do_not_change() -> None:
    with pytest.raises(AttributeError):
        mw.window(back=2).back = 3  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        mw.causal().on(2).mask = mw.everything()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
def test_integers_of_any_width_are_same_data(dtype: type) -> None:
    ids = np.array([[0, 0, 1]], dtype)
    assert mw.documents(ids=ids) == mw.documents(ids=[[0, 0, 1]])


class OnlyDlpack:
    """An array of a framework that numpy can't read by `__array__`."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __array__(self, *args: object, **named: object) -> np.ndarray:
        raise TypeError("ask by DLPack")

    def __dlpack__(self, **named: object) -> object:
        return self.data.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()


def test_arrays_of_any_framework_are_read() -> None:
    plain = [[7, 8, 0], [7, 0, 0]]
    expected = mw.padding(ids=plain, pad_id=0)
    assert mw.padding(ids=torch.tensor(plain), pad_id=0) == expected
    assert mw.padding(ids=torch.tensor(plain), pad_id=torch.tensor(0)) == expected
    assert mw.padding(ids=OnlyDlpack(np.array(plain)), pad_id=0) == expected
    assert mw.padding(keep=torch.tensor(plain) != 0) == expected
    assert mw.padding(lengths=torch.tensor([2, 1])) == mw.padding(lengths=[2, 1])
    assert mw.documents(lengths=torch.tensor([[2, 1]])) == mw.documents(lengths=[[2, 1]])
    assert mw.dense(torch.ones(2, 2).tril().bool()).on(2).equals(mw.causal())


def test_missing_size_is_reported() -> None:
    with pytest.raises(AttributeError, match=r"mask.on\(q_len\).dense"):
        mw.causal().dense()  # type: ignore[operator]
    with pytest.raises(AttributeError, match="no attribute colour"):
        mw.causal().colour  # noqa: B018


def test_step_of_part_is_found_by_position() -> None:
    whole = (mw.causal() & mw.chunks(3)).on(4, kv_len=8)  # queries at 4 … 7
    step = whole.rows(1, 4).step(6)
    assert step.frame.q_start == 6
    assert np.array_equal(step.dense(), whole.dense()[:, :, 2:3])


def test_first_difference_is_first_whatever_is_read_at_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = np.zeros((2, 2, 1, 4, 4), np.bool_)
    other[0, 0, 3, 0] = other[1, 0, 0, 0] = True
    for rows in (1, 2, 16):
        monkeypatch.setattr(evaluate, "MAX_ROWS", rows)
        assert mw.dense(one).on(4).equals(mw.dense(other)).cell == (0, 0, 3, 0)
    other[0] = False
    other[1, 0, 2, 1] = True  # found later, and not the first
    for rows in (1, 2, 16):
        monkeypatch.setattr(evaluate, "MAX_ROWS", rows)
        assert mw.dense(one).on(4).equals(mw.dense(other)).cell == (1, 0, 0, 0)


def test_part_equals_own_array() -> None:
    part = (mw.causal() & mw.chunks(3)).on(8).rows(4, 6)
    assert part.equals(mw.dense(part.dense()))
    assert part.equals(mw.chunks(3) & mw.causal())
    assert not part.equals(mw.causal())


def test_bound_mask_converts_to_array() -> None:
    bound = mw.causal().on(3)
    assert np.array_equal(np.asarray(bound), bound.dense())
    assert np.asarray(bound, dtype=int).dtype == int


# ── what a mask remembers ─────────────────────────────────────────────────────────────────────


def test_mask_is_bound_once_per_size() -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 4])
    bound = mask.bound_to(4, 4, 2, 1, None)
    assert bound is mask.bound_to(4, 4, 2, 1, None)
    assert bound == mask.on(4, 4, 2, 1)
    assert bound is not mask.bound_to(4, 4, 2, 3, None)
    assert mask.bound_to(2, 4, 2, 1, 0).frame.q_start == 0
    with pytest.raises(mw.FrameError, match="batch=3"):
        mask.bound_to(4, 4, 3, 1, None)


def test_least_recently_used_sizes_are_forgotten() -> None:
    mask = mw.window(back=2)
    first = mask.bound_to(1, 1, 1, 1)
    for length in range(2, 60):
        mask.bound_to(length, length, 1, 1)
        assert mask.bound_to(1, 1, 1, 1) is first  # used all the time
    assert len(mask._bounds.values) == expr.MAX_BOUND
    kept = mask.bound_to(59, 59, 1, 1)
    assert mask.bound_to(59, 59, 1, 1) is kept


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize(
    "same", [copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))]
)
def test_copies_are_equal_and_remember_nothing(same: Any, mask: mw.Mask) -> None:
    mask.bound_to(4).spans  # noqa: B018 - fills the caches
    mw.simplify(mask)
    mask._cached("unpicklable", lambda: lambda: None)
    other = same(mask)
    assert (other, hash(other)) == (mask, hash(mask))
    assert not {"_cache", "_bounds"} & set(vars(other))
    assert other._handle != mask._handle
    assert other.on(4).equals(mask)


def test_threads_bind_one_mask_to_many_sizes() -> None:
    start = Barrier(8)
    mask = mw.causal() & mw.window(back=3)

    def use(seed: int) -> int:
        start.wait()
        for n in range(600):
            length = 1 + (n * (seed + 1)) % 40
            bound = mask.bound_to(length, length, 1, 1)
            assert bound.frame.q_len == length
            mask._cached(("length", length), lambda length=length: length)
            if n % 50 == 0:
                assert copy.copy(mask) == mask  # while others write
        return len(mask._bounds.values)

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(use, range(8))) <= expr.MAX_BOUND


def test_threads_compute_value_of_mask_once() -> None:
    for _ in range(50):
        mask, start, calls = mw.causal(), Barrier(8), []
        with ThreadPoolExecutor(8) as pool:
            found = list(
                pool.map(
                    lambda _, mask=mask, start=start, calls=calls: (
                        start.wait() < 0 or mask._cached("key", lambda: calls.append(1) or object())
                    ),
                    range(8),
                )
            )
        assert len(calls) == 1
        assert len(set(map(id, found))) == 1


def test_and_and_or_compare_by_their_set_of_terms() -> None:
    a, b, d = mw.causal(), mw.chunks(4), mw.keys([1])
    assert a & b == b & a
    assert a | b | d == d | a | b
    assert hash(a & b & d) == hash(d & b & a)
    assert a & b & a == b & a
    assert (a & b) | d == d | (b & a)
    assert (a & b) & d == a & (b & d)
    assert a - b == a & ~b
    assert a & b != a | b
    assert a & b != a & d
    assert (a & b) != a
    assert (a & b) != "a & b"
    assert len({a & b, b & a, a | b}) == 2


def test_repr_keeps_order_of_terms() -> None:
    a, b = mw.causal(), mw.chunks(4)
    assert repr(b & a) == "chunks(4) & causal()"
    assert repr(mw.simplify(b & a)) == repr(mw.simplify(a & b))
    assert repr(mw.from_json(mw.to_json(b | a))) == "chunks(4) | causal()"


@given(cases(), st.data())
def test_equal_masks_have_equal_cells(case: tuple[mw.Mask, mw.Frame], data: st.DataObject) -> None:
    mask, frame = case
    shuffled = shuffle(mask, data)
    assert shuffled == mask
    assert hash(shuffled) == hash(mask)
    assert bind(shuffled, frame).equals(mask)


def shuffle(mask: mw.Mask, data: st.DataObject) -> mw.Mask:
    if not isinstance(mask, operators.Composite):
        return mask
    parts = [shuffle(part, data) for part in mask._parts()]
    if isinstance(mask, operators.Chain):
        parts = data.draw(st.permutations(parts))
    return mask._with_parts(tuple(parts))


@pytest.mark.parametrize("mask", [mw.causal(), mw.causal().on(4)], ids=["mask", "bound"])
@pytest.mark.parametrize("name", ["dim", "device", "dtype", "ndim", "size", "to"])
def test_mask_in_place_of_a_tensor(mask: Any, name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"has no attribute {name}\. A mask is not a tensor: pass"
    ):
        getattr(mask, name)


def test_shape_of_an_unbound_mask() -> None:
    """Which transformers' generate() reads of an attention_mask."""
    with pytest.raises(
        AttributeError, match=r"mask\.on\(q_len\)\.shape.*A mask is not a tensor: pass"
    ):
        mw.causal().shape  # noqa: B018


@pytest.mark.parametrize("mask", [mw.causal(), mw.causal().on(4)], ids=["mask", "bound"])
def test_mask_in_place_of_a_block_mask(mask: Any) -> None:
    with pytest.raises(AttributeError, match=r'lower\(mask, "torch\.flex"'):
        mask.BLOCK_SIZE  # noqa: B018
