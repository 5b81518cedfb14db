"""Terms that a plane's diagonals, columns and rows suggest: windows, strides, chunks, chosen keys.

`above` gives the tightest terms that hold all cells which must be seen, for an &; `below` the
largest ones that hold none of those which must not, for an |.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.index import IndexSet, Keys, Queries
from maskwright.core.atoms.position import Chunks, Prefix, Stride, Window
from maskwright.core.atoms.tokens import Padding
from maskwright.core.expr import Not, Transpose
from maskwright.core.validate import FrozenArray
from maskwright.recognition.plane import (
    Plane,
    Term,
    any_along,
    by_diagonal,
    by_label,
    cost,
    first_lines,
    from_cells,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray

MOST_STRIDES: Final = 4
LONGEST_STEP: Final = 512
MOST_SIZES: Final = 32


# ── windows ───────────────────────────────────────────────────────────────────────────────────


def windows_above(plane: Plane) -> Iterator[Term]:
    """The smallest windows that hold all cells."""
    seen = plane.seen_offsets
    back, ahead = max(-int(seen[0]), 0), max(int(seen[-1]), 0)
    for limits in ((None, ahead), (back, None), (back, ahead)):
        yield _window(plane, *limits)


def windows_below(plane: Plane) -> Iterator[Term]:
    """The largest windows that hold no barred cell, and narrower ones that read better."""
    barred = plane.inverse.seen_offsets
    behind, before = barred[barred <= 0], barred[barred >= 0]
    back = -int(behind[-1]) - 1 if behind.size else None
    ahead = int(before[0]) - 1 if before.size else None
    if (back is not None and back < 0) or (ahead is not None and ahead < 0):
        return
    known = plane.seen_offsets
    tight = max(-int(known[0]), 0), max(int(known[-1]), 0)
    backs = list(dict.fromkeys((back, _smaller(back, tight[0]), 0)))
    aheads = list(dict.fromkeys((ahead, _smaller(ahead, tight[1]), 0)))
    for one in backs:
        for other in aheads:
            if one is not None or other is not None:
                yield _window(plane, one, other)


def _smaller(limit: int | None, other: int) -> int:
    return other if limit is None else min(limit, other)


def _window(plane: Plane, back: int | None, ahead: int | None) -> Term:
    lit = np.ones(plane.offsets.size, np.bool_)
    if back is not None:
        lit &= plane.offsets >= -back
    if ahead is not None:
        lit &= plane.offsets <= ahead
    # causal().T is the same set as window(back=0, ahead=None), and shorter
    turned = back == 0 and ahead is None
    mask: Mask = Transpose(Window(None, 0)) if turned else Window(back, ahead)
    return Term(mask, from_cells(by_diagonal(plane, lit)), cost(mask))


# ── strides ───────────────────────────────────────────────────────────────────────────────────


def strides_above(plane: Plane) -> Iterator[Term]:
    """Strides that hold all cells: the diagonals' greatest common step, and its divisors."""
    behind = -plane.seen_offsets
    step = int(np.gcd.reduce(behind - behind[0]))
    if step == 1:
        return
    barred = -plane.inverse.seen_offsets
    most = step if step else int(np.abs(barred - behind[0]).max(initial=1)) + 1
    steps = [n for n in range(2, most + 1) if step % n == 0]
    exact = [n for n in steps if not bool(((barred - behind[0]) % n == 0).any())]
    for chosen in dict.fromkeys((exact[:1] or []) + steps[-1:]):
        yield _stride(plane, chosen, int(behind[0]) % chosen)


