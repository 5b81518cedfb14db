"""Masks that are lost around the softmax: wiped out, applied after it, or filled into a copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.zoo.case import plant
from tests.zoo.layers import (
    Model,
    Multihead,
    bidirectional,
    by_hand,
    by_sdpa,
    causal,
    lowest,
    past,
    reading,
    right,
    scores_of,
    writing,
)

# ── a window multiplied into an additive mask ─────────────────────────────────────────────────

MULTIPLIED = "window multiplied into an additive mask"
SIZE = 5  # keys that a query sees, itself included
FULL = right(24, 24)


def additive(keep: Tensor, like: Tensor) -> Tensor:
    """0 where the mask is True, and the lowest number elsewhere."""
    return torch.zeros(keep.shape, dtype=like.dtype).masked_fill(~keep, lowest(like))


def multiplies(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies by what lies before the window: the future, hidden so far, becomes 0."""
    bias = additive(keep, q)
    bias = bias * torch.ones_like(bias).tril(-SIZE)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def chooses(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Hides what lies before the window, and leaves the rest as it is."""
    bias = additive(keep, q)
    before = torch.ones_like(bias).tril(-SIZE).bool()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(before, lowest(q)))


def multiplies_by_hand(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies by the window's band: all that was hidden outside of it becomes 0."""
    scores = scores_of(q, k)
    band = torch.ones_like(scores).tril().triu(1 - SIZE)
    return (scores + additive(keep, q) * band).softmax(-1) @ v


def chooses_by_hand(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Sees what is in the mask and in the window's band."""
    band = torch.ones(q.size(2), k.size(2)).tril().triu(1 - SIZE).bool()
    return by_hand(q, k, v, keep & band)


def multiplies_the_past(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies by 0 before the window, where the mask was 0 already: nothing is hidden there."""
    scores = scores_of(q, k)
    bias = additive(keep, q)
    return (scores + bias * torch.ones_like(bias).triu(1 - SIZE)).softmax(-1) @ v


def infinite(real: Tensor) -> Tensor:
    """A causal mask of 0 and -inf."""
    size = real.size(1)
    return torch.zeros(size, size).masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf)


def times_the_window(real: Tensor) -> dict[str, Any]:
    """-inf times 0 is no number."""
    bias = infinite(real)
    return {"attn_mask": bias * torch.ones_like(bias).tril(-SIZE)}


def and_the_window(real: Tensor) -> dict[str, Any]:
    """-inf before the window as well."""
    bias = infinite(real)
    return {"attn_mask": bias.masked_fill(torch.ones_like(bias).tril(-SIZE).bool(), -torch.inf)}


WINDOW = mw.causal() & mw.window(back=SIZE - 1)

plant(
    MULTIPLIED,
    "SDPA, the window's layer of two",
    writing(lambda: Model([multiplies, by_sdpa], past), FULL, mw.causal()),
    writing(lambda: Model([chooses, by_sdpa], past), FULL, mw.causal()),
    after="transformers#31673",
    causes=("missing-in-layer", "future-visible"),
    layer="layers.0.attention",
    checks="P G",
)
plant(
    MULTIPLIED,
    "by hand, all layers, with padding",
    reading(
        lambda: Model([multiplies_by_hand] * 2),
        right(17, 24),
        WINDOW & mw.padding(lengths=[17, 24]),
    ),
    reading(
        lambda: Model([chooses_by_hand] * 2), right(17, 24), WINDOW & mw.padding(lengths=[17, 24])
    ),
    after="transformers#31673",
    causes=("mask-missing", "future-visible"),
    checks="P G PI BI",
)
plant(
    MULTIPLIED,
    "only the window is lost, by hand, second layer of two",
    writing(lambda: Model([chooses_by_hand, multiplies_the_past], past), FULL, WINDOW),
    writing(lambda: Model([chooses_by_hand] * 2, past), FULL, WINDOW),
    after="transformers#31673",
    causes=("window-missing", "missing-in-layer"),
    layer="layers.1.attention",
    checks="P G",
)
plant(
    MULTIPLIED,
    "-inf times 0, nn.MultiheadAttention",
    writing(lambda: Multihead(times_the_window, times_the_window), FULL, WINDOW),
    writing(lambda: Multihead(and_the_window, and_the_window), FULL, WINDOW),
    after="transformers#31673",
    causes=("not-finite",),
    checks="N L",
)

# ── after the softmax ─────────────────────────────────────────────────────────────────────────

AFTER = "mask after the softmax"


def zeroes_weights(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Sets weights to 0; what is hidden still counts in the sum that they were divided by."""
    return (scores_of(q, k).softmax(-1) * keep) @ v


def fills_weights(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills the lowest number into weights: they overflow."""
    weights = scores_of(q, k).softmax(-1)
    return weights.masked_fill(~keep, lowest(weights)) @ v


def lowers_weights(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds -1e4 to weights: what is hidden weighs most."""
    weights = scores_of(q, k).softmax(-1)
    return (weights + (1 - keep.to(q.dtype)) * -1e4) @ v


plant(
    AFTER,
    "causal, weights times 0, all layers",
    writing(lambda: Model([zeroes_weights] * 2, past), right(16, 16), mw.causal()),
    writing(lambda: Model([by_hand] * 2, past), right(16, 16), mw.causal()),
    after="memory-compressed-attention#2",
    causes=("after-softmax",),
    checks="P G",
)
plant(
    AFTER,
    "padding, weights times 0, one layer of three",
    reading(lambda: Model([by_hand, zeroes_weights, by_hand], bidirectional)),
    reading(lambda: Model([by_hand] * 3, bidirectional)),
    after="memory-compressed-attention#2",
    causes=("after-softmax",),
    layer="layers.1.attention",
    checks="P PI BI",
)
plant(
    AFTER,
    "causal, weights filled with the lowest number",
    writing(lambda: Model([fills_weights] * 2, past), right(16, 16), mw.causal()),
    writing(lambda: Model([by_hand] * 2, past), right(16, 16), mw.causal()),
    after="memory-compressed-attention#2",
    causes=("after-softmax", "not-finite"),
    checks="N",
)
plant(
    AFTER,
    "causal with left padding, -1e4 added to weights, last layer of two",
    writing(lambda: Model([by_hand, lowers_weights])),
    writing(lambda: Model([by_hand, by_hand])),
    after="memory-compressed-attention#2",
    causes=("after-softmax",),
    layer="layers.1.attention",
    checks="P G PI BI",
)

# ── the result is dropped ─────────────────────────────────────────────────────────────────────

DROPPED = "filled into a copy that is dropped"


def drops_the_fill(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """masked_fill gives a new tensor, which nobody takes."""
    scores = scores_of(q, k)
    scores.masked_fill(~keep, lowest(scores))
    return scores.softmax(-1) @ v


def drops_the_choice(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills the transposed scores, laid out anew: the fill goes into a copy."""
    scores = scores_of(q, k)
    by_key = scores.transpose(-1, -2).contiguous()
    by_key.masked_fill_(~keep.transpose(-1, -2), lowest(scores))
    return scores.softmax(-1) @ v


def fills_row_by_row(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Picks each sequence by a list, which copies it, and fills the copy."""
    scores = scores_of(q, k)
    for row, real in enumerate(keep[:, 0, 0]):
        scores[[row]][..., ~real] = lowest(scores)
    return scores.softmax(-1) @ v


def fills_each_row(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Picks each sequence by a number, and fills it."""
    scores = scores_of(q, k)
    for row, real in enumerate(keep[:, 0, 0]):
        scores[row][..., ~real] = lowest(scores)
    return scores.softmax(-1) @ v


def drops_the_padding(real: Tensor, new: int) -> Tensor:
    """logical_and gives a new mask, which nobody takes."""
    keep = past(real, new).expand(real.size(0), 1, new, -1)
    keep.logical_and(real[:, None, None, :])
    return keep


plant(
    DROPPED,
    "padding, masked_fill, all layers",
    reading(lambda: Model([drops_the_fill] * 2, bidirectional)),
    reading(lambda: Model([by_hand] * 2, bidirectional)),
    after="mead-baseline#679",
    causes=("mask-missing", "padding-visible"),
    checks="BI PI P",
)
plant(
    DROPPED,
    "causal, masked_fill, one layer of three",
    writing(lambda: Model([by_hand, drops_the_fill, by_hand], past), right(16, 16), mw.causal()),
    writing(lambda: Model([by_hand] * 3, past), right(16, 16), mw.causal()),
    after="mead-baseline#679",
    causes=("missing-in-layer", "future-visible"),
    layer="layers.1.attention",
    checks="P G",
)
plant(
    DROPPED,
    "padding, logical_and under a causal mask, SDPA",
    writing(lambda: Model([by_sdpa] * 2, drops_the_padding)),
    writing(lambda: Model([by_sdpa] * 2, causal)),
    after="mead-baseline#679",
    causes=("padding-visible",),
    checks="L BI PI P",
)
plant(
    DROPPED,
    "padding, sequences picked by a list, first layer of two",
    reading(lambda: Model([fills_row_by_row, fills_each_row], bidirectional)),
    reading(lambda: Model([fills_each_row] * 2, bidirectional)),
    after="mead-baseline#679",
    causes=("missing-in-layer", "padding-visible"),
    layer="layers.0.attention",
    checks="BI PI P",
)
plant(
    DROPPED,
    "causal, transposed scores filled, all layers",
    writing(lambda: Model([drops_the_choice] * 2, past), right(16, 16), mw.causal()),
    writing(lambda: Model([by_hand] * 2, past), right(16, 16), mw.causal()),
    after="mead-baseline#679",
    causes=("mask-missing", "future-visible"),
    checks="P G",
)
