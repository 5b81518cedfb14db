"""Masks that only some code paths apply."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

# ── causal dropped with dropout ────────────────────────────────────────────────────────────────────

DROPOUT = Family(
    "causal dropped with dropout or scores",
    after="keras#23038",
    checks="P X",
    causes="future-visible path-differs mask-missing",
)


def dropping(uses_weights: Callable[[Any], bool], masked: bool = True) -> type[tiny.Attention]:
    """SDPA, or eager attention with dropout if `uses_weights`; `masked` applies the mask there."""

    class Dropping(tiny.Attention):
        def __init__(self, heads: int) -> None:
            super().__init__(heads)
            self.drop = nn.Dropout(0.1)

        def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
            if not uses_weights(self):
                return tiny.sdpa(q, k, v, keep)
            scores = tiny.scores(q, k)
            if masked:
                scores = scores.masked_fill(~keep, tiny.min_value(q))
            return self.drop(scores.softmax(-1)) @ v

    return Dropping


@DROPOUT.fault("dropout_p above 0")
def _(faulty: bool) -> Case:
    attend = dropping(lambda module: module.drop.p > 0, masked=not faulty)
    return tiny.case(attend, tiny.random_ids(2, 14))


@DROPOUT.fault(
    "in training, layer 1", causes="future-visible path-differs missing-in-layer", layer=1
)
def _(faulty: bool) -> Case:
    attends = [dropping(lambda m: m.training), dropping(lambda m: m.training, masked=not faulty)]
    return tiny.case(attends, tiny.random_ids(2, 15))


@DROPOUT.fault("in training, dropout_p above 0", "P", "future-visible")
def _(faulty: bool) -> Case:
    attend = dropping(lambda m: m.training and m.drop.p > 0, masked=not faulty)
    return tiny.case(attend, tiny.random_ids(2, 13))


@DROPOUT.fault("scores returned", "X")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, route: str = "") -> Tensor:
        if route == "scores":
            return tiny.eager(q, k, v, None if faulty else keep)
        return tiny.sdpa(q, k, v, keep)

    return tiny.case(attend, tiny.random_ids(2, 14), route="scores")


# ── a flag that only some paths look at ────────────────────────────────────────────────────────────

FLAG = Family("is_causal ignored with weights", after="pytorch#99282, pytorch#131254", checks="P")


def flagged(keep: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """is_causal with an attn_mask, which nn.MultiheadAttention requires."""
    additive = tiny.additive(keep, torch.zeros(1), -torch.inf)
    return {"attn_mask": ~keep if dtype == torch.bool else additive, "is_causal": True}


def everything(size: int) -> Tensor:
    """A mask that masks nothing."""
    return torch.ones(size, size, dtype=torch.bool)


@FLAG.fault("need_weights, mask of zeros", "X", "future-visible path-differs mask-missing")
def _(faulty: bool) -> Case:
    mask = everything if faulty else tiny.causal
    args = lambda ids: flagged(mask(ids.shape[1]))  # noqa: E731
    return tiny.case(tiny.MultiheadAttention, tiny.random_ids(2, 12), mask_args=args)


class BoolFlagged(tiny.MultiheadAttention):
    """is_causal and its boolean mask."""

    mask: Callable[[int], Tensor] = staticmethod(tiny.causal)

    def masks(self, size: int) -> dict[str, Any]:
        return flagged(self.mask(size), torch.bool)


class BoolFlaggedOnly(BoolFlagged):
    """is_causal and a mask that masks nothing."""

    mask = staticmethod(everything)


@FLAG.fault(
    "no gradients, mask of False", "P X", "future-visible path-differs missing-in-layer", layer=1
)
def _(faulty: bool) -> Case:
    attends = [BoolFlagged, BoolFlaggedOnly if faulty else BoolFlagged]
    args = lambda ids: {"size": ids.shape[1]}  # noqa: E731
    return tiny.case(attends, tiny.random_ids(2, 14), mask_args=args)


@FLAG.fault("nn.MultiheadAttention with padding", causes="future-visible mask-missing")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        keep = (everything if faulty else tiny.causal)(ids.shape[1])
        padding = tiny.additive(ids != tiny.PAD, torch.zeros(1), -1e4)
        causal = tiny.additive(keep, torch.zeros(1), -1e4)
        return {"attn_mask": causal, "is_causal": True, "key_padding_mask": padding}

    return tiny.case(tiny.MultiheadAttention, tiny.right_padded(14, 10), mask_args=args)


@FLAG.fault("last layer returns weights", causes="future-visible missing-in-layer", layer=2)
def _(faulty: bool) -> Case:
    def last(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return tiny.eager(q, k, v, None if faulty else keep)

    return tiny.case([tiny.sdpa, tiny.sdpa, last], tiny.random_ids(2, 14))


# ── a kind of attention that forgets the mask ──────────────────────────────────────────────────────

KIND = Family("causal kind ignores the mask", after="maxtext#878")


def only_causal(q: Tensor, k: Tensor, v: Tensor, given: Tensor) -> Tensor:
    """Ignores the given mask."""
    return tiny.eager(q, k, v, tiny.causal(q.shape[2]))


def causal_too(q: Tensor, k: Tensor, v: Tensor, given: Tensor) -> Tensor:
    """Combines the given mask with the causal mask."""
    return tiny.eager(q, k, v, given & tiny.causal(q.shape[2]))


def given_padding(ids: Tensor) -> dict[str, Any]:
    """Padding mask."""
    return {"given": tiny.real_keys(ids)}


def given_documents(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """Document mask."""
    return {"given": tiny.same_document(documents)}


@KIND.fault("left padding", "PI BI", "padding-visible")
def _(faulty: bool) -> Case:
    attend = only_causal if faulty else causal_too
    return tiny.left_padded_case(attend, 16, 10, 13, mask_args=given_padding)


@KIND.fault("packed documents, layer 0", "P PC", "documents-leak missing-in-layer", layer=0)
def _(faulty: bool) -> Case:
    attends = [only_causal if faulty else causal_too, causal_too]
    return tiny.packed_case(attends, [6, 4, 5], [8, 7], mask_args=given_documents)


@KIND.fault("fused path takes only the flag", "X", "padding-visible path-differs")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, given: Tensor, route: str = "eager") -> Tensor:
        if route == "eager":
            return causal_too(q, k, v, given)
        keep = tiny.causal(q.shape[2])
        return tiny.sdpa(q, k, v, keep if faulty else given & keep)

    return tiny.left_padded_case(attend, 14, 9, mask_args=given_padding, route="fused")


# ── a fast path that takes padding out ─────────────────────────────────────────────────────────────

NESTED = Family("fast path without padding", after="pytorch#97111, pytorch#86120", checks="X PI BI")


class Encoder(tiny.Base):
    """nn.TransformerEncoder, whose nested tensors need padding on the right."""

    def __init__(self, check: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(tiny.DIM, 2, 2 * tiny.DIM, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, mask_check=check)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids, tiny.real_positions(ids))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are a prototype
            return self.logits(self.encoder(x, src_key_padding_mask=ids == tiny.PAD))


@NESTED.fault("left padding", causes="path-differs padding-visible too-narrow")
def _(faulty: bool) -> Case:
    return tiny.encoder_case(Encoder(check=not faulty), tiny.left_padded(14, 9, 11), pad_id=0)


class Fast(tiny.Attention):
    """Without gradients, computes each sequence alone, without its padding."""

    causal = False

    def alone(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One sequence, (heads, tokens, dim)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def rows(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> list[Tensor]:
        """(tokens, heads, dim) of each sequence."""
        return [
            self.alone(*(x[row][:, keep[row]] for x in (q, k, v))).transpose(0, 1)
            for row in range(len(q))
        ]

    def fast(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        out = torch.zeros_like(q).transpose(1, 2)
        out[keep] = torch.cat(self.rows(q, k, v, keep))
        return out.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.fast(q, k, v, keep)
        keep = keep[:, None, None] & keep[:, None, :, None]
        return tiny.eager(q, k, v, keep & tiny.causal(q.shape[2]) if self.causal else keep)


class FastRightPadded(Fast):
    """Pads the results on the right, wherever the padding was."""

    def fast(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        out = pad_sequence(self.rows(q, k, v, keep), batch_first=True)
        return F.pad(out, (0, 0, 0, 0, 0, q.shape[2] - out.shape[1])).transpose(1, 2)


def encoding(attend: Any, ids: Tensor, causal: bool = False) -> Case:
    """Real queries and real keys."""
    padding = mw.padding(ids=ids, pad_id=0)
    expects = mw.causal() & padding & padding.T if causal else padding & padding.T
    return tiny.case(attend, ids, expects, mask_args=lambda ids: {"keep": ids != tiny.PAD})


@NESTED.fault("padding restored on the other side", causes="path-differs", layer=0)
def _(faulty: bool) -> Case:
    attends = [FastRightPadded if faulty else Fast, Fast]
    return encoding(attends, tiny.left_padded(10, 14))


class FastCausal(Fast):
    """A decoder."""

    causal = True


class FastNotCausal(FastCausal):
    """A decoder whose fast path is bidirectional."""

    def alone(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


@NESTED.fault("decoder without causal mask", "P X", "future-visible path-differs")
def _(faulty: bool) -> Case:
    attend = FastNotCausal if faulty else FastCausal
    return encoding(attend, tiny.right_padded(13, 9, 11), causal=True)


class FastByLength(Fast):
    """Computes the longest sequences first, and restores the order."""

    inverse = staticmethod(torch.argsort)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        order = keep.sum(1).argsort(descending=True, stable=True)
        out = super().fast(q[order], k[order], v[order], keep[order])
        return out[self.inverse(order)]


class FastByLengthTwice(FastByLength):
    """Applies the order again instead of its inverse."""

    inverse = staticmethod(torch.clone)


@NESTED.fault("batch in another order", "X BI", "order-of-batch attends-across-batch path-differs")
def _(faulty: bool) -> Case:
    return encoding(FastByLengthTwice if faulty else FastByLength, tiny.right_padded(9, 14, 12))
