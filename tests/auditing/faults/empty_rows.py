"""Fully masked rows and heads that become NaN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable


def fills_inf(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills with -inf: a fully masked row is NaN."""
    return tiny.scores(q, k).masked_fill(~keep, -math.inf).softmax(-1) @ v


# ── a fully masked row ─────────────────────────────────────────────────────────────────────────────

EMPTY = Family(
    "fully masked row", after="pytorch#41508, pytorch#103963", checks="N NG", causes="empty-row-nan"
)


def padding_on_both(ids: Tensor) -> dict[str, Any]:
    """Masks padded keys and padded queries."""
    return {"keep": tiny.real_keys(ids) & tiny.real_keys(ids).mT}


@EMPTY.fault("queries of padding, softmax by hand", "N NG PI")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(14, 9, 12)
    padding = mw.padding(ids=ids, pad_id=0)
    return tiny.case(
        fills_inf if faulty else tiny.eager, ids, padding & padding.T, mask_args=padding_on_both
    )


class Padded(tiny.MultiheadAttention):
    """Masks padded keys, even if all keys are padding."""

    need_weights = True

    def masks(self, pad: Tensor) -> dict[str, Any]:
        return {"key_padding_mask": pad}


class PaddedOrZero(Padded):
    """Returns zeros for a sequence of padding."""

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        empty = pad.all(1, keepdim=True)
        return super().forward(x, pad=pad & ~empty).masked_fill(empty[..., None], 0.0)


def pad_args(ids: Tensor) -> dict[str, Any]:
    """True at padding, as nn.MultiheadAttention expects."""
    return {"pad": ids == 0}


@EMPTY.fault("sequence of padding only, nn.MultiheadAttention")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(14, 0, 10)
    attend = Padded if faulty else PaddedOrZero
    return tiny.case(attend, ids, mw.padding(ids=ids, pad_id=0), mask_args=pad_args, pad_id=0)


@EMPTY.fault("padding behind packed documents")
def _(faulty: bool) -> Case:
    attend = fills_inf if faulty else tiny.eager
    return tiny.packed_case(attend, [5, 6, 3], [8, 6], fill=4)


