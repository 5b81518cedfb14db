"""Partial attention: results over disjoint keys merge to attention over all keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.bias.scores import NO_SCORES
from maskwright.bias.terms import Positions
from maskwright.engine.backends import blocks
from maskwright.engine.call import AttentionOptions
from maskwright.engine.softmax import merge
from maskwright.errors import Unsupported
from maskwright.parallel.context_parallel import KeyPart, select_partial_attention
from maskwright.parallel.submask import submask

T, SCALE = 40, 0.3
MASKS = {
    "causal": mw.causal(),
    "window": mw.window(back=5),
    "padding": mw.padding(lengths=[T, 11]),
    "empty rows": mw.causal() & mw.window(back=9) & mw.keys(range(12, 20)),
    "per head": mw.by_head([mw.causal(), mw.window(back=3), mw.nothing(), mw.everything()]),
}


def key_part(bound: mw.BoundMask, keys: np.ndarray) -> KeyPart:
    rows = np.arange(T)
    return KeyPart(submask(bound, rows, keys), Positions(rows, keys))


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    shapes = ((4, 8), (2, 8), (2, 6))
    q, k, v = (torch.randn(2, h, T, d, generator=made).to(dtype) for h, d in shapes)
    return q, k, v


@pytest.mark.parametrize("impl", ["native", "blocks"])
@pytest.mark.parametrize("name", MASKS)
def test_results_over_disjoint_keys_add_up(name: str, impl: str) -> None:
    q, k, v = (x.requires_grad_() for x in tensors())
    bound = MASKS[name].on(T, T, 2, 4)
    options = AttentionOptions(SCALE, enable_gqa=True, impl=impl)
    attention = select_partial_attention(bound, (q, k, v), options)
    parts = [np.arange(0, T, 2), np.arange(1, T, 2)]
    masks = [key_part(bound, keys) for keys in parts]
    with torch.no_grad():
        found = [
            attention.forward(mask, q, k[:, :, keys], v[:, :, keys], NO_SCORES)
            for mask, keys in zip(masks, parts, strict=True)
        ]
        out, lse = merge(*found)
    right = mw.attention(
        q, k, v, bound, scale=SCALE, enable_gqa=True, impl="reference", return_lse=True
    )
    torch.testing.assert_close(out, right[0])
    torch.testing.assert_close(lse, right[1].float())
    made = torch.Generator().manual_seed(1)
    grad_out, grad_lse = (torch.randn(x.shape, generator=made) for x in (out, lse))
    finite = right[1].masked_fill(right[1] == -math.inf, 0.0)
    expected = torch.autograd.grad(
        (right[0] * grad_out).sum() + (finite * grad_lse).sum(), (q, k, v)
    )
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    with torch.no_grad():
        for mask, keys in zip(masks, parts, strict=True):
            inputs = ((q, k[:, :, keys], v[:, :, keys]), NO_SCORES)
            grads = attention.backward(mask, inputs, (out, lse), (grad_out, grad_lse))
            dq += grads[0]
            dk[:, :, keys], dv[:, :, keys] = grads[1:]
    for grad, whole in zip((dq, dk, dv), expected, strict=True):
        torch.testing.assert_close(grad, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    q, k, v = tensors(dtype)
    bound = mw.causal().on(T, T, 2, 4)
    attention = select_partial_attention(bound, (q, k, v), AttentionOptions(enable_gqa=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        part = key_part(bound, np.arange(T))
        out, lse = attention.forward(part, q, k, v, NO_SCORES)
    assert (out.dtype, lse.dtype) == (torch.float32, torch.float32)
    right = mw.attention(q.float(), k.float(), v.float(), bound, enable_gqa=True)
    torch.testing.assert_close(out, right)


def test_no_keys() -> None:
    q, k, v = tensors()
    bound = mw.causal().on(T, T, 2, 4)
    for impl in ("native", "blocks"):
        attention = select_partial_attention(
            bound, (q, k, v), AttentionOptions(enable_gqa=True, impl=impl)
        )
        mask = key_part(bound, np.zeros(0, np.int64))
        out, lse = attention.forward(mask, q, k[:, :, :0], v[:, :, :0], NO_SCORES)
        assert not out.any()
        assert (lse == -math.inf).all()
        inputs = ((q, k[:, :, :0], v[:, :, :0]), NO_SCORES)
        dq, dk, dv = attention.backward(mask, inputs, (out, lse), (out, None))
        assert not dq.any()
        assert dk.shape == (2, 2, 0, 8)
        assert dv.shape == (2, 2, 0, 6)


def test_the_backend_is_used_or_refused() -> None:
    bound, given = mw.causal().on(T, T, 2, 4), tensors()
    for impl in ("sdpa", "flex", "reference"):
        with pytest.raises(Unsupported, match=f'impl="{impl}"'):
            select_partial_attention(bound, given, AttentionOptions(enable_gqa=True, impl=impl))  # type: ignore[arg-type]
    double = tensors(torch.float64)
    with pytest.raises(Unsupported, match='impl="native"'):
        select_partial_attention(bound, double, AttentionOptions(enable_gqa=True, impl="native"))  # type: ignore[arg-type]
    assert (
        select_partial_attention(bound, double, AttentionOptions(enable_gqa=True)).backend is blocks
    )  # type: ignore[arg-type]
    elsewhere = tuple(x.to("meta") for x in given)
    assert (
        select_partial_attention(bound, elsewhere, AttentionOptions(enable_gqa=True)).backend
        is blocks
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("impl", ["native", "blocks"])
def test_scores_of_minus_infinity_under_a_large_logsumexp(impl: str) -> None:
    """The keys have no weight, and no gradient."""
    q, k, v = tensors()
    q[..., 0], k[:, :, ::2, 0], k[:, :, 1::2, 0] = 1e30, 1e-26, -1e30
    bound = mw.everything().on(T, T, 2, 4)
    options = AttentionOptions(1.0, enable_gqa=True, impl=impl)
    attention = select_partial_attention(bound, (q, k, v), options)
    near, far = np.arange(0, T, 2), np.arange(1, T, 2)
    out, lse = attention.forward(key_part(bound, near), q, k[:, :, near], v[:, :, near], NO_SCORES)
    assert (lse > 8192).all()
    inputs = ((q, k[:, :, far], v[:, :, far]), NO_SCORES)
    grads = attention.backward(
        key_part(bound, far), inputs, (out, lse), (torch.ones_like(out), None)
    )
    assert not any(grad.any() for grad in grads)  # NaN is true
