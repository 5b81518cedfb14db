"""Masks in which only the distance between query and key counts: one row of them tells all.

What may enter here: what such masks ask of rows, without reading row after row. They matter where
a row has many intervals, as under a stride.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.position import Everything, Nothing, Stride, Window
from maskwright.core.expr import And, Not, Or, walk
from maskwright.core.spans import Spans

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray

KINDS: Final = (Everything, Nothing, Window, Stride, And, Or, Not)


def goes_by_distance(bound: BoundMask) -> bool:
    """Is it such a mask, on as many queries as keys?

    >>> import maskwright as mw
    >>> goes_by_distance((mw.causal() & mw.stride(2)).on(8)), goes_by_distance(mw.chunks(4).on(8))
    (True, False)
    """
    frame = bound.frame
    square = frame.q_len == frame.kv_len and not frame.q_start
    return square and all(isinstance(part, KINDS) for part in walk(bound.mask))


def row_cells(bound: BoundMask) -> IntArray:
    """How many keys each row sees.

    >>> import maskwright as mw
    >>> row_cells((mw.causal() & mw.stride(2)).on(5)).tolist()
    [1, 1, 2, 2, 3]
    """
    tokens = bound.frame.kv_len
    first, stop = _ahead(bound)
    before = np.concatenate(([0], np.cumsum(stop - first)))

    def nearer(distance: IntArray) -> IntArray:
        """How many of the keys seen lie less far ahead."""
        at = np.searchsorted(first, distance, "right") - 1
        inside = np.minimum(distance - first[at], stop[at] - first[at])
        return np.where(at < 0, 0, before[at] + inside)

    if not first.size:
        return np.zeros(tokens, np.int64)
    row = np.arange(tokens)
    return nearer(tokens - row) - nearer(-row)


def keys_of_stretches(bound: BoundMask, cuts: IntArray) -> Spans:
    """The keys that the rows of each stretch see between them.

    >>> import maskwright as mw
    >>> import numpy as np
    >>> keys_of_stretches((mw.causal() & mw.stride(3)).on(6), np.array([0, 5, 6])).row(1)
    [(2, 3), (5, 6)]
    """
    tokens = bound.frame.kv_len
    first, stop = _ahead(bound)
    counts, starts, stops = [0], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for low, high in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        # The stretch's rows see each interval as long as they are, and their number more.
        begin, end = np.maximum(first + low, 0), np.minimum(stop + high - 1, tokens)
        real = begin < end
        begin, end = begin[real], end[real]
        apart = begin[1:] > end[:-1]
        starts.append(begin[np.append(begin.size > 0, apart)[: begin.size]])
        stops.append(end[np.append(apart, end.size > 0)[: end.size]])
        counts.append(starts[-1].size)
    line = np.repeat(np.arange(cuts.size - 1), counts[1:]) * (tokens + 1)
    shape = (1, 1, cuts.size - 1)
    return Spans.from_line(
        shape, tokens, line + np.concatenate(starts), line + np.concatenate(stops)
    )


def _ahead(bound: BoundMask) -> tuple[IntArray, IntArray]:
    """The intervals that a row sees, as distances from its own place."""
    tokens = bound.frame.kv_len
    if not tokens:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    spans = bound.mask.on(1, 2 * tokens - 1, q_start=tokens - 1).spans
    return spans.starts - (tokens - 1), spans.stops - (tokens - 1)
