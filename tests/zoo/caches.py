"""Decoders whose mask is right in one pass and wrong with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.layers_b import (
    Attention,
    by,
    by_cache,
    by_hand,
    decoding,
    near,
    past,
    planted,
    ragged,
    sentences,
    subject,
    tell_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zoo.case import Subject


# ── causal from the upper left corner ─────────────────────────────────────────────────────────

CORNER = "causal from the upper left corner"


def flagged(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """The flag puts the first query at the first key, whatever is in the cache."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flagged_if_whole(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """The flag for a first piece, a mask for all others."""
    if start == 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    seen = past(q.shape[2], k.shape[2], start)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@planted(
    CORNER,
    "is_causal with a cache",
    after="pytorch#103082",
    causes="aligned-upper-left step-differs",
    checks="PC",
)
def corner_by_flag(sick: bool) -> Subject:
    return decoding(flagged if sick else flagged_if_whole, sentences(2, 14), mw.causal())


def lower_triangle(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """A triangle of queries and keys that begins at the first key."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return by_hand(q, k, v, seen & keep[:, None, None])


def lower_trapeze(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """A triangle that ends at the last key."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return by_hand(q, k, v, seen & keep[:, None, None])


@planted(
    CORNER,
    "tril without an offset, left padding",
    after="pytorch#108108",
    causes="aligned-upper-left step-differs",
    checks="PC",
)
def corner_by_hand(sick: bool) -> Subject:
    ids = ragged(16, 11, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    return decoding(lower_triangle if sick else lower_trapeze, ids, expects)


def flagged_if_many(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """The flag for pieces of several tokens: right for one at a time, and for the first piece."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


@planted(
    CORNER,
    "is_causal for later pieces of several tokens, one layer",
    after="pytorch#103082",
    causes="aligned-upper-left step-differs",
    checks="PC",
    layer="layers.1.attention",
)
def corner_of_pieces(sick: bool) -> Subject:
    attends = [flagged_if_whole, flagged_if_many if sick else flagged_if_whole]
    return decoding(attends, sentences(2, 15), mw.causal())


class Prefixed(Attention):
    """Learned keys and values stand before those of the text; the flag counts them as text."""

    size = 4

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.first_k = nn.Parameter(torch.zeros(heads, self.size, dim // heads))
        self.first_v = nn.Parameter(torch.zeros(heads, self.size, dim // heads))

    def with_first(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        first = (x.expand(len(k), -1, -1, -1) for x in (self.first_k, self.first_v))
        return tuple(torch.cat(pair, 2) for pair in zip(first, (k, v), strict=True))  # type: ignore[return-value]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.with_first(k, v)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class PrefixedBefore(Prefixed):
    """The same, and all of the text sees them."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.with_first(k, v)
        seen = past(q.shape[2], k.shape[2], start=self.size)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


@planted(
    CORNER,
    "is_causal behind a learned prefix",
    after="pytorch#103082",
    causes="aligned-upper-left too-narrow",
    checks="R",
)
def corner_behind_a_prefix(sick: bool) -> Subject:
    attend = Prefixed if sick else PrefixedBefore
    return subject(attend, sentences(2, 14), mw.causal(), tell=tell_nothing)


# ── a cache of fixed size ─────────────────────────────────────────────────────────────────────

STATIC = "mask lost in a static cache"


def none_for_one(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """A single query needs no causal mask, so none is passed on; empty slots take part."""
    if q.shape[2] == 1:
        return F.scaled_dot_product_attention(q, k, v)
    return by_cache(q, k, v, start, keep)


@planted(
    STATIC,
    "no mask for a single query",
    after="transformers#30437",
    causes="step-differs mask-missing",
    checks="PC",
)
def static_without_mask(sick: bool) -> Subject:
    attend = none_for_one if sick else by_cache
    return decoding(attend, sentences(2, 13), mw.causal(), slots=64)


@planted(
    STATIC,
    "no mask for a single query in one layer",
    after="transformers#30437",
    causes="step-differs missing-in-layer",
    checks="PC",
    layer="layers.1.attention",
)
def static_without_mask_once(sick: bool) -> Subject:
    ids = ragged(9, 14, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    return decoding([by_cache, none_for_one if sick else by_cache], ids, expects, slots=48)


def to_the_last_slot(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """The last query is put at the last slot, and not at the last one in use."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    slots = F.pad(keep, (0, k.shape[2] - keep.shape[1]), value=True)
    return by_hand(q, k, v, seen & slots[:, None, None])


@planted(
    STATIC,
    "causal up to the last slot",
    after="transformers#30437",
    causes="aligned-lower-right step-differs",
    checks="PC",
)
def static_to_the_last_slot(sick: bool) -> Subject:
    attend = to_the_last_slot if sick else by_cache
    return decoding(attend, sentences(2, 12), mw.causal(), slots=40)


def padding_at_first(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """Padding is told with the first piece only; later ones take every slot in use."""
    if start == 0:
        return by_cache(q, k, v, start, keep)
    return by_hand(q, k, v, past(q.shape[2], k.shape[2], start))


@planted(
    STATIC,
    "padding after the first piece",
    after="transformers#30437",
    causes="padding-visible step-differs",
    checks="PC",
)
def static_without_padding(sick: bool) -> Subject:
    ids = ragged(8, 14, 11, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    return decoding(padding_at_first if sick else by_cache, ids, expects, slots=64)


# ── a window and pieces ───────────────────────────────────────────────────────────────────────

PIECES = "window in pieces"

SIZE = 4


def windowed(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """The last keys up to the query, those of the cache among them."""
    seen = near(SIZE, q.shape[2], k.shape[2], start)
    return by_hand(q, k, v, seen & keep[:, None, None])


def windowed_within_piece(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """Where the window begins is counted from the piece's first query."""
    seen = past(q.shape[2], k.shape[2], start) & ~past(q.shape[2], k.shape[2], -SIZE)
    return by_hand(q, k, v, seen & keep[:, None, None])


@planted(
    PIECES,
    "the window begins at the piece's own index",
    after="vLLM#47332",
    causes="window-missing step-differs",
    checks="PC",
)
def window_of_local_index(sick: bool) -> Subject:
    attend = windowed_within_piece if sick else windowed
    return decoding(attend, sentences(2, 18), mw.window(back=SIZE - 1))


def windowed_unless_one(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """A single query reads the whole cache."""
    if q.shape[2] > 1:
        return windowed(q, k, v, start, keep)
    return by_hand(q, k, v, keep[:, None, None])


@planted(
    PIECES,
    "no window for a single query, one layer",
    after="vLLM#47332",
    causes="window-missing step-differs",
    checks="PC",
    layer="layers.0.attention",
)
def window_unless_one(sick: bool) -> Subject:
    ids = ragged(18, 13, left=True)
    expects = mw.window(back=SIZE - 1) & mw.padding(ids=ids, pad_id=0)
    return decoding([windowed_unless_one if sick else windowed, windowed], ids, expects)


def cut_to(extra: bool) -> Callable[..., Tensor]:
    """Reads the last keys of the cache only: a window of them, or what the first query needs too."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
        if start == 0:
            return windowed(q, k, v, start, keep)
        size = min(k.shape[2], SIZE - 1 + q.shape[2] if extra else max(SIZE, q.shape[2]))
        seen = near(SIZE, q.shape[2], k.shape[2], start) & keep[:, None, None]
        return by_hand(q, k[:, :, -size:], v[:, :, -size:], seen[..., -size:])

    return attend


@planted(
    PIECES,
    "the cache is cut to one window for a piece of several tokens",
    after="vLLM#47332",
    causes="too-narrow step-differs",
    checks="PC",
)
def window_cut_too_short(sick: bool) -> Subject:
    return decoding(cut_to(extra=not sick), sentences(2, 17), mw.window(back=SIZE - 1))


def paged(q: Tensor, k: Tensor, v: Tensor, window: bool) -> Tensor:
    """Page after page of 4 keys, joined by the logarithms of their sums."""
    parts, sums = [], []
    for page in torch.arange(k.shape[2]).split(4):
        seen = near(SIZE, q.shape[2]) if window else past(q.shape[2])
        scores = q @ k[:, :, page].mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~seen[:, page], torch.finfo(q.dtype).min)
        parts.append(scores.softmax(-1) @ v[:, :, page])
        sums.append(scores.logsumexp(-1))
    share = torch.stack(sums, -1).softmax(-1)
    return torch.stack(parts, -1).mul(share[..., None, :]).sum(-1)


def by_pages(window: bool) -> Callable[..., Tensor]:
    """Whole, or by pages with or without the window."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "whole") -> Tensor:
        if route == "pages":
            return paged(q, k, v, window)
        return by_hand(q, k, v, near(SIZE, q.shape[2]))

    return attend


@planted(
    PIECES,
    "no window in the paged route",
    after="vLLM#47332",
    causes="window-missing path-differs",
    checks="X",
)
def window_without_pages(sick: bool) -> Subject:
    paths: dict[str, Any] = {"pages": by("pages")}
    expects = mw.window(back=SIZE - 1)
    attend = by_pages(window=not sick)
    return subject(attend, sentences(2, 16), expects, tell=tell_nothing, paths=paths)
