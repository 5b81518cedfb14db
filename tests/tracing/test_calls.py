"""Attention calls: the layer and the step of each, and the text of its mask."""

from __future__ import annotations

import torch
from torch import nn

import maskwright as mw
from maskwright.tracing import trace
from tests._helpers.traced_modules import (
    B,
    H,
    ResidualStack,
    T,
    causal_layer,
    sdpa,
    tensors,
    tokens,
)


def test_mask_text_is_short_for_random_masks() -> None:
    keep = torch.rand(B, H, T, T) > 0.5
    [call] = trace(sdpa, *tensors(), attn_mask=keep | torch.eye(T).bool())
    assert call.mask is not None
    assert len(call.mask_text) < 80


def test_layers_are_named_when_function_calls_model() -> None:
    model = ResidualStack(causal_layer())
    assert [call.layer for call in trace(lambda x: model(x), tokens())] == ["layers.0"]
    assert [call.layer for call in trace(model.forward, tokens())] == ["layers.0"]


def test_modules_with_same_input_are_one_step() -> None:
    from maskwright.models.attention import NaiveMultiHeadAttention

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = NaiveMultiHeadAttention(8, 2), NaiveMultiHeadAttention(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = mw.window(back=1)
            return self.second(self.first(x, mask), mask)

    calls = mw.trace(Two(), torch.randn(1, 6, 8))
    assert [call.layer for call in calls] == [
        "first.heads.0",
        "first.heads.1",
        "second.heads.0",
        "second.heads.1",
    ]
    assert [call.step for call in calls] == [0, 0, 1, 1]
    mw.audit(Two(), torch.randn(2, 12, 8), expects=mw.window(back=1)).assert_ok()


def test_tensor_modified_in_place_is_new_input() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Plain() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            for layer in self.layers:
                x += layer(x)
            return x

    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
            return nn.functional.scaled_dot_product_attention(one, one, one, is_causal=True)

    with torch.no_grad():
        calls = mw.trace(InPlace(), torch.randn(1, 4, 8))
    assert [call.step for call in calls] == list(range(6))
