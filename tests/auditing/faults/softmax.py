"""Masks that are lost at the softmax: multiplied away, applied after it, or written to a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── a window multiplied into an additive mask ─────────────────────────────────────────────────

MULTIPLIED = Family(
    "window multiplied into an additive mask", after="transformers#31673", checks="P G"
)
SIZE = 5  # keys that a query sees, itself included
FULL = tiny.random_ids(2, 24)


def multiplies(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies the additive mask by the cells before the window: the future becomes 0."""
    bias = tiny.additive(keep, q)
    bias = bias * torch.ones_like(bias).tril(-SIZE)
    return tiny.sdpa(q, k, v, bias)


def fills_before_window(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Masks the cells before the window as well."""
    bias = tiny.additive(keep, q)
    before = torch.ones_like(bias).tril(-SIZE).bool()
    return tiny.sdpa(q, k, v, bias.masked_fill(before, tiny.min_value(q)))


def multiplies_by_band(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies the additive mask by the band: masked cells outside it become 0."""
    scores = tiny.scores(q, k)
    band = torch.ones_like(scores).tril().triu(1 - SIZE)
    return (scores + tiny.additive(keep, q) * band).softmax(-1) @ v


def and_band(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Combines the mask with the band."""
    band = torch.ones(q.size(2), k.size(2)).tril().triu(1 - SIZE).bool()
    return tiny.eager(q, k, v, keep & band)


def multiplies_past(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies zeros before the window by 0: nothing is masked there."""
    scores = tiny.scores(q, k)
    bias = tiny.additive(keep, q)
    return (scores + bias * torch.ones_like(bias).triu(1 - SIZE)).softmax(-1) @ v


def infinite(real: Tensor) -> Tensor:
    """Causal mask of 0 and -inf."""
    size = real.size(1)
    return torch.zeros(size, size).masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf)


def times_window(real: Tensor) -> dict[str, Any]:
    """-inf times 0 is NaN."""
    bias = infinite(real)
    return {"attn_mask": bias * torch.ones_like(bias).tril(-SIZE)}


def and_window(real: Tensor) -> dict[str, Any]:
    """-inf before the window as well."""
    bias = infinite(real)
    return {"attn_mask": bias.masked_fill(torch.ones_like(bias).tril(-SIZE).bool(), -torch.inf)}


WINDOW = mw.causal() & mw.window(back=SIZE - 1)


@MULTIPLIED.fault("SDPA, window layer", causes="missing-in-layer future-visible", layer=0)
def _(faulty: bool) -> Case:
    attend = multiplies if faulty else fills_before_window
    return tiny.decoder_case(tiny.Model([attend, tiny.sdpa], tiny.causal_mask), FULL)


@MULTIPLIED.fault("by hand, all layers, with padding", "P G PI BI", "mask-missing future-visible")
def _(faulty: bool) -> Case:
    attend = multiplies_by_band if faulty else and_band
    return tiny.encoder_case(
        tiny.Model([attend] * 2), tiny.right_padded(17, 24), WINDOW & mw.padding(lengths=[17, 24])
    )


@MULTIPLIED.fault(
    "only the window is lost, layer 1", causes="window-missing missing-in-layer", layer=1
)
def _(faulty: bool) -> Case:
    attend = multiplies_past if faulty else and_band
    return tiny.decoder_case(tiny.Model([and_band, attend], tiny.causal_mask), FULL, WINDOW)


@MULTIPLIED.fault("-inf times 0, nn.MultiheadAttention", "N L", "not-finite")
def _(faulty: bool) -> Case:
    masks = times_window if faulty else and_window
    return tiny.decoder_case(tiny.MultiheadModel(masks, masks), FULL, WINDOW)


# ── after the softmax ─────────────────────────────────────────────────────────────────────────

AFTER = Family(
    "mask after the softmax", after="memory-compressed-attention#2", causes="after-softmax"
)


def zeroes_weights(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Sets weights to 0; masked keys still count in the denominator."""
    return (tiny.scores(q, k).softmax(-1) * keep) @ v


def fills_weights(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills the weights with the smallest value: they overflow."""
    weights = tiny.scores(q, k).softmax(-1)
    return weights.masked_fill(~keep, tiny.min_value(weights)) @ v


def lowers_weights(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds -1e4 to the weights of masked keys."""
    weights = tiny.scores(q, k).softmax(-1)
    return (weights + (1 - keep.to(q.dtype)) * -1e4) @ v


@AFTER.fault("causal, weights times 0, all layers", "P G")
def _(faulty: bool) -> Case:
    attend = zeroes_weights if faulty else tiny.eager
    return tiny.decoder_case(tiny.Model([attend] * 2, tiny.causal_mask), tiny.random_ids(2, 16))


@AFTER.fault("padding, weights times 0, one layer of three", "P PI BI", layer=1)
def _(faulty: bool) -> Case:
    attend = zeroes_weights if faulty else tiny.eager
    return tiny.encoder_case(tiny.Model([tiny.eager, attend, tiny.eager], tiny.padding_mask))


@AFTER.fault("causal, weights filled with the lowest number", "N", "after-softmax not-finite")
def _(faulty: bool) -> Case:
    attend = fills_weights if faulty else tiny.eager
    return tiny.decoder_case(tiny.Model([attend] * 2, tiny.causal_mask), tiny.random_ids(2, 16))


@AFTER.fault("left padding, -1e4 added to weights, layer 1", "P G PI BI", layer=1)
def _(faulty: bool) -> Case:
    return tiny.decoder_case(tiny.Model([tiny.eager, lowers_weights if faulty else tiny.eager]))


# ── the result is dropped ─────────────────────────────────────────────────────────────────────

DROPPED = Family("filled into a copy that is dropped", after="mead-baseline#679", checks="BI PI P")


def drops_fill(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """masked_fill returns a new tensor, which is discarded."""
    scores = tiny.scores(q, k)
    scores.masked_fill(~keep, tiny.min_value(scores))
    return scores.softmax(-1) @ v


def fills_copy(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills a contiguous copy of the transposed scores."""
    scores = tiny.scores(q, k)
    by_key = scores.transpose(-1, -2).contiguous()
    by_key.masked_fill_(~keep.transpose(-1, -2), tiny.min_value(scores))
    return scores.softmax(-1) @ v


def fills_indexed_copy(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Indexes each sequence by a list, which copies it, and fills the copy."""
    scores = tiny.scores(q, k)
    for row, real in enumerate(keep[:, 0, 0]):
        scores[[row]][..., ~real] = tiny.min_value(scores)
    return scores.softmax(-1) @ v


def fills_view(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Indexes each sequence by an integer, and fills the view."""
    scores = tiny.scores(q, k)
    for row, real in enumerate(keep[:, 0, 0]):
        scores[row][..., ~real] = tiny.min_value(scores)
    return scores.softmax(-1) @ v


def drops_padding(real: Tensor, q_len: int) -> Tensor:
    """logical_and returns a new mask, which is discarded."""
    keep = tiny.causal_mask(real, q_len).expand(real.size(0), 1, q_len, -1)
    keep.logical_and(tiny.real_keys(real))
    return keep


@DROPPED.fault("padding, masked_fill, all layers", causes="mask-missing padding-visible")
def _(faulty: bool) -> Case:
    attend = drops_fill if faulty else tiny.eager
    return tiny.encoder_case(tiny.Model([attend] * 2, tiny.padding_mask))


@DROPPED.fault("causal, masked_fill, layer 1", "P G", "missing-in-layer future-visible", layer=1)
def _(faulty: bool) -> Case:
    attend = drops_fill if faulty else tiny.eager
    model = tiny.Model([tiny.eager, attend, tiny.eager], tiny.causal_mask)
    return tiny.decoder_case(model, tiny.random_ids(2, 16))


@DROPPED.fault("padding, logical_and under a causal mask, SDPA", "L BI PI P", "padding-visible")
def _(faulty: bool) -> Case:
    mask = drops_padding if faulty else tiny.causal_padding_mask
    return tiny.decoder_case(tiny.Model([tiny.sdpa] * 2, mask))


@DROPPED.fault(
    "padding, rows indexed by a list", causes="missing-in-layer padding-visible", layer=0
)
def _(faulty: bool) -> Case:
    attend = fills_indexed_copy if faulty else fills_view
    return tiny.encoder_case(tiny.Model([attend, fills_view], tiny.padding_mask))


@DROPPED.fault("causal, transposed scores filled, all layers", "P G", "mask-missing future-visible")
def _(faulty: bool) -> Case:
    attend = fills_copy if faulty else tiny.eager
    return tiny.decoder_case(tiny.Model([attend] * 2, tiny.causal_mask), tiny.random_ids(2, 16))
