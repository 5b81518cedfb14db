"""Attention under random masks against dense attention in float64, outputs and gradients.

The error is compared with that of SDPA with the same mask as a tensor, and with the rounding error
that follows from dtype and length.
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
from tests._helpers.attention_inputs import error, largest_summand, tolerance
from tests._helpers.strategies import bind, cases
from tests.conftest import FAST, SHARES

CASES = int(os.environ.get("MASKWRIGHT_ENGINE_CASES", "50" if FAST else "500"))
NAMES = ("out", "dq", "dk", "dv")


@dataclass
class Drawn:
    """Tensors, the incoming gradient, and options."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor
    scale: float | None
    impl: str

    def __repr__(self) -> str:
        shapes = [tuple(x.shape) for x in (self.q, self.k, self.v)]
        strides = self.q.stride()
        return f"Drawn({shapes}, {self.q.dtype}, {strides}, scale={self.scale}, impl={self.impl})"

    def leaves(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return tuple(x.detach().to(dtype).requires_grad_() for x in (self.q, self.k, self.v))


@st.composite
def drawn_tensors(draw: st.DrawFn, bound: mw.BoundMask) -> Drawn:
    frame = bound.frame
    dtypes = [torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]
    dtype = draw(st.sampled_from(dtypes))
    group = draw(st.sampled_from([n for n in (1, 1, 2, 3) if frame.heads % n == 0]))
    dims = [(8, 8), (8, 8), (1, 1), (5, 5), (4, 7), (9, 2), (64, 64)]
    dim, value_dim = draw(st.sampled_from(dims))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    layout = draw(st.sampled_from(["contiguous", "projected", "strided"]))

    def fresh(heads: int, length: int, width: int) -> torch.Tensor:
        return laid_out((frame.batch, heads, length, width), layout, generator).to(dtype)

    kv_heads = frame.heads // group
    return Drawn(
        fresh(frame.heads, frame.q_len, dim),
        fresh(kv_heads, frame.kv_len, dim),
        fresh(kv_heads, frame.kv_len, value_dim),
        fresh(frame.heads, frame.q_len, value_dim),
        draw(st.sampled_from([None, None, 0.3, 1.0, -0.5, 1e-9])),
        draw(st.sampled_from(["auto", "auto", "blocks"])),
    )


def laid_out(shape: tuple[int, ...], layout: str, generator: torch.Generator) -> torch.Tensor:
    """Random numbers in one of the memory layouts that callers have."""
    b, h, t, d = shape
    if layout == "projected":
        return torch.randn(b, t, h, d, generator=generator).transpose(1, 2)
    if layout == "strided":
        return torch.randn(b, h, t, 2 * d, generator=generator)[..., ::2]
    return torch.randn(shape, generator=generator)


def with_gradients(out: torch.Tensor, grad: torch.Tensor, leaves: Any) -> tuple[torch.Tensor, ...]:
    if not out.requires_grad:
        return (out, *(torch.zeros_like(x) for x in leaves))
    found = torch.autograd.grad(out, leaves, grad.to(out.dtype), materialize_grads=True)
    return (out.detach(), *found)


def by_sdpa(drawn: Drawn, bound: mw.BoundMask) -> tuple[torch.Tensor, ...]:
    """SDPA with a dense mask."""
    q, k, v = drawn.leaves(drawn.q.dtype)
    group = q.shape[1] // max(k.shape[1], 1)
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    mask = torch.from_numpy(bound.dense())
    out = scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=drawn.scale)
    return with_gradients(out, drawn.grad, (q, k, v))


def check(bound: mw.BoundMask, drawn: Drawn) -> None:
    leaves = drawn.leaves(drawn.q.dtype)
    options = {"scale": drawn.scale, "enable_gqa": True, "impl": drawn.impl}
    out, lse = mw.attention(*leaves, bound, return_lse=True, **options)
    ours = with_gradients(out, drawn.grad, leaves)
    doubles = drawn.leaves(torch.float64)
    right = reference(*doubles, bound, drawn.scale)
    exact = with_gradients(right.out, drawn.grad, doubles)
    assert [x.shape for x in ours] == [x.shape for x in exact]
    assert all(x.dtype == drawn.q.dtype for x in ours)
    # SDPA has no result where there is no query, key or value.
    comparable = all(drawn.q.shape) and all(drawn.k.shape) and all(drawn.v.shape)
    peers = by_sdpa(drawn, bound) if comparable else (None,) * 4
    length, summand = max(bound.shape[2:]), largest_summand(leaves, drawn.grad, drawn.scale)
    for name, mine, peer, truth in zip(NAMES, ours, peers, exact, strict=True):
        limit = tolerance(drawn.q.dtype, truth, length, 1.0 if name == "out" else summand)
        if peer is not None and (of_peer := error(peer, truth)) < float("inf"):
            limit = max(limit, 3 * of_peer)
        assert error(mine, truth) <= limit, (name, error(mine, truth), limit)
    assert error(lse, right.lse) <= tolerance(torch.float32, right.lse, length)


@pytest.mark.parametrize("share", range(SHARES))
def test_attention_is_as_exact_as_sdpa(share: int) -> None:
    @settings(max_examples=CASES // SHARES)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        bound = bind(*data.draw(cases()))
        check(bound, data.draw(drawn_tensors(bound)))

    run()
