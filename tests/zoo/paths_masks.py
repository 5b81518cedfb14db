"""Models whose path takes one mask, and forgets another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.zoo.layers_b import (
    by,
    by_hand,
    by_sdpa,
    decoding,
    in_documents,
    packed,
    past,
    planted,
    ragged,
    real,
    same,
    sentences,
    subject,
    tell_nothing,
)

if TYPE_CHECKING:
    from tests.zoo.case import Subject

# ── a kind of attention that forgets the mask ─────────────────────────────────────────────────

KIND = "causal kind ignores the mask"


def only_causal(q: Tensor, k: Tensor, v: Tensor, given: Tensor, kind: str = "causal") -> Tensor:
    """A mask by kind: causal is causal, whatever was given."""
    seen = past(q.shape[2]) if kind == "causal" else given
    return by_hand(q, k, v, seen)


def causal_too(q: Tensor, k: Tensor, v: Tensor, given: Tensor, kind: str = "causal") -> Tensor:
    """A mask by kind, and what was given."""
    seen = given & past(q.shape[2]) if kind == "causal" else given
    return by_hand(q, k, v, seen)


def tell_given_padding(ids: Tensor) -> dict[str, Any]:
    """Real keys."""
    return {"given": real(ids)}


@planted(
    KIND,
    "left padding",
    after="maxtext#878",
    causes="padding-visible",
    checks="PI BI",
)
def kind_and_padding(sick: bool) -> Subject:
    ids = ragged(16, 10, 13, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    attend = only_causal if sick else causal_too
    return subject(attend, ids, expects, tell=tell_given_padding, pad_id=0)


@planted(
    KIND,
    "packed documents, one layer",
    after="maxtext#878",
    causes="documents-leak missing-in-layer",
    checks="P PC",
    layer="layers.0.attention",
)
def kind_and_documents(sick: bool) -> Subject:
    inputs = packed([6, 4, 5], [8, 7])
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    attends = [only_causal if sick else causal_too, causal_too]

    def tell(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        return {"given": same(documents)}

    return subject(attends, inputs, expects, tell=tell, count=in_documents)


def flag_or_mask(q: Tensor, k: Tensor, v: Tensor, given: Tensor, route: str = "eager") -> Tensor:
    """The fused route takes a flag or a mask, not both; the flag is kept."""
    if route == "fused":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return causal_too(q, k, v, given)


def flag_and_mask(q: Tensor, k: Tensor, v: Tensor, given: Tensor, route: str = "eager") -> Tensor:
    """The fused route gets both as one mask."""
    if route == "fused":
        return by_sdpa(q, k, v, given & past(q.shape[2]))
    return causal_too(q, k, v, given)


@planted(
    KIND,
    "the fused route takes the flag only",
    after="maxtext#878",
    causes="padding-visible path-differs",
    checks="X",
)
def kind_of_the_fused_route(sick: bool) -> Subject:
    ids = ragged(14, 9, left=True)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=0)
    attend = flag_or_mask if sick else flag_and_mask
    paths = {"fused": by("fused")}
    return subject(attend, ids, expects, tell=tell_given_padding, pad_id=0, paths=paths)


# ── masks by blocks and a rule ────────────────────────────────────────────────────────────────

RULE = "mask rule lost in a slice"

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # head, query, key
BLOCK = 4


@dataclass
class Blocks:
    """Which blocks of cells hold something to see, and the rule for the cells in them."""

    touched: Tensor  # (heads, blocks of queries, blocks of keys)
    rule: Rule

    def rows(self, start: int) -> Blocks:
        """The blocks from that query on; the rule hears of it."""
        return Blocks(self.touched[:, start // BLOCK :], lambda h, q, k: self.rule(h, q + start, k))

    def rows_from_zero(self, start: int) -> Blocks:
        """The blocks from that query on; the rule does not hear of it."""
        return Blocks(self.touched[:, start // BLOCK :], self.rule)

    def rows_only(self, start: int) -> Blocks:
        """The blocks from that query on, whole."""
        return Blocks(self.touched[:, start // BLOCK :], everything)

    def cells(self, heads: int, q_len: int, k_len: int) -> Tensor:
        """(heads, q, k): what may be seen."""
        h, q, k = torch.arange(heads), torch.arange(q_len), torch.arange(k_len)
        inside = self.touched.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        return inside[:, :q_len, :k_len] & self.rule(h[:, None, None], q[:, None], k)


def everything(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """No rule."""
    return (h + q + k) >= 0


def looks_back(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Causal in every head."""
    return (k <= q) & (h >= 0)


