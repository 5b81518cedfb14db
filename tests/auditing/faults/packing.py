"""Packed sequences: not causal, not separated, or wrong across shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── sequences of varying length, laid end to end ──────────────────────────────────────────────

VARLEN = Family(
    "varlen without its causal flag", after="candle#3606", checks="P", causes="future-visible"
)


def varlen(
    q: Tensor, k: Tensor, v: Tensor, ends: list[int], scale: Any = None, causal: bool = False
) -> Tensor:
    """Attention within each of the concatenated sequences."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    parts = [
        F.scaled_dot_product_attention(
            q[:, a:b], k[:, a:b], v[:, a:b], is_causal=causal, scale=scale
        )
        for a, b in pairwise(ends)
    ]
    return torch.cat(parts, 1).transpose(0, 1)


def ignores_flag(q: Tensor, k: Tensor, v: Tensor, ends: list[int], causal: bool) -> Tensor:
    """Computes all sequences in one call, with a document mask only."""
    document = torch.bucketize(torch.arange(len(q)), torch.tensor(ends[1:]), right=True)
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return tiny.sdpa(q, k, v, document == document[:, None]).transpose(0, 1)


def flag_if_single(q: Tensor, k: Tensor, v: Tensor, ends: list[int], causal: bool) -> Tensor:
    """Passes the flag only for a single sequence."""
    return varlen(q, k, v, ends, causal=causal and len(ends) == 2)


