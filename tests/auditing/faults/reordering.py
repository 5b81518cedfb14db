"""Sequences that are reordered without their padding mask."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

NOT_ALONG = Family(
    "padding mask not reordered along", after="fairseq2#74", checks="BI P", causes="order-of-batch"
)


class Sorting(tiny.Model):
    """Computes the longest sequences first; `along` sorts the mask with them."""

    def __init__(self, along: bool) -> None:
        super().__init__(mask=tiny.padding_mask)
        self.along = along

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        real = ids != tiny.PAD
        order = real.sum(1).argsort(descending=True, stable=True)
        x = self.embed(ids, tiny.real_positions(real))[order]
        x = self.run_layers(x, real[order] if self.along else real)
        return self.logits(x)[order.argsort()]


class Swapping(tiny.Seq2Seq):
    """Reorders beams between encoder and decoder; `along` reorders the source mask."""

    def __init__(self, along: bool) -> None:
        super().__init__()
        self.along = along

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:  # type: ignore[override]
        real = src != tiny.PAD
        memory = self.encode(src, real)
        order = torch.arange(src.size(0)).roll(1)
        seen = real[order] if self.along else real
        return self.decode(tgt[order], memory[order], seen)[order.argsort()]


class Reordering(tiny.CachedModel):
    """Reorders the beams of the cache after each chunk; `along` reorders their padding."""

    def __init__(self, along: bool) -> None:
        super().__init__()
        self.along = along

    def forward(self, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        slots, order = (None, torch.arange(ids.size(0))) if cache is None else cache
        out, slots = super().forward(ids[order], slots)
        turn = torch.arange(ids.size(0)).roll(1)
        return out[order.argsort()], ([self.moved(slot, turn) for slot in slots], order[turn])

    def moved(self, slot: tiny.LayerCache, turn: Tensor) -> tiny.LayerCache:
        other = copy.copy(slot)
        other.k, other.v = slot.k[turn], slot.v[turn]
        if self.along:
            other.real = slot.real[turn]
        return other


class Spreading(tiny.Model):
    """Two beams per sequence; `apart` repeats the mask instead of interleaving it."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        real = ids != tiny.PAD
        x = self.embed(ids, tiny.real_positions(real)).repeat_interleave(2, 0)
        real = real.repeat(2, 1) if self.apart else real.repeat_interleave(2, 0)
        return self.logits(self.run_layers(x, real))[::2]


@NOT_ALONG.fault("sorted by length and back, bidirectional")
def _(faulty: bool) -> Case:
    return tiny.encoder_case(Sorting(along=not faulty))


@NOT_ALONG.fault("beams of an encoder-decoder, source mask")
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(Swapping(along=not faulty), tiny.right_padded(7, 13, 10))


@NOT_ALONG.fault("beams of a KV cache", "PC", "order-of-batch step-differs")
def _(faulty: bool) -> Case:
    model = Reordering(along=not faulty)
    return tiny.decoder_case(model, tiny.left_padded(16, 9, 12), step=tiny.cached_step)


@NOT_ALONG.fault("two beams per sequence, mask repeated instead of interleaved")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Spreading(apart=faulty))
