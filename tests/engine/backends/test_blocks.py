"""The fallback without the C kernel: every mask in float32, bfloat16 and float64."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch

import maskwright as mw
from maskwright.engine.backends import blocks
from maskwright.engine.reference import reference
from tests.engine.given import (
    HAS_KERNEL,
    MASKS,
    T,
    error,
    gradients,
    largest_summand,
    sizes_of,
    tensors,
    tolerance,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def run(given: Any, mask: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """Output, logsumexp, and the gradients of a function of both."""
    out, lse = mw.attention(*given, mask, enable_gqa=True, return_lse=True, **options)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    total = (out * weight).sum() + lse.masked_fill(lse == -math.inf, 0.0).sin().sum()
    return (out, lse, *torch.autograd.grad(total, given, materialize_grads=True))


def assert_exact(found: Any, right: Any, given: Any) -> None:
    dtype, length = given.q.dtype, max(given.q.shape[2], given.k.shape[2])
    summand = largest_summand(given, torch.ones_like(found[0]), None)
    for n, (one, other) in enumerate(zip(found, right, strict=True)):
        kind = torch.float32 if n == 1 and dtype != torch.float64 else dtype
        limit = tolerance(kind, other, length, summand if n > 1 else 1.0)
        assert error(one, other) <= limit, n


@pytest.mark.parametrize("height", [5, 16, blocks.BLOCK_Q])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKS)
def test_equals_the_reference(name: str, dtype: torch.dtype, height: int) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, dtype=dtype).learning()
    bound = MASKS[name].on(T, **sizes)
    with mock.patch.object(blocks, "BLOCK_Q", height):
        found = run(given, bound, impl="blocks")
    doubles = type(given)(*(x.double() for x in given)).learning()
    assert_exact(found, run(doubles, bound, impl="reference"), given)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_gradient_of_the_logsumexp_and_with_other_value_sizes(dtype: torch.dtype) -> None:
    for value_dim in (4, 6):
        given = tensors(heads=4, kv_heads=2, value_dim=value_dim, dtype=dtype).learning()
        bound = MASKS["sinks"].on(T, heads=4)
        grads = []
        for impl in ("blocks", "reference"):
            leaves = given if impl == "blocks" else type(given)(*(x.double() for x in given))
            leaves = leaves.learning()
            out = mw.attention(*leaves, bound, impl=impl, enable_gqa=True)
            lse = out.new_zeros(1)  # not compared here
            grads.append((out, lse, *gradients(out, leaves)))
        assert_exact(grads[0], grads[1], given)


@pytest.mark.parametrize("name", ["causal", "padding", "sinks", "by head"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_equals_explicit_weights(name: str, dtype: torch.dtype) -> None:
    from maskwright.engine.dropout import dropout_keep

    sizes = sizes_of(name)
    given = tensors(**sizes, dtype=dtype).learning()
    bound = MASKS[name].on(T, **sizes)
    torch.manual_seed(11)
    found = run(given, bound, impl="blocks", dropout_p=0.3)
    torch.manual_seed(11)
    seed = int(torch.randint(2**62, ()))
    rows = torch.arange(T).numpy()
    keep = torch.from_numpy(dropout_keep(seed, 0.3, sizes["batch"], sizes["heads"], rows, rows))
    doubles = type(given)(*(x.double() for x in given)).learning()
    right = reference(*doubles, bound)
    out = (right.weights * keep / 0.7) @ doubles.v
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    total = (out * weight).sum() + right.lse.masked_fill(right.lse == -math.inf, 0.0).sin().sum()
    grads = torch.autograd.grad(total, doubles, materialize_grads=True)
    assert_exact(found, (out, right.lse, *grads), given)


@pytest.mark.parametrize("scale", [-0.7, -1e-3, 1e-6, 0.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_any_scale(scale: float, dtype: torch.dtype) -> None:
    given = tensors(dim=16, dtype=dtype)
    found = mw.attention(*given, MASKS["causal"], impl="blocks", scale=scale)
    right = reference(*given, MASKS["causal"].on(T), scale)
    assert error(found, right.out) <= tolerance(dtype, right.out, T)


def test_only_visible_keys_are_read() -> None:
    bound = (mw.window(back=7) | mw.keys(range(4))).on(4096)
    widths = [
        int((ranges.stops - ranges.starts).sum()) for ranges in blocks._key_ranges(bound, 128)
    ]
    assert max(widths) <= 128 + 7 + 4


@pytest.mark.parametrize("dropout_p", [0.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MASKS if HAS_KERNEL else [])
def test_equals_the_c_kernel(name: str, dtype: torch.dtype, dropout_p: float) -> None:
    """The same numbers within rounding; with dropout, from the same seed, the same dropped cells."""
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, dim=8, dtype=dtype).learning()
    bound = MASKS[name].on(T, **sizes)
    found = []
    for impl in ("native", "blocks"):
        torch.manual_seed(3)
        found.append(run(given, bound, impl=impl, dropout_p=dropout_p))
    assert_exact(found[0], found[1], given)
