"""An encoder and a decoder, which translate: three attentions, each under its own mask.

The encoder's tokens see all real source tokens. The decoder's see themselves and those before. And
in between, each of the decoder's sees all real source tokens. The model makes the causal mask from
the length; the caller gives the padding of the source, and, in training, need not give the target's:
what comes after the end of a sentence is never seen by what comes before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from maskwright.core.atoms import causal, everything
from maskwright.core.atoms import padding as padding_of
from maskwright.errors import ArgumentError
from maskwright.models.attention import Cache
from maskwright.models.blocks import Block, CrossBlock, bound_mask, start_small
from maskwright.models.pointer import Pointer

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

Caches = list[tuple[Cache, Cache]]


@dataclass(frozen=True)
class Seq2SeqConfig:
    """How large it is, and which ids begin, end and fill up a sentence.

    >>> from maskwright.models.seq2seq import Seq2SeqConfig
    >>> config = Seq2SeqConfig(source_vocabulary=40, target_vocabulary=50, width=32)
    >>> config.pad, config.begin, config.end
    (0, 1, 2)
    """

    source_vocabulary: int
    target_vocabulary: int
    context: int = 128
    width: int = 128
    heads: int = 4
    layers: int = 2
    dropout: float = 0.0
    pad: int = 0
    begin: int = 1
    end: int = 2
    copies: bool = False  # may words of the source be copied? Then both have one vocabulary


class Seq2Seq(nn.Module):
    """An encoder-decoder.

    >>> import torch, maskwright as mw
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(50, 60, width=32, heads=2, layers=1))
    >>> source, target = torch.randint(3, 50, (2, 7)), torch.randint(3, 60, (2, 5))
    >>> model(source, target, mw.padding(lengths=[4, 7])).shape
    torch.Size([2, 5, 60])
    >>> memory = model.encode(source)
    >>> memory.shape, model.decode(target, memory).shape, len(model.new_caches())
    (torch.Size([2, 7, 32]), torch.Size([2, 5, 60]), 1)
    >>> len(model.greedy(source, most=4)), len(model.beam(source, beams=2, most=4))
    (2, 2)
    """

    def __init__(self, config: Seq2SeqConfig, mask: Mask | None = None) -> None:
        super().__init__()
        if config.copies and config.source_vocabulary != config.target_vocabulary:
            raise ArgumentError(
                f"There are {config.source_vocabulary} source words and {config.target_vocabulary} "
                "target words, so none can be copied. Give both the same vocabulary."
            )
        self.config, self.mask = config, causal() if mask is None else mask
        width, heads, dropout = config.width, config.heads, config.dropout
        self.source_words = nn.Embedding(config.source_vocabulary, width)
        self.target_words = nn.Embedding(config.target_vocabulary, width)
        self.source_places = nn.Embedding(config.context, width)
        self.target_places = nn.Embedding(config.context, width)
        self.drop = nn.Dropout(dropout)
        layers = range(config.layers)
        self.encoder = nn.ModuleList(Block(width, heads, dropout) for _ in layers)
        self.decoder = nn.ModuleList(CrossBlock(width, heads, dropout) for _ in layers)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.pointer = Pointer(width) if config.copies else None
        start_small(self)

    def forward(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        source_padding: Mask | None = None,
        target_padding: Mask | None = None,
    ) -> torch.Tensor:
        """Logits of the next target token, at every place: (B, S), (B, T) → (B, T, vocabulary)."""
        memory = self.encode(source, source_padding)
        return self.decode(target, memory, source_padding, target_padding, source=source)

    def encode(self, source: torch.Tensor, padding: Mask | None = None) -> torch.Tensor:
        """The source, each token among the others: (B, S) → (B, S, C)."""
        batch, tokens = source.shape
        x = self._embed(source, self.source_words, self.source_places, 0)
        mask = bound_mask(everything(), padding, tokens, tokens, batch, self.config.heads)
        for block in self.encoder:
            x = block(x, mask)
        encoded: torch.Tensor = self.encoder_norm(x)
        return encoded

    def decode(
        self,
        target: torch.Tensor,
        memory: torch.Tensor,
        source_padding: Mask | None = None,
        target_padding: Mask | None = None,
        caches: Caches | None = None,
        *,
        source: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of the next target token; with caches the tokens come after those they hold.

        `source` is for a model that copies from it.
        """
        batch, tokens = target.shape
        before = len(caches[0][0]) if caches else 0
        heads, keys = self.config.heads, memory.shape[1]
        x = self._embed(target, self.target_words, self.target_places, before)
        mask = bound_mask(self.mask, target_padding, tokens, before + tokens, batch, heads)
        cross = bound_mask(everything(), source_padding, tokens, keys, batch, heads)
        for n, block in enumerate(self.decoder):
            x = block(x, mask, memory, cross, caches[n] if caches else None)
        x = self.decoder_norm(x)
        logits: torch.Tensor = x @ self.target_words.weight.T
        if self.pointer is None or source is None:
            return logits
        copied: torch.Tensor = self.pointer(
            x, memory, source, _kept(source, source_padding), logits
        )
        return copied

    def new_caches(self) -> Caches:
        """Empty caches for every layer: of its own tokens, and of the memory."""
        return [(Cache(), Cache()) for _ in self.decoder]

    @torch.no_grad()
    def greedy(
        self, source: torch.Tensor, padding: Mask | None = None, *, most: int = 64
    ) -> torch.Tensor:
        """The likeliest token, again and again, until each row has ended: (B, S) → (B, up to most)."""
        config = self.config
        memory, caches = self.encode(source, padding), self.new_caches()
        ids = source.new_full((source.shape[0], 1), config.begin)
        done = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
        for _ in range(min(most, config.context)):
            logits = self.decode(ids[:, -1:], memory, padding, caches=caches, source=source)[:, -1]
            fresh = logits.argmax(-1).masked_fill(done, config.pad)
            ids = torch.cat([ids, fresh[:, None]], dim=1)
            done |= fresh == config.end
            if bool(done.all()):
                break
        return ids[:, 1:]

    @torch.no_grad()
    def beam(
        self,
        source: torch.Tensor,
        padding: Mask | None = None,
        *,
        beams: int = 4,
        most: int = 64,
        length_power: float = 1.0,
    ) -> torch.Tensor:
        """The best of several beginnings that are followed at once: (B, S) → (B, up to most).

        A sentence is scored by its log-probability over its length to the `length_power`. Caches
        and padding follow the beams: a beam that goes on from another takes over its keys.
        """
        config, batch = self.config, source.shape[0]
        if beams < 1:
            raise ArgumentError(f"beams={beams} follows nothing. Give 1 or more.")
        memory = self.encode(source, padding).repeat_interleave(beams, 0)  # (B · beams, S, C)
        padding = _for_beams(padding, source.shape, beams)
        source = source.repeat_interleave(beams, 0)
        caches = self.new_caches()
        ids = source.new_full((batch * beams, 1), config.begin)
        score = memory.new_full((batch, beams), -torch.inf)
        score[:, 0] = 0.0  # at first all beams are the same one
        length = torch.zeros_like(score)
        done = torch.zeros_like(score, dtype=torch.bool)
        for _ in range(min(most, config.context)):
            logits = self.decode(ids[:, -1:], memory, padding, caches=caches, source=source)[:, -1]
            chances = logits.log_softmax(-1).unflatten(0, (batch, beams))  # (B, beams, vocabulary)
            chances = chances.masked_fill(done[..., None], -torch.inf)
            chances[..., config.pad] = chances[..., config.pad].masked_fill(done, 0.0)
            total = score[..., None] + chances
            longer = (length + ~done)[..., None]
            worth = (total / longer.clamp(min=1) ** length_power).flatten(1)
            best = worth.topk(beams, dim=-1).indices  # (B, beams)
            from_beam, token = best // total.shape[-1], best % total.shape[-1]
            score = total.flatten(1).gather(1, best)
            length = longer[..., 0].gather(1, from_beam)
            done = done.gather(1, from_beam) | (token == config.end)
            rows = (from_beam + beams * torch.arange(batch, device=ids.device)[:, None]).flatten()
            for own, _ in caches:  # the memory is the same for all beams of a sentence
                own.choose(rows)
            ids = torch.cat([ids[rows], token.flatten()[:, None]], dim=1)
            if bool(done.all()):
                break
        worth = score / length.clamp(min=1) ** length_power
        winner = worth.argmax(-1) + beams * torch.arange(batch, device=ids.device)
        return ids[winner, 1:]

    def _embed(
        self, ids: torch.Tensor, words: nn.Embedding, places: nn.Embedding, before: int
    ) -> torch.Tensor:
        stop = before + ids.shape[1]
        if stop > self.config.context:
            raise ArgumentError(
                f"There are {stop} tokens but the context is {self.config.context}. Give fewer."
            )
        at = torch.arange(before, stop, device=ids.device)
        embedded: torch.Tensor = self.drop(words(ids) + places(at))
        return embedded


def _kept(source: torch.Tensor, padding: Mask | None) -> torch.Tensor:
    """The real tokens of the source: (B, S)."""
    if padding is None:
        return torch.ones_like(source, dtype=torch.bool)
    batch, tokens = source.shape
    keep = padding.on(1, tokens, batch=batch).dense()[:, 0, 0]  # (B or 1, S)
    return torch.from_numpy(keep).to(source.device).expand(batch, tokens)


def _for_beams(padding: Mask | None, shape: torch.Size, beams: int) -> Mask | None:
    """The padding of every sentence, once for each of its beams."""
    if padding is None or beams == 1:
        return padding
    batch, tokens = shape
    keep = padding.on(1, tokens, batch=batch).dense()[:, 0, 0]  # (B or 1, S)
    return padding_of(keep=keep.repeat(beams if keep.shape[0] == batch else beams * batch, axis=0))
