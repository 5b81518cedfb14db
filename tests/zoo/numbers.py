"""Masks that break the arithmetic: rows and heads that see nothing, and what fills them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import maskwright as mw
from tests.zoo.layers_b import (
    Multihead,
    by,
    by_cache,
    by_hand,
    by_sdpa,
    decoding,
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
    tell_packed,
    tell_past_and_real,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zoo.case import Subject


def added(seen: Tensor, like: Tensor, fill: float) -> Tensor:
    """A mask as numbers that are added to scores: `fill` where nothing may be seen."""
    return torch.zeros(seen.shape, dtype=like.dtype).masked_fill(~seen, fill)


def fills_inf(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Fills with -inf, even if nothing is left of a row."""
    return scores_of(q, k).masked_fill(~seen, -math.inf).softmax(-1) @ v


# ── a fully masked row ───────────────────────────────────────────────────────────────────

EMPTY = "fully masked row"


def tell_both(ids: Tensor) -> dict[str, Any]:
    """Padded keys are hidden, and padded queries see nothing."""
    return {"seen": real(ids) & real(ids).mT}


@planted(
    EMPTY,
    "queries of padding, softmax by hand",
    after="pytorch#41508",
    causes="empty-row-nan",
    checks="N G PI",
)
def queries_of_padding(sick: bool) -> Subject:
    ids = ragged(14, 9, 12)
    keep = mw.padding(ids=ids, pad_id=0)
    return subject(fills_inf if sick else by_hand, ids, keep & keep.T, tell=tell_both, pad_id=0)


class Padded(Multihead):
    """Hides padded keys, even if a sequence has no others."""

    weights = True

    def masks(self, pad: Tensor) -> dict[str, Any]:
        return {"key_padding_mask": pad}


class PaddedOrZero(Padded):
    """A sequence of nothing but padding gets zeros."""

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        empty = pad.all(1, keepdim=True)
        return super().forward(x, pad=pad & ~empty).masked_fill(empty[..., None], 0.0)


def tell_pad(ids: Tensor) -> dict[str, Any]:
    """True at padding, as nn.MultiheadAttention wants it."""
    return {"pad": ids == 0}


@planted(
    EMPTY,
    "a sequence of nothing but padding, nn.MultiheadAttention",
    after="pytorch#41508",
    causes="empty-row-nan",
    checks="N G",
)
def sequence_of_padding(sick: bool) -> Subject:
    ids = ragged(14, 0, 10)
    attend = Padded if sick else PaddedOrZero
    return subject(attend, ids, mw.padding(ids=ids, pad_id=0), tell=tell_pad, pad_id=0)


@planted(
    EMPTY,
    "filling behind packed documents",
    after="pytorch#103963",
    causes="empty-row-nan",
    checks="N G",
)
def filling_of_a_pack(sick: bool) -> Subject:
    inputs = packed([5, 6, 3], [8, 6], fill=4)
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    attend = fills_inf if sick else by_hand
    return subject(attend, inputs, expects, tell=tell_packed, count=in_documents)


