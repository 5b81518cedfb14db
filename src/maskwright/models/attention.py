"""Attention layers, twice: as the textbook writes them, and fast. A test proves them equal.

`Head` and `Heads` are for reading: every step is a line, with the shape behind it. What models are
built of is `MultiHeadAttention`, which computes the same by `maskwright.attention`, never builds
(T, T), and can keep keys and values in a cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from maskwright.engine.api import attention
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask


class Head(nn.Module):
    """One head of self-attention: (B, T, C) → (B, T, head_size).

    >>> import torch, maskwright as mw
    >>> from maskwright.models.attention import Head
    >>> Head(width=16, head_size=4)(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 4])
    """

    def __init__(self, width: int, head_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, head_size, bias=False)
        self.key = nn.Linear(width, head_size, bias=False)
        self.value = nn.Linear(width, head_size, bias=False)

    def forward(self, x: torch.Tensor, mask: Mask) -> torch.Tensor:
        """Weighted sum of the visible values."""
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, head_size) each
        bound = mask.on(x.shape[1], batch=x.shape[0])
        visible = torch.from_numpy(bound.dense()[:, 0])  # (B or 1, T, T)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])  # (B, T, T)
        weights, _ = masked_softmax(scores, visible)  # (B, T, T), 0 in a fully masked row
        out: torch.Tensor = weights @ v  # (B, T, head_size)
        return out


class Heads(nn.Module):
    """Independent heads side by side, and a layer that mixes what they found.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.attention import Heads
    >>> Heads(width=16, heads=4)(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        _check(width, heads)
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.mix = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: Mask) -> torch.Tensor:
        """Every head looks for itself; the results stand side by side."""
        found = torch.cat([head(x, mask) for head in self.heads], dim=-1)  # (B, T, C)
        mixed: torch.Tensor = self.mix(found)
        return mixed


class Cache:
    """Keys and values of the tokens so far, of one layer.

    >>> import torch
    >>> from maskwright.models.attention import Cache
    >>> cache, one = Cache(), torch.ones(2, 4, 1, 8)
    >>> k, v = cache.add(one, one)
    >>> k, v = cache.add(one, one)
    >>> len(cache), tuple(k.shape)
    (2, (2, 4, 2, 8))
    >>> cache.choose(torch.tensor([1]))
    >>> tuple(cache.k.shape)
    (1, 4, 2, 8)
    """

    def __init__(self) -> None:
        self.k: torch.Tensor | None = None
        self.v: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def add(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put new ones behind the old ones, and give all."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        return k, v

    def choose(self, rows: torch.Tensor) -> None:
        """Keep these batch rows, in this order: what beam search does with its beams."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[rows], self.v[rows]


class MultiHeadAttention(nn.Module):
    """Self-attention or cross-attention with several heads, fast: (B, T, C) → (B, T, C).

    `memory` is what is looked at, (B, S, C); if not given, the tokens look at each other. With a
    cache, the tokens given come after those that it holds.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.attention import MultiHeadAttention
    >>> layer = MultiHeadAttention(width=16, heads=4)
    >>> layer(torch.randn(2, 5, 16), mw.causal()).shape
    torch.Size([2, 5, 16])
    >>> layer.take_from(Heads(width=16, heads=4))  # the form of textbooks, to compare with
    """

    def __init__(self, width: int, heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        _check(width, heads)
        self.count, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.mix = nn.Linear(width, width)

    def forward(
        self,
        x: torch.Tensor,
        mask: Mask | BoundMask,
        *,
        memory: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Attention of all heads at once."""
        source = x if memory is None else memory
        q = self._split(self.query(x))  # (B, H, T, head_size)
        if memory is not None and cache is not None and len(cache):
            assert cache.k is not None
            assert cache.v is not None
            k, v = cache.k, cache.v  # the memory does not change from step to step
        else:
            k, v = self._split(self.key(source)), self._split(self.value(source))
            if cache is not None:
                k, v = cache.add(k, v)
        dropped = self.dropout if self.training else 0.0
        found = attention(q, k, v, mask, dropout_p=dropped)  # (B, H, T, head_size)
        mixed: torch.Tensor = self.mix(found.transpose(1, 2).flatten(2))
        return mixed

    def take_from(self, textbook: Heads) -> None:
        """Take the weights of the textbook's form, and compute the same from then on."""
        with torch.no_grad():
            for name in ("query", "key", "value"):
                layer = getattr(self, name)
                layer.weight.copy_(
                    torch.cat([getattr(head, name).weight for head in textbook.heads])
                )
                if layer.bias is not None:
                    layer.bias.zero_()
            self.mix.load_state_dict(textbook.mix.state_dict())

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, C) → (B, H, T, head_size)."""
        return x.unflatten(-1, (self.count, -1)).transpose(1, 2)


def _check(width: int, heads: int) -> None:
    if heads < 1 or width % heads:
        raise ArgumentError(
            f"width={width} can't be shared by heads={heads}. Give a width that they divide evenly."
        )
