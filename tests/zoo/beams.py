"""Sequences that change places, while their padding mask stays where it was."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from tests.zoo.case import plant
from tests.zoo.layers import (
    PAD,
    Decoder,
    Model,
    Slot,
    Translator,
    bidirectional,
    counted,
    left,
    reading,
    right,
    step,
    translating,
    writing,
)

NOT_ALONG = "padding mask not reordered along"


class Sorting(Model):
    """Runs the longest sequences first, and puts them back; `along` sorts the mask with them."""

    def __init__(self, along: bool) -> None:
        super().__init__(mask=bidirectional)
        self.along = along

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        real = ids != PAD
        order = real.sum(1).argsort(descending=True, stable=True)
        x = self.start(ids, counted(real))[order]
        for layer, mask in zip(self.layers, self.masks, strict=True):
            x = layer(x, mask(real[order] if self.along else real, ids.size(1)))
        return self.finish(x)[order.argsort()]


class Swapping(Translator):
    """Beams change places between encoder and decoder; `along` takes the source's mask with them."""

    def __init__(self, along: bool) -> None:
        super().__init__()
        self.along = along

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:  # type: ignore[override]
        real = src != PAD
        memory = self.encode(src, real)
        order = torch.arange(src.size(0)).roll(1)
        seen = real[order] if self.along else real
        return self.decode(tgt[order], memory[order], seen)[order.argsort()]


class Reordering(Decoder):
    """After each piece the beams in the cache change places; `along` takes their padding with them.

    The next piece comes in its own order, and is brought into that of the cache.
    """

    def __init__(self, along: bool) -> None:
        super().__init__()
        self.along = along

    def forward(self, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        slots, order = (None, torch.arange(ids.size(0))) if cache is None else cache
        out, slots = super().forward(ids[order], slots)
        turn = torch.arange(ids.size(0)).roll(1)
        return out[order.argsort()], ([self.moved(slot, turn) for slot in slots], order[turn])

    def moved(self, slot: Slot, turn: Tensor) -> Slot:
        other = copy.copy(slot)
        other.k, other.v = slot.k[turn], slot.v[turn]
        if self.along:
            other.real = slot.real[turn]
        return other


class Spreading(Model):
    """Runs two beams of each sequence, and gives the first; `apart` copies the mask in one block."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        real = ids != PAD
        x = self.start(ids, counted(real)).repeat_interleave(2, 0)
        real = real.repeat(2, 1) if self.apart else real.repeat_interleave(2, 0)
        for layer, mask in zip(self.layers, self.masks, strict=True):
            x = layer(x, mask(real, ids.size(1)))
        return self.finish(x)[::2]


plant(
    NOT_ALONG,
    "sorted by length and back, in both directions",
    reading(lambda: Sorting(along=False)),
    reading(lambda: Sorting(along=True)),
    after="fairseq2#74",
    causes=("order-of-batch",),
    checks="BI P",
)
plant(
    NOT_ALONG,
    "beams of an encoder and a decoder, the source's mask",
    translating(lambda: Swapping(along=False), right(7, 13, 10)),
    translating(lambda: Swapping(along=True), right(7, 13, 10)),
    after="fairseq2#74",
    causes=("order-of-batch",),
    checks="BI P",
)
plant(
    NOT_ALONG,
    "beams of a cache, whose keys and values are moved",
    writing(lambda: Reordering(along=False), left(16, 9, 12), step=step),
    writing(lambda: Reordering(along=True), left(16, 9, 12), step=step),
    after="fairseq2#74",
    causes=("order-of-batch", "step-differs"),
    checks="PC",
)
plant(
    NOT_ALONG,
    "two beams a sequence, the mask copied in one block",
    writing(lambda: Spreading(apart=True)),
    writing(lambda: Spreading(apart=False)),
    after="fairseq2#74",
    causes=("order-of-batch",),
    checks="BI P",
)