def wipes_nan(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Turns NaN of empty rows into zeros, which mends the forward pass only."""
    scores = scores_of(q, k)
    return torch.nan_to_num((scores + added(seen, scores, -math.inf)).softmax(-1)) @ v


def wipes_rows(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Fills empty rows with a number, and turns their weights into zeros."""
    scores = scores_of(q, k)
    return (scores + added(seen, scores, lowest(scores))).softmax(-1).masked_fill(~seen, 0.0) @ v


@planted(
    EMPTY,
    "NaN is wiped from the output, not from the gradient",
    after="pytorch#103963",
    causes="empty-row-nan",
    checks="N G",
)
def nan_in_the_gradient(sick: bool) -> Subject:
    ids = ragged(12, 16, 7)
    keep = mw.padding(ids=ids, pad_id=0)
    return subject(wipes_nan if sick else wipes_rows, ids, keep & keep.T, tell=tell_both, pad_id=0)


# ── a fully masked head ──────────────────────────────────────────────────────────────────

HEAD = "fully masked head"


class ByHead(Multihead):
    """A mask for each head, as it comes."""

    def masks(self, seen: Tensor) -> dict[str, Any]:
        return {"attn_mask": ~seen.flatten(0, 1)}


class ByHeadOrSelf(Multihead):
    """A mask for each head; a query that sees nothing in one sees itself."""

    def masks(self, seen: Tensor) -> dict[str, Any]:
        alone = torch.eye(seen.shape[-1], dtype=torch.bool) & ~seen.any(-1, keepdim=True)
        return {"attn_mask": ~(seen | alone).flatten(0, 1)}


def tell_one_head(ids: Tensor) -> dict[str, Any]:
    """The second head is switched off."""
    seen = past(ids.shape[1])
    return {"seen": torch.stack([seen, torch.zeros_like(seen)]).expand(len(ids), -1, -1, -1)}


def tell_strictly_past(ids: Tensor) -> dict[str, Any]:
    """The second head looks back only, so that the first token sees nothing in it."""
    size = ids.shape[1]
    return {"seen": torch.stack([past(size), past(size, start=-1)]).expand(len(ids), -1, -1, -1)}


def tell_earlier_documents(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """The first head reads the own document, the second one those before it."""
    own, seen = same(documents), past(ids.shape[1])
    return {"seen": torch.cat([seen & own, seen & ~own], 1)}


@planted(
    HEAD,
    "switched off, nn.MultiheadAttention",
    after="pytorch#160064",
    causes="empty-row-nan path-differs",
    checks="N X",
)
def head_switched_off(sick: bool) -> Subject:
    attend = ByHead if sick else ByHeadOrSelf
    return subject(attend, sentences(2, 12), mw.causal(), tell=tell_one_head)


@planted(
    HEAD,
    "the first token of a head that looks back only",
    after="pytorch#160064",
    causes="empty-row-nan path-differs",
    checks="N X",
    layer="layers.1.attention",
)
def head_looks_back(sick: bool) -> Subject:
    attends = [ByHeadOrSelf, ByHead if sick else ByHeadOrSelf]
    return subject(attends, sentences(3, 14), mw.causal(), tell=tell_strictly_past)


@planted(
    HEAD,
    "the first document of a head that reads earlier ones",
    after="pytorch#160064",
    causes="empty-row-nan path-differs",
    checks="N X",
)
def head_reads_earlier_documents(sick: bool) -> Subject:
    attend = ByHead if sick else ByHeadOrSelf
    inputs = packed([5, 4, 6], [7, 8])
    return subject(attend, inputs, mw.causal(), tell=tell_earlier_documents, layers=1)


def weights_by_hand(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, route: str = "") -> Tensor:
    """SDPA, which gives zeros in empty rows; by hand if weights are asked for, which does not."""
    return fills_inf(q, k, v, seen) if route == "weights" else by_sdpa(q, k, v, seen)


def weights_or_zero(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, route: str = "") -> Tensor:
    """Both give zeros in empty rows."""
    return by_hand(q, k, v, seen) if route == "weights" else by_sdpa(q, k, v, seen)


@planted(
    HEAD,
    "by hand where weights are asked for, SDPA elsewhere",
    after="pytorch#160064",
    causes="empty-row-nan path-differs",
    checks="N X",
)
def head_with_weights(sick: bool) -> Subject:
    attend = weights_by_hand if sick else weights_or_zero
    paths = {"weights": by("weights")}
    return subject(attend, sentences(2, 13), mw.causal(), tell=tell_strictly_past, paths=paths)


# ── a row at the lowest number ────────────────────────────────────────────────────────────────

LOWEST = "row filled with the lowest number"


def eager_or(softmax: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention with a softmax of its own on the fused route."""

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, route: str = "eager") -> Tensor:
        scores = scores_of(q, k)
        scores = scores + added(seen, scores, lowest(scores))
        weights = scores.softmax(-1) if route == "eager" else softmax(scores)
        return (weights * seen) @ v

    return attend


def in_base_two(scores: Tensor) -> Tensor:
    """Goes over to powers of two first, where the lowest number becomes -inf."""
    scores = scores * math.log2(math.e)
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def in_base_two_late(scores: Tensor) -> Tensor:
    """Subtracts the maximum first."""
    weights = torch.exp2((scores - scores.amax(-1, keepdim=True)) * math.log2(math.e))
    return weights / weights.sum(-1, keepdim=True)


def without_the_lowest(scores: Tensor) -> Tensor:
    """Leaves cells at the lowest number out of the sum, even if there are no others."""
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * (scores > lowest(scores))
    return weights / weights.sum(-1, keepdim=True)


def without_the_lowest_or_zero(scores: Tensor) -> Tensor:
    """The same, and a sum of nothing divides nothing."""
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * (scores > lowest(scores))
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def left_padded(attend: Any, *lengths: int, **more: Any) -> Subject:
    """A decoder of sequences that are padded on the left."""
    ids = ragged(*lengths, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    return subject(attend, ids, expects, tell=tell_past_and_real, pad_id=0, **more)


@planted(
    LOWEST,
    "the fused route computes in base two",
    after="pytorch#109517",
    causes="empty-row-nan fill-at-limit path-differs",
    checks="N X",
)
def lowest_in_base_two(sick: bool) -> Subject:
    attend = eager_or(in_base_two if sick else in_base_two_late)
    return left_padded(attend, 14, 8, paths={"fused": by("fused")})


@planted(
    LOWEST,
    "the fused route sums what is above it",
    after="pytorch#109517",
    causes="empty-row-nan path-differs",
    checks="N X",
)
def lowest_left_out(sick: bool) -> Subject:
    attend = eager_or(without_the_lowest if sick else without_the_lowest_or_zero)
    return left_padded(attend, 15, 9, 12, paths={"fused": by("fused")})


def bias_in_half(fill_of: torch.dtype) -> Callable[..., Tensor]:
    """On the fused route the mask is kept in bfloat16, whatever its fill was made for."""

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, route: str = "eager") -> Tensor:
        scores = scores_of(q, k)
        bias = added(seen, scores, max(torch.finfo(fill_of).min, lowest(scores)))
        if route == "fused":
            bias = bias.bfloat16()
        return ((scores + bias).softmax(-1) * seen) @ v

    return attend


@planted(
    LOWEST,
    "float32's, in a mask that the fused route keeps in bfloat16",
    after="pytorch#109517",
    causes="fill-overflows empty-row-nan path-differs",
    checks="N X",
    layer="layers.0.attention",
)
def lowest_of_another_dtype(sick: bool) -> Subject:
    right = bias_in_half(torch.bfloat16)
    attends = [bias_in_half(torch.float32) if sick else right, right]
    return left_padded(attends, 9, 14, paths={"fused": by("fused")})


# ── left padding ──────────────────────────────────────────────────────────────────────────────

LEFT = "left padding becomes NaN"


@planted(
    LEFT,
    "softmax by hand, spread by the second layer",
    after="unsloth#9848",
    causes="empty-row-nan",
    checks="N G PI BI",
)
def left_by_hand(sick: bool) -> Subject:
    return left_padded(fills_inf if sick else by_hand, 12, 16, 9)


@planted(
    LEFT,
    "one layer, in the outputs of padding only",
    after="unsloth#9848",
    causes="empty-row-nan",
    checks="N G",
)
def left_one_layer(sick: bool) -> Subject:
    return left_padded(fills_inf if sick else by_hand, 15, 10, layers=1)


class PastAndPad(Multihead):
    """A causal mask and padding, given apart."""

    weights = True

    def masks(self, pad: Tensor) -> dict[str, Any]:
        return {"attn_mask": ~past(pad.shape[1]), "key_padding_mask": pad}


class PastAndPadOrSelf(Multihead):
    """The two as one; padding sees itself."""

    weights = True

    def masks(self, pad: Tensor) -> dict[str, Any]:
        size = pad.shape[1]
        seen = (past(size) & ~pad[:, None]) | torch.eye(size, dtype=torch.bool)
        return {"attn_mask": (~seen).repeat_interleave(self.inner.num_heads, 0)}


@planted(
    LEFT,
    "nn.MultiheadAttention with two masks",
    after="unsloth#9848",
    causes="empty-row-nan",
    checks="N G PI",
)
def left_in_multihead(sick: bool) -> Subject:
    ids = ragged(8, 14, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    attend = PastAndPad if sick else PastAndPadOrSelf
    return subject(attend, ids, expects, tell=tell_pad, pad_id=0)


def cached_inf(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """Real keys up to the query, all else -inf; NaN enters the cache."""
    seen = past(q.shape[2], k.shape[2], start) & keep[:, None, None]
    return fills_inf(q, k, v, seen)


@planted(
    LEFT,
    "kept in the cache",
    after="unsloth#9848",
    causes="empty-row-nan",
    checks="N G PI",
)
def left_in_the_cache(sick: bool) -> Subject:
    ids = ragged(14, 9, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    return decoding(cached_inf if sick else by_cache, ids, expects)
