"""The cheapest cover: which few terms, joined by & or |, are exactly a plane.

An & is made of terms that each hold all cells which must be seen, so that every barred cell is
left out by one of them; an | is the same the other way round. Both are a cover at the least cost,
found exactly among at most `MOST_TERMS` terms. The rows that decide it are few at first; where the
answer fails on others, those are added and it is sought again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from maskwright.core.atoms.position import Window
from maskwright.core.expr import And, Not, Or, Transpose
from maskwright.recognition.plane import Plane, Term, cost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray, IntArray

MOST_TERMS: Final = 13
MOST_TURNS: Final = 8

Kind = Literal["and", "or"]


class Found(NamedTuple):
    """An expression that holds on a plane, and what it costs."""

    mask: Mask
    cost: float


def cover(plane: Plane, terms: Iterable[Term], kind: Kind) -> Found | None:
    """The cheapest & or | of some of the terms that is exactly the plane."""
    terms = list(terms)
    rows = plane.sample()
    for _ in range(MOST_TURNS):
        chosen = _choose(plane, terms, kind, rows)
        if chosen is None:
            return None
        wrong = _wrong_rows(plane, chosen, kind) if rows.size < plane.q_len else rows[:0]
        if not wrong.size:
            return joined([term.mask for term in chosen], kind)
        rows = np.union1d(rows, wrong)
    return None


def _choose(plane: Plane, terms: list[Term], kind: Kind, rows: IntArray) -> list[Term] | None:
    """The cheapest terms that between them settle every cell of these rows."""
    held, target = plane.must[:, rows], plane.bar[:, rows]
    if kind == "or":
        held, target = target, held
    settled: dict[bytes, tuple[Term, BoolArray]] = {}
    for term in sorted(terms, key=lambda term: term.cost):
        outside = term.read(rows) ^ (kind == "and")  # the cells that the term decides
        if bool((held & outside).any()):
            continue  # it decides some cell wrongly
        hits = target & outside
        if hits.any():
            settled.setdefault(np.packbits(hits).tobytes(), (term, hits))
    useful = list(settled.values())
    if len(useful) > MOST_TERMS:
        useful.sort(key=lambda pair: -int(np.count_nonzero(pair[1])) / pair[0].cost)
        useful = useful[:MOST_TERMS]
    code = np.zeros(target.shape, np.int16)
    for number, (_, hits) in enumerate(useful):
        code |= hits.astype(np.int16) << number
    size = 1 << len(useful)
    present = np.zeros(size, np.bool_)
    present[code[target]] = True
    price, count = np.zeros(size), np.arange(size)
    # present[s] becomes: is there a cell that only terms in s settle? Then the others are no cover.
    for number, (term, _) in enumerate(useful):
        holds = (count >> number & 1).astype(np.bool_)
        price[holds] += term.cost + 3
        present[holds] |= present[count[holds] ^ 1 << number]
    price[present[::-1]] = np.inf
    best = int(price.argmin())
    if not best or not np.isfinite(price[best]):
        return None
    return [term for number, (term, _) in enumerate(useful) if best >> number & 1]


def _wrong_rows(plane: Plane, terms: list[Term], kind: Kind) -> IntArray:
    """Some rows on which the terms, joined, are not the plane."""
    wrong: list[int] = []
    step = max(1, 2**22 // max(1, plane.batch * plane.kv_len))
    for row in range(0, plane.q_len, step):
        part = slice(row, row + step)
        seen = terms[0].read(part)
        for term in terms[1:]:
            seen = seen & term.read(part) if kind == "and" else seen | term.read(part)
        bad = (plane.must[:, part] & ~seen) | (plane.bar[:, part] & seen)
        wrong.extend((np.flatnonzero(bad.any(axis=(0, 2))) + row).tolist())
        if len(wrong) > 4:
            break
    return np.array(wrong[:: max(1, len(wrong) // 8)], np.int64)


def joined(masks: list[Mask], kind: Kind) -> Found:
    """The terms under one operator, windows first."""
    operator = And if kind == "and" else Or
    flat = sorted((part for mask in masks for part in terms_of(mask, kind)), key=_rank)
    mask = operator(tuple(flat)) if len(flat) > 1 else flat[0]
    return Found(mask, cost(mask))


def terms_of(mask: Mask, kind: Kind) -> tuple[Mask, ...]:
    """What the mask joins by this operator; itself, where it is no such mask."""
    return mask.terms if isinstance(mask, And if kind == "and" else Or) else (mask,)


def _rank(mask: Mask) -> int:
    """Windows first, what is in brackets last."""
    if isinstance(mask, (And, Or)):
        return 3
    inner = mask.term if isinstance(mask, (Not, Transpose)) else mask
    return 2 - isinstance(inner, Window) - (inner is mask and isinstance(inner, Window))