def strides_below(plane: Plane) -> Iterator[Term]:
    """Strides that hold no barred cell: those without a phase first, then the shortest steps."""
    barred, wanted = -plane.inverse.seen_offsets, -plane.seen_offsets
    plain: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for step in range(2, min(plane.offsets.size, LONGEST_STEP) + 1):
        taken = np.zeros(step, np.bool_)
        taken[barred % step] = True
        if taken.all():
            continue
        useful = np.zeros(step, np.bool_)
        useful[wanted % step] = True
        phases = np.flatnonzero(useful & ~taken)
        if phases.size and phases[0] == 0:
            plain.append((step, 0))
        others.extend((step, int(phase)) for phase in phases[:2] if phase)
        if len(plain) >= MOST_STRIDES:
            break
    for step, phase in plain[:MOST_STRIDES] + others[: MOST_STRIDES // 2]:
        yield _stride(plane, step, phase)


def _stride(plane: Plane, step: int, phase: int) -> Term:
    mask = Stride(step, phase)
    lit = np.equal(-plane.offsets % step, phase)
    return Term(mask, from_cells(by_diagonal(plane, lit)), cost(mask))


# ── chunks ────────────────────────────────────────────────────────────────────────────────────


def chunks_above(plane: Plane) -> Iterator[Term]:
    """Of the smallest chunks that hold all cells, those that hold the fewest others."""
    if plane.q_len == 1 or not plane.near_keys:
        return  # one row alone is a stretch of keys, and a window says that better
    tied = any_along(joined(plane), 0)
    fits = (
        size
        for size in range(2, tied.size)
        if not tied[-min(plane.q_start, 0) % size :: size].any()
    )
    sizes = list(islice(fits, MOST_SIZES))
    if sizes:
        yield _chunk(plane, min(sizes, key=lambda size: _cells_in_chunks(plane, size)))


def _cells_in_chunks(plane: Plane, size: int) -> int:
    low = plane.queries // size * size
    return int((np.minimum(low + size, plane.kv_len) - np.maximum(low, 0)).clip(0).sum())


def chunks_below(plane: Plane) -> Iterator[Term]:
    """The largest chunks that hold no barred cell."""
    if plane.q_len == 1 or not plane.near_keys:
        return
    left, right = plane.inverse.near
    own = plane.queries
    widest = int((right - left - 1).min(initial=plane.tokens))
    for size in range(min(widest, plane.tokens), 1, -1):
        low = own // size * size
        if not bool(((left >= low) | (right < low + size)).any()):
            yield _chunk(plane, size)
            return


def _chunk(plane: Plane, size: int) -> Term:
    mask = Chunks(size)
    read = by_label(plane.queries[None] // size, np.arange(plane.kv_len)[None] // size)
    return Term(mask, read, cost(mask))


def joined(plane: Plane) -> BoolArray:
    """(batch, positions): does some row tie this token to the one before it?

    Positions count from 0, or from the first query where that stands before all keys.
    """
    low, high, tied = plane.reach
    first = min(plane.q_start, 0)
    change = np.zeros((plane.batch, plane.tokens - first + 1), np.int64)
    batch = np.nonzero(tied)[0]
    np.add.at(change, (batch, low[tied] - first + 1), 1)
    np.add.at(change, (batch, high[tied] - first + 1), -1)
    return np.cumsum(change, axis=1)[:, :-1] > 0


# ── columns and rows ──────────────────────────────────────────────────────────────────────────


def columns_above(plane: Plane) -> Iterator[Term]:
    """Keys that some query must see, and the stretches from the first or to the last of them."""
    for part in _each(plane):
        for chosen in _hulls(part.columns, ~part.inverse.columns):
            yield _columns(plane, chosen, cost)


def columns_below(plane: Plane) -> Iterator[Term]:
    """Keys that every query may see."""
    for part in _each(plane):
        for chosen in _cores(part.columns, ~part.inverse.columns):
            yield _columns(plane, chosen, _letters)


def first_columns_below(plane: Plane) -> Iterator[Term]:
    """The first keys, up to one that some query may not see."""
    for part in _each(plane)[-1:]:
        initial = np.logical_and.accumulate(~part.inverse.columns, axis=1)
        if initial.any():
            yield _columns(plane, initial, _letters)


def rows_above(plane: Plane) -> Iterator[Term]:
    """Queries that must see something."""
    if plane.has_tokens:
        for part in _each(plane):
            for chosen in _hulls(part.rows, ~part.inverse.rows):
                yield _rows(plane, chosen)


def rows_below(plane: Plane) -> Iterator[Term]:
    """Queries that may see every key."""
    if plane.has_tokens:
        for part in _each(plane):
            for chosen in _cores(part.rows, ~part.inverse.rows):
                yield _rows(plane, chosen)


def _each(plane: Plane) -> list[Plane]:
    return [plane] if plane.batch == 1 else [plane.shared, plane]


def _hulls(must: BoolArray, may: BoolArray) -> list[BoolArray]:
    """Sets of lines that hold all that must be: as few as can be, or in one stretch."""
    after = np.logical_or.accumulate(must, axis=1)
    until = np.logical_or.accumulate(must[:, ::-1], axis=1)[:, ::-1]
    return _distinct([must, must | may, until, after])


def _cores(must: BoolArray, may: BoolArray) -> list[BoolArray]:
    """Sets of lines that hold none that is barred: as many as can be, or in one stretch."""
    initial = np.logical_and.accumulate(may, axis=1)
    final = np.logical_and.accumulate(may[:, ::-1], axis=1)[:, ::-1]
    return _distinct([must & may, may, initial, final])


def _distinct(sets: list[BoolArray]) -> list[BoolArray]:
    kept: list[BoolArray] = []
    for lines in sets:
        if lines.any() and not any(np.array_equal(lines, other) for other in kept):
            kept.append(lines)
    return kept


def _columns(plane: Plane, chosen: BoolArray, weigh: Callable[[Mask], float]) -> Term:
    """Key columns, said in the shortest way."""
    said = [*_choice(Keys, chosen, 0), Padding(None, FrozenArray(chosen))]
    lengths = first_lines(chosen)
    if lengths is not None:
        said += [Padding(FrozenArray(lengths), None), Prefix(FrozenArray(lengths))]
    gone = first_lines(~chosen)
    if gone is not None:
        said.append(Not(Prefix(FrozenArray(gone))))
    mask = min(said, key=weigh)
    cells = np.broadcast_to(chosen[:, None], (chosen.shape[0], plane.q_len, plane.kv_len))
    return Term(mask, from_cells(cells), weigh(mask))


def _rows(plane: Plane, chosen: BoolArray) -> Term:
    """Query rows, said in the shortest way."""
    before = np.zeros((chosen.shape[0], plane.q_start), np.bool_)
    said = _choice(Queries, np.concatenate([before, chosen], axis=1), plane.q_start)
    lengths = first_lines(chosen)
    if lengths is not None:
        said.append(Transpose(Padding(FrozenArray(lengths + plane.q_start), None)))
    mask = min(said, key=_letters)
    cells = np.broadcast_to(chosen[:, :, None], (chosen.shape[0], plane.q_len, plane.kv_len))
    return Term(mask, from_cells(cells), _letters(mask))


def _letters(mask: Mask) -> float:
    return float(len(repr(mask)))


def _choice(kind: type[Keys] | type[Queries], chosen: BoolArray, first: int) -> list[Mask]:
    """Positions, all but some positions, or truth values."""
    if chosen.shape[0] > 1:
        return [kind(IndexSet.of_flags(chosen))]
    here, gone = np.flatnonzero(chosen[0]), np.flatnonzero(~chosen[0])
    return [
        kind(IndexSet.of_positions(here)),
        Not(kind(IndexSet.of_positions(gone[gone >= first]))),
        kind(IndexSet.of_flags(chosen)),
    ]
