"""Sizes, masks and modules for tests of tracing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import maskwright as mw
from maskwright.tracing import AttentionCall, recording

if TYPE_CHECKING:
    from maskwright import Mask

B, H, T, D = 2, 4, 6, 8
C = H * D
LENGTHS = [4, 6]
INF = math.inf
sdpa = F.scaled_dot_product_attention

FUTURE = torch.ones(T, T).triu(1).bool()
IS_PADDING = torch.arange(T) >= torch.tensor(LENGTHS)[:, None]  # (B, T), True at padding
CAUSAL = mw.causal()
PADDING = mw.padding(lengths=LENGTHS)
MASKS: dict[str, Mask] = {
    "everything": mw.everything(),
    "causal": CAUSAL,
    "window": mw.window(back=2),
    "padding": PADDING,
    "causal and padding": CAUSAL & PADDING,
    "inverted": ~CAUSAL,
}


def cells(mask: Mask, q_len: int = T, kv_len: int | None = None, q_start: int | None = None) -> Any:
    return mask.on(q_len, kv_len, B, H, q_start).dense()


def assert_visible(call: AttentionCall, mask: Mask, **sizes: Any) -> None:
    queries, keys = call.visible.shape[2:]
    expected = cells(mask, queries, keys, **sizes)
    whole = np.broadcast_to(call.visible, (B, H, queries, keys))
    np.testing.assert_array_equal(whole, np.broadcast_to(expected, whole.shape))


def tensors(length: int = T, keys: int | None = None, heads: int = H) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    keys = length if keys is None else keys
    return (
        torch.randn(B, H, length, D),
        torch.randn(B, heads, keys, D),
        torch.randn(B, heads, keys, D),
    )


def tokens(length: int = T, seed: int = 0) -> torch.Tensor:
    return torch.randn(B, length, C, generator=torch.Generator().manual_seed(seed))


def trace_unchanged(model: Any, *args: Any, **kwargs: Any) -> list[AttentionCall]:
    """The calls of a model, after checking that its output is bitwise the same untraced."""
    with torch.no_grad():
        plain = model(*args, **kwargs)
        with recording(model) as recorder:
            traced = model(*args, **kwargs)
    for one, other in zip(_flat(plain), _flat(traced), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return recorder.calls


def _flat(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    parts = out.values() if isinstance(out, dict) else out
    return [x for part in parts if isinstance(part, (torch.Tensor, tuple)) for x in _flat(part)]


class ManualAttention(nn.Module):
    """Manual attention with functions applied before and after the softmax."""

    def __init__(
        self,
        before: Any = lambda scores: scores,
        after: Any = lambda weights: weights,
        form: str = "matmul",
        softmax: Any = lambda scores: scores.softmax(-1),
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(C, 3 * C)
        self.out = nn.Linear(C, C)
        self.drop = nn.Dropout(0.5)
        self.before, self.after, self.form, self.softmax = before, after, form, softmax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project(x).view(batch, length, 3, H, D).unbind(2)
        if self.form == "einsum":
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)
            weights = self.after(self.drop(self.softmax(self.before(scores))))
            out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        elif self.form == "einsum, heads last":
            scores = torch.einsum("bqhd,bkhd->bqkh", q, k) / math.sqrt(D)
            weights = self.softmax(self.before(scores.permute(0, 3, 1, 2)))
            weights = self.after(weights.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
            out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        elif self.form == "bmm":
            q, k, v = (x.transpose(1, 2).reshape(-1, length, D) for x in (q, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(D**-0.5)
            scores = self.before(scores.view(batch, H, length, length))
            weights = self.softmax(scores.view(-1, length, length))
            weights = self.after(self.drop(weights).view(batch, H, length, length))
            out = torch.bmm(weights.view(-1, length, length), v)
            out = out.view(batch, H, length, D).transpose(1, 2)
        elif self.form == "transposed":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            scores = (k @ q.mT).mT / math.sqrt(D)
            out = (v.mT @ self.after(self.softmax(self.before(scores))).mT).mT.transpose(1, 2)
        elif self.form == "queries first":
            scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / math.sqrt(D)
            weights = self.softmax(self.before(scores.transpose(1, 2))).transpose(1, 2)
            weights = self.after(weights.transpose(1, 2)).transpose(1, 2)
            out = torch.einsum("bqhk,bkhd->bqhd", weights, v)
        else:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            scores = q @ k.transpose(-2, -1) / math.sqrt(D)
            out = self.after(self.drop(self.softmax(self.before(scores)))) @ v
            out = out.transpose(1, 2)
        return self.out(out.reshape(batch, length, C))


class ResidualStack(nn.Module):
    """Layers with residual connections."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def causal_layer() -> ManualAttention:
    return ManualAttention(lambda s: s.masked_fill(FUTURE, -INF))
