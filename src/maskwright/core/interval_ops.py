"""Interval arithmetic on plain arrays: the two layouts of spans, and sweeps over intervals.

The intervals of all rows are placed on one line, on which row r begins at r * (kv_len + 1). The gap
of one keeps rows apart, so that one sweep processes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.validate import BoolArray, IntArray


class Band(NamedTuple):
    """One interval per row: keys low … high - 1, none where the two are equal."""

    low: IntArray
    high: IntArray


class CSR(NamedTuple):
    """Any number of intervals per row: row r has the entries offsets[r] … offsets[r + 1] - 1."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray


def sweep(
    starts: IntArray, stops: IntArray, wanted: Callable[[IntArray], BoolArray]
) -> tuple[IntArray, IntArray]:
    """The parts of a line for whose number of covering intervals `wanted` is True."""
    # The lowest bit distinguishes starts from stops, so that one sort orders both.
    events = np.sort(np.concatenate([starts * 2, stops * 2 + 1]))
    level = np.cumsum(1 - 2 * (events & 1))
    place = events >> 1
    last = np.append(place[1:] != place[:-1], True)[: place.size]
    on = wanted(level[last]) & (level[last] > 0)
    edges = place[last][np.diff(on, prepend=False)]
    return edges[0::2], edges[1::2]


def covered(level: IntArray) -> BoolArray:
    """For `sweep`: covered by at least one interval."""
    return level > 0


def join_bands(bands: list[Band]) -> Band | None:
    """The union as one interval per row; None if a row of it has two."""
    low, high = bands[0]
    for band in bands[1:]:
        apart = (band.low > high) | (low > band.high)
        mine, theirs = high > low, band.high > band.low
        if bool((apart & mine & theirs).any()):
            return None
        only = mine & ~theirs
        low, high = (
            np.where(only, low, np.where(mine, np.minimum(low, band.low), band.low)),
            np.where(only, high, np.where(mine, np.maximum(high, band.high), band.high)),
        )
    return Band(low, high)


def column_major_cells(flat: CSR, planes: int, rows: int, first: int, stop: int) -> IntArray:
    """The cells in column-major order: sorted (plane, key, row), as one number each."""
    offsets, starts, stops = flat
    length = stops - starts
    before = np.cumsum(length) - length
    row = np.repeat(np.repeat(np.arange(planes * rows), np.diff(offsets)), length)
    key = np.repeat(starts - first - before, length) + np.arange(int(length.sum()))
    return np.sort((row // rows * (stop - first) + key) * rows + row % rows)


Intervals = list[tuple[int, int]]


def intersect_rows(row: Intervals, other: Intervals) -> Intervals:
    """The intersection of two sorted lists of disjoint intervals, in plain Python.

    >>> intersect_rows([(0, 4), (6, 9)], [(2, 7)])
    [(2, 4), (6, 7)]
    """
    cut = ((max(a, c), min(b, d)) for a, b in row for c, d in other)
    return [(start, stop) for start, stop in cut if start < stop]


def unite_rows(row: Intervals, other: Intervals) -> Intervals:
    """The union of two sorted lists of disjoint intervals; touching ones become one.

    >>> unite_rows([(0, 4), (8, 9)], [(4, 6)])
    [(0, 6), (8, 9)]
    """
    result: Intervals = []
    for start, stop in sorted(row + other):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], stop))
        else:
            result.append((start, stop))
    return result


def complement_row(row: Intervals, first: int, stop: int) -> Intervals:
    """The gaps of a sorted list of disjoint intervals among `first` … `stop - 1`.

    >>> complement_row([(2, 4)], 0, 5)
    [(0, 2), (4, 5)]
    """
    edges = [first, *(edge for interval in row for edge in interval), stop]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in gaps if start < end]
