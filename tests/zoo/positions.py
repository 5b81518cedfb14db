"""Positions that are counted over padding, so that a sequence changes with what stands beside it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.case import Subject, plant
from tests.zoo.layers import (
    DIM,
    PAD,
    Attend,
    Decoder,
    Model,
    Slot,
    bidirectional,
    by_hand,
    by_sdpa,
    counted,
    left,
    numbered,
    reading,
    right,
    settled,
    step,
    writing,
)

# ── left padding without position ids ─────────────────────────────────────────────────────────

SHIFTED = "left padding without position ids"


class Waves(nn.Module):
    """Positions as sines and cosines."""

    def forward(self, places: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(0, DIM, 2) * (-math.log(1000.0) / DIM))
        angles = places[..., None] * rates
        return torch.cat([angles.sin(), angles.cos()], -1)


class Wavy(Model):
    """A model whose positions are waves."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.place = Waves()

    def start(self, ids: Tensor, places: Tensor) -> Tensor:
        x = self.embed(ids)
        return x + self.place(places).to(x.dtype)


def like_the_first(real: Tensor) -> Tensor:
    """Counts the first sequence's tokens, and takes that for all."""
    return counted(real)[:1].expand(real.shape)


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.size(-1) // 2
    rates = 100.0 ** -(torch.arange(half) / half)
    angles = (places[:, None, :, None] * rates).to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def rotary(of_queries: Any) -> Attend:
    """Keys are turned by their count among real tokens, queries by `of_queries`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        real = keep[:, 0, -1]
        return by_hand(turned(q, of_queries(real)), turned(k, counted(real)), v, keep)

    return attend


def nowhere(real: Tensor) -> Tensor:
    """All tokens have the same place in the embedding; attention alone knows of positions."""
    return torch.zeros_like(real, dtype=torch.long)


class Resuming(Decoder):
    """Goes on counting at the length of the cache, in which padding counts too."""

    def forward(self, ids: Tensor, cache: list[Slot] | None = None) -> Any:  # type: ignore[override]
        self.positions = counted if cache is None else numbered
        return super().forward(ids, cache)


plant(
    SHIFTED,
    "learned positions numbered from the first column",
    writing(lambda: Model(positions=numbered)),
    writing(lambda: Model(positions=counted)),
    after="transformers#3021",
    causes=("positions-shifted",),
    checks="PI BI",
)
plant(
    SHIFTED,
    "waves numbered from the first column, in both directions, SDPA",
    reading(lambda: Wavy([by_sdpa] * 2, bidirectional, numbered), left(16, 9, 12)),
    reading(lambda: Wavy([by_sdpa] * 2, bidirectional, counted), left(16, 9, 12)),
    after="transformers#7552",
    causes=("positions-shifted",),
    checks="PI BI",
)
plant(
    SHIFTED,
    "the first sequence's positions for all",
    writing(lambda: Model(positions=like_the_first)),
    writing(lambda: Model(positions=counted)),
    after="transformers#7552",
    causes=("positions-shifted", "order-of-batch"),
    checks="PI BI",
)
plant(
    SHIFTED,
    "rotary, queries numbered and keys counted, second layer of two",
    writing(lambda: Model([rotary(counted), rotary(numbered)], positions=nowhere)),
    writing(lambda: Model([rotary(counted), rotary(counted)], positions=nowhere)),
    after="transformers#3021",
    causes=("positions-shifted",),
    layer="layers.1.attention",
    checks="PI BI",
)
plant(
    SHIFTED,
    "counted in the first pass, numbered after it, with a cache",
    writing(lambda: Resuming(), step=step),
    writing(lambda: Decoder(), step=step),
    after="transformers#7552",
    causes=("positions-shifted", "step-differs"),
    checks="PC",
)

# ── log-probabilities ─────────────────────────────────────────────────────────────────────────

SCORING = "log-probabilities of a left-padded batch without position ids"


class Scorer(nn.Module):
    """Log-probabilities of all tokens, by a model that numbers columns if it is given nothing."""

    def __init__(self, place: Any) -> None:
        super().__init__()
        self.model = Model(positions=numbered)
        self.place = place

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        return self.model(ids, real, self.place(real)).log_softmax(-1)


def not_given(real: Tensor) -> None:
    """No position ids."""


def down_the_batch(real: Tensor) -> Tensor:
    """Sums along the wrong axis."""
    return (real.long().cumsum(0) - 1).clamp(min=0)


class InParts(Scorer):
    """The same in parts of two sequences; `anew` counts positions for each part."""

    def __init__(self, anew: bool) -> None:
        super().__init__(counted)
        self.anew = anew

    def forward(self, ids: Tensor) -> Tensor:
        places = self.place(ids != PAD)
        parts = []
        for start in range(0, ids.size(0), 2):
            part = ids[start : start + 2]
            own = places[start : start + 2] if self.anew else places[: part.size(0)]
            parts.append(self.model(part, part != PAD, own))
        return torch.cat(parts).log_softmax(-1)


def scoring(place: Any) -> Any:
    """A function, and no module: prompts are padded on the left, answers on the right."""
    ids = right(20, 17, 18) * left(20, 15, 11).bool()
    expects = mw.causal() & mw.padding(ids=ids, pad_id=PAD)

    def build() -> Subject:
        scorer = settled(Scorer(place))
        return Subject(lambda ids: scorer(ids), ids, expects)

    return build


plant(
    SCORING,
    "the mask is passed, position ids are not",
    writing(lambda: Scorer(not_given)),
    writing(lambda: Scorer(counted)),
    after="trl#6800",
    causes=("positions-shifted",),
    checks="PI BI",
)
plant(
    SCORING,
    "prompt padded on the left, answer on the right, a function",
    scoring(numbered),
    scoring(counted),
    after="trl#6800",
    causes=("positions-shifted",),
    checks="BI",
)
plant(
    SCORING,
    "in parts, all of them with the first part's positions",
    writing(lambda: InParts(anew=False), left(16, 9, 12, 14)),
    writing(lambda: InParts(anew=True), left(16, 9, 12, 14)),
    after="trl#6800",
    causes=("positions-shifted", "order-of-batch"),
    checks="BI",
)
plant(
    SCORING,
    "summed along the batch",
    writing(lambda: Scorer(down_the_batch)),
    writing(lambda: Scorer(counted)),
    after="trl#6800",
    causes=("positions-shifted", "order-of-batch"),
    checks="BI",
)
