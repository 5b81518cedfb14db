"""Masks and sequences on the wrong axis, or read from the wrong place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.case import plant
from tests.zoo.layers import (
    DIM,
    HEADS,
    PAD,
    Attend,
    Base,
    Model,
    Multihead,
    Translator,
    bidirectional,
    by_hand,
    by_sdpa,
    causal,
    lowest,
    numbered,
    past,
    reading,
    right,
    scores_of,
    translating,
    writing,
)

# ── padding on the queries ────────────────────────────────────────────────────────────────────

QUERIES = "padding mask on the query axis"


def real_queries(real: Tensor, new: int) -> Tensor:
    """(B, 1, T, 1): says which queries are real, and hides no key."""
    return real[:, None, :, None]


def real_queries_wide(real: Tensor, new: int) -> Tensor:
    """The same, spread over all keys for SDPA."""
    return real[:, None, :, None].expand(-1, 1, -1, real.size(1))


def past_of_real_queries(real: Tensor, new: int) -> Tensor:
    """Causal, and which queries are real."""
    return past(real, new) & real[:, None, :, None]


def filled_with(fill: float) -> Attend:
    """Attention by hand, with its own fill."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return scores_of(q, k).masked_fill(~keep, fill).softmax(-1) @ v

    return attend


class Pointing(Translator):
    """Masks the attention on the source by which *target* tokens are real."""

    def decode(self, tgt: Tensor, memory: Tensor, _real: Tensor) -> Tensor:
        x = self.start(tgt, numbered(tgt))
        for layer in self.decoder:
            keep = (tgt != PAD)[:, None, :, None]
            x = layer(x, past(tgt, tgt.size(1)), memory=memory, memory_keep=keep)
        return self.finish(x)


plant(
    QUERIES,
    "filled with -10000, all layers",
    reading(lambda: Model([filled_with(-1e4)] * 2, real_queries)),
    reading(lambda: Model([filled_with(-1e4)] * 2, bidirectional)),
    after="hyunwoongko/transformer#40",
    causes=("padding-on-queries", "queries-and-keys-swapped"),
    checks="P PI BI",
)
plant(
    QUERIES,
    "filled with -inf: rows of padding are NaN, and all that sees them",
    reading(lambda: Model([filled_with(-torch.inf)] * 2, real_queries)),
    reading(lambda: Model([filled_with(-torch.inf)] * 2, bidirectional)),
    after="hyunwoongko/transformer#40",
    causes=("padding-on-queries", "queries-and-keys-swapped", "empty-row-nan"),
    checks="N",
)
plant(
    QUERIES,
    "SDPA, second layer of two",
    reading(lambda: Model([by_sdpa] * 2, [bidirectional, real_queries_wide])),
    reading(lambda: Model([by_sdpa] * 2, bidirectional)),
    after="hyunwoongko/transformer#40",
    causes=("padding-on-queries", "queries-and-keys-swapped"),
    layer="layers.1.attention",
    checks="L P PI BI",
)
plant(
    QUERIES,
    "under a causal mask, left padding",
    writing(lambda: Model([by_hand] * 2, past_of_real_queries)),
    writing(lambda: Model([by_hand] * 2, causal)),
    after="hyunwoongko/transformer#40",
    causes=("padding-on-queries",),
    checks="P PI BI",
)
plant(
    QUERIES,
    "attention on a source, masked by the target",
    translating(Pointing),
    translating(Translator),
    after="hyunwoongko/transformer#40",
    causes=("padding-on-queries", "mask-missing", "padding-visible"),
    checks="P PI BI",
)

# ── the batch on the heads ────────────────────────────────────────────────────────────────────

ON_HEADS = "batch axis of the mask on the heads"
FOUR = right(9, 16, 12, 14)


def three_axes(real: Tensor, new: int) -> Tensor:
    """(B, T, T), which lines up with (H, T, T)."""
    return real[:, None, :].expand(-1, new, -1)


