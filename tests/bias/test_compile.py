"""Biases made outside or inside a compiled function: one graph, equal outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

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