def nan_to_num(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Replaces NaN in the forward pass only; the gradient stays NaN."""
    scores = tiny.scores(q, k)
    return torch.nan_to_num((scores + tiny.additive(keep, scores, -math.inf)).softmax(-1)) @ v


def finite_fill(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills with a finite value and sets the weights of masked keys to 0."""
    scores = tiny.scores(q, k)
    return (scores + tiny.additive(keep, scores)).softmax(-1).masked_fill(~keep, 0.0) @ v


@EMPTY.fault("nan_to_num on the output only")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(12, 16, 7)
    padding = mw.padding(ids=ids, pad_id=0)
    return tiny.case(
        nan_to_num if faulty else finite_fill, ids, padding & padding.T, mask_args=padding_on_both
    )


# ── a fully masked head ────────────────────────────────────────────────────────────────────────────

HEAD = Family(
    "fully masked head", after="pytorch#160064", checks="N X", causes="empty-row-nan path-differs"
)


class ByHead(tiny.MultiheadAttention):
    """A mask per head."""

    def masks(self, keep: Tensor) -> dict[str, Any]:
        return {"attn_mask": ~keep.flatten(0, 1)}


class ByHeadOrSelf(tiny.MultiheadAttention):
    """A mask per head; in a fully masked row the query sees itself."""

    def masks(self, keep: Tensor) -> dict[str, Any]:
        alone = torch.eye(keep.shape[-1], dtype=torch.bool) & ~keep.any(-1, keepdim=True)
        return {"attn_mask": ~(keep | alone).flatten(0, 1)}


def disabled_head(ids: Tensor) -> dict[str, Any]:
    """The second head is fully masked."""
    keep = tiny.causal(ids.shape[1])
    return {"keep": torch.stack([keep, torch.zeros_like(keep)]).expand(len(ids), -1, -1, -1)}


def strictly_causal_head(ids: Tensor) -> dict[str, Any]:
    """The second head excludes the query itself, so that its first row is fully masked."""
    size = ids.shape[1]
    keep = torch.stack([tiny.causal(size), tiny.causal(size, start=-1)])
    return {"keep": keep.expand(len(ids), -1, -1, -1)}


def earlier_documents_head(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """The first head sees the own document, the second one those before it."""
    own, keep = tiny.same_document(documents), tiny.causal(ids.shape[1])
    return {"keep": torch.cat([keep & own, keep & ~own], 1)}


@HEAD.fault("disabled head, nn.MultiheadAttention")
def _(faulty: bool) -> Case:
    attend = ByHead if faulty else ByHeadOrSelf
    return tiny.case(attend, tiny.random_ids(2, 12), mask_args=disabled_head)


@HEAD.fault("first token of a strictly causal head", layer=1)
def _(faulty: bool) -> Case:
    attends = [ByHeadOrSelf, ByHead if faulty else ByHeadOrSelf]
    return tiny.case(attends, tiny.random_ids(3, 14), mask_args=strictly_causal_head)


@HEAD.fault("first document of a head for earlier ones")
def _(faulty: bool) -> Case:
    attend = ByHead if faulty else ByHeadOrSelf
    inputs = tiny.packed_inputs([5, 4, 6], [7, 8])
    return tiny.case(attend, inputs, mw.causal(), mask_args=earlier_documents_head, layers=1)


@HEAD.fault("eager for weights, SDPA otherwise")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, route: str = "") -> Tensor:
        if route != "weights":
            return tiny.sdpa(q, k, v, keep)
        return (fills_inf if faulty else tiny.eager)(q, k, v, keep)

    ids = tiny.random_ids(2, 13)
    return tiny.case(attend, ids, mask_args=strictly_causal_head, route="weights")


# ── left padding ───────────────────────────────────────────────────────────────────────────────────

LEFT = Family(
    "left padding becomes NaN", after="unsloth#9848", checks="N NG PI", causes="empty-row-nan"
)


@LEFT.fault("softmax by hand, spread by the second layer", "N NG PI BI")
def _(faulty: bool) -> Case:
    return tiny.left_padded_case(fills_inf if faulty else tiny.eager, 12, 16, 9)


@LEFT.fault("one layer, outputs of padding only", "N NG")
def _(faulty: bool) -> Case:
    return tiny.left_padded_case(fills_inf if faulty else tiny.eager, 15, 10, layers=1)


class SeparateMasks(tiny.MultiheadAttention):
    """A causal mask and a padding mask."""

    need_weights = True

    def masks(self, pad: Tensor) -> dict[str, Any]:
        return {"attn_mask": ~tiny.causal(pad.shape[1]), "key_padding_mask": pad}


class CombinedMask(tiny.MultiheadAttention):
    """Both combined; padding sees itself."""

    need_weights = True

    def masks(self, pad: Tensor) -> dict[str, Any]:
        size = pad.shape[1]
        keep = (tiny.causal(size) & ~pad[:, None]) | torch.eye(size, dtype=torch.bool)
        return {"attn_mask": (~keep).repeat_interleave(self.inner.num_heads, 0)}


@LEFT.fault("nn.MultiheadAttention with two masks")
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(8, 14)
    attend = SeparateMasks if faulty else CombinedMask
    return tiny.case(attend, ids, mask_args=pad_args)


def cached_inf(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """Fills masked keys of the cache with -inf."""
    keep = tiny.causal(q.shape[2], k.shape[2], start) & real[:, None, None]
    return fills_inf(q, k, v, keep)


@LEFT.fault("in the cache")
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(14, 9)
    return tiny.cached_case(cached_inf if faulty else tiny.cached_eager, ids)


# ── a last block that is not full ──────────────────────────────────────────────────────────────────

LAST = Family(
    "gradient of the last block",
    after="pytorch#153799",
    checks="NG N",
    causes="empty-row-nan not-finite",
)

BLOCK = 8


def pad_rows(x: Tensor) -> Tensor:
    """Pads the rows to a multiple of the block size."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % BLOCK))


def blocked(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention on whole blocks; the padding rows are fully masked and dropped."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        more = -q.shape[2] % BLOCK
        keep = F.pad(keep, (0, more, 0, more))
        q, k, v = pad_rows(q), pad_rows(k), pad_rows(v)
        scores = tiny.scores(q, k)
        out = weigh(scores + tiny.additive(keep, scores, -math.inf), v)
        return out[:, :, : out.shape[2] - more]

    return attend


def plain_softmax(scores: Tensor, v: Tensor) -> Tensor:
    """Softmax, also of the padding rows."""
    return scores.softmax(-1) @ v


def finite_softmax(scores: Tensor, v: Tensor) -> Tensor:
    """Softmax of finite scores."""
    return scores.clamp(min=tiny.min_value(scores)).softmax(-1) @ v


def guard_result(scores: Tensor, v: Tensor) -> Tensor:
    """Replaces fully masked rows after the exponential."""
    top = scores.amax(-1, keepdim=True)
    weights = torch.where(top > -math.inf, torch.exp(scores - top), 0.0)
    return (weights @ v) / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def guard_exponent(scores: Tensor, v: Tensor) -> Tensor:
    """Uses a finite maximum before the exponential."""
    top = scores.amax(-1, keepdim=True).clamp(min=tiny.min_value(scores))
    weights = torch.exp(scores - top)
    return (weights @ v) / weights.sum(-1, keepdim=True).clamp(min=1e-6)


def unguarded_division(scores: Tensor, v: Tensor) -> Tensor:
    """Divides by the sum of weights, 0 in fully masked rows."""
    top = scores.amax(-1, keepdim=True).clamp(min=tiny.min_value(scores))
    weights = torch.exp(scores - top)
    return (weights @ v) / weights.sum(-1, keepdim=True)


@LAST.fault("softmax of padding rows")
def _(faulty: bool) -> Case:
    attend = blocked(plain_softmax if faulty else finite_softmax)
    return tiny.case(attend, tiny.random_ids(2, 20))


@LAST.fault("guard after the exponential", layer=1)
def _(faulty: bool) -> Case:
    right = blocked(guard_exponent)
    attends = [right, blocked(guard_result) if faulty else right]
    return tiny.case(attends, tiny.random_ids(2, 21))


@LAST.fault("0 / 0 in padding rows, window")
def _(faulty: bool) -> Case:
    attend = blocked(unguarded_division if faulty else guard_exponent)
    return tiny.case(
        attend, tiny.random_ids(2, 19), mw.window(back=4), mask_args=tiny.window_args(5)
    )
