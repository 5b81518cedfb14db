"""Mask values that half precision cannot hold, or that are added twice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

# ── a row at the lowest number ─────────────────────────────────────────────────────────────────────

LOWEST = Family("row filled with the lowest number", after="pytorch#109517", checks="N X")


def eager_or(softmax: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Attention whose fused path uses this softmax."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, route: str = "eager") -> Tensor:
        scores = tiny.scores(q, k)
        scores = scores + tiny.additive(keep, scores)
        weights = scores.softmax(-1) if route == "eager" else softmax(scores)
        return (weights * keep) @ v

    return attend


@LOWEST.fault("fused path in base 2", causes="empty-row-nan fill-at-limit path-differs")
def _(faulty: bool) -> Case:
    def softmax(scores: Tensor) -> Tensor:
        """The factor overflows the smallest value, unless the maximum is subtracted before."""
        base2 = scores * math.log2(math.e) if faulty else scores
        base2 = base2 - base2.amax(-1, keepdim=True)
        weights = torch.exp2(base2 if faulty else base2 * math.log2(math.e))
        return weights / weights.sum(-1, keepdim=True)

    return tiny.left_padded_case(eager_or(softmax), 14, 8, route="fused")


@LOWEST.fault("fused path sums only larger values", causes="empty-row-nan path-differs")
def _(faulty: bool) -> Case:
    def softmax(scores: Tensor) -> Tensor:
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        weights = weights * (scores > tiny.min_value(scores))
        return weights / weights.sum(-1, keepdim=True).clamp(min=0 if faulty else 1e-6)

    return tiny.left_padded_case(eager_or(softmax), 15, 9, 12, route="fused")


def bias_in_half(fill_of: torch.dtype) -> Callable[..., Tensor]:
    """The fused path casts the additive mask to bfloat16."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, route: str = "eager") -> Tensor:
        scores = tiny.scores(q, k)
        bias = tiny.additive(keep, scores, max(torch.finfo(fill_of).min, tiny.min_value(scores)))
        if route == "fused":
            bias = bias.bfloat16()
        return ((scores + bias).softmax(-1) * keep) @ v

    return attend


@LOWEST.fault(
    "float32 minimum cast to bfloat16", causes="fill-overflows empty-row-nan path-differs", layer=0
)
def _(faulty: bool) -> Case:
    right = bias_in_half(torch.bfloat16)
    attends = [bias_in_half(torch.float32) if faulty else right, right]
    return tiny.left_padded_case(attends, 9, 14, route="fused")


# ── a mask in half precision that gives NaN ────────────────────────────────────────────────────────

HALF = Family(
    "mask gives NaN in half precision",
    after="flax#982",
    checks="H",
    causes="fill-overflows dtype-differs not-finite",
)


class Scaled(tiny.Attention):
    """Adds (1 - mask) * fill, where the fill is a buffer that is cast with the model."""

    low = -1e10

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.register_buffer("fill", torch.tensor(self.low))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        hidden = 1 - keep.to(q.dtype)
        return (tiny.scores(q, k) + hidden * self.fill).softmax(-1) @ v


class ScaledSmall(Scaled):
    """The same with a fill that float16 can represent."""

    low = -1e4


@HALF.fault("0 times a buffer of -1e10")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(12, 16)
    attend = Scaled if faulty else ScaledSmall
    return tiny.case(attend, ids)


@HALF.fault("float16 model, left padding", "N NG H", "fill-overflows empty-row-nan")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        """float16 rounds -1e10 to -inf."""
        fill = torch.tensor(-1e10 if faulty else tiny.min_value(q)).to(q.dtype)
        return (torch.where(keep, tiny.scores(q, k), fill).softmax(-1) * keep) @ v

    built = tiny.left_padded_case(attend, 14, 9, 12)
    return replace(built, model=built.model.half())


def in_blocks(first: float | None) -> Callable[..., Tensor]:
    """Online softmax over blocks of 4 keys; the running maximum starts at `first`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        start = torch.tensor(tiny.min_value(q) if first is None else first).to(q.dtype)
        top = start.expand(*q.shape[:3], 1)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for block in torch.arange(k.shape[2]).split(4):
            scores = tiny.scores(q, k[:, :, block]).masked_fill(~keep[..., block], -math.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, fade = torch.exp(scores - new), torch.exp(top - new)
            total = total * fade + weights.sum(-1, keepdim=True)
            out = out * fade + weights @ v[:, :, block]
            top = new
        return out / total.clamp(min=1e-6)

    return attend


@HALF.fault("running maximum from -1e9, window", layer=1)
def _(faulty: bool) -> Case:
    attends = [in_blocks(None), in_blocks(-1e9 if faulty else None)]
    return tiny.case(
        attends, tiny.random_ids(2, 18), mw.window(back=3), mask_args=tiny.window_args(4)
    )


# ── a fill that half precision can't hold ──────────────────────────────────────────────────────────

TOO_LARGE = Family(
    "fill beyond half precision", after="fairseq#3575", checks="H", causes="fill-overflows raises"
)


def fills(value: float) -> Callable[..., Tensor]:
    """Eager attention with this fill value."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return tiny.scores(q, k).masked_fill(~keep, value).softmax(-1) @ v

    return attend


