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
from tests._helpers.attention_inputs import (
    MASKS,
    T,
    error,
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
def test_equals_reference(name: str, dtype: torch.dtype, height: int) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, dtype=dtype).learning()
    bound = MASKS[name].on(T, **sizes)
    with mock.patch.object(blocks, "BLOCK_Q", height):
        found = run(given, bound, impl="blocks")
    doubles = type(given)(*(x.double() for x in given)).learning()
    assert_exact(found, run(doubles, bound, impl="reference"), given)


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


def test_only_visible_keys_are_read() -> None:
    bound = (mw.window(back=7) | mw.keys(range(4))).on(4096)
    widths = [
        int((ranges.stops - ranges.starts).sum()) for ranges in blocks._key_ranges(bound, 128)
    ]
    assert max(widths) <= 128 + 7 + 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_kernel_without_gqa(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.9.1 PyTorch's fused kernel reads past the KV heads if q has more heads."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    calls = []

    def without_gqa(q: Any, k: Any, v: Any, *args: Any, **options: Any) -> Any:
        calls.append((q.shape[1], k.shape[1], v.shape[1]))
        return fused(q, k, v, *args, **options)

    monkeypatch.setattr(torch.ops.aten, fused.__name__.split(".")[-1], without_gqa)
    monkeypatch.setattr(blocks, "FUSED_GQA", False)
    given = tensors(1, 4, kv_heads=2, dtype=dtype).learning()
    found = run(given, mw.causal(), impl="blocks")
    assert calls
    assert set(calls) == {(4, 4, 4)}
    doubles = type(given)(*(x.double() for x in given)).learning()
    assert_exact(found, run(doubles, mw.causal(), impl="reference"), given)
