"""What every Transformer here is made of: blocks that look at others, and then think for themselves."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import gelu

from maskwright.models.attention import Cache, MultiHeadAttention

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask

STEP = 0.02  # the spread of weights at the start


class Block(nn.Module):
    """Look at others, then think for oneself; each adds to what is there.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.blocks import Block
    >>> Block(width=16, heads=2)(torch.randn(2, 5, 16), mw.causal().on(5, batch=2, heads=2)).shape
    torch.Size([2, 5, 16])
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm_attend, self.norm_think = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = MultiHeadAttention(width, heads, dropout=dropout)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: torch.Tensor, mask: Mask | BoundMask, cache: Cache | None = None
    ) -> torch.Tensor:
        """(B, T, C) → (B, T, C)."""
        return self.think(self.look(x, mask, cache))

    def look(
        self, x: torch.Tensor, mask: Mask | BoundMask, cache: Cache | None = None
    ) -> torch.Tensor:
        """Self-attention, added."""
        seen: torch.Tensor = x + self.drop(self.attend(self.norm_attend(x), mask, cache=cache))
        return seen

    def think(self, x: torch.Tensor) -> torch.Tensor:
        """A hidden layer for every token by itself, added."""
        hidden = gelu(self.widen(self.norm_think(x)), approximate="tanh")
        thought: torch.Tensor = x + self.drop(self.narrow(hidden))
        return thought


class CrossBlock(Block):
    """A block that also looks at a memory, between looking at its own tokens and thinking."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout)
        self.norm_cross = nn.LayerNorm(width)
        self.cross = MultiHeadAttention(width, heads, dropout=dropout)

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        mask: Mask | BoundMask,
        memory: torch.Tensor,
        cross_mask: Mask | BoundMask,
        caches: tuple[Cache, Cache] | None = None,
    ) -> torch.Tensor:
        """(B, T, C) and a memory (B, S, C) → (B, T, C)."""
        own, other = caches if caches else (None, None)
        x = self.look(x, mask, own)
        found = self.cross(self.norm_cross(x), cross_mask, memory=memory, cache=other)
        return self.think(x + self.drop(found))


def bound_mask(
    mask: Mask, padding: Mask | None, tokens: int, keys: int, batch: int, heads: int
) -> Mask | BoundMask:
    """The mask of all layers, on the frame of this pass; without padding it is made once.

    Compiled code is given the mask as it is, and binds it when it runs.
    """
    if torch.compiler.is_compiling():
        return mask if padding is None else mask & padding
    if padding is None:
        return _bound(mask, tokens, keys, batch, heads)
    return (mask & padding).on(tokens, keys, batch=batch, heads=heads)


@lru_cache(maxsize=256)
def _bound(mask: Mask, tokens: int, keys: int, batch: int, heads: int) -> BoundMask:
    return mask.on(tokens, keys, batch=batch, heads=heads)


def start_small(model: nn.Module) -> None:
    """Weights as GPT-2 starts with: small, and what layers add up smaller still."""
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    for part in model.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.normal_(part.weight, std=STEP)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    for block in blocks:
        for layer in (block.attend.mix, block.narrow):
            nn.init.normal_(layer.weight, std=STEP / math.sqrt(2 * len(blocks)))
