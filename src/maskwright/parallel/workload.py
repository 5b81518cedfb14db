"""The work of the rows of a mask: the cells that each row computes, and the keys that rows require.

Rows are read block by block, or once for all rows where possible. Nothing here knows ranks.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.array import Blocks
from maskwright.core.atoms.position import Everything, Nothing, Stride, Window
from maskwright.core.bound import BoundMask
from maskwright.core.expr import walk
from maskwright.core.frame import Frame
from maskwright.core.operators import And, Not, Or
from maskwright.core.spans import Spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.validate import IntArray

    Pieces = tuple[IntArray, IntArray, IntArray]  # stretches, starts and stops of intervals

TOEPLITZ: Final = (Everything, Nothing, Window, Stride, And, Or, Not)  # they depend on k - q only
MIN_INTERVALS: Final = 4  # per row, from which on reading one row for all is faster


def row_cost(bound: BoundMask) -> IntArray:
    """The number of visible cells of each row, over the batch and all heads.

    >>> import maskwright as mw
    >>> row_cost(mw.causal().on(4, batch=2)).tolist()
    [2, 4, 6, 8]
    """
    return bound.cached("row cost", lambda: _row_cost(bound))


def required_keys(bound: BoundMask, cuts: IntArray) -> Spans:
    """The keys that the rows of each stretch `cuts[i]` … `cuts[i + 1] - 1` attend to.

    >>> import maskwright as mw
    >>> import numpy as np
    >>> required_keys(mw.window(back=1).on(6), np.array([0, 3, 6])).row(1)
    [(2, 6)]
    """
    none = np.zeros(0, np.int64)
    read = _toeplitz_keys if _is_toeplitz(bound) else _keys_by_blocks
    pieces = zip((none, none, none), *read(bound, cuts), strict=True)
    shape = (1, 1, cuts.size - 1)
    return Spans.from_pieces(shape, bound.frame.kv_len, *(np.concatenate(x) for x in pieces))


def _keys_by_blocks(bound: BoundMask, cuts: IntArray) -> Iterator[Pieces]:
    """The intervals of the stretches, some rows at a time."""
    lines, height = _distinct_rows(bound)
    row = 0
    for spans in lines._blocks():
        rows = np.arange(row, row + spans.shape[2])
        row += rows.size
        # A line of `height` equal rows may belong to several stretches.
        first, last = (
            np.searchsorted(cuts, end, "right") - 1
            for end in (rows * height, np.minimum((rows + 1) * height, bound.frame.q_len) - 1)
        )
        offsets, starts, stops = spans.flat
        line = np.repeat(np.arange(offsets.size - 1), np.diff(offsets)) % rows.size
        copies = (last - first + 1)[line]
        owner = ranges(first[line], last[line] + 1)
        shape = (1, 1, cuts.size - 1)
        merged = Spans.from_pieces(
            shape, spans.kv_len, owner, np.repeat(starts, copies), np.repeat(stops, copies)
        )
        yield np.repeat(np.arange(shape[2]), np.diff(merged.offsets)), merged.starts, merged.stops


def _toeplitz_keys(bound: BoundMask, cuts: IntArray) -> Iterator[Pieces]:
    """The intervals of the stretches, one stretch at a time, from one row."""
    first, stop = _offsets(bound)
    for stretch, (low, high) in enumerate(itertools.pairwise(cuts.tolist())):
        starts = np.maximum(first + low, 0)
        stops = np.minimum(stop + high - 1, bound.frame.kv_len)
        merged = Spans.from_pieces(
            (1, 1, 1), bound.frame.kv_len, np.zeros_like(starts), starts, stops
        )
        yield np.full(merged.starts.size, stretch), merged.starts, merged.stops


def count_before(starts: IntArray, stops: IntArray, position: IntArray) -> IntArray:
    """The number of integers in the sorted, disjoint intervals that are less than each position.

    >>> import numpy as np
    >>> count_before(np.array([2, 6]), np.array([4, 9]), np.array([0, 3, 6, 99])).tolist()
    [0, 1, 2, 5]
    """
    if not starts.size:
        return np.zeros_like(position)
    at = np.searchsorted(starts, position, "right") - 1
    inside = np.minimum(position, stops[at]) - starts[at]
    return np.where(at < 0, 0, np.concatenate(([0], np.cumsum(stops - starts)))[at] + inside)


def ranges(starts: IntArray, stops: IntArray) -> IntArray:
    """The integers of all intervals, one interval after the other.

    >>> import numpy as np
    >>> ranges(np.array([5, 0]), np.array([7, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    size = stops - starts
    return np.repeat(starts - np.cumsum(size) + size, size) + np.arange(int(size.sum()))


def _row_cost(bound: BoundMask) -> IntArray:
    frame, (batch, heads) = bound.frame, bound.shape[:2]
    copies = (frame.batch if batch == 1 else 1) * (frame.heads if heads == 1 else 1)
    if _is_toeplitz(bound):
        first, stop = _offsets(bound)
        row = np.arange(frame.q_len)
        seen = count_before(first, stop, frame.kv_len - row) - count_before(first, stop, -row)
        return copies * seen
    lines, height = _distinct_rows(bound)
    cells = np.concatenate([np.zeros(0, np.int64), *(_cells(spans) for spans in lines._blocks())])
    return copies * np.repeat(cells, height)[: frame.q_len]


def _cells(spans: Spans) -> IntArray:
    """The number of cells of each row, over the planes."""
    if spans.band is not None:
        return np.asarray((spans.band.high - spans.band.low).sum((0, 1)), np.int64)
    offsets, starts, stops = spans.flat
    before = np.concatenate(([0], np.cumsum(stops - starts)))
    return np.asarray(np.diff(before[offsets]).reshape(spans.shape).sum((0, 1)), np.int64)


def _distinct_rows(bound: BoundMask) -> tuple[BoundMask, int]:
    """A mask with one row for every `height` equal rows, and that height."""
    mask, frame = bound.mask, bound.frame
    if not isinstance(mask, Blocks) or mask.q_size == 1 or bound.has_cached("spans"):
        return bound, 1
    lines = Frame(math.ceil(frame.q_len / mask.q_size), frame.kv_len, frame.batch, frame.heads)
    return BoundMask(Blocks(mask.map, 1, mask.kv_size), lines), mask.q_size


def _is_toeplitz(bound: BoundMask) -> bool:
    """Whether cells depend on k - q only, and rows have many intervals.

    Then one row, 2 * tokens - 1 keys wide, has the intervals of all rows.
    """
    frame = bound.frame
    return (
        0 < frame.q_len == frame.kv_len
        and not frame.q_start
        and bound.mask._width(frame.kv_len) > MIN_INTERVALS
        and all(isinstance(part, TOEPLITZ) for part in walk(bound.mask))
    )


def _offsets(bound: BoundMask) -> tuple[IntArray, IntArray]:
    """The intervals of k - q that are visible."""
    tokens = bound.frame.kv_len
    spans = bound.mask.on(1, 2 * tokens - 1, q_start=tokens - 1).spans
    return spans.starts - (tokens - 1), spans.stops - (tokens - 1)
