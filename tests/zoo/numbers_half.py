"""Masks that break lower precision and gradients: fills that are too large, or added twice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.zoo.layers_b import (
    Attention,
    by_hand,
    in_documents,
    lowest,
    packed,
    past,
    planted,
    ragged,
    real,
    same,
    scores_of,
    sentences,
    subject,
    tell_near,
    tell_past,
    tell_past_and_real,
    tell_real,
)
from tests.zoo.numbers import added, left_padded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zoo.case import Subject


# ── a mask in half precision that gives NaN ───────────────────────────────────────────────────

HALF = "mask gives NaN in half precision"


class Scaled(Attention):
    """Adds what is hidden times a large number, which is a buffer and goes along to half."""

    low = -1e10

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.register_buffer("fill", torch.tensor(self.low))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        hidden = 1 - seen.to(q.dtype)
        return (scores_of(q, k) + hidden * self.fill).softmax(-1) @ v


class ScaledSmall(Scaled):
    """The same with a number that half precision can hold."""

    low = -1e4


@planted(
    HALF,
    "0 times a buffer of −1e10",
    after="flax#982",
    causes="fill-overflows dtype-differs not-finite",
    checks="D",
)
def zero_times_infinity(sick: bool) -> Subject:
    ids = ragged(12, 16)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    attend = Scaled if sick else ScaledSmall
    return subject(attend, ids, expects, tell=tell_past_and_real, pad_id=0)


def chooses(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """−1e10 where nothing may be seen, which half precision reads as -inf."""
    fill = torch.tensor(-1e10).to(q.dtype)
    return (torch.where(seen, scores_of(q, k), fill).softmax(-1) * seen) @ v


def chooses_small(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """The same with the lowest number that there is."""
    fill = torch.tensor(lowest(q)).to(q.dtype)
    return (torch.where(seen, scores_of(q, k), fill).softmax(-1) * seen) @ v


@planted(
    HALF,
    "a model in half precision, rows of left padding",
    after="flax#982",
    causes="fill-overflows empty-row-nan",
    checks="N G D",
)
def half_and_left_padding(sick: bool) -> Subject:
    built = left_padded(chooses if sick else chooses_small, 14, 9, 12)
    return replace(built, model=built.model.half())


def in_blocks(first: float | None) -> Callable[..., Tensor]:
    """Attention over blocks of 4 keys; the running maximum starts at `first`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        start = torch.tensor(lowest(q) if first is None else first).to(q.dtype)
        top = start.expand(*q.shape[:3], 1)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for block in torch.arange(k.shape[2]).split(4):
            scores = scores_of(q, k[:, :, block]).masked_fill(~seen[..., block], -math.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, fade = torch.exp(scores - new), torch.exp(top - new)
            total = total * fade + weights.sum(-1, keepdim=True)
            out = out * fade + weights @ v[:, :, block]
            top = new
        return out / total.clamp(min=1e-6)

    return attend


@planted(
    HALF,
    "a running maximum that starts at −1e9, a window",
    after="flax#982",
    causes="fill-overflows dtype-differs not-finite",
    checks="D",
    layer="layers.1.attention",
)
def running_maximum(sick: bool) -> Subject:
    attends = [in_blocks(None), in_blocks(-1e9 if sick else None)]
    return subject(attends, sentences(2, 18), mw.window(back=3), tell=tell_near(4))


# ── a fill that half precision can't hold ─────────────────────────────────────────────────────

TOO_LARGE = "fill beyond half precision"


def fills(value: float) -> Callable[..., Tensor]:
    """Softmax by hand with a fixed fill."""

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return scores_of(q, k).masked_fill(~seen, value).softmax(-1) @ v

    return attend


@planted(
    TOO_LARGE,
    "masked_fill with −1e8",
    after="fairseq#3575",
    causes="fill-overflows raises",
    checks="D",
)
def fills_beyond_half(sick: bool) -> Subject:
    ids = ragged(16, 11)
    attend = fills(-1e8 if sick else -1e4)
    return subject(attend, ids, mw.padding(ids=ids, pad_id=0), tell=tell_real, pad_id=0)


@planted(
    TOO_LARGE,
    "one layer of three",
    after="fairseq#3575",
    causes="fill-overflows raises",
    checks="D",
    layer="layers.2.attention",
)
def fills_beyond_half_once(sick: bool) -> Subject:
    attends = [fills(-1e4), by_hand, fills(-1e5 if sick else -1e4)]
    return subject(attends, sentences(2, 14), mw.causal())


def triangle(value: float) -> Callable[..., Tensor]:
    """SDPA with a triangle of a fixed fill, of the queries' dtype."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        future = torch.full((q.shape[2], k.shape[2]), value, dtype=q.dtype).triu(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=future)

    return attend


@planted(
    TOO_LARGE,
    "a triangle made in the dtype of the queries",
    after="fairseq#3575",
    causes="fill-overflows raises",
    checks="D",
)
def triangle_beyond_half(sick: bool) -> Subject:
    attend = triangle(-1e9 if sick else -math.inf)
    return subject(attend, sentences(3, 12), mw.causal(), tell=lambda ids: {})


# ── the lowest number, twice ──────────────────────────────────────────────────────────────────

TWICE = "lowest number added twice"


def adds_all(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """Adds every mask as the lowest number: two of them make -inf."""
    scores = scores_of(q, k)
    scores = scores + sum(added(seen, scores, lowest(scores)) for seen in masks)
    seen = torch.stack(torch.broadcast_tensors(*masks)).all(0)
    return (scores.softmax(-1) * seen) @ v


def adds_once(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """Joins the masks first."""
    scores = scores_of(q, k)
    seen = torch.stack(torch.broadcast_tensors(*masks)).all(0)
    return ((scores + added(seen, scores, lowest(scores))).softmax(-1) * seen) @ v


def tell_past_and_documents(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """A causal mask without filling, and another of documents: filling is in neither."""
    return {"masks": [past(ids.shape[1]) & real(ids), same(documents)]}


@planted(
    TWICE,
    "a causal mask and one of documents, rows of filling",
    after="NeMo Automodel#2658",
    causes="summed-fills fill-overflows empty-row-nan",
    checks="N G",
)
def twice_in_a_pack(sick: bool) -> Subject:
    inputs = packed([6, 8], [4, 5, 5], fill=0)
    filling = torch.full((2, 4), -1)
    inputs = {
        "ids": F.pad(inputs["ids"], (4, 0)),
        "documents": torch.cat([filling, inputs["documents"]], 1),
    }
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    attend, tell = adds_all if sick else adds_once, tell_past_and_documents
    return subject(attend, inputs, expects, tell=tell, count=in_documents)


def tell_both_apart(ids: Tensor) -> dict[str, Any]:
    """Padded keys and padded queries, each as a mask of its own."""
    return {"masks": [real(ids), real(ids).mT]}


@planted(
    TWICE,
    "padded keys and padded queries, an empty sequence, bfloat16",
    after="NeMo Automodel#2658",
    causes="summed-fills fill-overflows empty-row-nan",
    checks="N G",
)
def twice_in_bfloat16(sick: bool) -> Subject:
    ids = ragged(10, 14, 0)
    keep = mw.padding(ids=ids, pad_id=0)
    attend = adds_all if sick else adds_once
    built = subject(attend, ids, keep & keep.T, tell=tell_both_apart, pad_id=0)
    return replace(built, model=built.model.bfloat16())


def distances(ids: Tensor) -> dict[str, Any]:
    """A bias of distance that all layers share, and what may be seen."""
    seen = past(ids.shape[1]) & real(ids)
    place = torch.arange(ids.shape[1])
    far = (place - place[:, None]).abs().float()
    return {"bias": (far * -0.25).expand(seen.shape).clone(), "seen": seen}


def adds_in_place(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Adds the mask to the shared bias, which the next layer finds there already."""
    bias += added(seen, bias, lowest(bias))
    return ((scores_of(q, k) + bias).softmax(-1) * seen).to(v.dtype) @ v


def adds_beside(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Leaves the shared bias as it is."""
    bias = bias + added(seen, bias, lowest(bias))
    return ((scores_of(q, k) + bias).softmax(-1) * seen).to(v.dtype) @ v


@planted(
    TWICE,
    "added in place to a bias that the layers share",
    after="NeMo Automodel#2658",
    causes="fill-at-limit fill-overflows empty-row-nan",
    checks="N G",
    layer="layers.1.attention",
)
def twice_in_place(sick: bool) -> Subject:
    ids = ragged(12, 15, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    attend = adds_in_place if sick else adds_beside
    return subject(attend, ids, expects, tell=distances, pad_id=0)


def adds_all_and_wipes(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """Two make -inf, and NaN of the forward pass is wiped."""
    scores = scores_of(q, k)
    scores = scores + sum(added(seen, scores, lowest(scores)) for seen in masks)
    return torch.nan_to_num(scores.softmax(-1)) @ v


@planted(
    TWICE,
    "NaN in gradients only",
    after="NeMo Automodel#2658",
    causes="summed-fills fill-overflows empty-row-nan",
    checks="N G",
)
def twice_in_gradients(sick: bool) -> Subject:
    ids = ragged(13, 0, 9)
    keep = mw.padding(ids=ids, pad_id=0)
    attend = adds_all_and_wipes if sick else adds_once
    return subject(attend, ids, keep & keep.T, tell=tell_both_apart, pad_id=0)


# ── a last block that is not full ─────────────────────────────────────────────────────────────

LAST = "gradient of the last block"

BLOCK = 8


def filled_up(x: Tensor) -> Tensor:
    """Rows of zeros up to a multiple of the block."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % BLOCK))


def blocked(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention of whole blocks; what was filled up sees nothing, and is cut off again."""

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        more = -q.shape[2] % BLOCK
        seen = F.pad(seen, (0, more, 0, more))
        q, k, v = filled_up(q), filled_up(k), filled_up(v)
        scores = scores_of(q, k)
        out = weigh(scores + added(seen, scores, -math.inf), v)
        return out[:, :, : out.shape[2] - more]

    return attend


def plainly(scores: Tensor, v: Tensor) -> Tensor:
    """Softmax, also of rows that are cut off later."""
    return scores.softmax(-1) @ v


def above_the_lowest(scores: Tensor, v: Tensor) -> Tensor:
    """Softmax of numbers that are all finite."""
    return scores.clamp(min=lowest(scores)).softmax(-1) @ v


def guards_the_result(scores: Tensor, v: Tensor) -> Tensor:
    """Chooses zeros for empty rows after the exponent was taken."""
    top = scores.amax(-1, keepdim=True)
    weights = torch.where(top > -math.inf, torch.exp(scores - top), 0.0)
    return (weights @ v) / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def guards_the_exponent(scores: Tensor, v: Tensor) -> Tensor:
    """Chooses a finite maximum before the exponent is taken."""
    top = scores.amax(-1, keepdim=True).clamp(min=lowest(scores))
    weights = torch.exp(scores - top)
    return (weights @ v) / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def divides_by_the_sum(scores: Tensor, v: Tensor) -> Tensor:
    """Divides by the sum of weights, which is 0 in empty rows."""
    top = scores.amax(-1, keepdim=True).clamp(min=lowest(scores))
    weights = torch.exp(scores - top)
    return (weights @ v) / weights.sum(-1, keepdim=True)


@planted(
    LAST,
    "softmax of rows that are cut off",
    after="pytorch#153799",
    causes="empty-row-nan not-finite",
    checks="G N",
)
def last_block_plain(sick: bool) -> Subject:
    attend = blocked(plainly if sick else above_the_lowest)
    return subject(attend, sentences(2, 20), mw.causal(), tell=tell_past)


@planted(
    LAST,
    "empty rows are guarded too late",
    after="pytorch#153799",
    causes="empty-row-nan not-finite",
    checks="G N",
    layer="layers.1.attention",
)
def last_block_guarded(sick: bool) -> Subject:
    right = blocked(guards_the_exponent)
    attends = [right, blocked(guards_the_result) if sick else right]
    return subject(attends, sentences(2, 21), mw.causal())


@planted(
    LAST,
    "0 / 0 in rows that are cut off, a window",
    after="pytorch#153799",
    causes="empty-row-nan not-finite",
    checks="G N",
)
def last_block_divided(sick: bool) -> Subject:
    attend = blocked(divides_by_the_sum if sick else guards_the_exponent)
    return subject(attend, sentences(2, 19), mw.window(back=4), tell=tell_near(5))
