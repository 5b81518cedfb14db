"""Masks and sequences on the wrong axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── padding on the queries ────────────────────────────────────────────────────────────────────

QUERIES = Family(
    "padding mask on the query axis",
    after="hyunwoongko/transformer#40",
    checks="P PI BI",
    causes="padding-on-queries queries-and-keys-swapped",
)


def real_queries(real: Tensor, q_len: int) -> Tensor:
    """(B, 1, T, 1): masks queries instead of keys."""
    return real[:, None, :, None]


def real_queries_expanded(real: Tensor, q_len: int) -> Tensor:
    """The same, expanded over all keys for SDPA."""
    return real[:, None, :, None].expand(-1, 1, -1, real.size(1))


def causal_real_queries(real: Tensor, q_len: int) -> Tensor:
    """Causal mask combined with the mask of real queries."""
    return tiny.causal_mask(real, q_len) & real[:, None, :, None]


def filled_with(fill: float) -> tiny.Attend:
    """Eager attention with this fill value."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return tiny.scores(q, k).masked_fill(~keep, fill).softmax(-1) @ v

    return attend


class MaskedByTarget(tiny.Seq2Seq):
    """Masks cross-attention by the real *target* tokens."""

    def decode(self, tgt: Tensor, memory: Tensor, _real: Tensor) -> Tensor:
        x = self.embed(tgt, tiny.column_positions(tgt))
        keep = (tgt != tiny.PAD)[:, None, :, None]
        for layer in self.decoder:
            x = layer(x, memory, keep, keep=tiny.causal(tgt.size(1)))
        return self.logits(x)


@QUERIES.fault("filled with -10000, all layers")
def _(faulty: bool) -> Case:
    mask = real_queries if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([filled_with(-10000.0)] * 2, mask))


@QUERIES.fault(
    "filled with -inf, NaN", "N", "padding-on-queries queries-and-keys-swapped empty-row-nan"
)
def _(faulty: bool) -> Case:
    mask = real_queries if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([filled_with(-torch.inf)] * 2, mask))


@QUERIES.fault("SDPA, second layer of two", "L P PI BI", layer=1)
def _(faulty: bool) -> Case:
    mask = [tiny.padding_mask, real_queries_expanded] if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([tiny.sdpa] * 2, mask))


@QUERIES.fault("under a causal mask, left padding", causes="padding-on-queries")
def _(faulty: bool) -> Case:
    mask = causal_real_queries if faulty else tiny.causal_padding_mask
    return tiny.decoder_case(tiny.Model([tiny.eager] * 2, mask))


@QUERIES.fault(
    "cross-attention masked by the target", causes="padding-on-queries mask-missing padding-visible"
)
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(MaskedByTarget() if faulty else tiny.Seq2Seq())


# ── the batch on the heads ────────────────────────────────────────────────────────────────────

ON_HEADS = Family(
    "batch axis of the mask on the heads",
    after="graph-transformer-pytorch#2",
    checks="P BI",
    causes="batch-on-heads",
)
FOUR = tiny.right_padded(9, 16, 12, 14)


def three_axes(real: Tensor, q_len: int) -> Tensor:
    """(B, T, T), which broadcasts as (H, T, T)."""
    return real[:, None, :].expand(-1, q_len, -1)


def three_axes_of_keys(real: Tensor, q_len: int) -> Tensor:
    """(B, 1, T), which broadcasts as (H, 1, T)."""
    return real[:, None, :]


def folded(copy: Any) -> tiny.Attend:
    """Folds the heads into the batch; `copy` expands the mask accordingly."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        batch, heads = q.shape[:2]
        scores = tiny.scores(q.flatten(0, 1), k.flatten(0, 1))
        scores = scores.masked_fill(~copy(keep[:, 0], heads), tiny.min_value(scores))
        return (scores.softmax(-1) @ v.flatten(0, 1)).unflatten(0, (batch, heads))

    return attend


def tile(keep: Tensor, heads: int) -> Tensor:
    """Repeats the whole batch, in the wrong order."""
    return torch.cat([keep] * heads)


def interleave(keep: Tensor, heads: int) -> Tensor:
    """Repeats each sequence's mask for its heads."""
    return keep.repeat_interleave(heads, 0)


def repeated(real: Tensor) -> dict[str, Any]:
    """(B * H, T, T), heads first."""
    hidden = ~real[:, None, :].expand(-1, real.size(1), -1)
    return {"attn_mask": hidden.repeat(tiny.HEADS, 1, 1)}


