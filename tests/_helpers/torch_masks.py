"""Masks to try in PyTorch's own code, and how two results are compared."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import maskwright as mw
from maskwright.integrations import multihead_attention, torch_function

if TYPE_CHECKING:
    import pytest

B, H, T, S, D = 2, 2, 5, 5, 8
PAD = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 0, 0, 0]], dtype=torch.bool)
MODES = list(product([True, False], [True, False]))

MASKS = {
    "everything": mw.everything(),
    "causal": mw.causal(),
    "window": mw.window(1, 1),
    "padding": mw.padding(lengths=[3, 5]),
    "causal and padding": mw.causal() & mw.padding(keep=[[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]),
    "documents": mw.documents(lengths=[[2, 3], [1, 4]]),
    "by head": mw.by_head([mw.causal(), mw.everything()]),
    "empty rows": mw.causal() & ~mw.keys([0]),
}


def randoms(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def as_tensor(mask: mw.Mask | mw.BoundMask, q_len: int = T, kv_len: int = S) -> torch.Tensor:
    bound = mask if isinstance(mask, mw.BoundMask) else mask.on(q_len, kv_len, B, H)
    return mw.lower(bound, "torch.bool")


def as_floats(mask: mw.Mask, *sizes: int) -> torch.Tensor:
    """The mask for every sequence and head, as floats, which no fused path takes."""
    bias = mw.lower(mask, "torch.additive", *sizes, batch=B, heads=H, dtype=torch.float64)
    return bias.expand(B, H, -1, -1).flatten(0, 1)


def run_layer(module: nn.Module, training: bool, grad: bool, *inputs: Any, **masks: Any) -> Any:
    module.train(training)
    with torch.set_grad_enabled(grad):
        return module(*inputs, **masks)


def assert_same(one: Any, other: Any, inputs: Any) -> None:
    """Outputs and gradients agree, and none is NaN."""
    torch.testing.assert_close(one, other)
    for loss in (one, other):
        assert not loss.isnan().any()
    weight = torch.randn(one.shape)  # not randn_like, which follows the strides
    got = torch.autograd.grad((one * weight).sum(), inputs, allow_unused=True)
    right = torch.autograd.grad((other * weight).sum(), inputs, allow_unused=True)
    for left, expected in zip(got, right, strict=True):
        torch.testing.assert_close(left, expected)


def spy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `attention` is called with."""
    calls: list[dict[str, Any]] = []
    real = torch_function.attention

    def seen(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return real(*args, **options)

    for module in (multihead_attention, torch_function):
        monkeypatch.setattr(module, "attention", seen)
    return calls