@TOO_LARGE.fault("masked_fill with −1e8")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(16, 11)
    attend = fills(-1e8 if faulty else -1e4)
    return tiny.case(
        attend, ids, mw.padding(ids=ids, pad_id=0), mask_args=tiny.padding_args, pad_id=0
    )


@TOO_LARGE.fault("one layer of three", layer=2)
def _(faulty: bool) -> Case:
    attends = [fills(-1e4), tiny.eager, fills(-1e5 if faulty else -1e4)]
    return tiny.case(attends, tiny.random_ids(2, 14))


def triangle(value: float) -> Callable[..., Tensor]:
    """SDPA with an additive causal mask in the dtype of the queries."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        future = torch.full((q.shape[2], k.shape[2]), value, dtype=q.dtype).triu(1)
        return tiny.sdpa(q, k, v, future)

    return attend


@TOO_LARGE.fault("a triangle made in the dtype of the queries")
def _(faulty: bool) -> Case:
    attend = triangle(-1e9 if faulty else -math.inf)
    return tiny.case(attend, tiny.random_ids(3, 12), mask_args=lambda ids: {})


# ── the lowest number, twice ───────────────────────────────────────────────────────────────────────

TWICE = Family(
    "lowest number added twice",
    after="NeMo Automodel#2658",
    checks="N NG",
    causes="summed-fills fill-overflows empty-row-nan",
)


def adds_all(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """Adds the smallest value once per mask: twice gives -inf."""
    scores = tiny.scores(q, k)
    scores = scores + sum(tiny.additive(keep, scores) for keep in masks)
    keep = torch.stack(torch.broadcast_tensors(*masks)).all(0)
    return (scores.softmax(-1) * keep) @ v


def adds_once(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """Combines the masks before adding them."""
    scores = tiny.scores(q, k)
    keep = torch.stack(torch.broadcast_tensors(*masks)).all(0)
    return ((scores + tiny.additive(keep, scores)).softmax(-1) * keep) @ v


def causal_and_documents(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """A causal mask and a document mask; both mask the padding."""
    return {
        "masks": [tiny.causal(ids.shape[1]) & tiny.real_keys(ids), tiny.same_document(documents)]
    }


@TWICE.fault("causal and document mask, rows of padding")
def _(faulty: bool) -> Case:
    inputs = tiny.packed_inputs([6, 8], [4, 5, 5], fill=0)
    filling = torch.full((2, 4), -1)
    inputs = {
        "ids": F.pad(inputs["ids"], (4, 0)),
        "documents": torch.cat([filling, inputs["documents"]], 1),
    }
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    attend, args = adds_all if faulty else adds_once, causal_and_documents
    return tiny.case(attend, inputs, expects, mask_args=args, positions=tiny.document_positions)


def padded_keys_and_queries(ids: Tensor) -> dict[str, Any]:
    """A mask of padded keys and a mask of padded queries."""
    return {"masks": [tiny.real_keys(ids), tiny.real_keys(ids).mT]}


@TWICE.fault("padded keys and queries, empty sequence, bfloat16")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(10, 14, 0)
    padding = mw.padding(ids=ids, pad_id=0)
    attend = adds_all if faulty else adds_once
    built = tiny.case(attend, ids, padding & padding.T, mask_args=padded_keys_and_queries)
    return replace(built, model=built.model.bfloat16())


def distances(ids: Tensor) -> dict[str, Any]:
    """A distance bias shared by the layers, and the mask."""
    keep = tiny.causal(ids.shape[1]) & tiny.real_keys(ids)
    place = torch.arange(ids.shape[1])
    far = (place - place[:, None]).abs().float()
    return {"bias": (far * -0.25).expand(keep.shape).clone(), "keep": keep}


@TWICE.fault(
    "added in place to a shared bias", causes="fill-at-limit fill-overflows empty-row-nan", layer=1
)
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, keep: Tensor) -> Tensor:
        added = bias if faulty else bias.clone()
        added += tiny.additive(keep, bias)
        return ((tiny.scores(q, k) + added).softmax(-1) * keep).to(v.dtype) @ v

    return tiny.case(attend, tiny.left_padded(12, 15), mask_args=distances)


def adds_all_nan_to_num(q: Tensor, k: Tensor, v: Tensor, masks: list[Tensor]) -> Tensor:
    """The same with NaN replaced in the forward pass."""
    scores = tiny.scores(q, k)
    scores = scores + sum(tiny.additive(keep, scores) for keep in masks)
    return torch.nan_to_num(scores.softmax(-1)) @ v


@TWICE.fault("NaN in gradients only")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(13, 0, 9)
    padding = mw.padding(ids=ids, pad_id=0)
    attend = adds_all_nan_to_num if faulty else adds_once
    return tiny.case(attend, ids, padding & padding.T, mask_args=padded_keys_and_queries)
