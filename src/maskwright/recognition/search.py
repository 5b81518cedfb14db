"""Search for the shortest expression of a plane, and of a whole array.

A plane is described by terms under one operator, or by one operator nested in the other. Large
planes are tried on a strip of rows first: an expression that does not fit the strip does not fit
the plane. An array is described by one expression for all batch rows and heads, or one for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.core.atoms.array import Dense
from maskwright.core.atoms.position import Everything, Nothing, Window
from maskwright.core.atoms.structure import Graph, Tree
from maskwright.core.expr import walk
from maskwright.core.operators import And, Not, PerAxis, Transpose
from maskwright.core.validate import FrozenArray
from maskwright.recognition import position_terms as position
from maskwright.recognition import structure_terms as structure
from maskwright.recognition.cover import Candidate, cover, join, read_joined
from maskwright.recognition.plane import OPERATORS, Plane, Term, any_along, cost, terms_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.validate import BoolArray
    from maskwright.recognition.plane import Operator

MAX_OUTER_TERMS: Final = 8
MAX_FAILED: Final = 6  # outer terms of a large plane that may fail before the search ends
MAX_ATOM_COST: Final = 24.0  # up to which an atom is taken at once
MAX_COST: Final = 16_000.0  # a longer expression is not shorter than dense()
MIN_NESTED_COST: Final = 34.0  # of an expression with two operators
MIN_OPERATOR_COST: Final = 12  # that an operator and another term add
CELL_COST: Final = 3.0  # characters of a cell in dense() or blocks()
MAX_MEMBERS: Final = 256  # of by_head() or by_batch()
MAX_FAILED_SEARCHES: Final = 4  # of planes, more than succeed, before the others are listed
MAX_SUCCESS_COST: Final = 60.0  # a longer expression of a plane lists edges or positions
# Planes whose expression is long, after which the others are listed cell by cell.
MAX_LONG_RESULTS: Final = 24
MAX_LONG_NESTED: Final = 6  # of these, found with nested operators


# ── arrays ────────────────────────────────────────────────────────────────────────────────────


def explain_array(cells: BoolArray, q_start: int) -> Candidate:
    """The shortest expression for (batch, heads, queries, keys): dense() if no other is."""
    return _explain_array(cells, ~cells, q_start, _Budget(), thorough=True)


class _Budget:
    """Bounds the search of arrays without structure, in which most planes have no short expression."""

    def __init__(self) -> None:
        self._failures_left = MAX_FAILED_SEARCHES
        self._long_left = MAX_LONG_RESULTS

    def explain_plane(self, plane: Plane, *, nested: bool = True) -> Candidate | None:
        """As `explain_plane`; None without a search if too many have failed or were long."""
        if self._failures_left <= 0 or self._long_left <= 0:
            return None
        nested = nested and self._long_left > MAX_LONG_RESULTS - MAX_LONG_NESTED
        result = explain_plane(plane, nested=nested)
        self._failures_left += 1 if result is not None and result.cost <= MAX_SUCCESS_COST else -1
        self._long_left -= result is None or not is_short(result)
        return result


def explain_keys(cells: BoolArray) -> Candidate:
    """The shortest expression for (batch, heads, 1, keys) that depends on the keys alone."""
    cells = _collapse(cells)[0]
    if not cells.any():
        return Candidate(Nothing(), cost(Nothing()))
    if cells.all():
        return Candidate(Everything(), cost(Everything()))
    if cells.shape[1] > 1:
        members = [explain_keys(cells[:, head : head + 1]) for head in range(cells.shape[1])]
        return _per_axis("head", members)
    plane = Plane(cells[:, 0], ~cells[:, 0], 0)
    exact = (
        term
        for term in position.superset_keys(plane)
        if bool((term.read(slice(None)) == plane.required).all())
    )
    best = min(exact, key=lambda term: term.cost)
    return Candidate(best.mask, best.cost)


def _explain_array(
    cells: BoolArray, forbidden: BoolArray, q_start: int, budget: _Budget, *, thorough: bool
) -> Candidate:
    """As `explain_array`, where cells that are neither in `cells` nor forbidden are free."""
    cells, forbidden = _collapse(cells, forbidden)
    batch, heads = cells.shape[:2]
    best = None
    if heads == 1:
        plane = Plane(cells[:, 0], forbidden[:, 0], q_start)
        best = budget.explain_plane(plane, nested=thorough)
    if best is not None and is_short(best):
        return best
    candidates = [] if best is None else [best]
    blocks = structure.largest_blocks(cells)
    call = f"blocks(, size=({blocks.q_size}, {blocks.kv_size}))"
    candidates.append(Candidate(blocks, _listing_cost(blocks.map.data, call)))
    dense_cost = _listing_cost(cells, "dense()")
    max_cost = min(dense_cost, *(candidate.cost for candidate in candidates))
    if 1 < heads <= MAX_MEMBERS:
        search = _PerAxisSearch(cells, forbidden, q_start, budget, 1, thorough)
        candidates += search.candidates(max_cost)
    elif 1 < batch <= MAX_MEMBERS and thorough:
        # One expression per batch row gets a thorough search only if there is none for all rows.
        search = _PerAxisSearch(cells, forbidden, q_start, budget, 0, best is None)
        candidates += search.candidates(max_cost)
    shortest = min(candidates, key=lambda candidate: candidate.cost)
    if shortest.cost < dense_cost:
        return shortest
    return Candidate(Dense(FrozenArray(cells)), dense_cost, closed=False)


@dataclass
class _PerAxisSearch:
    """Search for by_head() or by_batch(): one expression per head (axis 1) or batch row (axis 0)."""

    cells: BoolArray
    forbidden: BoolArray
    q_start: int
    budget: _Budget
    axis: int
    thorough: bool

    def candidates(self, max_cost: float) -> Iterator[Candidate]:
        """Members alone, or in an & with an expression for all of them."""
        if (plain := self._members(self.forbidden, max_cost)) is not None:
            yield plain
            max_cost = min(max_cost, plain.cost)
        # What holds for all members is stated once: the padding, the documents, or a window.
        union = _collapse(np.expand_dims(any_along(self.cells, self.axis), self.axis))[0]
        if not self.thorough or max_cost <= MIN_NESTED_COST or union.shape[1] > 1:
            return
        plane = Plane(union[:, 0], ~union[:, 0], self.q_start)
        if not plane.has_required or not plane.inverse.has_required:
            return
        common = self.budget.explain_plane(plane)
        if common is None:
            return
        for mask in dict.fromkeys((*terms_of(common.mask, "and"), common.mask)):
            forbidden = self.forbidden & structure.cells_of(plane, mask)[:, None]
            in_brackets = len(terms_of(mask, "or")) > 1
            used = cost(mask) + 3 + 2 * in_brackets
            if (inner := self._members(forbidden, max_cost - used)) is not None:
                terms = (*terms_of(mask, "and"), inner.mask)
                yield Candidate(And(terms), used + inner.cost, inner.closed)

    def _members(self, forbidden: BoolArray, max_cost: float) -> Candidate | None:
        """One expression per head or batch row; None if they cost `max_cost` or more."""
        known: dict[bytes, Candidate] = {}
        members, total = [], 0.0
        for index in range(self.cells.shape[self.axis]):
            part = (slice(None),) * self.axis + (slice(index, index + 1),)
            required, excluded = self.cells[part], forbidden[part]
            key = np.packbits(required).tobytes() + np.packbits(excluded).tobytes()
            if key not in known:
                known[key] = _explain_array(
                    required, excluded, self.q_start, self.budget, thorough=self.thorough
                )
            members.append(known[key])
            total += known[key].cost
            if total >= max_cost:
                return None
        return _per_axis("head" if self.axis else "batch", members)


def _per_axis(axis: Literal["batch", "head"], members: list[Candidate]) -> Candidate:
    length = sum(member.cost + 2 for member in members) + len(f"by_{axis}([])") - 2
    mask = PerAxis(axis, tuple(member.mask for member in members))
    return Candidate(mask, length, all(member.closed for member in members))


def _listing_cost(cells: BoolArray, call: str) -> float:
    """Characters of a call that lists these cells."""
    num_cells, num_keys = int(cells.size), int(cells.shape[3])
    return len(call) + CELL_COST * num_cells + 2.0 * num_cells // max(1, num_keys)


def _collapse(*arrays: BoolArray) -> tuple[BoolArray, ...]:
    """The arrays with a batch or head axis of size 1 where none of them varies along it."""
    for axis in (0, 1):
        first = (slice(None),) * axis + (slice(0, 1),)
        if arrays[0].shape[axis] > 1 and all((cells == cells[first]).all() for cells in arrays):
            arrays = tuple(cells[first] for cells in arrays)
    return arrays


# ── planes ────────────────────────────────────────────────────────────────────────────────────


def explain_plane(plane: Plane, *, nested: bool = True) -> Candidate | None:
    """The shortest expression with all required and no forbidden cells, or None.

    Args:
        plane: The cells.
        nested: Whether to try one operator nested in the other, too.
    """
    if not plane.has_required:
        return Candidate(Nothing(), cost(Nothing()))
    if not plane.inverse.has_required:
        return Candidate(Everything(), cost(Everything()))
    best = cover(plane, simple_supersets(plane), "and")
    if best is not None and (best.cost <= MAX_ATOM_COST or isinstance(best.mask, Window)):
        return best
    for operator in OPERATORS:
        best = _cheaper(best, _one_operator(plane, operator, _min_cost(best)))
    if nested and not (best is not None and is_short(best)):
        for operator in OPERATORS:
            best = _cheaper(best, _nested(plane, operator, best))
    return _cheaper(best, _as_transpose(best))


def is_short(candidate: Candidate) -> bool:
    """Whether a shorter expression is unlikely: an atom, unless it lists edges, or a short text."""
    is_atom = not candidate.mask._parts() and not isinstance(candidate.mask, (Graph, Tree))
    return is_atom or candidate.cost <= MIN_NESTED_COST


def _one_operator(plane: Plane, operator: Operator, max_cost: float) -> Candidate | None:
    """The shortest expression of one operator."""
    terms = _trees_and_images(plane, operator)
    if any(_inner(strip, operator, MAX_COST) is None for strip, _ in plane.views[:-1]):
        if operator == "and":  # a strip does not show which tokens a document contains
            terms += structure.superset_documents(plane)
        return cover(plane, terms, operator)
    return cover(plane, [*_terms(plane, operator, max_cost), *terms], operator)


def _as_transpose(candidate: Candidate | None) -> Candidate | None:
    """A composition as the transpose of another one, if that has no transposes itself."""
    if candidate is None or len(candidate.mask._parts()) < 2:
        return None
    other = candidate.mask._transposed()
    if other is None or any(isinstance(part, Transpose) for part in walk(other)):
        return None
    return Candidate(Transpose(other), cost(Transpose(other)))


def _min_cost(*known: Candidate | None) -> float:
    return min(MAX_COST if candidate is None else candidate.cost for candidate in known)


def _cheaper(candidate: Candidate | None, other: Candidate | None) -> Candidate | None:
    if candidate is None or other is None:
        return candidate or other
    return other if other.cost < candidate.cost else candidate


# ── terms ─────────────────────────────────────────────────────────────────────────────────────


def simple_supersets(plane: Plane) -> Iterator[Term]:
    """Terms with few parameters that contain all required cells."""
    yield from position.superset_windows(plane)
    yield from position.superset_keys(plane)
    yield from position.superset_queries(plane)
    yield from position.superset_chunks(plane)
    yield from position.superset_strides(plane)


def simple_subsets(plane: Plane) -> Iterator[Term]:
    """Terms with few parameters that contain no forbidden cell."""
    yield from position.subset_keys(plane)
    yield from position.subset_queries(plane)
    yield from _position_subsets(plane)


def _position_subsets(plane: Plane) -> Iterator[Term]:
    yield from position.subset_windows(plane)
    yield from position.subset_chunks(plane)
    yield from position.subset_strides(plane)


def _terms(
    plane: Plane, operator: Operator, max_cost: float, *, inner: bool = False
) -> Iterator[Term]:
    """Terms with all required cells, for an &, or without forbidden cells, for an |."""
    other = plane.inverse
    if operator == "and":
        yield from simple_supersets(plane)
        yield from structure.superset_documents(plane)
        yield from structure.graphs(plane, max_cost)
        yield from map(negate, _position_subsets(other))
        if not inner:
            yield from map(negate, _residual_terms(other, max_cost))
        return
    yield from simple_subsets(plane)
    yield from _residual_terms(plane, max_cost)
    for supersets in (
        position.superset_windows,
        position.superset_chunks,
        position.superset_strides,
        structure.superset_documents,
    ):
        yield from map(negate, supersets(other))


def _trees_and_images(plane: Plane, operator: Operator) -> list[Term]:
    if operator == "and":
        return list(structure.trees_and_images(plane))
    return [negate(term) for term in structure.trees_and_images(plane.inverse)]


def _residual_terms(plane: Plane, max_cost: float) -> Iterator[Term]:
    """Terms that describe what the largest window, chunks or first keys do not contain."""
    sources = (position.subset_windows, position.subset_chunks, position.subset_first_keys)
    firsts = [next(terms(plane), None) for terms in sources]
    for term in [None, *(first for first in firsts if first is not None)]:
        rest = plane if term is None else _residual(plane, term.read(slice(None)), "or")
        if rest is not None:
            yield from structure.superset_documents(rest)
            yield from structure.graphs(rest, max_cost)
            if rest is not plane:
                yield from position.subset_keys(rest)
                yield from position.subset_queries(rest)


def negate(term: Term) -> Term:
    """The complement of a term."""
    mask = term.mask.term if isinstance(term.mask, Not) else Not(term.mask)
    return Term(mask, lambda rows: ~term.read(rows), cost(mask))


# ── nested operators ──────────────────────────────────────────────────────────────────────────


def _nested(plane: Plane, operator: Operator, best: Candidate | None) -> Candidate | None:
    """An outer term and its residual in brackets: a & (b | c), or a | (b & c)."""
    max_cost = _min_cost(best)
    terms = sorted(_outer_terms(plane, operator, max_cost), key=lambda term: term.cost)
    result, failed = None, 0
    for term in _distinct_outer_terms(plane, terms, operator, max_cost - MIN_OPERATOR_COST):
        if failed == MAX_FAILED:
            break
        inner = _explain_residual(plane, [term], operator, _min_cost(best, result) - term.cost)
        failed += inner is None and not plane.is_small
        if inner is not None:
            result = _cheaper(result, join([term.mask, inner.mask], operator))
    if not plane.is_small and (best is not None or result is not None):
        return result
    return _cheaper(result, _nested_in_simple(plane, terms, operator, _min_cost(best, result)))


def _outer_terms(plane: Plane, operator: Operator, max_cost: float) -> Iterator[Term]:
    if plane.is_small:
        yield from _terms(plane, operator, max_cost)
        return
    yield from simple_supersets(plane) if operator == "and" else simple_subsets(plane)
    yield from structure.superset_documents(plane) if operator == "and" else ()


def _distinct_outer_terms(
    plane: Plane, terms: list[Term], operator: Operator, max_cost: float
) -> list[Term]:
    """Terms that leave a residual, one for each distinct residual."""
    outer: dict[bytes, Term] = {}
    part, rows = plane.views[0]
    for term in terms:
        rest = _residual(part, term.read(rows), operator) if term.cost < max_cost else None
        if rest is not None:
            left = rest.forbidden if operator == "and" else rest.required
            outer.setdefault(np.packbits(left[:, part.sample()]).tobytes(), term)
    return list(outer.values())[:MAX_OUTER_TERMS]


def _nested_in_simple(
    plane: Plane, terms: list[Term], operator: Operator, max_cost: float
) -> Candidate | None:
    """The residual of all simple terms in brackets, and the terms that are needed with it."""
    simple = simple_supersets(plane) if operator == "and" else simple_subsets(plane)
    cheap = [term for term in simple if term.cost + MIN_OPERATOR_COST < max_cost]
    inner = _explain_residual(plane, cheap, operator, max_cost)
    if inner is None:
        return None
    rest = _residual(plane, structure.cells_of(plane, inner.mask), operator, strict=False)
    outer = None if rest is None else cover(rest, terms, operator)
    if outer is None:
        return None
    return join([*terms_of(outer.mask, operator), inner.mask], operator)


def _explain_residual(
    plane: Plane, terms: list[Term], operator: Operator, max_cost: float
) -> Candidate | None:
    """The residual of these terms in the other operator, tried on strips of the plane first."""
    inner_operator: Operator = "or" if operator == "and" else "and"
    inner = None
    for view, rows in plane.views if terms else ():
        rest = _residual(view, read_joined(terms, operator, rows), operator)
        if rest is None and view.is_strip:
            continue  # these rows exclude nothing
        inner = None if rest is None else _inner(rest, inner_operator, max_cost)
        if inner is None:
            return None
    return inner


def _residual(
    plane: Plane, cells: BoolArray, operator: Operator, *, strict: bool = True
) -> Plane | None:
    """What is left to describe next to a term with these cells; None if that is all or nothing.

    With `strict`, also None if the term contradicts the plane.
    """
    if operator == "or":  # the same of the complement
        rest = _residual(plane.inverse, ~cells, "and", strict=strict)
        return None if rest is None else rest.inverse
    left = plane.forbidden & cells
    if strict and bool((plane.required & ~cells).any()):
        return None
    if not left.any() or np.count_nonzero(left) == np.count_nonzero(plane.forbidden):
        return None
    return plane.with_cells(plane.required, left)


def _inner(plane: Plane, operator: Operator, max_cost: float) -> Candidate | None:
    """An expression of one operator that costs less than `max_cost`."""
    all_terms = _terms(plane, operator, max_cost, inner=True)
    terms = (term for term in all_terms if term.cost < max_cost)
    result = cover(plane, terms, operator)
    return result if result is not None and result.cost < max_cost else None
