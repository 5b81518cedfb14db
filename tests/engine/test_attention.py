"""Attention under any mask equals the plain softmax in float64, in output and in gradients.

The measure is torch's own: no further from the truth than SDPA with the same mask as a tensor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from maskwright.engine.reference import reference
from tests.strategies import bind, cases

CASES = int(os.environ.get("MASKWRIGHT_ENGINE_CASES", "500"))
SHARES = 2

HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Drawn:
    """Tensors to attend with, and the gradient that comes back."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor
    scale: float | None

    def __repr__(self) -> str:
        shapes = [tuple(x.shape) for x in (self.q, self.k, self.v)]
        return f"Drawn({shapes}, {self.q.dtype}, strides {self.q.stride()}, scale={self.scale})"

    def with_gradients(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return tuple(x.detach().to(dtype).requires_grad_() for x in (self.q, self.k, self.v))


@st.composite
def tensors(draw: st.DrawFn, bound: mw.BoundMask) -> Drawn:
    frame = bound.frame
    dtype = draw(
        st.sampled_from(
            [torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]
        )
    )
    shared = draw(st.sampled_from([n for n in (1, 1, 2, 3) if frame.heads % n == 0]))
    dim, value_dim = draw(
        st.sampled_from([(8, 8), (8, 8), (1, 1), (5, 5), (4, 7), (9, 2), (64, 64)])
    )
    seed = draw(st.integers(0, 2**31))
    made = torch.Generator().manual_seed(seed)
    layout = draw(st.sampled_from(["plain", "projected", "strided"]))

    def fresh(heads: int, length: int, width: int) -> torch.Tensor:
        # Halved, so that float32 rounds a sum over all rows by less than the 1e-6 that is allowed.
        return laid_out((frame.batch, heads, length, width), layout, made).to(dtype) / 2

    kv_heads = frame.heads // shared
    return Drawn(
        fresh(frame.heads, frame.q_len, dim),
        fresh(kv_heads, frame.kv_len, dim),
        fresh(kv_heads, frame.kv_len, value_dim),
        fresh(frame.heads, frame.q_len, value_dim),
        draw(st.sampled_from([None, None, 0.3, 1.0])),
    )


def laid_out(shape: tuple[int, ...], layout: str, made: torch.Generator) -> torch.Tensor:
    """Random numbers, lying in memory as different callers leave them."""
    b, h, t, d = shape
    if layout == "projected":
        return torch.randn(b, t, h, d, generator=made).transpose(1, 2)
    if layout == "strided":
        return torch.randn(b, h, t, 2 * d, generator=made)[..., ::2]
    return torch.randn(shape, generator=made)


def truth(drawn: Drawn, bound: mw.BoundMask) -> tuple[torch.Tensor, ...]:
    q, k, v = drawn.with_gradients(torch.float64)
    found = reference(q, k, v, bound, drawn.scale)
    return (*gradients(found.out, drawn.grad, (q, k, v)), found.lse)


def gradients(out: torch.Tensor, grad: torch.Tensor, given: Any) -> tuple[torch.Tensor, ...]:
    if not out.requires_grad:
        return (out, *(torch.zeros_like(x) for x in given))
    found = torch.autograd.grad(out, given, grad.to(out.dtype), allow_unused=True)
    return (
        out.detach(),
        *(torch.zeros_like(x) if g is None else g for g, x in zip(found, given, strict=True)),
    )


def by_sdpa(drawn: Drawn, bound: mw.BoundMask) -> tuple[torch.Tensor, ...]:
    """The peer: a dense mask, made by hand."""
    q, k, v = drawn.with_gradients(drawn.q.dtype)
    shared = q.shape[1] // max(k.shape[1], 1)
    keys, values = (x.repeat_interleave(shared, 1) for x in (k, v))
    allowed = torch.from_numpy(bound.dense())
    out = scaled_dot_product_attention(q, keys, values, attn_mask=allowed, scale=drawn.scale)
    return gradients(out, drawn.grad, (q, k, v))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    if not found.numel():
        return 0.0
    return float((found.double() - exact).abs().max())


def check(bound: mw.BoundMask, drawn: Drawn) -> None:
    q, k, v = drawn.with_gradients(drawn.q.dtype)
    out, lse = mw.attention(q, k, v, bound, scale=drawn.scale, enable_gqa=True, return_lse=True)
    ours = gradients(out, drawn.grad, (q, k, v))
    *exact, exact_lse = truth(drawn, bound)
    assert [x.shape for x in ours] == [x.shape for x in exact]
    assert all(x.dtype == drawn.q.dtype for x in ours)
    assert all(bool(x.isfinite().all()) for x in ours)
    if comparable(drawn):
        peers = by_sdpa(drawn, bound)
        for name, mine, peer, right in zip(NAMES, ours, peers, exact, strict=True):
            most = (2 if name == "out" else 3) * error(peer, right) + 1e-6
            assert error(mine, right) <= most, (name, error(mine, right), most)
    else:
        assert all(error(mine, right) < 1e-2 for mine, right in zip(ours, exact, strict=True))
    finite = exact_lse.isfinite()
    assert torch.equal(lse.isfinite(), finite)
    assert error(lse.detach()[finite], exact_lse.detach()[finite]) <= (
        1e-1 if drawn.q.dtype in HALVES else 1e-5
    )


NAMES = ("out", "dq", "dk", "dv")


def comparable(drawn: Drawn) -> bool:
    """SDPA has no answer where there is no query, key or value."""
    return all(drawn.q.shape) and all(drawn.k.shape) and all(drawn.v.shape)


@pytest.mark.parametrize("share", range(SHARES))
def test_attention_is_as_exact_as_sdpa(share: int) -> None:
    @settings(max_examples=CASES // SHARES)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        bound = bind(*data.draw(cases()))
        check(bound, data.draw(tensors(bound)))

    run()
