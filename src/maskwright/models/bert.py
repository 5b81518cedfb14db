"""A bidirectional encoder: every token sees all real tokens, before it and after it.

Padding is all the mask that it has. It fills in words that were blanked out, and sums a text up in
one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import gelu

from maskwright.core.atoms import everything
from maskwright.errors import ArgumentError
from maskwright.models.blocks import Block, bound_mask, start_small

if TYPE_CHECKING:
    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class BertConfig:
    """How large an encoder is.

    >>> from maskwright.models.bert import BertConfig
    >>> BertConfig(vocabulary=65, context=16, width=32)
    BertConfig(vocabulary=65, context=16, width=32, heads=4, layers=4, dropout=0.0)
    """

    vocabulary: int
    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 4
    dropout: float = 0.0


class Bert(nn.Module):
    """An encoder with a head that names blanked-out words, and one that sums the text up.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.bert import Bert, BertConfig
    >>> model = Bert(BertConfig(vocabulary=100, width=32, heads=2, layers=2))
    >>> ids, padding = torch.randint(100, (2, 6)), mw.padding(lengths=[4, 6])
    >>> model(ids, padding).shape, model.pooled(ids, padding).shape
    (torch.Size([2, 6, 100]), torch.Size([2, 32]))
    >>> model.encode(ids, padding).shape
    torch.Size([2, 6, 32])
    """

    def __init__(self, config: BertConfig, mask: Mask | None = None) -> None:
        super().__init__()
        self.config, self.mask = config, everything() if mask is None else mask
        width = config.width
        self.words = nn.Embedding(config.vocabulary, width)
        self.places = nn.Embedding(config.context, width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(width, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.guess = nn.Linear(width, width)
        self.guess_norm = nn.LayerNorm(width)
        self.pool = nn.Linear(width, width)
        start_small(self)

    def forward(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """Logits of the word at every place: (B, T) → (B, T, vocabulary)."""
        hidden = self.guess_norm(gelu(self.guess(self.encode(ids, padding))))
        logits: torch.Tensor = hidden @ self.words.weight.T
        return logits

    def encode(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """What each token means among the others: (B, T) → (B, T, C)."""
        batch, tokens = ids.shape
        if tokens > self.config.context:
            raise ArgumentError(
                f"There are {tokens} tokens but the context is {self.config.context}. Give fewer."
            )
        places = self.places(torch.arange(tokens, device=ids.device))
        x = self.drop(self.words(ids) + places)  # (B, T, C)
        mask = bound_mask(self.mask, padding, tokens, tokens, batch, self.config.heads)
        for block in self.blocks:
            x = block(x, mask)
        encoded: torch.Tensor = self.norm(x)
        return encoded

    def pooled(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """The whole text in one vector, made of its first token: (B, T) → (B, C)."""
        first = self.encode(ids, padding)[:, 0]
        summed: torch.Tensor = torch.tanh(self.pool(first))
        return summed
