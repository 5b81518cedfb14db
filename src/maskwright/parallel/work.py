"""What a mask asks of each stretch of its rows: how many cells, and which keys.

What may enter here: sums and unions over rows, read some rows at a time. Nothing here knows ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.spans import Spans

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray
    from maskwright.core.bound import BoundMask


def row_work(bound: BoundMask) -> IntArray:
    """How many cells each row may see, over all batch rows and heads.

    >>> import maskwright as mw
    >>> row_work(mw.causal().on(4, batch=2)).tolist()
    [2, 4, 6, 8]
    """
    frame, (batch, heads) = bound.frame, bound.shape[:2]
    shared = (frame.batch if batch == 1 else 1) * (frame.heads if heads == 1 else 1)
    parts = [_cells(spans) for spans in bound._read()]
    return shared * np.concatenate(parts) if parts else np.zeros(0, np.int64)


def seen_keys(bound: BoundMask, cuts: IntArray) -> Spans:
    """The keys that the rows of each stretch `cuts[i]` … `cuts[i + 1] - 1` see between them.

    >>> import maskwright as mw
    >>> import numpy as np
    >>> seen_keys(mw.window(back=1).on(6), np.array([0, 3, 6])).row(1)
    [(2, 6)]
    """
    stretch = np.repeat(np.arange(cuts.size - 1), np.diff(cuts))  # of each row
    owners, starts, stops, row = [], [], [], 0
    for spans in bound._read():
        rows = spans.shape[2]
        offsets, first, last = spans.flat
        number = np.repeat(np.arange(offsets.size - 1), np.diff(offsets)) % max(rows, 1)
        part = stretch[row : row + rows]
        low = int(part[0]) if rows else 0
        shape = (1, 1, int(part[-1]) - low + 1 if rows else 0)
        joined = _union(shape[2], spans.kv_len, part[number] - low, first, last)
        owners.append(np.repeat(np.arange(shape[2]) + low, np.diff(joined.offsets)))
        starts.append(joined.starts)
        stops.append(joined.stops)
        row += rows
    flat = (np.concatenate(lists or [np.zeros(0, np.int64)]) for lists in (owners, starts, stops))
    return Spans.from_pieces((1, 1, cuts.size - 1), bound.frame.kv_len, *flat)


def _cells(spans: Spans) -> IntArray:
    """How many cells each row of these spans has, over their planes."""
    band = spans.band
    if band is not None:
        return np.asarray((band.high - band.low).sum((0, 1)), np.int64)
    offsets, starts, stops = spans.flat
    before = np.concatenate(([0], np.cumsum(stops - starts)))
    each = before[offsets[1:]] - before[offsets[:-1]]
    return np.asarray(each.reshape(spans.shape).sum((0, 1)), np.int64)


def _union(count: int, kv_len: int, owner: IntArray, starts: IntArray, stops: IntArray) -> Spans:
    """The intervals of `count` owners, joined. Sorting is avoided where they overlap a lot."""
    shape = (1, 1, count)
    low, high = np.full(count, kv_len), np.zeros(count, np.int64)
    np.minimum.at(low, owner, starts)
    np.maximum.at(high, owner, stops)
    extent = np.maximum(high - low, 0) + 1  # with a gap, which keeps owners apart
    base = np.cumsum(extent) - extent - low
    size = int(extent.sum())
    if size > 4 * starts.size:
        return Spans.from_pieces(shape, kv_len, owner, starts, stops)
    level = np.bincount(base[owner] + starts, minlength=size)
    level -= np.bincount(base[owner] + stops, minlength=size)
    seen = np.cumsum(level) > 0
    change = np.flatnonzero(np.diff(seen, prepend=False))
    begin, end = change[0::2], change[1::2]
    whose = np.repeat(np.arange(count), extent)[begin]
    line = kv_len + 1
    return Spans.from_line(
        shape, kv_len, begin - base[whose] + whose * line, end - base[whose] + whose * line
    )
