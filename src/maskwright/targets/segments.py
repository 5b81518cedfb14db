"""Segments: a mask as stretches of queries that each look at a stretch of keys of their own.

This is how variable-length kernels see the world. Batch rows lie one after the other; stretches
of keys follow each other without a gap; within a segment the last query sits at the last key, and
one window (back, ahead) holds for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maskwright.targets.facts import intervals_of_some_rows, of_all_heads
from maskwright.targets.target import CannotSay

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray


class Segments(NamedTuple):
    """How many queries and keys each segment has, in order, and the window; None is no limit."""

    queries: IntArray
    keys: IntArray
    back: int | None
    ahead: int | None


def segments(bound: BoundMask) -> Segments:
    """The mask as segments, or CannotSay.

    Rows whose keys overlap must share a segment, and others need not: so the segments are known.
    A segment's last query sees its last key and sits there: so all positions are known, and the
    window is what cuts the rows that the segment's own ends do not.
    """
    low, high = _rows(bound)
    seen = high > low
    first = seen.copy()  # does a segment begin at this row?
    first[1:] &= ~(seen[:-1] & (low[1:] < high[:-1]) & (low[:-1] < high[1:]))
    at = np.flatnonzero(first)
    number = np.cumsum(first) - 1  # of the segment of each row that sees something
    # Rows that see nothing stand between segments, and are no part of them.
    place = np.where(seen, np.arange(seen.size), -1)
    last = np.maximum.reduceat(place, at) if at.size else at
    begin = np.minimum.reduceat(np.where(seen, low, np.iinfo(np.int64).max), at) if at.size else at
    end = high[last]
    if bool((begin[1:] < end[:-1]).any()):
        raise CannotSay("two stretches of queries look at the same keys")
    row = np.flatnonzero(seen)
    mine = number[row]
    place = end[mine] - 1 - (last[mine] - row)
    low, high = low[row], high[row]
    if bool((high > end[mine]).any()):
        raise CannotSay("a query sees further than the last one of its segment")
    ahead = _reach(high - 1 - place, high < end[mine], end[mine] - 1 - place)
    back = _reach(place - low, low > begin[mine], place - begin[mine])
    sizes = bound.frame.kv_len * bound.frame.batch
    return Segments(*_with_gaps(at, last, begin, end, seen.size, sizes), back, ahead)


def _rows(bound: BoundMask) -> tuple[IntArray, IntArray]:
    """Every row's one interval, with the batch rows one after the other."""
    torn = CannotSay("a query sees keys on both sides of hidden ones")
    if intervals_of_some_rows(bound) > 1:
        raise torn
    spans, frame = of_all_heads(bound), bound.frame
    counts = np.diff(spans.offsets)
    if bool((counts > 1).any()):
        raise torn
    low, high = np.zeros((2, counts.size), np.int64)
    low[counts == 1], high[counts == 1] = spans.starts, spans.stops
    held, shape = (spans.shape[0], frame.q_len), (frame.batch, frame.q_len)
    base = np.arange(frame.batch)[:, None] * frame.kv_len
    low, high = (np.broadcast_to(end.reshape(held), shape) + base for end in (low, high))
    return low.ravel(), high.ravel()


def _reach(distance: IntArray, cut: BoolArray, room: IntArray) -> int | None:
    """How far a window reaches: what cuts some rows must let the others see all they see."""
    if not bool(cut.any()):
        return None
    reach = int(distance[cut].max())
    if reach < 0 or bool((distance[cut] != reach).any()) or bool((room[~cut] > reach).any()):
        raise CannotSay("no one window holds for all queries")
    return reach


def _with_gaps(
    at: IntArray, last: IntArray, begin: IntArray, end: IntArray, queries: int, keys: int
) -> tuple[IntArray, IntArray]:
    """Sizes of all segments, with those between that have queries or keys only."""
    rows_before = at - np.append(0, last + 1)[: at.size]
    keys_before = begin - np.append(0, end)[: at.size]
    q_sizes = np.stack([rows_before, at * 0, last + 1 - at], axis=1).ravel()
    k_sizes = np.stack([at * 0, keys_before, end - begin], axis=1).ravel()
    q_sizes = np.append(q_sizes, [queries - (int(last[-1]) + 1 if at.size else 0), 0])
    k_sizes = np.append(k_sizes, [0, keys - (int(end[-1]) if at.size else 0)])
    real = (q_sizes > 0) | (k_sizes > 0)
    return q_sizes[real], k_sizes[real]
