"""Nothing outside the arrays and outside the keys that are seen is read or written."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.engine.native import library
from maskwright.engine.native.layout import FLOAT32, Given, Strided
from maskwright.engine.native.library import loaded, run
from maskwright.engine.native.spans import held_spans
from tests.engine.native.helpers import isa, needs_kernel

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

PAGE = mmap.PAGESIZE
DIM = 64
KEYS_A_PAGE = PAGE // (4 * DIM)


class Guarded(NamedTuple):
    """An array between two pages that can't be touched."""

    array: Any
    memory: mmap.mmap
    address: int

    def forbid(self, page: int) -> None:
        """Let nobody touch this page of the array any more."""
        protect(self.address + page * PAGE, PAGE)


def protect(address: int, size: int) -> None:
    nothing_allowed = 0
    system = ctypes.CDLL(None, use_errno=True)
    assert system.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), nothing_allowed) == 0


def guarded(shape: tuple[int, ...], at_end: bool = True) -> Guarded:
    """Random numbers; the array ends, or begins, at the guard's very edge."""
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


def strided(x: Any) -> Strided:
    batch, head, row, _ = (step // 4 for step in x.strides)
    return x.ctypes.data, batch, head, row


def both_passes(bound: mw.BoundMask, q: Any, k: Any, v: Any, at_end: bool = True) -> list[Any]:
    """Output, logsumexp and gradients, each of them guarded too."""
    heads, rows, dim, key_heads, keys, value_dim = (*q.shape[1:], *v.shape[1:])
    out, lse = guarded((1, heads, rows, value_dim), at_end), guarded((1, heads, rows), at_end)
    grads = [guarded(x.shape, at_end) for x in (out.array, q, k, v)]
    given = Given(
        (1, heads, key_heads, rows, keys, dim, value_dim, FLOAT32, 1),
        dim**-0.5,
        held_spans(bound).pointers,
        *(strided(x) for x in (q, k, v, out.array)),  # type: ignore[arg-type]
        lse.array.ctypes.data,
        *(strided(x.array) for x in grads),
    )
    run("forward", given)
    run("backward", given)
    return [x.array for x in (out, lse, *grads[1:])]


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("dim", [1, 7, 8, 16, 33, 64])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 33), (3, 17), (29, 45), (97, 400)])
@pytest.mark.parametrize("mask", [mw.causal(), mw.everything() - mw.keys([0])], ids=repr)
def test_arrays_are_not_left(
    q_len: int, kv_len: int, dim: int, mask: mw.Mask, at_end: bool
) -> None:
    q, k, v = (guarded((1, 2, n, dim), at_end).array for n in (q_len, kv_len, kv_len))
    bound = mask.on(q_len, kv_len, heads=2)
    found = both_passes(bound, q, k, v, at_end)
    again = both_passes(bound, *(np.array(x) for x in (q, k, v)), at_end)
    assert all(np.array_equal(mine, plain) for mine, plain in zip(found, again, strict=True))


@pytest.mark.parametrize("q_len", [1, 40])
def test_keys_that_nobody_sees_are_not_read(q_len: int) -> None:
    pages = 6
    kv_len = pages * KEYS_A_PAGE
    seen = [*range(KEYS_A_PAGE, 2 * KEYS_A_PAGE), *range(4 * KEYS_A_PAGE, kv_len)]
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
        assert not grad[:, :, :KEYS_A_PAGE].any()


def test_rows_that_see_nothing_are_not_read() -> None:
    rows = 2 * KEYS_A_PAGE
    q = guarded((1, 1, rows, DIM))
    k, v = (guarded((1, 1, 50, DIM)).array for _ in range(2))
    bound = mw.queries(range(KEYS_A_PAGE)).on(rows, 50, q_start=0)
    (expected, *_) = both_passes(bound, q.array.copy(), k, v)
    q.forbid(1)
    (out, lse, dq, *_) = both_passes(bound, q.array, k, v)
    assert np.array_equal(out, expected)
    assert not out[:, :, KEYS_A_PAGE:].any()
    assert (lse[:, :, KEYS_A_PAGE:] == -np.inf).all()
    assert not dq[:, :, KEYS_A_PAGE:].any()


@pytest.mark.parametrize("kv_heads", [1, 8])
@pytest.mark.parametrize("mask", [mw.causal(), mw.window(back=40), mw.stride(3)], ids=repr)
def test_every_run_gives_the_same_bits(kv_heads: int, mask: mw.Mask) -> None:
    q = torch.randn(2, 8, 300, 16, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, 300, 16, requires_grad=True) for _ in range(2))
    usual, outputs = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        runs = []
        for _ in range(2):
            out = mw.attention(q, k, v, mask, impl="native", enable_gqa=True)
            runs.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
        torch.set_num_threads(usual)
        assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))
        outputs.append(runs[0][0])
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def maskwright_forward(self, _: bytes) -> int:
            return 1

    monkeypatch.setattr(library, "loaded", lambda: library.Loaded(Full(), ""))
    with pytest.raises(MemoryError, match="not enough memory"):
        run("forward", Given((0,) * 9, 1.0, (0,) * 5, *[(0,) * 4] * 4, 0))  # type: ignore[arg-type]


FORKED = """
import os, torch, maskwright as mw
torch.set_num_threads(2)
q = torch.randn(1, 4, 500, 16)
before = mw.attention(q, q, q, mw.causal(), impl="native")
child = os.fork()
same = torch.equal(before, mw.attention(q, q, q, mw.causal(), impl="native"))
if not child:
    os._exit(0 if same else 1)
assert same and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_child_process_computes_too() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], timeout=120, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_threads_are_pytorchs() -> None:
    assert loaded().borrows_threads == ("linux" in sys.platform)
