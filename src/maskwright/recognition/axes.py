"""The shortest expression for a whole array: one for all batch rows and heads, or one for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.core.atoms.array import Dense
from maskwright.core.atoms.position import Everything, Nothing
from maskwright.core.expr import And, Or, PerAxis, walk
from maskwright.core.validate import FrozenArray
from maskwright.recognition import lines, tokens
from maskwright.recognition.cover import Found
from maskwright.recognition.plane import Plane, any_along, cost
from maskwright.recognition.search import SHORT, explain, is_short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray

CELL: Final = 3.0  # letters of one cell in a list
MOST_MEMBERS: Final = 256  # of a by_head or by_batch


def express(cells: BoolArray, q_start: int) -> Found:
    """The shortest expression for (batch, heads, queries, keys); the array itself if none fits."""
    return _express(cells, ~cells, q_start, thorough=True)


def express_keys(cells: BoolArray) -> Found:
    """The same for (batch, heads, 1, keys) where no query is meant: only keys are chosen."""
    cells = _collapsed(cells)[0]
    if not cells.any():
        return Found(Nothing(), cost(Nothing()))
    if cells.all():
        return Found(Everything(), cost(Everything()))
    if cells.shape[1] > 1:
        members = [express_keys(cells[:, head : head + 1]) for head in range(cells.shape[1])]
        return _by("head", members)
    plane = Plane(cells[:, 0], ~cells[:, 0], 0)
    terms = [term for term in lines.columns_above(plane) if _same(term.read(slice(None)), plane)]
    best = min(terms, key=lambda term: term.cost)
    return Found(best.mask, best.cost)


def _same(cells: BoolArray, plane: Plane) -> bool:
    return bool((cells == plane.must).all())


def _express(cells: BoolArray, bar: BoolArray, q_start: int, thorough: bool) -> Found:
    """As `express`, where cells that are neither in `cells` nor in `bar` are free."""
    cells, bar = _collapsed(cells, bar)
    batch, heads = cells.shape[:2]
    best = explain(Plane(cells[:, 0], bar[:, 0], q_start), thorough) if heads == 1 else None
    if best is not None and is_short(best):
        return best
    found = [] if best is None else [best]
    blocks = tokens.blocks_of(cells)
    size = f"blocks(, size=({blocks.q_size}, {blocks.kv_size}))"
    found.append(Found(blocks, _listed(blocks.map.data, size)))
    dense = _listed(cells, "dense()")
    limit = min(dense, *(one.cost for one in found))
    if 1 < heads <= MOST_MEMBERS:
        found += _by_each(cells, bar, q_start, 1, limit, thorough)
    elif 1 < batch <= MOST_MEMBERS and thorough:
        # Beside an expression for all, one for each batch row is worth little search.
        found += _by_each(cells, bar, q_start, 0, limit, best is None)
    shortest = min(found, key=lambda one: one.cost)
    return shortest if shortest.cost < dense else Found(Dense(FrozenArray(cells)), dense)


def _listed(cells: BoolArray, call: str) -> float:
    """How many letters a call has that lists these cells."""
    return len(call) + CELL * int(cells.size) + 2.0 * int(cells.size) // max(1, int(cells.shape[3]))


def _by_each(
    cells: BoolArray, bar: BoolArray, q_start: int, axis: int, limit: float, thorough: bool
) -> Iterator[Found]:
    """A mask for every head (axis 1) or batch row (axis 0), alone or beside one for all of them."""
    plain = _members(cells, bar, q_start, axis, limit, thorough)
    if plain is not None:
        yield plain
        limit = min(limit, plain.cost)
    # What holds for all of them is said once: the padding, or the documents, or a window.
    union = _collapsed(np.expand_dims(any_along(cells, axis), axis))[0]
    plane = Plane(union[:, 0], ~union[:, 0], q_start) if union.shape[1] == 1 else None
    if not thorough or limit <= SHORT or plane is None or not plane.some or not plane.inverse.some:
        return
    common = explain(plane)
    if common is None:
        return
    terms = common.mask.terms if isinstance(common.mask, And) else (common.mask,)
    for mask in dict.fromkeys((*terms, common.mask)):
        left = bar & tokens.cells_of(plane, mask)[:, None]
        spent = cost(mask) + 3 + 2 * isinstance(mask, Or)
        inner = _members(cells, left, q_start, axis, limit - spent, thorough)
        if inner is not None:
            joined = And((*(mask.terms if isinstance(mask, And) else (mask,)), inner.mask))
            yield Found(joined, spent + inner.cost)


def _members(
    cells: BoolArray, bar: BoolArray, q_start: int, axis: int, limit: float, thorough: bool
) -> Found | None:
    """A mask for every head or batch row, in fewer letters than `limit`; like ones sought once."""
    known: dict[bytes, Found] = {}
    members, spent = [], 0.0
    for index in range(cells.shape[axis]):
        part = (slice(None),) * axis + (slice(index, index + 1),)
        must, barred = cells[part], bar[part]
        mark = np.packbits(must).tobytes() + np.packbits(barred).tobytes()
        if mark not in known:
            known[mark] = _express(must, barred, q_start, thorough)
        members.append(known[mark])
        spent += known[mark].cost
        if spent >= limit:
            return None
    return _by("head" if axis else "batch", members)


def _by(axis: Literal["batch", "head"], members: list[Found]) -> Found:
    size = sum(member.cost + 2 for member in members) + len(f"by_{axis}([])") - 2
    return Found(PerAxis(axis, tuple(member.mask for member in members)), size)


def _collapsed(*parts: BoolArray) -> tuple[BoolArray, ...]:
    """The arrays with a batch or head axis of 1, where nothing in any of them varies along it."""
    for axis in (0, 1):
        first = (slice(None),) * axis + (slice(0, 1),)
        if parts[0].shape[axis] > 1 and all((part == part[first]).all() for part in parts):
            parts = tuple(part[first] for part in parts)
    return parts


def is_closed(mask: Mask) -> bool:
    """Is no cell just listed?"""
    return not any(isinstance(part, Dense) for part in walk(mask))
