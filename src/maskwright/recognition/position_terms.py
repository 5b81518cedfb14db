"""Terms suggested by diagonals, columns and rows: windows, strides, chunks, keys and queries.

`superset_*` functions yield the smallest terms that contain all required cells, for an &;
`subset_*` functions the largest terms that contain no forbidden cell, for an |.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.index import IndexSet, Keys, Queries
from maskwright.core.atoms.position import Chunks, Prefix, Stride, Window
from maskwright.core.atoms.tokens import Padding
from maskwright.core.operators import Not, Transpose
from maskwright.core.validate import FrozenArray
from maskwright.recognition.plane import (
    Plane,
    Term,
    any_along,
    cells_by_diagonal,
    cost,
    prefix_lengths,
    read_cells,
    read_equal_labels,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray

MAX_STRIDES: Final = 4
MAX_STEP: Final = 512
MAX_CHUNK_SIZES: Final = 32


# ── windows ───────────────────────────────────────────────────────────────────────────────────


def superset_windows(plane: Plane) -> Iterator[Term]:
    """The smallest windows that contain all required cells."""
    offsets = plane.required_offsets
    back, ahead = max(-int(offsets[0]), 0), max(int(offsets[-1]), 0)
    for limits in ((None, ahead), (back, None), (back, ahead)):
        yield _window(plane, *limits)


def subset_windows(plane: Plane) -> Iterator[Term]:
    """The largest windows without forbidden cells, and narrower ones with a shorter text."""
    forbidden = plane.inverse.required_offsets
    behind, before = forbidden[forbidden <= 0], forbidden[forbidden >= 0]
    back = -int(behind[-1]) - 1 if behind.size else None
    ahead = int(before[0]) - 1 if before.size else None
    if (back is not None and back < 0) or (ahead is not None and ahead < 0):
        return
    required = plane.required_offsets
    needed = max(-int(required[0]), 0), max(int(required[-1]), 0)
    backs = list(dict.fromkeys((back, _min_limit(back, needed[0]), 0)))
    aheads = list(dict.fromkeys((ahead, _min_limit(ahead, needed[1]), 0)))
    for back_limit in backs:
        for ahead_limit in aheads:
            if back_limit is not None or ahead_limit is not None:
                yield _window(plane, back_limit, ahead_limit)


def _min_limit(limit: int | None, other: int) -> int:
    return other if limit is None else min(limit, other)


def _window(plane: Plane, back: int | None, ahead: int | None) -> Term:
    visible = np.ones(plane.offsets.size, np.bool_)
    if back is not None:
        visible &= plane.offsets >= -back
    if ahead is not None:
        visible &= plane.offsets <= ahead
    # causal().T is the same set as window(back=0, ahead=None), and shorter
    anticausal = back == 0 and ahead is None
    mask: Mask = Transpose(Window(None, 0)) if anticausal else Window(back, ahead)
    return Term(mask, read_cells(cells_by_diagonal(plane, visible)), cost(mask))


# ── strides ───────────────────────────────────────────────────────────────────────────────────


def superset_strides(plane: Plane) -> Iterator[Term]:
    """Strides that contain all required cells: the gcd of the diagonals' distances as the step."""
    behind = -plane.required_offsets
    gcd = int(np.gcd.reduce(behind - behind[0]))
    if gcd == 1:
        return
    forbidden = -plane.inverse.required_offsets
    limit = gcd if gcd else int(np.abs(forbidden - behind[0]).max(initial=1)) + 1
    steps = [n for n in range(2, limit + 1) if gcd % n == 0]
    exact = [n for n in steps if not bool(((forbidden - behind[0]) % n == 0).any())]
    for step in dict.fromkeys((exact[:1] or []) + steps[-1:]):
        yield _stride(plane, step, int(behind[0]) % step)


