"""Predicates compared with PyTorch's `create_mask`: the same mask, or an error."""

from __future__ import annotations

import operator
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import and_masks, create_mask, noop_mask, or_masks

import maskwright as mw
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, HEADS, QUERIES, KEYS = 2, 3, 6, 7

FLAGS = torch.tensor([True, False, True])  # per head
IDS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 2]])  # per batch row and token
LENGTHS = torch.tensor([5, 7])
SLOPES = torch.tensor([0.3, 0.7, 1.1])
STARTS = torch.tensor([0, 2, 5])
TABLE = torch.rand(QUERIES, KEYS, generator=torch.Generator().manual_seed(0)) > 0.4
NUMBER = torch.tensor(2)
ARRAY_NUMBER = np.int64(2)


def causal(b, h, q, k):
    return q >= k


def natten(b, h, q, k, width=3, kernel=3):
    q_x, q_y, k_x, k_y = q // width, q % width, k // width, k % width
    centre = q_x.clamp(kernel // 2, (width - 1) - kernel // 2)
    return ((centre - k_x).abs() <= kernel // 2) & ((q_y - k_y).abs() <= kernel // 2)


def changed_in_place(b, h, q, k):
    q -= 1
    k += 1
    return q >= k


class Document:
    """A callable object that captures a tensor."""

    def __call__(self, b, h, q, k):  # noqa: ARG002
        return IDS[b, q] == IDS[b, k]


MASK_MODS: dict[str, Callable[..., Any]] = {
    "a flag per head": lambda b, h, q, k: FLAGS[h] & (q >= k),
    "operands exchanged": lambda b, h, q, k: (q >= k) & FLAGS[h],
    "not of both": lambda b, h, q, k: (~(FLAGS[h] & (q >= k))).bool(),
    "or": lambda b, h, q, k: FLAGS[h] | (q >= k),
    "exclusive or": lambda b, h, q, k: (FLAGS[h] ^ (q >= k)).bool(),
    "a product": lambda b, h, q, k: (FLAGS[h] * (q >= k)).bool(),
    "equality with a flag": lambda b, h, q, k: (q >= k) == FLAGS[h],
    "documents": lambda b, h, q, k: (q >= k) & (IDS[b, q] == IDS[b, k]),
    "an object": Document(),
    "in place": changed_in_place,
    "in place, with a tensor": lambda b, h, q, k: changed_in_place(b, h, q, k) & FLAGS[h],
    "lengths": lambda b, h, q, k: k < LENGTHS[b],
    "a captured number": lambda b, h, q, k: q + NUMBER >= k,
    "a number of numpy": lambda b, h, q, k: q + ARRAY_NUMBER >= k,
    "a number of numpy, methods of tensors": lambda b, h, q, k: (q - k).clamp(min=0) < ARRAY_NUMBER,
    "a number of numpy, flags": lambda b, h, q, k: FLAGS[h] & (q + ARRAY_NUMBER >= k),
    "an item": lambda b, h, q, k: q + NUMBER.item() >= k,
    "a shape": lambda b, h, q, k: k < STARTS.shape[0],
    "slopes": lambda b, h, q, k: (q - k) * SLOPES[h] < 2,
    "a table": lambda b, h, q, k: TABLE[q, k],
    "a table of tables": lambda b, h, q, k: TABLE[q][k],
    "an index from the end": lambda b, h, q, k: TABLE[q, -1 - k],
    "the last element": lambda b, h, q, k: k < LENGTHS[-1],
    "a data-dependent index": lambda b, h, q, k: IDS[b, LENGTHS[b] - 1] > IDS[b, k],
    "torch.where": lambda b, h, q, k: torch.where(h == 1, q >= k, FLAGS[h]),
    "torch.where with a default": lambda b, h, q, k: torch.where(q >= k, FLAGS[h], False),
    "torch functions": lambda b, h, q, k: torch.logical_and(q >= k, torch.abs(q - k) < 3),
    "a count": lambda b, h, q, k: (q >= STARTS).sum() == (k >= STARTS).sum(),
    "any": lambda b, h, q, k: (k == STARTS).any() | (q == k),
    "bucketize": lambda b, h, q, k: torch.bucketize(q, STARTS) >= torch.bucketize(k, STARTS),
    "a method of tensors": lambda b, h, q, k: (q - k).clamp(min=0) < 2,
    "new_ones": noop_mask,
    "natten": natten,
    "a partial": partial(natten, width=4),
    "and": and_masks(causal, lambda b, h, q, k: FLAGS[h], Document()),
    "or of both": or_masks(causal, lambda b, h, q, k: FLAGS[h] & (k == 0)),
    "integers": lambda b, h, q, k: (q - k) % 3 == h,
    "negative integers": lambda b, h, q, k: (k - q) // 2 > -2,
    "bits": lambda b, h, q, k: ((q ^ k) & 1) << 1 == 2,
    "queries only": lambda b, h, q, k: q > 2,
    "no index": lambda b, h, q, k: torch.tensor(True),
    "made in the call": lambda b, h, q, k: torch.arange(KEYS)[k] <= q,
    "floats": lambda b, h, q, k: q / 2 >= k,
    "a list as the index": lambda b, h, q, k: TABLE[[0, 1]] | (q >= k),
    "batch rows and heads": lambda b, h, q, k: (b + h + q + k) % 2 == 0,
    "an exception that is caught": lambda b, h, q, k: _either(q, k),
}


def _either(q: Any, k: Any) -> Any:
    try:
        return (q >= k) & (IDS[0, q] == IDS[0, k])
    except Exception:
        return q < k


def assert_agrees(mod: Callable[..., Any], q_len: int = QUERIES, kv_len: int = KEYS) -> None:
    theirs = create_mask(mod, BATCH, HEADS, q_len, kv_len, "cpu").numpy()
    bound = mw.where(mod).on(q_len, kv_len, batch=BATCH, heads=HEADS, q_start=0)
    assert np.array_equal(np.broadcast_to(bound.dense(), theirs.shape), theirs)
    assert bound.count() == theirs.sum()


@pytest.mark.parametrize("name", MASK_MODS)
def test_equal_to_create_mask(name: str) -> None:
    """In one call, in rows that start at a later position, and with queries and keys exchanged."""
    mod = MASK_MODS[name]
    assert_agrees(mod)
    theirs = create_mask(mod, BATCH, HEADS, QUERIES, KEYS, "cpu").numpy()
    mask = mw.where(mod)
    later = mask.on(2, KEYS, batch=BATCH, heads=HEADS, q_start=4).dense()
    assert np.array_equal(np.broadcast_to(later, theirs[:, :, 4:].shape), theirs[:, :, 4:])
    turned = mask.T.on(KEYS, QUERIES, batch=BATCH, heads=HEADS, q_start=0).dense()
    assert np.array_equal(np.broadcast_to(turned.swapaxes(2, 3), theirs.shape), theirs)


@pytest.mark.parametrize(
    ("mod", "message"),
    [
        (lambda b, h, q, k: FLAGS[h] * (q - k), "returned dtype int64"),
        (lambda b, h, q, k: SLOPES[h] - k, "returned dtype float32"),
        (lambda b, h, q, k: STARTS[k] >= q, "IndexError"),
        (lambda b, h, q, k: FLAGS, "returned shape"),
        (lambda b, h, q, k: FLAGS[h] & np.arange(QUERIES)[q].astype(bool), "uses tensors"),
        (lambda b, h, q, k: (q >= np.arange(QUERIES)[k]) & FLAGS[0], "uses tensors"),
        (lambda b, h, q, k: np.logical_and(q >= k, FLAGS[0]), "uses tensors"),
        (lambda b, h, q, k: FLAGS[h] and q >= k, "uses tensors"),
        (lambda b, h, q, k: q * 0.1 < k * 0.1 + 1e-8, "different masks"),
        (lambda b, h, q, k: q * np.float64(0.1) < k * 0.1 + 1e-8, "different masks"),
        (lambda b, h, q, k: (q >= k).any(), "different masks"),
        (lambda b, h, q, k: (q >= k) | (q.max() > 30), "different masks"),
        (lambda b, h, q, k: (q >= k) & (k < 30).all(), "different masks"),
    ],
)
def test_what_is_no_mask_mod_is_refused(mod: Callable[..., Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        mw.where(mod).on(40, 40, batch=BATCH, heads=HEADS).dense()


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (lambda b, h, q, k: True, np.ones((6, 7), bool)),
        (lambda b, h, q, k: bool(FLAGS[0]), np.ones((6, 7), bool)),
        (lambda b, h, q, k: torch.from_numpy(q) >= torch.from_numpy(k), np.tri(6, 7, dtype=bool)),
        (lambda b, h, q, k: np.abs(q - k) < 2, abs(np.subtract.outer(range(6), range(7))) < 2),
        (lambda b, h, q, k: np.arange(7)[k] <= q, np.tri(6, 7, dtype=bool)),
        (lambda b, h, q, k: np.isin(k, [1, 2]) & (q >= 0), np.isin([range(7)] * 6, [1, 2])),
    ],
)
def test_predicates_of_arrays(predicate: Callable[..., Any], expected: Any) -> None:
    """What PyTorch refuses, because the predicate is written for numpy."""
    assert np.array_equal(mw.where(predicate).on(6, 7, q_start=0).dense()[0, 0], expected)


def test_only_varying_axes_are_stored() -> None:
    frame = {"q_len": 4, "batch": BATCH, "heads": HEADS}
    assert mw.where(lambda b, h, q, k: FLAGS[h] & (q >= k)).on(**frame).shape == (1, HEADS, 4, 4)
    assert mw.where(lambda b, h, q, k: LENGTHS[b] > k).on(**frame).shape == (BATCH, 1, 4, 4)
    assert mw.where(lambda b, h, q, k: IDS[0, q] == IDS[0, k]).on(**frame).shape == (1, 1, 4, 4)


def test_a_predicate_that_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first call, no module named torch is there."""

    def mod(b, h, q, k):
        monkeypatch.setitem(sys.modules, "torch", torch)
        return (~(FLAGS[h] & (q >= k))).bool()

    monkeypatch.delitem(sys.modules, "torch")
    visible = mw.where(mod).on(8, heads=2).count()
    assert visible == int(create_mask(mod, 1, 2, 8, 8, "cpu").sum()) == 92


# Random predicates: integer terms of indices and captured tensors, compared and combined.
INDICES = [
    lambda b, h, q, k: q,
    lambda b, h, q, k: k,
    lambda b, h, q, k: h,
    lambda b, h, q, k: b,
    lambda b, h, q, k: q - k,
]
CAPTURED = [
    lambda b, h, q, k: IDS[b, q],
    lambda b, h, q, k: IDS[1, k],
    lambda b, h, q, k: LENGTHS[b],
    lambda b, h, q, k: STARTS[h] + NUMBER,
    lambda b, h, q, k: FLAGS[h],
    lambda b, h, q, k: SLOPES[h],
    lambda b, h, q, k: LENGTHS,
    lambda b, h, q, k: FLAGS[k % 3] * q,
]
BINARY = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.truediv,
)
COMPARE = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
LOGICAL = (operator.and_, operator.or_, operator.xor, operator.eq, operator.mul)


def joined(operation: Any, left: Any, right: Any) -> Any:
    return lambda *index: operation(left(*index), right(*index))


NUMBERS = st.sampled_from([-2, 1, 2, 3, 5, 0.5]).map(lambda number: lambda *_: number)
TERMS = st.recursive(
    st.sampled_from(INDICES + CAPTURED),
    lambda term: st.builds(joined, st.sampled_from(BINARY), term, term | NUMBERS),
    max_leaves=3,
)
COMPARISONS = st.builds(joined, st.sampled_from(COMPARE), TERMS, TERMS | NUMBERS)
PREDICATES = st.recursive(
    COMPARISONS | st.just(CAPTURED[4]),
    lambda mod: (
        st.builds(joined, st.sampled_from(LOGICAL), mod, mod)
        | mod.map(lambda inner: lambda *index: ~inner(*index))
        | mod.map(lambda inner: lambda *index: (~inner(*index)).bool())
        | mod.map(lambda inner: lambda *index: torch.where(index[2] > 1, inner(*index), True))
    ),
    max_leaves=4,
)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@settings(max_examples=60, deadline=None)
@given(mod=PREDICATES)
def test_random_predicates(mod: Callable[..., Any]) -> None:
    """Equal to PyTorch's mask, or refused because tensors and arrays differ."""
    try:
        theirs = create_mask(mod, BATCH, HEADS, QUERIES, KEYS, "cpu")
    except Exception:
        reject()
    assume(theirs.dtype == torch.bool and theirs.ndim == 4)
    try:
        ours = mw.where(mod).on(QUERIES, KEYS, batch=BATCH, heads=HEADS, q_start=0).dense()
    except ArgumentError as error:
        if "different masks" not in str(error):
            raise
    else:
        assert np.array_equal(np.broadcast_to(ours, theirs.shape), theirs.numpy())
