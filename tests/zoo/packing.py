"""Several sequences in one row: not causal, not kept apart, or wrong across shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.zoo.layers_b import (
    by,
    by_hand,
    by_sdpa,
    in_documents,
    in_order,
    lowest,
    packed,
    past,
    planted,
    ragged,
    same,
    scores_of,
    subject,
    tell_documents,
    tell_packed,
)

if TYPE_CHECKING:
    from tests.zoo.case import Subject


# ── sequences of varying length, laid end to end ──────────────────────────────────────────────

VARLEN = "varlen without its causal flag"

Varlen = Callable[..., Tensor]  # (tokens, heads, dim) of queries, keys, values; where rows end


def in_turn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: list[int],
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention of sequences that are laid end to end, one after the other."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    parts = [
        F.scaled_dot_product_attention(
            q[:, a:b], k[:, a:b], v[:, a:b], is_causal=causal, scale=scale
        )
        for a, b in pairwise(ends)
    ]
    return torch.cat(parts, 1).transpose(0, 1)


def at_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: list[int],
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention of all of them as one; the flag is taken, and not looked at."""
    number = torch.bucketize(torch.arange(len(q)), torch.tensor(ends[1:]), right=True)
    own = number == number[:, None]
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, own, scale=scale).transpose(0, 1)


def in_turn_if_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends: list[int],
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """The flag is passed on only if there is a single sequence."""
    return in_turn(q, k, v, ends, scale, causal=causal and len(ends) == 2)


def laid_out(run: Varlen, *given: Any, **named: Any) -> Callable[..., Tensor]:
    """Lays the real tokens of a batch end to end, attends, and puts them back."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, ends: list[int]) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.zeros_like(q)
        out[keep] = run(q[keep], k[keep], v[keep], ends, *given, **named)
        return out.transpose(1, 2)

    return attend


def tell_rows(ids: Tensor) -> dict[str, Any]:
    """Where each row ends, without its padding."""
    keep = ids != 0
    return {"keep": keep, "ends": [0, *keep.sum(1).cumsum(0).tolist()]}


def tell_ends(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """Where each document ends; rows follow each other."""
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    ends = [*begins.flatten().nonzero().flatten().tolist(), documents.numel()]
    return {"keep": torch.ones_like(begins), "ends": ends}


def packed_subject(attend: Any, *rows: list[int], tell: Any = tell_packed, **more: Any) -> Subject:
    """A decoder of packed documents."""
    inputs = packed(*rows)
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    more.setdefault("count", in_documents)
    return subject(attend, inputs, expects, tell=tell, **more)


@planted(
    VARLEN,
    "the flag is not looked at",
    after="candle#3606",
    causes="future-visible",
    checks="P",
)
def flag_not_looked_at(sick: bool) -> Subject:
    attend = laid_out(at_once if sick else in_turn, causal=True)
    return packed_subject(attend, [6, 5, 4], [9, 6], tell=tell_ends)


@planted(
    VARLEN,
    "the flag is given in the place of the scale",
    after="candle#3606",
    causes="future-visible",
    checks="P",
)
def flag_in_another_place(sick: bool) -> Subject:
    attend = laid_out(in_turn, True) if sick else laid_out(in_turn, 1.0, True)
    return packed_subject(attend, [4, 7, 5], [8, 8], tell=tell_ends)


@planted(
    VARLEN,
    "the flag counts for a single sequence only, padding, one layer",
    after="candle#3606",
    causes="future-visible missing-in-layer",
    checks="P BI",
    layer="layers.1.attention",
)
def flag_for_one_sequence(sick: bool) -> Subject:
    ids = ragged(12, 16)
    keep = mw.padding(ids=ids, pad_id=0)
    right = laid_out(in_turn, causal=True)
    attends = [right, laid_out(in_turn_if_one, causal=True) if sick else right]
    expects = mw.causal() & keep & keep.T
    return subject(attends, ids, expects, tell=tell_rows, pad_id=0)


# ── documents that see each other ─────────────────────────────────────────────────────────────

PACKED = "packed as one document"


def tell_packed_as_one(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """Causal over the whole row."""
    return {"seen": past(ids.shape[1])}


@planted(
    PACKED,
    "a causal mask only",
    after="nanoVLM#204",
    causes="documents-leak",
    checks="P PC",
)
def causal_only(sick: bool) -> Subject:
    tell = tell_packed_as_one if sick else tell_packed
    return packed_subject(by_hand, [6, 5, 5], [9, 7], tell=tell)


@planted(
    PACKED,
    "positions run on",
    after="LlamaFactory#7318",
    causes="positions-shifted",
    checks="PC",
)
def positions_run_on(sick: bool) -> Subject:
    return packed_subject(by_sdpa, [5, 5, 6], [8, 8], count=in_order if sick else in_documents)


@planted(
    PACKED,
    "a causal mask only in one layer of three",
    after="LlamaFactory#7318",
    causes="documents-leak missing-in-layer",
    checks="P PC",
    layer="layers.1.attention",
)
def causal_only_once(sick: bool) -> Subject:
    def as_one(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        """Takes the flag instead of the mask."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return packed_subject([by_sdpa, as_one if sick else by_sdpa, by_sdpa], [7, 4, 5], [6, 10])


def numbered(late: bool) -> Callable[..., dict[str, Any]]:
    """Documents, counted from marks at their first tokens; if late, from the token after it."""

    def tell(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=False)
        number = starts.cumsum(1)
        if late:
            number = F.pad(number[:, :-1], (1, 0))
        return {"seen": past(ids.shape[1]) & same(number)}

    return tell