def subset_strides(plane: Plane) -> Iterator[Term]:
    """Strides without forbidden cells: those of phase 0 first, then the smallest steps."""
    forbidden, required = -plane.inverse.required_offsets, -plane.required_offsets
    without_phase: list[tuple[int, int]] = []
    with_phase: list[tuple[int, int]] = []
    for step in range(2, min(plane.offsets.size, MAX_STEP) + 1):
        excluded = np.zeros(step, np.bool_)
        excluded[forbidden % step] = True
        if excluded.all():
            continue
        useful = np.zeros(step, np.bool_)
        useful[required % step] = True
        phases = np.flatnonzero(useful & ~excluded)
        if phases.size and phases[0] == 0:
            without_phase.append((step, 0))
        with_phase.extend((step, int(phase)) for phase in phases[:2] if phase)
        if len(without_phase) >= MAX_STRIDES:
            break
    for step, phase in without_phase[:MAX_STRIDES] + with_phase[: MAX_STRIDES // 2]:
        yield _stride(plane, step, phase)


def _stride(plane: Plane, step: int, phase: int) -> Term:
    mask = Stride(step, phase)
    visible = np.equal(-plane.offsets % step, phase)
    return Term(mask, read_cells(cells_by_diagonal(plane, visible)), cost(mask))


# ── chunks ────────────────────────────────────────────────────────────────────────────────────


def superset_chunks(plane: Plane) -> Iterator[Term]:
    """Of the smallest chunk sizes that contain all required cells, the one with fewest cells."""
    if plane.q_len == 1 or not plane.queries_near_keys:
        return  # one row is one interval of keys, which a window describes
    joined = any_along(joined_positions(plane), 0)
    fits = (
        size
        for size in range(2, joined.size)
        if not joined[-min(plane.q_start, 0) % size :: size].any()
    )
    sizes = list(islice(fits, MAX_CHUNK_SIZES))
    if sizes:
        yield _chunks(plane, min(sizes, key=lambda size: _count_chunk_cells(plane, size)))


def _count_chunk_cells(plane: Plane, size: int) -> int:
    low = plane.queries // size * size
    return int((np.minimum(low + size, plane.kv_len) - np.maximum(low, 0)).clip(0).sum())


def subset_chunks(plane: Plane) -> Iterator[Term]:
    """The largest chunk size without forbidden cells."""
    if plane.q_len == 1 or not plane.queries_near_keys:
        return
    left, right = plane.inverse.nearest_keys
    queries = plane.queries
    max_size = int((right - left - 1).min(initial=plane.num_tokens))
    for size in range(min(max_size, plane.num_tokens), 1, -1):
        low = queries // size * size
        if not bool(((left >= low) | (right < low + size)).any()):
            yield _chunks(plane, size)
            return


def _chunks(plane: Plane, size: int) -> Term:
    mask = Chunks(size)
    read = read_equal_labels(plane.queries[None] // size, np.arange(plane.kv_len)[None] // size)
    return Term(mask, read, cost(mask))


def joined_positions(plane: Plane) -> BoolArray:
    """Whether some row contains a position together with the one before it, (batch, positions).

    Positions count from 0, or from the first query if that is before all keys.
    """
    low, high, nonempty = plane.token_range
    first = min(plane.q_start, 0)
    change = np.zeros((plane.batch, plane.num_tokens - first + 1), np.int64)
    batch = np.nonzero(nonempty)[0]
    np.add.at(change, (batch, low[nonempty] - first + 1), 1)
    np.add.at(change, (batch, high[nonempty] - first + 1), -1)
    return np.cumsum(change, axis=1)[:, :-1] > 0


# ── keys and queries ──────────────────────────────────────────────────────────────────────────


def superset_keys(plane: Plane) -> Iterator[Term]:
    """Keys with required cells, and the intervals from the first or to the last of them."""
    for part in per_batch(plane):
        for chosen in _supersets(part.keys_used, ~part.inverse.keys_used):
            yield _keys_term(plane, chosen, cost)


def subset_keys(plane: Plane) -> Iterator[Term]:
    """Keys without forbidden cells."""
    for part in per_batch(plane):
        for chosen in _subsets(part.keys_used, ~part.inverse.keys_used):
            yield _keys_term(plane, chosen, _text_length)


def subset_first_keys(plane: Plane) -> Iterator[Term]:
    """The keys before the first one with forbidden cells."""
    for part in per_batch(plane)[-1:]:
        initial = np.logical_and.accumulate(~part.inverse.keys_used, axis=1)
        if initial.any():
            yield _keys_term(plane, initial, _text_length)


def superset_queries(plane: Plane) -> Iterator[Term]:
    """Queries with required cells, and the intervals from the first or to the last of them."""
    if plane.has_tokens:
        for part in per_batch(plane):
            for chosen in _supersets(part.queries_used, ~part.inverse.queries_used):
                yield _queries_term(plane, chosen)


def subset_queries(plane: Plane) -> Iterator[Term]:
    """Queries without forbidden cells."""
    if plane.has_tokens:
        for part in per_batch(plane):
            for chosen in _subsets(part.queries_used, ~part.inverse.queries_used):
                yield _queries_term(plane, chosen)


def per_batch(plane: Plane) -> list[Plane]:
    """The plane with its batch rows merged, and with separate ones if there are several."""
    return [plane] if plane.batch == 1 else [plane.merged, plane]


def _supersets(required: BoolArray, allowed: BoolArray) -> list[BoolArray]:
    """Supersets of the required columns: the smallest, the largest useful one, and intervals."""
    from_first = np.logical_or.accumulate(required, axis=1)
    to_last = np.logical_or.accumulate(required[:, ::-1], axis=1)[:, ::-1]
    return _distinct([required, required | allowed, to_last, from_first])


def _subsets(required: BoolArray, allowed: BoolArray) -> list[BoolArray]:
    """Subsets of the allowed columns: the smallest useful one, the largest, and intervals."""
    initial = np.logical_and.accumulate(allowed, axis=1)
    final = np.logical_and.accumulate(allowed[:, ::-1], axis=1)[:, ::-1]
    return _distinct([required & allowed, allowed, initial, final])


def _distinct(sets: list[BoolArray]) -> list[BoolArray]:
    kept: list[BoolArray] = []
    for chosen in sets:
        if chosen.any() and not any(np.array_equal(chosen, other) for other in kept):
            kept.append(chosen)
    return kept


def _keys_term(plane: Plane, chosen: BoolArray, measure: Callable[[Mask], float]) -> Term:
    """The cheapest mask for a set of keys, (batch or 1, keys)."""
    masks = [*_index_masks(Keys, chosen, 0), Padding(None, FrozenArray(chosen))]
    if (lengths := prefix_lengths(chosen)) is not None:
        masks += [Padding(FrozenArray(lengths), None), Prefix(FrozenArray(lengths))]
    if (masked_lengths := prefix_lengths(~chosen)) is not None:
        masks.append(Not(Prefix(FrozenArray(masked_lengths))))
    mask = min(masks, key=measure)
    cells = np.broadcast_to(chosen[:, None], (chosen.shape[0], plane.q_len, plane.kv_len))
    return Term(mask, read_cells(cells), measure(mask))


def _queries_term(plane: Plane, chosen: BoolArray) -> Term:
    """The shortest mask for a set of queries, (batch or 1, queries)."""
    before = np.zeros((chosen.shape[0], plane.q_start), np.bool_)
    masks = _index_masks(Queries, np.concatenate([before, chosen], axis=1), plane.q_start)
    if (lengths := prefix_lengths(chosen)) is not None:
        masks.append(Transpose(Padding(FrozenArray(lengths + plane.q_start), None)))
    mask = min(masks, key=_text_length)
    cells = np.broadcast_to(chosen[:, :, None], (chosen.shape[0], plane.q_len, plane.kv_len))
    return Term(mask, read_cells(cells), _text_length(mask))


def _text_length(mask: Mask) -> float:
    return float(len(repr(mask)))


def _index_masks(atom: type[Keys] | type[Queries], chosen: BoolArray, first: int) -> list[Mask]:
    """A set of positions as indices, as the complement of indices, and as bools."""
    if chosen.shape[0] > 1:
        return [atom(IndexSet.of_flags(chosen))]
    inside, outside = np.flatnonzero(chosen[0]), np.flatnonzero(~chosen[0])
    return [
        atom(IndexSet.of_positions(inside)),
        Not(atom(IndexSet.of_positions(outside[outside >= first]))),
        atom(IndexSet.of_flags(chosen)),
    ]
