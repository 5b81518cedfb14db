"""The cheapest set of terms whose & or | is exactly a plane.

For &, each term must contain all required cells, and each forbidden cell must be excluded by some
term; for |, the same with required and forbidden exchanged. Both are a weighted set cover, solved
exactly for at most `MAX_TERMS` terms. Terms are evaluated on a sample of rows first; if the result
is wrong on other rows, those are added to the sample and the cover is solved again.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.atoms.position import Window
from maskwright.recognition.plane import OPERATORS, Operator, Plane, Term, cost, terms_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray, IntArray

MAX_TERMS: Final = 13
MAX_ROUNDS: Final = 8


class Candidate(NamedTuple):
    """An expression for a plane or an array, and its cost."""

    mask: Mask
    cost: float
    closed: bool = True  # False if a part of it lists its cells, as dense() does


def cover(plane: Plane, terms: Iterable[Term], operator: Operator) -> Candidate | None:
    """The cheapest & or | of some of the terms that is exactly the plane."""
    terms = list(terms)
    rows = plane.sample()
    for _ in range(MAX_ROUNDS):
        selected = _select(plane, terms, operator, rows)
        if selected is None:
            return None
        wrong = _wrong_rows(plane, selected, operator) if rows.size < plane.q_len else rows[:0]
        if not wrong.size:
            return join([term.mask for term in selected], operator)
        rows = np.union1d(rows, wrong)
    return None


def join(masks: list[Mask], operator: Operator) -> Candidate:
    """The masks combined by one operator, windows first."""
    terms = sorted((term for mask in masks for term in terms_of(mask, operator)), key=_rank)
    mask = OPERATORS[operator](tuple(terms)) if len(terms) > 1 else terms[0]
    return Candidate(mask, cost(mask))


def read_joined(terms: list[Term], operator: Operator, rows: slice) -> BoolArray:
    """The cells of some rows of the terms combined by one operator."""
    join_cells = np.logical_and if operator == "and" else np.logical_or
    return reduce(join_cells, (term.read(rows) for term in terms))


def _select(
    plane: Plane, terms: list[Term], operator: Operator, rows: IntArray
) -> list[Term] | None:
    """The cheapest terms that together decide every cell of these rows correctly."""
    kept, target = plane.required[:, rows], plane.forbidden[:, rows]
    if operator == "or":
        kept, target = target, kept
    decisions: dict[bytes, tuple[Term, BoolArray]] = {}
    for term in sorted(terms, key=lambda term: term.cost):
        decided = term.read(rows) ^ (operator == "and")  # the cells that the term decides alone
        if bool((kept & decided).any()):
            continue  # some of them wrongly
        hits = target & decided
        if hits.any():
            decisions.setdefault(np.packbits(hits).tobytes(), (term, hits))
    useful = list(decisions.values())
    if len(useful) > MAX_TERMS:
        useful.sort(key=lambda pair: -int(np.count_nonzero(pair[1])) / pair[0].cost)
        useful = useful[:MAX_TERMS]
    code = np.zeros(target.shape, np.int16)  # bit i of a cell: term i decides it
    for number, (_, hits) in enumerate(useful):
        code |= hits.astype(np.int16) << number
    num_subsets = 1 << len(useful)
    present = np.zeros(num_subsets, np.bool_)
    present[code[target]] = True
    price, subsets = np.zeros(num_subsets), np.arange(num_subsets)
    # present[s] becomes: some cell is decided only by terms in s. Then the others are no cover.
    for number, (term, _) in enumerate(useful):
        contains = (subsets >> number & 1).astype(np.bool_)
        price[contains] += term.cost + 3
        present[contains] |= present[subsets[contains] ^ 1 << number]
    price[present[::-1]] = np.inf
    best = int(price.argmin())
    if not best or not np.isfinite(price[best]):
        return None
    return [term for number, (term, _) in enumerate(useful) if best >> number & 1]


def _wrong_rows(plane: Plane, terms: list[Term], operator: Operator) -> IntArray:
    """Some rows on which the combined terms are not the plane."""
    wrong: list[int] = []
    step = max(1, 2**22 // max(1, plane.batch * plane.kv_len))
    for row in range(0, plane.q_len, step):
        part = slice(row, row + step)
        visible = read_joined(terms, operator, part)
        bad = (plane.required[:, part] & ~visible) | (plane.forbidden[:, part] & visible)
        wrong.extend((np.flatnonzero(bad.any(axis=(0, 2))) + row).tolist())
        if len(wrong) > 4:
            break
    return np.array(wrong[:: max(1, len(wrong) // 8)], np.int64)


def _rank(mask: Mask) -> int:
    """Order of terms: windows, their complements and transposes, other terms, bracketed terms."""
    if any(len(terms_of(mask, operator)) > 1 for operator in OPERATORS):
        return 3
    parts = mask._parts()
    if not isinstance(parts[0] if parts else mask, Window):
        return 2
    return 1 if parts else 0
