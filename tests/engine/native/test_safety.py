"""Nothing outside the arrays is read or written, and no key or row that is masked out is read."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, NamedTuple

import numpy as np
import pytest

import maskwright as mw
from maskwright.engine.backends.native import span_buffers
from maskwright.engine.native.kernel import loaded
from tests._helpers.native_kernel import isa, needs_kernel

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

PAGE = mmap.PAGESIZE
DIM = 64
KEYS_PER_PAGE = PAGE // (4 * DIM)


class Guarded(NamedTuple):
    """An array between two pages without access rights."""

    array: Any
    memory: mmap.mmap
    address: int

    def forbid(self, page: int) -> None:
        """Remove the access rights of one page of the array."""
        protect(self.address + page * PAGE, PAGE)


def protect(address: int, size: int) -> None:
    prot_none = 0
    system = ctypes.CDLL(None, use_errno=True)
    assert system.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), prot_none) == 0


def guarded(shape: tuple[int, ...], at_end: bool = True) -> Guarded:
    """Random numbers that end, or begin, at the edge of a guard page."""
    count = int(np.prod(shape))
    inside = -(-4 * count // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    start = PAGE + (inside - 4 * count if at_end else 0)
    array = np.frombuffer(memory, np.float32, count, start).reshape(shape)
    array[...] = np.random.default_rng(0).standard_normal(shape)
    first = np.frombuffer(memory, np.uint8, 1).ctypes.data
    protect(first, PAGE)
    protect(first + PAGE + inside, PAGE)
    return Guarded(array, memory, first + PAGE)


def pointer(x: Any) -> tuple[int, ...]:
    return x.ctypes.data, *(step // 4 for step in x.strides)


def both_passes(
    bound: mw.BoundMask,
    q: Any,
    k: Any,
    v: Any,
    at_end: bool = True,
    scores: tuple[Any, ...] | None = None,
) -> list[Any]:
    """Output, logsumexp and gradients, each of them guarded too."""
    heads, rows, dim, kv_heads, keys, v_dim = (*q.shape[1:], *v.shape[1:])
    out, lse = guarded((1, heads, rows, v_dim), at_end), guarded((1, heads, rows), at_end)
    grads = [guarded(x.shape, at_end) for x in (out.array, q, k, v)]
    spans = span_buffers(bound.spans)
    args = (
        (1, heads, kv_heads, rows, keys, dim, v_dim),
        (0, 1, dim**-0.5),
        *(spans.args, (0, 0.0, 0, 1, 0, 1), scores),
        *(pointer(x) for x in (q, k, v, out.array, lse.array)),
    )
    loaded().module.forward(*args)
    loaded().module.backward(*args, *(pointer(x.array) for x in grads), None)
    return [x.array for x in (out, lse, *grads[1:])]


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("dim", [1, 7, 8, 16, 33, 64])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 33), (3, 17), (29, 45), (97, 400)])
@pytest.mark.parametrize("mask", [mw.causal(), mw.everything() - mw.keys([0])], ids=repr)
def test_accesses_stay_within_arrays(
    q_len: int, kv_len: int, dim: int, mask: mw.Mask, at_end: bool
) -> None:
    q, k, v = (guarded((1, 2, n, dim), at_end).array for n in (q_len, kv_len, kv_len))
    bound = mask.on(q_len, kv_len, heads=2)
    found = both_passes(bound, q, k, v, at_end)
    again = both_passes(bound, *(np.array(x) for x in (q, k, v)), at_end)
    assert all(np.array_equal(mine, plain) for mine, plain in zip(found, again, strict=True))


@pytest.mark.parametrize("q_len", [1, 40])
def test_keys_that_no_row_attends_to_are_not_read(q_len: int) -> None:
    pages = 6
    kv_len = pages * KEYS_PER_PAGE
    seen = [*range(KEYS_PER_PAGE, 2 * KEYS_PER_PAGE), *range(4 * KEYS_PER_PAGE, kv_len)]
    q = guarded((1, 1, q_len, DIM)).array
    k, v = (guarded((1, 1, kv_len, DIM)) for _ in range(2))
    plain = [q, *(x.array.copy() for x in (k, v))]
    bound = mw.keys(seen).on(q_len, kv_len)
    for held in (k, v):
        for page in (0, 2, 3):
            held.forbid(page)
    found = both_passes(bound, q, k.array, v.array)
    assert all(
        np.array_equal(*pair) for pair in zip(found, both_passes(bound, *plain), strict=True)
    )
    for grad in found[3:]:
        assert not grad[:, :, :KEYS_PER_PAGE].any()


def test_fully_masked_rows_are_not_read() -> None:
    rows = 2 * KEYS_PER_PAGE
    q = guarded((1, 1, rows, DIM))
    k, v = (guarded((1, 1, 50, DIM)).array for _ in range(2))
    bound = mw.queries(range(KEYS_PER_PAGE)).on(rows, 50, q_start=0)
    (expected, *_) = both_passes(bound, q.array.copy(), k, v)
    q.forbid(1)
    (out, lse, dq, *_) = both_passes(bound, q.array, k, v)
    assert np.array_equal(out, expected)
    assert not out[:, :, KEYS_PER_PAGE:].any()
    assert (lse[:, :, KEYS_PER_PAGE:] == -np.inf).all()
    assert not dq[:, :, KEYS_PER_PAGE:].any()


# -- bias, soft cap and sinks -------------------------------------------------------------------


class Scores(NamedTuple):
    """The arguments, the arrays that they point to, and those of the gradients among them."""

    args: tuple[Any, ...]
    held: list[Any]
    grads: list[Any]


def guarded_scores(kind: str, q_len: int, kv_len: int, heads: int, at_end: bool) -> Scores:
    """One bias term, a soft cap and sinks; values, coordinates and gradients are all guarded."""

    def zeros(shape: tuple[int, ...]) -> Any:
        array = guarded(shape, at_end).array
        array[...] = 0.0
        return array

    def coordinates(values: Any) -> Any:
        array = guarded(values.shape, at_end).array.view(np.int32)
        array[...] = values
        return array

    held: list[Any] = []
    if kind in ("distance", "grid"):
        step = 1 if kind == "distance" else 3
        length = step * (q_len + kv_len - 2) + 1
        data, grad = guarded((heads, length), at_end).array, zeros((heads, length))
        strides = (0, length, *((-1, 1) if kind == "distance" else (0, 0)))
        points: list[Any] = []
        if kind == "grid":
            points = [coordinates(step * np.arange(n)) for n in (q_len, kv_len)]
        addresses = tuple(x.ctypes.data for x in points) or None
        values = (data.ctypes.data, *strides, step * (q_len - 1))
        term = (values, addresses, (grad.ctypes.data, 0, length, 0, length))
        held += points
    else:
        shape = {
            "tensor": (heads, q_len, kv_len),
            "keys": (heads, 1, kv_len),
            "rows": (heads, q_len, 1),
        }
        data = guarded(shape[kind], at_end).array
        strides = [
            step // 4 * (size != 1) for step, size in zip(data.strides, data.shape, strict=True)
        ]
        grad = zeros(shape[kind] if kind != "rows" else (1,))
        gradient = None
        if kind != "rows":  # its gradient is computed from the rows, in Python
            row_stride = grad.strides[1] // 4 * (grad.shape[1] != 1)
            gradient = (grad.ctypes.data, 0, grad.strides[0] // 4, row_stride, 0)
        term = ((data.ctypes.data, 0, *strides, 0), None, gradient)
    sinks, dsinks = guarded((heads,), at_end).array, zeros((1, heads, q_len))
    args = (20.0, False, sinks.ctypes.data, pointer(dsinks), (term,))
    return Scores(args, [data, sinks, *held], [grad, dsinks])


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("kind", ["distance", "grid", "tensor", "keys", "rows"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 33), (3, 17), (29, 45), (97, 400)])
@pytest.mark.parametrize("mask", [mw.causal(), mw.everything() - mw.keys([0])], ids=repr)
def test_accesses_stay_within_bias_and_sinks(
    q_len: int, kv_len: int, kind: str, mask: mw.Mask, at_end: bool
) -> None:
    q, k, v = (guarded((1, 2, n, 16), at_end).array for n in (q_len, kv_len, kv_len))
    bound = mask.on(q_len, kv_len, heads=2)
    results = []
    for end in (at_end, not at_end):  # the values are the same, in memory of another alignment
        scores = guarded_scores(kind, q_len, kv_len, 2, end)
        found = both_passes(bound, q, k, v, end, scores.args)
        results.append([*found, *(x.copy() for x in scores.grads)])
    assert all(np.array_equal(*pair) for pair in zip(*results, strict=True))
    if bound.count() > q_len * 2:
        assert kind == "rows" or results[0][5].any()
        assert results[0][6].any()
