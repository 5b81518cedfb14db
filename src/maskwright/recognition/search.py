"""The shortest expression for a plane: terms under one operator, or one operator in the other.

What may enter here: which terms to weigh, and in what order. A large plane is first tried on a
strip of its rows: what can't explain the strip can't explain the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.position import Everything, Nothing, Window
from maskwright.core.atoms.structure import Graph, Tree
from maskwright.core.expr import And, Atom, Not, Or, Transpose, walk
from maskwright.recognition import lines, tokens
from maskwright.recognition.cover import Found, Kind, cover, joined, terms_of
from maskwright.recognition.plane import Plane, Term, cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.validate import BoolArray

MOST_BASES: Final = 8
MOST_FAILED: Final = 6  # of them, in a large plane, after which no other is tried
ATOM: Final = 24.0  # letters of an atom that nothing else would be shorter than
LONGEST: Final = 16_000.0  # letters; a longer graph is no explanation
SHORT: Final = 34.0  # letters that an expression of two operators has at least
KINDS: Final[tuple[Kind, Kind]] = ("and", "or")


def explain(plane: Plane, nested: bool = True) -> Found | None:
    """The shortest expression that sees what must be seen and nothing barred, if there is one.

    Without `nested` only those of one operator are looked at.
    """
    if not plane.some:
        return Found(Nothing(), cost(Nothing()))
    if not plane.inverse.some:
        return Found(Everything(), cost(Everything()))
    best = cover(plane, simple_above(plane), "and")
    if best is not None and (best.cost <= ATOM or isinstance(best.mask, Window)):
        return best
    for kind in KINDS:
        best = _better(best, _level(plane, kind, _least(best)))
    if nested and not (best is not None and is_short(best)):
        for kind in KINDS:
            best = _better(best, _nested(plane, kind, best))
    return _better(best, _turned(best))


def is_short(found: Found) -> bool:
    """Is it not worth looking for something shorter? A tree or a graph may be a roundabout way."""
    atom = isinstance(found.mask, Atom) and not isinstance(found.mask, (Graph, Tree))
    return atom or found.cost <= SHORT


def _level(plane: Plane, kind: Kind, limit: float) -> Found | None:
    """The shortest expression of one operator."""
    if any(_inner(strip, kind, LONGEST) is None for strip, _ in plane.views[:-1]):
        terms = _relations(plane, kind)
        if kind == "and":  # a strip does not show which tokens a document has
            terms += tokens.documents_above(plane)
        return cover(plane, terms, kind)
    terms = [*_every(plane, kind, limit), *_relations(plane, kind)]
    return cover(plane, terms, kind)


# ── terms ─────────────────────────────────────────────────────────────────────────────────────


def simple_above(plane: Plane) -> Iterator[Term]:
    """Terms of few numbers that hold all cells which must be seen."""
    yield from lines.windows_above(plane)
    yield from lines.columns_above(plane)
    yield from lines.rows_above(plane)
    yield from lines.chunks_above(plane)
    yield from lines.strides_above(plane)


def _every(plane: Plane, kind: Kind, limit: float, inner: bool = False) -> Iterator[Term]:
    """Terms that hold all cells which must be seen ("and"), or none that is barred ("or")."""
    other = plane.inverse
    if kind == "and":
        yield from simple_above(plane)
        yield from tokens.documents_above(plane)
        yield from tokens.graphs(plane, limit)
        yield from map(negated, _positions_below(other))
        if not inner:
            yield from map(negated, _beside(other, limit))
        return
    yield from simple_below(plane)
    yield from _beside(plane, limit)
    for terms in (lines.windows_above, lines.chunks_above, lines.strides_above):
        yield from map(negated, terms(other))
    yield from map(negated, tokens.documents_above(other))


def _relations(plane: Plane, kind: Kind) -> list[Term]:
    if kind == "and":
        return list(tokens.relations(plane))
    return [negated(term) for term in tokens.relations(plane.inverse)]


def simple_below(plane: Plane) -> Iterator[Term]:
    """Terms of few numbers that hold no cell which is barred."""
    yield from lines.columns_below(plane)
    yield from lines.rows_below(plane)
    yield from _positions_below(plane)


def _positions_below(plane: Plane) -> Iterator[Term]:
    yield from lines.windows_below(plane)
    yield from lines.chunks_below(plane)
    yield from lines.strides_below(plane)


def _beside(plane: Plane, limit: float) -> Iterator[Term]:
    """Terms that explain best what another one, as large as can be, does not."""
    others = (lines.windows_below, lines.chunks_below, lines.first_columns_below)
    firsts = [next(terms(plane), None) for terms in others]
    for term in [None, *(first for first in firsts if first is not None)]:
        rest = plane if term is None else _rest(plane, term.read(slice(None)), "or")
        if rest is not None:
            yield from tokens.documents_above(rest)
            yield from tokens.graphs(rest, limit)
            if rest is not plane:
                yield from lines.columns_below(rest)
                yield from lines.rows_below(rest)


def negated(term: Term) -> Term:
    """The other cells."""
    mask = term.mask.term if isinstance(term.mask, Not) else Not(term.mask)
    return Term(mask, lambda rows: ~term.read(rows), cost(mask))


# ── one operator inside the other ─────────────────────────────────────────────────────────────


def _nested(plane: Plane, kind: Kind, best: Found | None) -> Found | None:
    """A & (b | c) for "and", a | (b & c) for "or": one term, and what is left explained anew."""
    limit = _least(best)
    terms = sorted(_bases(plane, kind, limit), key=lambda term: term.cost)
    found, failed = None, 0
    for term in _tried(plane, terms, kind, limit - 12):
        if failed == MOST_FAILED:
            break
        inner = _inner_beside(plane, [term], kind, _least(best, found) - term.cost)
        failed += inner is None and not plane.small
        if inner is not None:
            found = _better(found, joined([term.mask, inner.mask], kind))
    if not plane.small and (best is not None or found is not None):
        return found
    return _better(found, _nested_in_all(plane, terms, kind, _least(best, found)))


def _bases(plane: Plane, kind: Kind, limit: float) -> Iterator[Term]:
    if plane.small:
        yield from _every(plane, kind, limit)
        return
    yield from simple_above(plane) if kind == "and" else simple_below(plane)
    yield from tokens.documents_above(plane) if kind == "and" else ()


def _tried(plane: Plane, terms: list[Term], kind: Kind, limit: float) -> list[Term]:
    """Terms that leave something to explain, which differs from what the others leave."""
    bases: dict[bytes, Term] = {}
    part, rows = plane.views[0]
    for term in terms:
        rest = _rest(part, term.read(rows), kind) if term.cost < limit else None
        if rest is not None:
            left = rest.bar if kind == "and" else rest.must
            bases.setdefault(np.packbits(left[:, part.sample()]).tobytes(), term)
    return list(bases.values())[:MOST_BASES]


def _nested_in_all(plane: Plane, terms: list[Term], kind: Kind, limit: float) -> Found | None:
    """The same beside all simple terms at once, of which those that are needed stay."""
    simple = simple_above(plane) if kind == "and" else simple_below(plane)
    inner = _inner_beside(plane, [term for term in simple if term.cost + 12 < limit], kind, limit)
    if inner is None:
        return None
    beside = _rest(plane, tokens.cells_of(plane, inner.mask), kind, strict=False)
    outer = None if beside is None else cover(beside, terms, kind)
    return None if outer is None else joined([*terms_of(outer.mask, kind), inner.mask], kind)


def _inner_beside(plane: Plane, terms: list[Term], kind: Kind, limit: float) -> Found | None:
    """What is left beside these terms, in the other operator; tried on the plane's strips first."""
    inner = None
    for view, rows in plane.views if terms else ():
        cells = terms[0].read(rows)
        for term in terms[1:]:
            cells = cells & term.read(rows) if kind == "and" else cells | term.read(rows)
        rest = _rest(view, cells, kind)
        if rest is None and view.is_strip:
            continue  # these rows do not tell
        inner = None if rest is None else _inner(rest, KINDS[kind == "and"], limit)
        if inner is None:
            return None
    return inner