def concatenated(run: Callable[..., Tensor], *given: Any, **named: Any) -> Callable[..., Tensor]:
    """Runs `run` on the concatenated real tokens of a batch."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, ends: list[int]) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.zeros_like(q)
        out[keep] = run(q[keep], k[keep], v[keep], ends, *given, **named)
        return out.transpose(1, 2)

    return attend


def row_ends(ids: Tensor) -> dict[str, Any]:
    """Cumulative lengths of the rows without padding."""
    keep = ids != 0
    return {"keep": keep, "ends": [0, *keep.sum(1).cumsum(0).tolist()]}


def document_ends(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """Cumulative lengths of the documents."""
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    ends = [*begins.flatten().nonzero().flatten().tolist(), documents.numel()]
    return {"keep": torch.ones_like(begins), "ends": ends}


@VARLEN.fault("flag ignored")
def _(faulty: bool) -> Case:
    attend = concatenated(ignores_flag if faulty else varlen, causal=True)
    return tiny.packed_case(attend, [6, 5, 4], [9, 6], mask_args=document_ends)


@VARLEN.fault("flag passed as the scale")
def _(faulty: bool) -> Case:
    attend = concatenated(varlen, True) if faulty else concatenated(varlen, 1.0, True)
    return tiny.packed_case(attend, [4, 7, 5], [8, 8], mask_args=document_ends)


@VARLEN.fault(
    "flag for one sequence, layer 1",
    "P BI",
    "future-visible missing-in-layer",
    layer=1,
)
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(12, 16)
    padding = mw.padding(ids=ids, pad_id=0)
    right = concatenated(varlen, causal=True)
    attends = [right, concatenated(flag_if_single, causal=True) if faulty else right]
    expects = mw.causal() & padding & padding.T
    return tiny.case(attends, ids, expects, mask_args=row_ends)


# ── documents that see each other ─────────────────────────────────────────────────────────────

PACKED = Family(
    "packed as one document",
    after="nanoVLM#204, LlamaFactory#7318",
    checks="P PC",
    causes="documents-leak",
)


def causal_only(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """Causal mask over the whole row."""
    return {"keep": tiny.causal(ids.shape[1])}


@PACKED.fault("causal mask only")
def _(faulty: bool) -> Case:
    args = causal_only if faulty else tiny.document_args
    return tiny.packed_case(tiny.eager, [6, 5, 5], [9, 7], mask_args=args)


@PACKED.fault("positions not reset", "PC", "positions-shifted")
def _(faulty: bool) -> Case:
    positions = tiny.column_positions if faulty else tiny.document_positions
    return tiny.packed_case(tiny.sdpa, [5, 5, 6], [8, 8], positions=positions)


@PACKED.fault("causal mask only, layer 1", causes="documents-leak missing-in-layer", layer=1)
def _(faulty: bool) -> Case:
    attend = tiny.is_causal if faulty else tiny.sdpa
    return tiny.packed_case([tiny.sdpa, attend, tiny.sdpa], [7, 4, 5], [6, 10])


def document_starts(late: bool) -> Callable[..., dict[str, Any]]:
    """Document ids from the starts of documents; `late` shifts them by one token."""

    def args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=False)
        number = starts.cumsum(1)
        if late:
            number = F.pad(number[:, :-1], (1, 0))
        return {"keep": tiny.causal(ids.shape[1]) & tiny.same_document(number)}

    return args


@PACKED.fault("documents start one token late", "P R PC")
def _(faulty: bool) -> Case:
    return tiny.packed_case(tiny.eager, [5, 6, 4], [9, 6], mask_args=document_starts(late=faulty))


# ── a ring of shards ──────────────────────────────────────────────────────────────────────────

RING = Family("ring attention over packed documents", after="axolotl#3608", checks="P PC X")

Sees = Callable[[Tensor, Tensor, Tensor], Tensor]  # documents (B, T), places of queries and keys


def in_document(documents: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """(B, 1, q, k): causal mask within documents."""
    ahead = k_at <= q_at[:, None]
    return ahead & (documents[:, None, q_at, None] == documents[:, None, None, k_at])


def in_document_of_shard(documents: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """The same within a shard; earlier shards are fully visible."""
    if int(k_at[-1]) < int(q_at[0]):
        return torch.ones(len(documents), 1, len(q_at), len(k_at), dtype=torch.bool)
    return in_document(documents, q_at, k_at)


def ids_per_shard(documents: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """The same with document ids that restart in each shard."""
    shards = documents.split((documents.shape[1] + 1) // 2, 1)
    number = torch.cat([shard - shard[:, :1] for shard in shards], 1)
    return in_document(number, q_at, k_at)


def ring(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, order: Tensor, sees: Sees) -> Tensor:
    """Ring attention over two shards; `order` holds the positions of each shard."""
    out = torch.zeros_like(q)
    shards = order.split((len(order) + 1) // 2)
    for q_at in shards:
        parts, sums = [], []
        for k_at in shards:
            keep = sees(documents, q_at, k_at)
            scores = tiny.scores(q[:, :, q_at], k[:, :, k_at])
            scores = scores.masked_fill(~keep, tiny.min_value(scores))
            parts.append(scores.softmax(-1) @ v[:, :, k_at])
            sums.append(scores.logsumexp(-1))
        share = torch.stack(sums, -1).softmax(-1)
        out[:, :, q_at] = torch.stack(parts, -1).mul(share[..., None, :]).sum(-1)
    return out


def whole_or_ring(sees: Sees, default: str = "whole") -> Callable[..., Tensor]:
    """Dense or ring attention."""

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, route: str = default) -> Tensor:
        order = torch.arange(q.shape[2])
        if route == "ring":
            return ring(q, k, v, documents, order, sees)
        return tiny.eager(q, k, v, in_document(documents, order, order))

    return attend


def ring_case(attend: Any, *rows: list[int], route: str) -> Case:
    """Packed documents with the other of the paths "whole" and "ring"."""
    return tiny.packed_case(attend, *rows, mask_args=tiny.document_ids, route=route)


@RING.fault("earlier shard fully visible", causes="documents-leak path-differs")
def _(faulty: bool) -> Case:
    attend = whole_or_ring(in_document_of_shard if faulty else in_document, "ring")
    return ring_case(attend, [5, 7, 4], [10, 6], route="whole")


@RING.fault("document ids restart per shard", "X", "documents-leak too-narrow path-differs")
def _(faulty: bool) -> Case:
    attend = whole_or_ring(ids_per_shard if faulty else in_document)
    return ring_case(attend, [6, 6, 4], [4, 5, 7], route="ring")


def zigzag(moved: bool) -> Callable[..., Tensor]:
    """Ring attention over zigzag shards; `moved` reorders the document ids with the tokens."""

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, route: str = "ring") -> Tensor:
        place = torch.arange(q.shape[2])
        if route == "whole":
            return tiny.eager(q, k, v, in_document(documents, place, place))
        quarters = place.split((len(place) + 3) // 4)
        order = torch.cat([quarters[0], *quarters[3:], *quarters[1:3]])
        there = documents[:, order] if moved else documents

        def sees(_: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
            ahead = order[k_at] <= order[q_at][:, None]
            return ahead & (there[:, None, q_at, None] == there[:, None, None, k_at])

        q, k, v = q[:, :, order], k[:, :, order], v[:, :, order]
        return ring(q, k, v, documents, place, sees)[:, :, order.argsort()]

    return attend


@RING.fault(
    "zigzag tokens without document ids",
    causes="documents-leak too-narrow path-differs missing-in-layer",
    layer=0,
)
def _(faulty: bool) -> Case:
    attends = [zigzag(moved=not faulty), zigzag(moved=True)]
    return ring_case(attends, [5, 3, 8], [7, 9], route="whole")


def with_rotary(local: bool) -> Callable[..., Tensor]:
    """Rotary positions; `local` restarts them in each shard."""

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, route: str = "whole") -> Tensor:
        order = torch.arange(q.shape[2])
        place = order % ((len(order) + 1) // 2) if local and route == "ring" else order
        q, k = tiny.rotate(q, place), tiny.rotate(k, place)
        return whole_or_ring(in_document)(q, k, v, documents, route)

    return attend


@RING.fault("positions restart per shard", "X", "positions-shifted path-differs")
def _(faulty: bool) -> Case:
    attend = with_rotary(local=faulty)
    return ring_case(attend, [6, 6, 4], [12, 4], route="ring")
