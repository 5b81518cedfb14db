"""Decoder-only language models: BabyGPT, which is one layer of attention, and GPT, which is many.

The model makes its causal mask from the length, so the caller gives padding only. Another mask can
be put in its place, as in `GPT(config, mask=window(back=63))`. One bound mask goes to every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from maskwright.core.atoms import causal
from maskwright.errors import ArgumentError
from maskwright.models.attention import Cache, Head, Heads
from maskwright.models.blocks import Block, bound_mask, start_small
from maskwright.models.sampling import Sampling, sample

if TYPE_CHECKING:
    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class GPTConfig:
    """How large a GPT is. `context` is how many tokens it can look back over.

    >>> from maskwright.models.gpt import GPTConfig
    >>> GPTConfig(vocabulary=65, context=16, width=32)
    GPTConfig(vocabulary=65, context=16, width=32, heads=4, layers=4, dropout=0.0)
    """

    vocabulary: int
    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 4
    dropout: float = 0.0


class BabyGPT(nn.Module):
    """The smallest GPT: embeddings, attention, and a layer that names the next token.

    With one head it is a single look at the past (version 3); with several, as many looks side by
    side (version 4). No residuals, no norms, no hidden layers: attention is all there is.

    >>> import torch
    >>> from maskwright.models.gpt import BabyGPT, GPTConfig
    >>> model = BabyGPT(GPTConfig(vocabulary=65, context=16, width=32, heads=1))
    >>> model(torch.randint(65, (2, 10))).shape
    torch.Size([2, 10, 65])
    >>> model.generate(torch.zeros(1, 1, dtype=torch.long), count=3).shape
    torch.Size([1, 4])
    """

    def __init__(self, config: GPTConfig, mask: Mask | None = None) -> None:
        super().__init__()
        self.config, self.mask = config, causal() if mask is None else mask
        width, heads = config.width, config.heads
        self.words = nn.Embedding(config.vocabulary, width)
        self.places = nn.Embedding(config.context, width)
        self.attend: Head | Heads = Head(width, width) if heads == 1 else Heads(width, heads)
        self.name = nn.Linear(width, config.vocabulary)

    def forward(self, ids: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """Logits of the next token, at every place: (B, T) → (B, T, vocabulary)."""
        _check_length(ids.shape[1], self.config.context)
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        mask = self.mask if padding is None else self.mask & padding
        logits: torch.Tensor = self.name(self.attend(x, mask))  # (B, T, C) → (B, T, vocabulary)
        return logits

    @torch.no_grad()
    def generate(
        self, ids: torch.Tensor, count: int, sampling: Sampling | None = None
    ) -> torch.Tensor:
        """The ids with `count` more behind them, one at a time."""
        how = Sampling() if sampling is None else sampling
        generator = how.generator(ids.device)
        for _ in range(count):
            logits = self(ids[:, -self.config.context :])[:, -1]
            ids = torch.cat([ids, sample(logits, how, generator)[:, None]], dim=1)
        return ids


class GPT(nn.Module):
    """A decoder-only Transformer as GPT-2 is: blocks with residuals, norms in front, tied weights.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocabulary=65, context=32, width=32, heads=2, layers=2))
    >>> model(torch.randint(65, (2, 10)), padding=mw.padding(lengths=[7, 10])).shape
    torch.Size([2, 10, 65])
    >>> model.generate(torch.zeros(1, 3, dtype=torch.long), 5).shape
    torch.Size([1, 8])
    >>> len(model.new_caches())  # one a layer, for decoding by hand
    2
    """

    def __init__(self, config: GPTConfig, mask: Mask | None = None) -> None:
        super().__init__()
        self.config, self.mask = config, causal() if mask is None else mask
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.places = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        start_small(self)

    def forward(
        self,
        ids: torch.Tensor,
        padding: Mask | None = None,
        *,
        positions: torch.Tensor | None = None,
        caches: list[Cache] | None = None,
    ) -> torch.Tensor:
        """Logits of the next token, at every place: (B, T) → (B, T, vocabulary).

        `positions` (B, T) are counted from 0, if not given. With caches, the ids come after those
        that they hold; padding, and positions where they are given, then cover all of them.
        """
        batch, tokens = ids.shape
        before = len(caches[0]) if caches else 0
        _check_length(before + tokens, self.config.context)
        if positions is None:
            positions = torch.arange(before, before + tokens, device=ids.device)
        x = self.drop(self.words(ids) + self.places(positions))  # (B, T, C)
        mask = bound_mask(self.mask, padding, tokens, before + tokens, batch, self.config.heads)
        for n, block in enumerate(self.blocks):
            x = block(x, mask, caches[n] if caches else None)
        logits: torch.Tensor = self.norm(x) @ self.words.weight.T  # the embedding, turned around
        return logits

    def new_caches(self) -> list[Cache]:
        """An empty cache for every layer."""
        return [Cache() for _ in self.blocks]

    @torch.no_grad()
    def generate(
        self,
        ids: torch.Tensor,
        count: int,
        sampling: Sampling | None = None,
        *,
        stop: int | None = None,
    ) -> torch.Tensor:
        """The ids with up to `count` more behind them; all rows end once each has had a `stop`.

        Where the context is full, the older half is forgotten.
        """
        _check_length(ids.shape[1], self.config.context)
        how = Sampling() if sampling is None else sampling
        generator = how.generator(ids.device)
        done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
        caches, fresh = self.new_caches(), ids
        for _ in range(count):
            if self.blocks and len(caches[0]) + fresh.shape[1] > self.config.context:
                caches, fresh = self.new_caches(), ids[:, -max(self.config.context // 2, 1) :]
            logits = self(fresh, caches=caches)[:, -1]
            fresh = sample(logits, how, generator)[:, None]
            if stop is not None:
                fresh = fresh.masked_fill(done[:, None], stop)
                done |= fresh[:, 0] == stop
            ids = torch.cat([ids, fresh], dim=1)
            if bool(done.all()):
                break
        return ids


def _check_length(tokens: int, context: int) -> None:
    if tokens > context:
        raise ArgumentError(
            f"There are {tokens} tokens but the context is {context}. Give fewer, or a model with "
            "a larger context."
        )
