"""Models that give one result on one path, and another on the next."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import maskwright as mw
from tests.zoo.case import Subject
from tests.zoo.layers_b import (
    DIM,
    PLACES,
    WORDS,
    Attention,
    Multihead,
    by,
    by_hand,
    by_sdpa,
    grown,
    past,
    planted,
    ragged,
    real_in_order,
    scores_of,
    sentences,
    subject,
)

# ── causal dropped with dropout ───────────────────────────────────────────────────────────────

DROPOUT = "causal dropped with dropout or scores"


class Dropping(Attention):
    """SDPA without dropout; by hand with it, where nobody thought of the mask."""

    rate = 0.1
    also_masked = False

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.drop = nn.Dropout(self.rate)

    def in_full(self) -> bool:
        """Are weights needed, one by one?"""
        return self.drop.p > 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        if not self.in_full():
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        scores = scores_of(q, k)
        if self.also_masked:
            scores = scores.masked_fill(~seen, torch.finfo(q.dtype).min)
        return self.drop(scores.softmax(-1)) @ v


class DroppingMasked(Dropping):
    """By hand with the mask."""

    also_masked = True


@planted(
    DROPOUT,
    "whenever its rate is above 0",
    after="keras#23038",
    causes="future-visible path-differs mask-missing",
    checks="P X",
)
def dropped_by_rate(sick: bool) -> Subject:
    return subject(Dropping if sick else DroppingMasked, sentences(2, 14), mw.causal())


class DroppingInTraining(Dropping):
    """By hand in training."""

    def in_full(self) -> bool:
        return self.training


class DroppingInTrainingMasked(DroppingInTraining):
    """The same with the mask."""

    also_masked = True


@planted(
    DROPOUT,
    "in training, one layer",
    after="keras#23038",
    causes="future-visible path-differs missing-in-layer",
    checks="P X",
    layer="layers.1.attention",
)
def dropped_in_training(sick: bool) -> Subject:
    right = DroppingInTrainingMasked
    return subject([right, DroppingInTraining if sick else right], sentences(2, 15), mw.causal())


class DroppingReally(Dropping):
    """By hand where something is really dropped."""

    def in_full(self) -> bool:
        return self.training and self.drop.p > 0


class DroppingReallyMasked(DroppingReally):
    """The same with the mask."""

    also_masked = True


@planted(
    DROPOUT,
    "in training with a rate above 0",
    after="keras#23038",
    causes="future-visible",
    checks="P",
)
def dropped_really(sick: bool) -> Subject:
    attend = DroppingReally if sick else DroppingReallyMasked
    return subject(attend, sentences(2, 13), mw.causal())


def scores_unmasked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, route: str = "") -> Tensor:
    """SDPA; by hand and without the mask if scores are to be returned."""
    if route == "scores":
        return scores_of(q, k).softmax(-1) @ v
    return by_sdpa(q, k, v, seen)


def scores_masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, route: str = "") -> Tensor:
    """The same with the mask."""
    return by_hand(q, k, v, seen) if route == "scores" else by_sdpa(q, k, v, seen)


@planted(
    DROPOUT,
    "when scores are returned",
    after="keras#23038",
    causes="future-visible path-differs mask-missing",
    checks="X",
)
def dropped_with_scores(sick: bool) -> Subject:
    attend = scores_unmasked if sick else scores_masked
    return subject(attend, sentences(2, 14), mw.causal(), paths={"scores": by("scores")})


# ── a flag that only some paths look at ───────────────────────────────────────────────────────

FLAG = "is_causal ignored with weights"


class Flagged(Multihead):
    """The flag, and a mask that hides nothing, because the flag asks for one."""

    def masks(self, size: int) -> dict[str, Any]:
        return {"attn_mask": torch.zeros(size, size), "is_causal": True}


class FlaggedAndMasked(Multihead):
    """The flag, and the mask that it speaks of."""

    def masks(self, size: int) -> dict[str, Any]:
        future = torch.zeros(size, size).masked_fill(~past(size), -torch.inf)
        return {"attn_mask": future, "is_causal": True}


def tell_size(ids: Tensor) -> dict[str, Any]:
    """How many tokens there are."""
    return {"size": ids.shape[1]}


@planted(
    FLAG,
    "nn.MultiheadAttention with weights, a mask of zeros",
    after="pytorch#99282",
    causes="future-visible path-differs mask-missing",
    checks="X",
)
def flag_with_weights(sick: bool) -> Subject:
    attend = Flagged if sick else FlaggedAndMasked
    return subject(attend, sentences(2, 12), mw.causal(), tell=tell_size)


class FlaggedBool(Multihead):
    """The flag, and a mask that is False everywhere."""

    def masks(self, size: int) -> dict[str, Any]:
        return {"attn_mask": torch.zeros(size, size, dtype=torch.bool), "is_causal": True}


class FlaggedAndMaskedBool(Multihead):
    """The flag, and the mask that it speaks of."""

    def masks(self, size: int) -> dict[str, Any]:
        return {"attn_mask": ~past(size), "is_causal": True}


@planted(
    FLAG,
    "nn.MultiheadAttention without gradients, a mask of False, one layer",
    after="pytorch#131254",
    causes="future-visible path-differs missing-in-layer",
    checks="P X",
    layer="layers.1.attention",
)
def flag_without_gradients(sick: bool) -> Subject:
    attends = [FlaggedAndMaskedBool, FlaggedBool if sick else FlaggedAndMaskedBool]
    return subject(attends, sentences(2, 14), mw.causal(), tell=tell_size)


def low(hidden: Tensor) -> Tensor:
    """Low numbers where something is hidden, to be added to scores."""
    return torch.zeros(hidden.shape).masked_fill(hidden, -1e4)


class FlaggedAndPadded(Multihead):
    """The flag, a mask that hides nothing, and padding, with which the flag does not count."""

    def masks(self, pad: Tensor) -> dict[str, Any]:
        nothing = torch.zeros(pad.shape[1], pad.shape[1])
        return {"attn_mask": nothing, "is_causal": True, "key_padding_mask": low(pad)}


class MaskedAndPadded(Multihead):
    """The flag, its mask, and padding."""

    def masks(self, pad: Tensor) -> dict[str, Any]:
        future = low(~past(pad.shape[1]))
        return {"attn_mask": future, "is_causal": True, "key_padding_mask": low(pad)}


@planted(
    FLAG,
    "nn.MultiheadAttention with padding",
    after="pytorch#99282",
    causes="future-visible mask-missing",
    checks="P",
)
def flag_with_padding(sick: bool) -> Subject:
    ids = ragged(14, 10)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    attend = FlaggedAndPadded if sick else MaskedAndPadded
    return subject(attend, ids, expects, tell=lambda ids: {"pad": ids == 0}, pad_id=0)


def with_weights(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """What the last layer does, so that its weights can be drawn; it forgets the mask."""
    return scores_of(q, k).softmax(-1) @ v


@planted(
    FLAG,
    "the last layer returns weights",
    after="pytorch#131254",
    causes="future-visible missing-in-layer",
    checks="P",
    layer="layers.2.attention",
)
def flag_in_the_last_layer(sick: bool) -> Subject:
    attends = [by_sdpa, by_sdpa, with_weights if sick else by_hand]
    return subject(attends, sentences(2, 14), mw.causal())


# ── a fast path that takes padding out ────────────────────────────────────────────────────────

NESTED = "fast path without padding"


class Encoder(nn.Module):
    """nn.TransformerEncoder over left-padded ids, with or without a look at the mask."""

    def __init__(self, check: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, DIM), nn.Embedding(PLACES, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, mask_check=check)
        self.head = nn.Linear(DIM, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(real_in_order(ids))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are said to be new
            return self.head(self.encoder(x, src_key_padding_mask=ids == 0))


@planted(
    NESTED,
    "nn.TransformerEncoder that does not check for left padding",
    after="pytorch#97111",
    causes="path-differs padding-visible too-narrow",
    checks="X PI BI",
)
def nested_left_padding(sick: bool) -> Subject:
    ids = ragged(14, 9, 11, left=True)
    model = grown(Encoder(check=not sick))
    return Subject(model, ids, mw.padding(ids=ids, pad_id=0), {"pad_id": 0})


class Fast(Attention):
    """Without gradients each sequence goes alone, without its padding."""

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
        seen = keep[:, None, None] & keep[:, None, :, None]
        return by_hand(q, k, v, seen & past(q.shape[2]) if self.causal else seen)


class FastFromTheLeft(Fast):
    """Sequences are filled up on the right again, wherever their padding was."""

    def fast(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        out = pad_sequence(self.rows(q, k, v, keep), batch_first=True)
        return F.pad(out, (0, 0, 0, 0, 0, q.shape[2] - out.shape[1])).transpose(1, 2)


def tell_keep(ids: Tensor) -> dict[str, Any]:
    """Which tokens are real."""
    return {"keep": ids != 0}


def encoding(attend: Any, ids: Tensor, causal: bool = False) -> Subject:
    """Real tokens that see real tokens."""
    keep = mw.padding(ids=ids, pad_id=0)
    both = keep & keep.T
    expects = mw.causal() & both if causal else both
    return subject(attend, ids, expects, tell=tell_keep, pad_id=0)


@planted(
    NESTED,
    "padding is put back on the other side",
    after="pytorch#97111",
    causes="path-differs",
    checks="X PI BI",
    layer="layers.0.attention",
)
def nested_from_the_left(sick: bool) -> Subject:
    attends = [FastFromTheLeft if sick else Fast, Fast]
    return encoding(attends, ragged(10, 14, left=True))


class FastCausal(Fast):
    """A decoder's, causal both ways."""

    causal = True


class FastNotCausal(FastCausal):
    """A decoder's, whose fast way is an encoder's."""

    def alone(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


@planted(
    NESTED,
    "a decoder that is not causal there",
    after="pytorch#86120",
    causes="future-visible path-differs",
    checks="P X",
)
def nested_not_causal(sick: bool) -> Subject:
    return encoding(FastNotCausal if sick else FastCausal, ragged(13, 9, 11), causal=True)


class FastByLength(Fast):
    """Longest sequences first, and afterwards back into their order."""

    def fast(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        order = keep.sum(1).argsort(descending=True, stable=True)
        out = super().fast(q[order], k[order], v[order], keep[order])
        return out[self.back(order)]

    def back(self, order: Tensor) -> Tensor:
        return order.argsort()


class FastByLengthTwice(FastByLength):
    """The order is applied once more instead of backwards."""

    def back(self, order: Tensor) -> Tensor:
        return order


@planted(
    NESTED,
    "sequences come back in another order",
    after="pytorch#86120",
    causes="order-of-batch attends-across-batch path-differs",
    checks="X BI",
)
def nested_out_of_order(sick: bool) -> Subject:
    return encoding(FastByLengthTwice if sick else FastByLength, ragged(9, 14, 12))