def interleaved(real: Tensor) -> dict[str, Any]:
    """(B * H, T, T), sequences first."""
    hidden = ~real[:, None, :].expand(-1, real.size(1), -1)
    return {"attn_mask": hidden.repeat_interleave(tiny.HEADS, 0)}


@ON_HEADS.fault("(B, T, T) by hand, as many sequences as heads")
def _(faulty: bool) -> Case:
    mask = three_axes if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([tiny.eager] * 2, mask, heads=4), FOUR)


@ON_HEADS.fault("(B, 1, T) into SDPA, second layer of two", layer=1)
def _(faulty: bool) -> Case:
    mask = [tiny.padding_mask, three_axes_of_keys] if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([tiny.sdpa] * 2, mask, heads=4), FOUR)


@ON_HEADS.fault("nn.MultiheadAttention, repeat", causes="batch-on-heads order-of-batch")
def _(faulty: bool) -> Case:
    masks = repeated if faulty else interleaved
    return tiny.encoder_case(tiny.MultiheadModel(masks, masks))


@ON_HEADS.fault(
    "heads folded into the batch, layer 0", causes="batch-on-heads order-of-batch", layer=0
)
def _(faulty: bool) -> Case:
    attend = tile if faulty else interleave
    return tiny.encoder_case(
        tiny.Model(
            [folded(attend), folded(interleave), folded(interleave)],
            tiny.padding_mask,
        )
    )


# ── the batch as the sequence ─────────────────────────────────────────────────────────────────

BATCH_FIRST = Family(
    "attention across the batch",
    after="TabFormer#14",
    checks="BI R P",
    causes="attends-across-batch",
)


def no_mask(real: Tensor) -> dict[str, Any]:
    """No mask arguments."""
    return {}


class Encoder(tiny.Base):
    """nn.TransformerEncoder with a causal mask over its sequence axis."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.axis = 1 if batch_first else 0
        layer = nn.TransformerEncoderLayer(
            tiny.DIM, tiny.HEADS, 2 * tiny.DIM, 0.0, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids, tiny.column_positions(ids))
        hidden = torch.ones(x.size(self.axis), x.size(self.axis)).triu(1).bool()
        return self.logits(self.encoder(x, hidden))


class EncoderDecoder(tiny.Base):
    """An encoder, and a decoder layer with or without batch_first."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.axis = 1 if batch_first else 0
        self.encoder = nn.TransformerEncoderLayer(
            tiny.DIM, tiny.HEADS, 2 * tiny.DIM, 0.0, batch_first=True
        )
        self.decoder = nn.TransformerDecoderLayer(
            tiny.DIM, tiny.HEADS, 2 * tiny.DIM, 0.0, batch_first=batch_first
        )

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(self.embed(src, tiny.column_positions(src)))
        x = self.embed(tgt, tiny.column_positions(tgt))
        hidden = torch.ones(x.size(self.axis), x.size(self.axis)).triu(1).bool()
        return self.logits(self.decoder(x, memory, tgt_mask=hidden))


def over_the_first_axis(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Written for (T, B, H, C): scores between sequences of the batch."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("ibhc,jbhc->bhij", q, k) / q.size(-1) ** 0.5
    return torch.einsum("bhij,jbhc->ibhc", scores.softmax(-1), v).transpose(1, 2)


EVEN = tiny.random_ids(3, 12)


@BATCH_FIRST.fault("nn.MultiheadAttention without batch_first, all layers")
def _(faulty: bool) -> Case:
    return tiny.encoder_case(
        tiny.MultiheadModel(no_mask, no_mask, batch_first=not faulty), EVEN, mw.everything()
    )


@BATCH_FIRST.fault("nn.TransformerEncoder without batch_first, causal over the batch")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Encoder(batch_first=not faulty), EVEN, mw.causal())


@BATCH_FIRST.fault("einsum over the first axis by hand, second layer of three", "BI P", layer=1)
def _(faulty: bool) -> Case:
    attend = over_the_first_axis if faulty else tiny.eager
    model = tiny.Model([tiny.eager, attend, tiny.eager], tiny.padding_mask)
    return tiny.encoder_case(model, EVEN, mw.everything())


@BATCH_FIRST.fault("decoder layer without batch_first behind an encoder with it", layer="decoder")
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(EncoderDecoder(batch_first=not faulty), tiny.random_ids(3, 10))
