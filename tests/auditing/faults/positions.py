"""Positions that count padding, so that outputs depend on the padding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── left padding without position ids ─────────────────────────────────────────────────────────

SHIFTED = Family(
    "left padding without position ids",
    after="transformers#3021, transformers#7552",
    checks="PI BI",
    causes="positions-shifted",
)


class Sinusoidal(tiny.Model):
    """A model with sinusoidal position embeddings."""

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.token_embedding(ids)
        frequencies = torch.exp(torch.arange(0, tiny.DIM, 2) * (-math.log(1000.0) / tiny.DIM))
        angles = positions[..., None] * frequencies
        return x + torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)


def of_first_sequence(real: Tensor) -> Tensor:
    """The positions of the first sequence for all."""
    return tiny.real_positions(real)[:1].expand(real.shape)


def rotary(of_queries: Any) -> tiny.Attend:
    """Rotary embedding: positions among real tokens for keys, `of_queries` for queries."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        real = keep[:, 0, -1]
        q = tiny.rotate(q, of_queries(real)[:, None])
        return tiny.eager(q, tiny.rotate(k, tiny.real_positions(real)[:, None]), v, keep)

    return attend


def all_zero(real: Tensor) -> Tensor:
    """The same position embedding for all tokens."""
    return torch.zeros_like(real, dtype=torch.long)


class Resuming(tiny.CachedModel):
    """Continues with column positions after prefill."""

    def forward(self, ids: Tensor, cache: list[tiny.LayerCache] | None = None) -> Any:  # type: ignore[override]
        self.positions = tiny.real_positions if cache is None else tiny.column_positions
        return super().forward(ids, cache)


@SHIFTED.fault("learned, column positions")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(
        tiny.Model(positions=tiny.column_positions if faulty else tiny.real_positions)
    )


@SHIFTED.fault("sinusoidal, column positions, SDPA")
def _(faulty: bool) -> Case:
    positions = tiny.column_positions if faulty else tiny.real_positions
    model = Sinusoidal([tiny.sdpa] * 2, tiny.padding_mask, positions)
    return tiny.encoder_case(model, tiny.left_padded(16, 9, 12))


@SHIFTED.fault("the first sequence's positions for all", causes="positions-shifted order-of-batch")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(
        tiny.Model(positions=of_first_sequence if faulty else tiny.real_positions)
    )


@SHIFTED.fault("rotary, columns for queries, layer 1", layer=1)
def _(faulty: bool) -> Case:
    attend = tiny.column_positions if faulty else tiny.real_positions
    return tiny.decoder_case(
        tiny.Model([rotary(tiny.real_positions), rotary(attend)], positions=all_zero)
    )


@SHIFTED.fault(
    "columns instead of real tokens, with a cache", "PC", "positions-shifted step-differs"
)
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Resuming() if faulty else tiny.CachedModel(), step=tiny.cached_step)


# ── log-probabilities ─────────────────────────────────────────────────────────────────────────

SCORING = Family(
    "log-probabilities of a left-padded batch without position ids",
    after="trl#6800",
    checks="BI",
    causes="positions-shifted",
)


class Scorer(nn.Module):
    """Log-probabilities; without position ids the model uses column positions."""

    def __init__(self, place: Any) -> None:
        super().__init__()
        self.model = tiny.Model(positions=tiny.column_positions)
        self.place = place

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != tiny.PAD
        return self.model(ids, real, self.place(real)).log_softmax(-1)


def not_given(real: Tensor) -> None:
    """No position ids."""


def cumsum_over_batch(real: Tensor) -> Tensor:
    """Cumulative sum along the wrong axis."""
    return (real.long().cumsum(0) - 1).clamp(min=0)


class MicroBatches(Scorer):
    """The same in micro-batches; `own` uses the positions of each one."""

    def __init__(self, own: bool) -> None:
        super().__init__(tiny.real_positions)
        self.own = own

    def forward(self, ids: Tensor) -> Tensor:
        places = self.place(ids != tiny.PAD)
        parts = []
        for start in range(0, ids.size(0), 2):
            part = ids[start : start + 2]
            own = places[start : start + 2] if self.own else places[: part.size(0)]
            parts.append(self.model(part, part != tiny.PAD, own))
        return torch.cat(parts).log_softmax(-1)


def scoring(positions: Any) -> Case:
    """A function instead of a module: prompts are padded on the left, answers on the right."""
    ids = tiny.right_padded(20, 17, 18) * tiny.left_padded(20, 15, 11).bool()
    scorer = tiny.initialize(Scorer(positions))
    return Case(lambda ids: scorer(ids), ids, tiny.expected_mask(ids))


@SCORING.fault("mask without position_ids", "PI BI")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Scorer(not_given if faulty else tiny.real_positions))


@SCORING.fault("prompt padded left, answer right, a function")
def _(faulty: bool) -> Case:
    return scoring(tiny.column_positions if faulty else tiny.real_positions)


@SCORING.fault(
    "micro-batches with the positions of the first", causes="positions-shifted order-of-batch"
)
def _(faulty: bool) -> Case:
    return tiny.decoder_case(MicroBatches(own=not faulty), tiny.left_padded(16, 9, 12, 14))


@SCORING.fault("cumsum along the batch", causes="positions-shifted order-of-batch")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Scorer(cumsum_over_batch if faulty else tiny.real_positions))