def three_axes_of_keys(real: Tensor, new: int) -> Tensor:
    """(B, 1, T), which lines up with (H, T, T)."""
    return real[:, None, :]


def folded(copy: Any) -> Attend:
    """Heads are folded into the batch, and the mask is copied along."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        batch, heads = q.shape[:2]
        scores = scores_of(q.flatten(0, 1), k.flatten(0, 1))
        scores = scores.masked_fill(~copy(keep[:, 0], heads), lowest(scores))
        return (scores.softmax(-1) @ v.flatten(0, 1)).unflatten(0, (batch, heads))

    return attend


def all_then_all(keep: Tensor, heads: int) -> Tensor:
    """The batch again and again: the rows of one sequence lie apart."""
    return torch.cat([keep] * heads)


def each_for_its_heads(keep: Tensor, heads: int) -> Tensor:
    """Every sequence's mask once for each of its heads."""
    return keep.repeat_interleave(heads, 0)


def repeated(real: Tensor) -> dict[str, Any]:
    """(B · H, T, T), in the order of heads."""
    hidden = ~real[:, None, :].expand(-1, real.size(1), -1)
    return {"attn_mask": hidden.repeat(HEADS, 1, 1)}


def interleaved(real: Tensor) -> dict[str, Any]:
    """(B · H, T, T), in the order of sequences."""
    hidden = ~real[:, None, :].expand(-1, real.size(1), -1)
    return {"attn_mask": hidden.repeat_interleave(HEADS, 0)}


plant(
    ON_HEADS,
    "(B, T, T) by hand, as many sequences as heads",
    reading(lambda: Model([by_hand] * 2, three_axes, heads=4), FOUR),
    reading(lambda: Model([by_hand] * 2, bidirectional, heads=4), FOUR),
    after="graph-transformer-pytorch#2",
    causes=("batch-on-heads",),
    checks="P BI",
)
plant(
    ON_HEADS,
    "(B, 1, T) into SDPA, second layer of two",
    reading(lambda: Model([by_sdpa] * 2, [bidirectional, three_axes_of_keys], heads=4), FOUR),
    reading(lambda: Model([by_sdpa] * 2, bidirectional, heads=4), FOUR),
    after="graph-transformer-pytorch#2",
    causes=("batch-on-heads",),
    layer="layers.1.attention",
    checks="P BI",
)
plant(
    ON_HEADS,
    "(B · H, T, T) of nn.MultiheadAttention, repeated in the order of heads",
    reading(lambda: Multihead(repeated, repeated)),
    reading(lambda: Multihead(interleaved, interleaved)),
    after="graph-transformer-pytorch#2",
    causes=("batch-on-heads", "order-of-batch"),
    checks="P BI",
)
plant(
    ON_HEADS,
    "heads folded into the batch by hand, first layer of three",
    reading(
        lambda: Model(
            [folded(all_then_all), folded(each_for_its_heads), folded(each_for_its_heads)],
            bidirectional,
        )
    ),
    reading(lambda: Model([folded(each_for_its_heads)] * 3, bidirectional)),
    after="graph-transformer-pytorch#2",
    causes=("batch-on-heads", "order-of-batch"),
    layer="layers.0.attention",
    checks="P BI",
)

# ── the batch as the sequence ─────────────────────────────────────────────────────────────────

BATCH_FIRST = "attention across the batch"


def no_mask(real: Tensor) -> dict[str, Any]:
    """Everything may be seen."""
    return {}


class Encoder(Base):
    """nn.TransformerEncoder with a causal mask, over the axis that it takes for the sequence."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.axis = 1 if batch_first else 0
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids, numbered(ids))
        hidden = torch.ones(x.size(self.axis), x.size(self.axis)).triu(1).bool()
        return self.finish(self.encoder(x, hidden))


class Pair(Base):
    """An encoder, and a decoder layer that may take the first axis for the sequence."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.axis = 1 if batch_first else 0
        self.encoder = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=batch_first)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        memory = self.encoder(self.start(src, numbered(src)))
        x = self.start(tgt, numbered(tgt))
        hidden = torch.ones(x.size(self.axis), x.size(self.axis)).triu(1).bool()
        return self.finish(self.decoder(x, memory, tgt_mask=hidden))