def blocks_of(rule: Rule, heads: int, q_len: int, k_len: int) -> Blocks:
    """All blocks in which the rule lets something through."""
    q, k = -(-q_len // BLOCK) * BLOCK, -(-k_len // BLOCK) * BLOCK
    h = torch.arange(heads)[:, None, None]
    cells = rule(h, torch.arange(q)[:, None], torch.arange(k))
    blocks = cells.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
    return Blocks(blocks.any(4).any(2), rule)


def sliced(slice_of: Callable[[Blocks, int], Blocks]) -> Callable[..., Tensor]:
    """With a cache, a mask of all tokens is sliced to the rows of the new ones."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
        mask = blocks_of(looks_back, q.shape[1], k.shape[2], k.shape[2])
        early = start % BLOCK  # blocks begin at their own multiples
        if start:
            mask = slice_of(mask, start - early)
        seen = mask.cells(q.shape[1], early + q.shape[2], k.shape[2])[:, early:]
        return by_hand(q, k, v, seen & keep[:, None, None])

    return attend


@planted(
    RULE,
    "the slice has blocks and no rule",
    after="pytorch#163314",
    causes="step-differs future-visible",
    checks="PC",
)
def slice_without_rule(sick: bool) -> Subject:
    attend = sliced(Blocks.rows_only if sick else Blocks.rows)
    return decoding(attend, sentences(2, 14), mw.causal())


@planted(
    RULE,
    "the slice's rule counts queries from 0, one layer",
    after="pytorch#163314",
    causes="aligned-upper-left step-differs",
    checks="PC",
    layer="layers.1.attention",
)
def slice_from_zero(sick: bool) -> Subject:
    attends = [sliced(Blocks.rows), sliced(Blocks.rows_from_zero if sick else Blocks.rows)]
    return decoding(attends, sentences(2, 15), mw.causal())


def by_head(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Even heads look at the whole past, odd ones at four tokens of it."""
    return (k <= q) & ((h % 2 == 0) | (q - k < 4))


def by_half(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """The first two heads look at four tokens, the others at the whole past."""
    return (k <= q) & ((h >= 2) | (q - k < 4))


def dense_or_blocks(rule: Rule, heads: int | None) -> Callable[..., Tensor]:
    """The rule for every cell; or by blocks, made for all heads or for one that stands for all."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "blocks") -> Tensor:
        count, size = q.shape[1], q.shape[2]
        if route == "dense":
            h = torch.arange(count)[:, None, None]
            place = torch.arange(size)
            return by_hand(q, k, v, rule(h, place[:, None], place))
        mask = blocks_of(rule, heads or count, size, size)
        return by_hand(q, k, v, mask.cells(heads or count, size, size))

    return attend


@planted(
    RULE,
    "one head stands for all, the first one sees more",
    after="pytorch#163314",
    causes="path-differs window-missing",
    checks="X",
)
def one_head_for_all(sick: bool) -> Subject:
    attend = dense_or_blocks(by_head, 1 if sick else None)
    paths = {"dense": by("dense")}
    return subject(attend, sentences(2, 14), mw.causal(), tell=tell_nothing, paths=paths)


def halves(rule: Rule, shift: bool) -> Callable[..., Tensor]:
    """Two halves of the heads, one after the other, as if on two devices."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "halves") -> Tensor:
        if route == "dense":
            return dense_or_blocks(rule, None)(q, k, v, "dense")
        half, size = q.shape[1] // 2, q.shape[2]
        parts = []
        for first in (0, half):
            own = (lambda h, a, b, first=first: rule(h + first, a, b)) if shift else rule
            mask = blocks_of(own, half, size, size).cells(half, size, size)
            part = slice(first, first + half)
            parts.append(by_hand(q[:, part], k[:, part], v[:, part], mask))
        return torch.cat(parts, 1)

    return attend


@planted(
    RULE,
    "half of the heads counted from 0",
    after="pytorch#163314",
    causes="path-differs too-narrow",
    checks="R X",
)
def half_of_the_heads(sick: bool) -> Subject:
    attend = halves(by_half, shift=not sick)
    paths = {"dense": by("dense")}
    expects = mw.causal()
    return subject(attend, sentences(2, 18), expects, tell=tell_nothing, heads=4, paths=paths)
