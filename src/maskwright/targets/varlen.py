"""Segments: a mask as consecutive blocks of queries, each with a block of keys of its own.

This is the format of variable-length kernels (cu_seqlens). The tokens of all sequences are
concatenated. Within a segment the last query is aligned with the last key, and one window
(back, ahead) applies to all segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maskwright.targets.base import Unrepresentable
from maskwright.targets.predicates import (
    max_intervals_sampled,
    single_intervals,
    spans_shared_by_heads,
)

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray


class Segments(NamedTuple):
    """The number of queries and keys of each segment, and the window; None is unlimited."""

    queries: IntArray
    keys: IntArray
    back: int | None
    ahead: int | None


class RowGroups(NamedTuple):
    """The interval of each row, of all sequences; groups of rows whose intervals overlap.

    A group has a first and a last row, and the keys begin … end - 1.
    """

    low: IntArray
    high: IntArray
    first: IntArray
    last: IntArray
    begin: IntArray
    end: IntArray
    num_keys: int


def find_segments(bound: BoundMask) -> Segments:
    """Returns the mask as segments.

    Rows whose keys overlap must share a segment, and other rows need not, so the segments are
    determined. The last query of a segment attends to its last key and is aligned with it, so all
    positions are determined, and the window is what bounds the rows that the segment does not.

    Raises:
        Unrepresentable: If the mask is not of this form.
    """
    low, high, at, last, begin, _, keys = row_groups(bound)
    end = high[last]
    if bool((begin[1:] < end[:-1]).any()):
        raise Unrepresentable("two separate blocks of queries attend to the same keys")
    row, rows = np.flatnonzero(high > low), low.size
    mine = np.searchsorted(at, row, side="right") - 1
    place = end[mine] - 1 - (last[mine] - row)
    low, high = low[row], high[row]
    if bool((high > end[mine]).any()):
        raise Unrepresentable("a query attends to keys after those of its segment's last query")
    ahead = _window_side(high - 1 - place, high < end[mine], end[mine] - 1 - place)
    back = _window_side(place - low, low > begin[mine], place - begin[mine])
    return Segments(*_with_gaps(at, last, begin, end, (rows, keys)), back, ahead)


def row_groups(bound: BoundMask) -> RowGroups:
    """Returns the interval of each row, and the groups of rows whose intervals overlap.

    Raises:
        Unrepresentable: If a row has several intervals, or heads differ.
    """
    low, high = _row_bounds(bound)
    visible = high > low
    first = visible.copy()  # whether a group starts at this row
    first[1:] &= ~(visible[:-1] & (low[1:] < high[:-1]) & (low[:-1] < high[1:]))
    at = np.flatnonzero(first)
    keys = bound.frame.kv_len * bound.frame.batch
    if not at.size:
        return RowGroups(low, high, at, at, at, at, keys)
    # Fully masked rows lie between groups and belong to none.
    last = np.maximum.reduceat(np.where(visible, np.arange(visible.size), -1), at)
    begin = np.minimum.reduceat(np.where(visible, low, keys), at)
    end = np.maximum.reduceat(np.where(visible, high, 0), at)
    return RowGroups(low, high, at, last, begin, end, keys)


def _row_bounds(bound: BoundMask) -> tuple[IntArray, IntArray]:
    """The start and stop of each row's interval, with the sequences concatenated."""
    split = Unrepresentable("a row has masked keys between visible ones")
    if max_intervals_sampled(bound) > 1:
        raise split
    spans, frame = spans_shared_by_heads(bound), bound.frame
    ends = single_intervals(spans)
    if ends is None:
        raise split
    plane_shape, shape = (spans.shape[0], frame.q_len), (frame.batch, frame.q_len)
    base = np.arange(frame.batch)[:, None] * frame.kv_len
    low, high = (np.broadcast_to(end.reshape(plane_shape), shape) + base for end in ends)
    return low.ravel(), high.ravel()


def _window_side(distance: IntArray, bounded: BoolArray, available: IntArray) -> int | None:
    """The reach of the window on one side, None if no row is bounded by it.

    All bounded rows must have the same reach, and the others must have no keys beyond it.
    """
    if not bool(bounded.any()):
        return None
    reach = int(distance[bounded].max())
    if (
        reach < 0
        or bool((distance[bounded] != reach).any())
        or bool((available[~bounded] > reach).any())
    ):
        raise Unrepresentable("no single window applies to all queries")
    return reach


def _with_gaps(
    at: IntArray, last: IntArray, begin: IntArray, end: IntArray, totals: tuple[int, int]
) -> tuple[IntArray, IntArray]:
    """The sizes of all segments, with those between them that have only queries or only keys."""
    rows_before = at - np.append(0, last + 1)[: at.size]
    keys_before = begin - np.append(0, end)[: at.size]
    q_sizes = np.stack([rows_before, at * 0, last + 1 - at], axis=1).ravel()
    k_sizes = np.stack([at * 0, keys_before, end - begin], axis=1).ravel()
    q_sizes = np.append(q_sizes, [totals[0] - (int(last[-1]) + 1 if at.size else 0), 0])
    k_sizes = np.append(k_sizes, [0, totals[1] - (int(end[-1]) if at.size else 0)])
    nonempty = (q_sizes > 0) | (k_sizes > 0)
    return q_sizes[nonempty], k_sizes[nonempty]
