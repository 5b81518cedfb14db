"""Biases made outside or inside a compiled function: one graph, equal outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import maskwright as mw

if TYPE_CHECKING:
    from maskwright.bias import Bias

MASK = mw.causal()


def make(table: torch.Tensor) -> Bias:
    return mw.bias.t5(table) + 0.5 * mw.bias.alibi(2)


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_attention_with_a_learnable_bias(inside: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    table = torch.nn.Parameter(torch.randn(8, 2))
    bias = make(table) + mw.bias.per_key([0.5] * 8)  # lists are read outside of the graph
    q, k, v = torch.randn(3, 1, 2, 8, 16)

    if inside:
        bias = make(table)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return mw.attention(q, k, v, MASK, bias=make(table) if inside else bias)

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    right, found = attend(q, k, v), compiled(q, k, v)
    assert torch.allclose(found, right, atol=1e-6)
    (expected,) = torch.autograd.grad(right.square().sum(), table)
    (grad,) = torch.autograd.grad(found.square().sum(), table)
    assert torch.allclose(grad, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["tensor", "per_key", "alibi"])
def test_graph_of_make_fx(kind: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 8, 16)
    values = {"tensor": torch.randn(2, 8, 8), "per_key": torch.randn(8), "alibi": torch.rand(2)}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return mw.attention(q, k, v, MASK, bias=getattr(mw.bias, kind)(x))

    graph = make_fx(attend)(q, k, v, values[kind])
    for x in (values[kind], values[kind] + 1):
        assert torch.equal(graph(q, k, v, x), attend(q, k, v, x))


def test_additive_mask_is_refused_by_make_fx() -> None:
    additive = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, -torch.inf)

    def attend(q: torch.Tensor, additive: torch.Tensor) -> torch.Tensor:
        mask, bias = mw.from_additive(additive)
        return mw.attention(q, q, q, mask, bias=bias)

    with pytest.raises(mw.Unsupported, match="from_additive outside"):
        make_fx(attend)(torch.randn(1, 2, 8, 16), additive)