def over_the_first_axis(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Written for (T, B, H, C), and given (B, T, H, C): scores are between sequences."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("ibhc,jbhc->bhij", q, k) / q.size(-1) ** 0.5
    return torch.einsum("bhij,jbhc->ibhc", scores.softmax(-1), v).transpose(1, 2)


EVEN = right(12, 12, 12)

plant(
    BATCH_FIRST,
    "nn.MultiheadAttention without batch_first, all layers",
    reading(lambda: Multihead(no_mask, no_mask, batch_first=False), EVEN, mw.everything()),
    reading(lambda: Multihead(no_mask, no_mask, batch_first=True), EVEN, mw.everything()),
    after="TabFormer#14",
    causes=("attends-across-batch",),
    checks="BI R P",
)
plant(
    BATCH_FIRST,
    "nn.TransformerEncoder without batch_first, causal over the batch",
    writing(lambda: Encoder(batch_first=False), EVEN, mw.causal()),
    writing(lambda: Encoder(batch_first=True), EVEN, mw.causal()),
    after="TabFormer#14",
    causes=("attends-across-batch",),
    checks="BI R P",
)
plant(
    BATCH_FIRST,
    "einsum over the first axis by hand, second layer of three",
    reading(
        lambda: Model([by_hand, over_the_first_axis, by_hand], bidirectional), EVEN, mw.everything()
    ),
    reading(lambda: Model([by_hand] * 3, bidirectional), EVEN, mw.everything()),
    after="TabFormer#14",
    causes=("attends-across-batch",),
    layer="layers.1.attention",
    checks="BI P",
)
plant(
    BATCH_FIRST,
    "decoder layer without batch_first behind an encoder with it",
    translating(lambda: Pair(batch_first=False), right(10, 10, 10)),
    translating(lambda: Pair(batch_first=True), right(10, 10, 10)),
    after="TabFormer#14",
    causes=("attends-across-batch",),
    layer="decoder",
    checks="BI R P",
)

# ── read at a wrong offset ────────────────────────────────────────────────────────────────────

OFFSET = "mask read at a wrong offset"
ROOM = 32  # positions that a mask's buffer has room for


class Fused(Model):
    """Attention by hand, and by a routine that reads the mask's memory itself, chosen by `fused`."""

    fused = False

    def __init__(self, read: Any, layers: int = 2, **options: Any) -> None:
        super().__init__([self.mix] * layers, **options)
        self.read = read

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        if not self.takes_fused():
            return by_hand(q, k, v, keep)
        wide = keep.expand(q.size(0), 1, q.size(2), k.size(2))
        return by_hand(q, k, v, self.read(wide, q.size(1)))

    def takes_fused(self) -> bool:
        return self.fused


def run_fused(model: Fused, ids: Tensor) -> Tensor:
    """The same model by the other routine."""
    model.fused = True
    try:
        return model(ids)
    finally:
        model.fused = False


class FusedInEval(Fused):
    """The routine without a backward pass is used outside of training."""

    def takes_fused(self) -> bool:
        return not self.training


class FusedWithoutGrad(Fused):
    """The routine without a backward pass is used where no gradient is wanted."""

    def takes_fused(self) -> bool:
        return not torch.is_grad_enabled()


def by_own_strides(mask: Tensor, heads: int) -> Tensor:
    """Reads the mask as (B, H, T, K), with a step of 0 along heads."""
    return mask.expand(-1, heads, -1, -1)


def as_if_of_all_heads(mask: Tensor, heads: int) -> Tensor:
    """Reads (B, 1, T, K) as if each head had a plane: the planes of others, again from the start."""
    batch, _, queries, keys = mask.shape
    planes = mask.contiguous().view(-1, queries, keys)
    return planes[torch.arange(batch * heads) % batch].view(batch, heads, queries, keys)


def as_if_one_sequence(mask: Tensor, heads: int) -> Tensor:
    """Reads a plane for each head with no step along the batch: all have the first one's mask."""
    batch, _, queries, keys = mask.shape
    plain = mask.contiguous()
    return plain.as_strided((batch, heads, queries, keys), (0, 0, keys, 1))


def in_a_room(mask: Tensor) -> Tensor:
    """The mask as a view of a buffer that has room for more."""
    room = torch.zeros(mask.size(0), 1, ROOM, ROOM, dtype=torch.bool)
    room[:, :, : mask.size(2), : mask.size(3)] = mask
    return room[:, :, : mask.size(2), : mask.size(3)]


def as_if_dense(mask: Tensor, heads: int) -> Tensor:
    """Takes a view of a larger buffer for dense, and steps from row to row too soon."""
    mask = in_a_room(mask)
    batch, _, queries, keys = mask.shape
    size = (batch, heads, queries, keys)
    return mask.as_strided(size, (mask.stride(0), 0, keys, 1)) | torch.eye(queries).bool()


def as_it_lies(mask: Tensor, heads: int) -> Tensor:
    """Takes the view's own step from row to row."""
    mask = in_a_room(mask)
    batch, _, queries, keys = mask.shape
    size = (batch, heads, queries, keys)
    return mask.as_strided(size, (mask.stride(0), 0, mask.stride(2), 1)) | torch.eye(queries).bool()


def in_chunks(first: bool) -> Any:
    """Queries go in chunks of 4; `first` reads the first rows of the mask for each of them."""

    def read(mask: Tensor, heads: int) -> Tensor:
        starts = range(0, mask.size(2), 4)
        sizes = [min(4, mask.size(2) - start) for start in starts]
        parts = [
            mask[:, :, :size] if first else mask[:, :, start : start + size]
            for start, size in zip(starts, sizes, strict=True)
        ]
        return torch.cat(parts, 2)

    return read


plant(
    OFFSET,
    "a plane for each head, where there is one for each sequence; another path",
    reading(lambda: Fused(as_if_of_all_heads, mask=bidirectional), paths={"fused": run_fused}),
    reading(lambda: Fused(by_own_strides, mask=bidirectional), paths={"fused": run_fused}),
    after="pytorch#184180",
    causes=("path-differs", "batch-on-heads", "order-of-batch"),
    checks="X",
)
plant(
    OFFSET,
    "no step along the batch, outside of training",
    reading(lambda: FusedInEval(as_if_one_sequence, mask=bidirectional), right(16, 9, 12)),
    reading(lambda: FusedInEval(by_own_strides, mask=bidirectional), right(16, 9, 12)),
    after="pytorch#184180",
    causes=("path-differs", "order-of-batch"),
    checks="X P BI",
)
plant(
    OFFSET,
    "view of a larger buffer taken for dense, where no gradient is wanted",
    writing(lambda: FusedWithoutGrad(as_if_dense, mask=past), right(16, 16), mw.causal()),
    writing(lambda: FusedWithoutGrad(as_it_lies, mask=past), right(16, 16), mw.causal()),
    after="pytorch#184180",
    causes=("path-differs", "too-narrow"),
    checks="X R",
)
plant(
    OFFSET,
    "every chunk of queries reads the first rows; another path",
    writing(
        lambda: Fused(in_chunks(first=True), mask=past),
        right(16, 16),
        mw.causal(),
        paths={"fused": run_fused},
    ),
    writing(
        lambda: Fused(in_chunks(first=False), mask=past),
        right(16, 16),
        mw.causal(),
        paths={"fused": run_fused},
    ),
    after="pytorch#184180",
    causes=("path-differs", "too-narrow"),
    checks="X",
)
