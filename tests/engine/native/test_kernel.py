"""The kernel against dense float64 attention, on every instruction set."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import maskwright as mw
from tests._helpers.attention_inputs import MASKS, T, sizes_of
from tests._helpers.native_kernel import (
    Inputs,
    Result,
    assert_close,
    call_of,
    check,
    inputs,
    isa,
    needs_kernel,
    reference,
    run_native,
)

if TYPE_CHECKING:
    from maskwright.engine.call import Call

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

SEED = 0x1234_5678_9ABC_DEF0
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_masks(name: str, dropout_p: float) -> None:
    check(MASKS[name], inputs(**sizes_of(name)), dropout_p=dropout_p, seed=SEED)


@pytest.mark.parametrize("dim", [1, 3, 16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("v_dim", [None, 5, 72])
def test_head_dims(dim: int, v_dim: int | None) -> None:
    check(mw.window(back=9), inputs(dim=dim, v_dim=v_dim))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["causal", "holes", "by head", "by batch"])
@pytest.mark.parametrize("q_len", [1, T])
def test_half_precision(dtype: torch.dtype, name: str, q_len: int) -> None:
    check(MASKS[name], inputs(**sizes_of(name), q_len=q_len, kv_len=T, dim=32, dtype=dtype))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", ["causal", "by head"])
@pytest.mark.parametrize("q_len", [1, 2, T])
def test_gqa(kv_heads: int, name: str, q_len: int) -> None:
    check(MASKS[name], inputs(heads=4, kv_heads=kv_heads, q_len=q_len, kv_len=T, dim=24))


SIZES = [(1, 1), (1, 700), (5, 2100), (7, 17), (13, 400), (400, 13), (777, 777)]


@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize(
    "mask",
    [mw.causal(), mw.everything(), mw.window(back=300) | mw.keys([0]), mw.stride(3)],
    ids=repr,
)
def test_lengths(q_len: int, kv_len: int, mask: mw.Mask) -> None:
    check(mask, inputs(q_len=q_len, kv_len=kv_len, dim=8))


@pytest.mark.parametrize(
    "mask",
    [
        mw.window(back=9),
        mw.keys([0, 4_500]),
        mw.keys([2_047, 2_048]) & mw.causal(),
        mw.causal() & ~mw.window(back=2_600),
        mw.nothing(),
        mw.queries([6_999]) & mw.window(back=4_200),
        mw.by_head([mw.nothing(), mw.window(back=9), mw.keys([0]), mw.everything()]),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("q_len", "kv_heads"), [(1, 4), (2, 1)])
def test_decode_splits_without_visible_keys(mask: mw.Mask, q_len: int, kv_heads: int) -> None:
    check(mask, inputs(heads=4, kv_heads=kv_heads, q_len=q_len, kv_len=7_000, dim=8))


@pytest.mark.parametrize("phase", [0, 2])
@pytest.mark.parametrize("q_len", [5, T])
def test_dilated_masks(phase: int, q_len: int) -> None:
    check(mw.window(back=30) & mw.stride(3, phase=phase), inputs(q_len=q_len, kv_len=T))


def tree(length: int) -> mw.Mask:
    """A tree of tokens, each of which has one of the 30 tokens before it as its parent."""
    draw = np.random.default_rng(0)
    parents = [-1, *(int(draw.integers(max(0, n - 30), n)) for n in range(1, length))]
    return mw.tree(parents)


def sparse(rows: int, keys: int, share: float) -> mw.Mask:
    """Random cells."""
    return mw.dense(np.random.default_rng(0).random((rows, keys)) < share)


SCATTERED = {
    "image of radius 2": (mw.image(12, 16, radius=2), 192, 192),
    "image of radius 5": (mw.image(10, 20, radius=5), 200, 200),
    "tree": (tree(211), 211, 211),
    "random cells": (sparse(70, 300, 0.03), 70, 300),
    "more keys than a block": (sparse(19, 3000, 0.3), 19, 3000),
    "fully masked rows": (sparse(61, 90, 0.02) - mw.queries([0, 1, 2, 3, 60]), 61, 90),
}
"""Masks whose rows are computed one by one, and their lengths."""


@pytest.mark.parametrize("name", SCATTERED)
@pytest.mark.parametrize(("dim", "v_dim"), [(1, 3), (16, 16), (20, 33), (64, 64), (128, 256)])
def test_scattered_masks(name: str, dim: int, v_dim: int) -> None:
    mask, q_len, kv_len = SCATTERED[name]
    check(mask, inputs(heads=2, q_len=q_len, kv_len=kv_len, dim=dim, v_dim=v_dim))


@pytest.mark.parametrize("name", SCATTERED)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_scattered_masks_in_half_precision_with_gqa(
    name: str, dtype: torch.dtype, kv_heads: int
) -> None:
    mask, q_len, kv_len = SCATTERED[name]
    sizes = {"heads": 4, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len}
    check(mask, inputs(**sizes, dim=40, v_dim=24, dtype=dtype))


@pytest.mark.parametrize("back", [0, 1, 6, 15, 16, 31, 40, 100])
@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17])
def test_narrow_windows(back: int, offset: int) -> None:
    """Windows that begin and end in any half of a panel of keys."""
    check(mw.window(back=back, ahead=offset // 8), inputs(q_len=97, kv_len=97 + offset))


@pytest.mark.parametrize("step", [1, 2])
def test_strides(step: int) -> None:
    q, k, v, dout = (torch.randn(2, T, 3, 32 * step)[..., ::step].transpose(1, 2) for _ in range(4))
    dlse = torch.randn(2, T, 3).transpose(1, 2)
    check(mw.causal(), Inputs(q, k, v, dout, dlse))
    shared = [x[:, :1].expand(2, 3, T, 32) for x in (k, v)]
    check(mw.causal(), Inputs(q, *shared, dout, dlse))


@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0])
def test_scales(scale: float) -> None:
    check(mw.window(back=7), inputs(dim=8), scale=scale)


def test_large_scores_do_not_overflow() -> None:
    x = inputs()
    large = Inputs(*(t * 30 for t in x[:3]), *x[3:])
    found = run_native(call_of(mw.causal(), large), large)
    exact = reference(call_of(mw.causal(), large), large)
    scores = 30 * 30 * x.q.shape[-1] ** 0.5  # rounding errors of the scores are this much larger
    for mine, true in zip(found, exact, strict=True):
        assert mine.isfinite().all()
        limit = 8 * torch.finfo(torch.float32).eps * scores * max(true.abs().max().item(), 1.0)
        assert (mine - true).abs().max().item() <= limit


LENGTHS = [(700, 64), (1100, 128), (2100, 64)]


@cache  # the same for all instruction sets, and slow
def real_case(length: int, dim: int, dtype: torch.dtype) -> tuple[Call, Inputs, Result]:
    mask = mw.window(back=200) | mw.keys(range(4)) if length > 2000 else mw.causal()
    x = inputs(heads=2, kv_heads=1, q_len=length, dim=dim, dtype=dtype)
    call = call_of(mask, x)
    return call, x, reference(call, x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "dim"), LENGTHS)
def test_real_sizes(length: int, dim: int, dtype: torch.dtype) -> None:
    call, x, exact = real_case(length, dim, dtype)
    assert_close(run_native(call, x), exact, dtype, length)


@pytest.mark.parametrize("kv_heads", [1, 8])
@pytest.mark.parametrize(
    "mask",
    [
        mw.causal(),
        mw.window(back=40),
        mw.stride(3),
        mw.image(15, 20, radius=2),
        mw.causal() & mw.documents(lengths=[16, 90, 44, 150]),
    ],
    ids=repr,
)
def test_results_do_not_depend_on_number_of_threads(kv_heads: int, mask: mw.Mask) -> None:
    x = inputs(batch=2, heads=8, kv_heads=kv_heads, q_len=300)
    call = call_of(mask, x)
    first: Result = run_native(call, x, 1)
    for threads in (1, 2, 3, 5):
        other = run_native(call, x, threads)
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_row_that_attends_to_one_key_returns_value() -> None:
    x = inputs(dim=64)
    found = run_native(call_of(mw.window(back=0), x, scale=3.0), x)
    assert torch.equal(found.out, x.v)
    eps = torch.finfo(torch.float32).eps
    largest = math.ceil(found.lse.abs().max().item())
    assert (found.dv - x.dout).abs().max() <= 4 * eps * largest * x.dout.abs().max()