@planted(
    PACKED,
    "documents begin one token late",
    after="nanoVLM#204",
    causes="documents-leak",
    checks="P R PC",
)
def documents_begin_late(sick: bool) -> Subject:
    return packed_subject(by_hand, [5, 6, 4], [9, 6], tell=numbered(late=sick))


# ── a ring of shards ──────────────────────────────────────────────────────────────────────────

RING = "ring attention over packed documents"

Sees = Callable[[Tensor, Tensor, Tensor], Tensor]  # documents (B, T), places of queries and keys


def of_documents(documents: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """(B, 1, q, k): the keys up to the query, in its document."""
    ahead = k_at <= q_at[:, None]
    return ahead & (documents[:, None, q_at, None] == documents[:, None, None, k_at])


def of_documents_at_home(documents: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """Within a shard as it should be; an earlier shard is in the past, so all of it is seen."""
    if int(k_at[-1]) < int(q_at[0]):
        return torch.ones(len(documents), 1, len(q_at), len(k_at), dtype=torch.bool)
    return of_documents(documents, q_at, k_at)


def of_documents_of_shards(documents: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    """Each shard counts its documents from 0."""
    shards = documents.split((documents.shape[1] + 1) // 2, 1)
    number = torch.cat([shard - shard[:, :1] for shard in shards], 1)
    return of_documents(number, q_at, k_at)


def ring(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, order: Tensor, sees: Sees) -> Tensor:
    """Two shards of queries, to which the shards of keys come in turn; `order` says what is where."""
    out = torch.zeros_like(q)
    shards = order.split((len(order) + 1) // 2)
    for q_at in shards:
        parts, sums = [], []
        for k_at in shards:
            seen = sees(documents, q_at, k_at)
            scores = scores_of(q[:, :, q_at], k[:, :, k_at])
            scores = scores.masked_fill(~seen, lowest(scores))
            parts.append(scores.softmax(-1) @ v[:, :, k_at])
            sums.append(scores.logsumexp(-1))
        share = torch.stack(sums, -1).softmax(-1)
        out[:, :, q_at] = torch.stack(parts, -1).mul(share[..., None, :]).sum(-1)
    return out


def whole_or_ring(sees: Sees, default: str = "whole") -> Callable[..., Tensor]:
    """All at once, or in a ring."""

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, route: str = default) -> Tensor:
        order = torch.arange(q.shape[2])
        if route == "ring":
            return ring(q, k, v, documents, order, sees)
        return by_hand(q, k, v, of_documents(documents, order, order))

    return attend


@planted(
    RING,
    "an earlier shard is seen as a whole",
    after="axolotl#3608",
    causes="documents-leak path-differs",
    checks="P PC X",
)
def earlier_shard_seen(sick: bool) -> Subject:
    attend = whole_or_ring(of_documents_at_home if sick else of_documents, "ring")
    paths = {"whole": by("whole")}
    return packed_subject(attend, [5, 7, 4], [10, 6], tell=tell_documents, paths=paths)


@planted(
    RING,
    "each shard numbers its documents anew",
    after="axolotl#3608",
    causes="documents-leak too-narrow path-differs",
    checks="X",
)
def shards_number_anew(sick: bool) -> Subject:
    attend = whole_or_ring(of_documents_of_shards if sick else of_documents)
    paths = {"ring": by("ring")}
    return packed_subject(attend, [6, 6, 4], [4, 5, 7], tell=tell_documents, paths=paths)


def zigzag(moved: bool) -> Callable[..., Tensor]:
    """The first and the last quarter make one shard, and the middle the other.

    Tokens are put into that order beforehand; their documents with them, or not.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, route: str = "ring") -> Tensor:
        place = torch.arange(q.shape[2])
        if route == "whole":
            return by_hand(q, k, v, of_documents(documents, place, place))
        quarters = place.split((len(place) + 3) // 4)
        order = torch.cat([quarters[0], *quarters[3:], *quarters[1:3]])
        there = documents[:, order] if moved else documents

        def sees(_: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
            ahead = order[k_at] <= order[q_at][:, None]
            return ahead & (there[:, None, q_at, None] == there[:, None, None, k_at])

        q, k, v = q[:, :, order], k[:, :, order], v[:, :, order]
        return ring(q, k, v, documents, place, sees)[:, :, order.argsort()]

    return attend


@planted(
    RING,
    "tokens go zigzag and documents do not, one layer",
    after="axolotl#3608",
    causes="documents-leak too-narrow path-differs missing-in-layer",
    checks="P PC X",
    layer="layers.0.attention",
)
def documents_left_in_place(sick: bool) -> Subject:
    attends = [zigzag(moved=not sick), zigzag(moved=True)]
    paths = {"whole": by("whole")}
    return packed_subject(attends, [5, 3, 8], [7, 9], tell=tell_documents, paths=paths)


def turned(x: Tensor, place: Tensor) -> Tensor:
    """Queries or keys, turned by the angles of their positions."""
    half = x.shape[-1] // 2
    angle = place[..., None] / 10.0 ** (torch.arange(half) / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def turning(local: bool) -> Callable[..., Tensor]:
    """Positions enter by rotation; in a ring each shard counts its own, or goes on counting."""

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, route: str = "whole") -> Tensor:
        order = torch.arange(q.shape[2])
        place = order % ((len(order) + 1) // 2) if local and route == "ring" else order
        q, k = turned(q, place), turned(k, place)
        return whole_or_ring(of_documents)(q, k, v, documents, route)

    return attend


@planted(
    RING,
    "each shard counts positions from 0",
    after="axolotl#3608",
    causes="positions-shifted path-differs",
    checks="X",
)
def shards_count_anew(sick: bool) -> Subject:
    attend = turning(local=sick)
    paths = {"ring": by("ring")}
    return packed_subject(attend, [6, 6, 4], [12, 4], tell=tell_documents, paths=paths)
