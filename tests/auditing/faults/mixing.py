"""Positions mixed outside attention: normalisation, convolution, quantization, routing, pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

OUTSIDE = (
    "mixes-sequences not-through-attention future-visible attends-across-batch padding-visible"
)


class Mixing(tiny.Layers):
    """A decoder whose hidden states a function changes after each layer."""

    def __init__(self, mix: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(tiny.eager)
        self.mix = mix
        self.conv = nn.Conv1d(tiny.DIM, tiny.DIM, 3, groups=tiny.DIM)
        self.router = nn.Linear(tiny.DIM, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(tiny.DIM, tiny.DIM) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids, tiny.column_positions(ids))
        for layer in self.layers:
            x = self.mix(self, layer(x, keep=tiny.causal(ids.shape[1])))
        return self.logits(x)


def mixing_case(faulty: bool, wrong: Any, right: Any, length: int = 14, batch: int = 2) -> Case:
    """A decoder without padding."""
    model = tiny.initialize(Mixing(wrong if faulty else right))
    return Case(model, tiny.random_ids(batch, length), mw.causal())


# ── normalisation ─────────────────────────────────────────────────────────────────────────────

NORM = Family(
    "normalised over time", after="GroupNorm in convolutional blocks", checks="P", causes=OUTSIDE
)


def over(*axes: int) -> Callable[[Any, Tensor], Tensor]:
    """Mean 0 and variance 1 over these axes."""

    def mix(model: Any, x: Tensor) -> Tensor:
        centred = x - x.mean(axes, keepdim=True)
        return centred * (centred.square().mean(axes, keepdim=True) + 1e-5).rsqrt()

    return mix


@NORM.fault("over positions and features, as GroupNorm(1)")
def _(faulty: bool) -> Case:
    return mixing_case(faulty, over(1, 2), over(2))


@NORM.fault("over the batch, as BatchNorm in training")
def _(faulty: bool) -> Case:
    return mixing_case(faulty, over(0), over(2), batch=3)


@NORM.fault("divided by the largest value of the sequence")
def _(faulty: bool) -> Case:
    def whole(model: Any, x: Tensor) -> Tensor:
        return x / x.abs().amax((1, 2), keepdim=True) * 3

    def each(model: Any, x: Tensor) -> Tensor:
        return x / x.abs().amax(2, keepdim=True) * 3

    return mixing_case(faulty, whole, each)


# ── convolution and shifts ────────────────────────────────────────────────────────────────────

CONV = Family("convolution that is not causal", after="ConvBERT", checks="P", causes=OUTSIDE)


def convolved(left: int, right: int) -> Callable[[Any, Tensor], Tensor]:
    """A depthwise convolution with this padding."""

    def mix(model: Any, x: Tensor) -> Tensor:
        return x + model.conv(F.pad(x.mT, (left, right))).mT

    return mix


@CONV.fault('kernel of 3 with padding="same"')
def _(faulty: bool) -> Case:
    return mixing_case(faulty, convolved(1, 1), convolved(2, 0))


@CONV.fault("token shift in the wrong direction")
def _(faulty: bool) -> Case:
    def shifted(by: int) -> Callable[[Any, Tensor], Tensor]:
        return lambda model, x: (
            x
            + 0.5
            * F.pad(x, (0, 0, max(by, 0), max(-by, 0)))[:, max(-by, 0) : x.shape[1] + max(-by, 0)]
        )

    return mixing_case(faulty, shifted(-1), shifted(1))


@CONV.fault("max pooling over neighbours")
def _(faulty: bool) -> Case:
    def pooled(left: int, right: int) -> Callable[[Any, Tensor], Tensor]:
        return lambda model, x: F.max_pool1d(F.pad(x.mT, (left, right), value=-9.0), 3, 1).mT

    return mixing_case(faulty, pooled(1, 1), pooled(2, 0))


# ── quantization ──────────────────────────────────────────────────────────────────────────────

QUANTIZED = Family(
    "activations quantized with one scale", after="dynamic per-tensor quantization", checks="P BI",
    causes=OUTSIDE,
)  # fmt: skip


def quantized(axes: tuple[int, ...], levels: int) -> Callable[[Any, Tensor], Tensor]:
    """Rounded to a grid whose scale is the largest value over these axes."""

    def mix(model: Any, x: Tensor) -> Tensor:
        scale = x.abs().amax(axes, keepdim=True) / levels
        return (x / scale).round() * scale

    return mix


@QUANTIZED.fault("8 bits, scale of the whole batch")
def _(faulty: bool) -> Case:
    return mixing_case(faulty, quantized((0, 1, 2), 127), quantized((2,), 127))


@QUANTIZED.fault("4 bits, scale of the sequence", "P")
def _(faulty: bool) -> Case:
    return mixing_case(faulty, quantized((1, 2), 7), quantized((2,), 7))


# ── routing ───────────────────────────────────────────────────────────────────────────────────

ROUTING = Family(
    "experts choose tokens of the whole sequence", after="expert-choice routing", checks="P",
    causes=OUTSIDE,
)  # fmt: skip


def routed(model: Any, x: Tensor, weights: Tensor) -> Tensor:
    """The sum of the experts, weighted, (B, T, experts)."""
    every = torch.stack([expert(x) for expert in model.experts], 2)
    return x + (every * weights[..., None].to(x.dtype)).sum(2)


def token_choice(model: Any, x: Tensor) -> Tensor:
    """Each token takes its best expert."""
    scores = model.router(x)
    return routed(model, x, F.one_hot(scores.argmax(-1), 4) * scores.sigmoid())


@ROUTING.fault("each expert takes its best four tokens")
def _(faulty: bool) -> Case:
    def expert_choice(model: Any, x: Tensor) -> Tensor:
        scores = model.router(x)
        best = scores.topk(4, 1).indices
        return routed(model, x, torch.zeros_like(scores).scatter(1, best, 1.0) * scores.sigmoid())

    return mixing_case(faulty, expert_choice, token_choice)


@ROUTING.fault("capacity filled by the highest scores first")
def _(faulty: bool) -> Case:
    def capacity(model: Any, x: Tensor, by_score: bool) -> Tensor:
        scores = model.router(x)
        chosen = F.one_hot(scores.argmax(-1), 4).bool()
        rank = scores if by_score else -torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        rank = torch.where(chosen, rank.expand_as(scores), -torch.inf)
        place = (rank[:, None] > rank[:, :, None]).sum(2)
        return routed(model, x, (chosen & (place < 3)) * scores.sigmoid())

    return mixing_case(
        faulty, lambda m, x: capacity(m, x, True), lambda m, x: capacity(m, x, False)
    )


# ── summaries of the sequence ─────────────────────────────────────────────────────────────────

SUMMARY = Family(
    "summary of the whole sequence", after="Longformer decoders", checks="P", causes=OUTSIDE
)


@SUMMARY.fault("mean of all positions added to each")
def _(faulty: bool) -> Case:
    def so_far(model: Any, x: Tensor) -> Tensor:
        return x + x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]

    return mixing_case(faulty, lambda model, x: x + x.mean(1, keepdim=True), so_far)


@SUMMARY.fault("squeeze-and-excitation gate of the sequence")
def _(faulty: bool) -> Case:
    def gate(model: Any, x: Tensor, whole: bool) -> Tensor:
        mean = x.mean(1, keepdim=True) if whole else x
        return x * model.router(mean).mean(-1, keepdim=True).sigmoid()

    return mixing_case(faulty, lambda m, x: gate(m, x, True), lambda m, x: gate(m, x, False))


@SUMMARY.fault("a global token that attends to all", causes="future-visible missing-in-layer")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        keep = tiny.causal(ids.shape[1])
        if faulty:
            keep[0] = True
        return {"keep": keep}

    return tiny.case(tiny.eager, tiny.random_ids(2, 14), mask_args=args)


# ── the amount of padding ─────────────────────────────────────────────────────────────────────

AMOUNT = Family(
    "depends on the amount of padding", after="Funnel, Nyströmformer", checks="PI",
    causes="length-dependent padding-visible not-through-attention",
)  # fmt: skip


class Encoder(tiny.Layers):
    """An encoder of padded sequences whose hidden states a function changes."""

    def __init__(self, mix: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(tiny.eager)
        self.mix = mix

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask.bool()
        x = self.embed(input_ids, tiny.column_positions(input_ids))
        for layer in self.layers:
            x = self.mix(layer(x, keep=tiny.real_keys(real.long())), real)
        return self.logits(x)


def amount_case(faulty: bool, wrong: Any, right: Any) -> Case:
    """Sequences padded on the right, with ordinary ids as padding."""
    ids = tiny.right_padded(16, 10, 13)
    real = ids != tiny.PAD
    inputs = {"input_ids": torch.where(real, ids, 7), "attention_mask": real.long()}
    model = tiny.initialize(Encoder(wrong if faulty else right))
    return Case(model, inputs, mw.padding(keep=real))


def pooled_sum(x: Tensor, real: Tensor) -> Tensor:
    """Sum over the real tokens."""
    return torch.where(real[..., None], x, 0.0).sum(1, keepdim=True)


@AMOUNT.fault("mean divided by the padded length")
def _(faulty: bool) -> Case:
    return amount_case(
        faulty,
        lambda x, real: x + pooled_sum(x, real) / x.shape[1],
        lambda x, real: x + pooled_sum(x, real) / real.sum(1)[:, None, None],
    )


@AMOUNT.fault("scaled by the padded length")
def _(faulty: bool) -> Case:
    return amount_case(
        faulty,
        lambda x, real: x * (1 + x.shape[1] / 64),
        lambda x, real: x * (1 + real.sum(1)[:, None, None].to(x.dtype) / 64),
    )


@AMOUNT.fault("pooled in pairs from the end of the row")
def _(faulty: bool) -> Case:
    def pairs(x: Tensor, real: Tensor, from_end: bool) -> Tensor:
        x = torch.where(real[..., None], x, 0.0)
        odd = x.shape[1] % 2
        y = F.pad(x, (0, 0, odd, 0) if from_end else (0, 0, 0, odd))
        mean = y.unflatten(1, (-1, 2)).mean(2).repeat_interleave(2, 1)
        return x + (mean[:, odd:] if from_end else mean[:, : x.shape[1]])

    return amount_case(faulty, lambda x, r: pairs(x, r, True), lambda x, r: pairs(x, r, False))