def _rest(plane: Plane, cells: BoolArray, kind: Kind, strict: bool = True) -> Plane | None:
    """What is left to explain beside a term; None where that is all, or nothing.

    A strict one is None also where the term alone is wrong.
    """
    must, bar = plane.must, plane.bar
    if kind == "and":
        if strict and bool((must & ~cells).any()):
            return None
        left = bar & cells
        changed = left.any() and int(np.count_nonzero(left)) < int(np.count_nonzero(bar))
        return plane.but(must, left) if changed else None
    if strict and bool((bar & cells).any()):
        return None
    left = must & ~cells
    changed = left.any() and int(np.count_nonzero(left)) < int(np.count_nonzero(must))
    return plane.but(left, bar) if changed else None


def _inner(plane: Plane, kind: Kind, limit: float) -> Found | None:
    """An expression of one operator and of fewer letters than `limit`."""
    terms = (term for term in _every(plane, kind, limit, inner=True) if term.cost < limit)
    found = cover(plane, terms, kind)
    return found if found is not None and found.cost < limit else None


def _least(*known: Found | None) -> float:
    return min(LONGEST if found is None else found.cost for found in known)


def _turned(found: Found | None) -> Found | None:
    """A composition turned over as a whole, where that is known to be the same."""
    if found is None or not isinstance(found.mask, (And, Or)):
        return None
    other = found.mask._transposed()
    if other is None or any(isinstance(part, Transpose) for part in walk(other)):
        return None
    return Found(Transpose(other), cost(Transpose(other)))


def _better(one: Found | None, other: Found | None) -> Found | None:
    if one is None or other is None:
        return one or other
    return other if other.cost < one.cost else one
