"""What a mask asks of each stretch of its rows: how many cells, and which keys.

What may enter here: sums and unions over rows, read some rows at a time. Nothing here knows ranks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.array import Blocks
from maskwright.core.bound import BoundMask
from maskwright.core.frame import Frame
from maskwright.core.spans import Spans
from maskwright.parallel import distances

if TYPE_CHECKING:
    from maskwright.core.validate import IntArray

FEW: Final = 4  # intervals a row has at most where reading all rows is quick


def row_work(bound: BoundMask) -> IntArray:
    """How many cells each row may see, over all batch rows and heads.

    >>> import maskwright as mw
    >>> row_work(mw.causal().on(4, batch=2)).tolist()
    [2, 4, 6, 8]
    """
    return bound.cached("row work", lambda: _row_work(bound))


def _row_work(bound: BoundMask) -> IntArray:
    frame, (batch, heads) = bound.frame, bound.shape[:2]
    shared = (frame.batch if batch == 1 else 1) * (frame.heads if heads == 1 else 1)
    return shared * _row_cells(bound)


def seen_keys(bound: BoundMask, cuts: IntArray) -> Spans:
    """The keys that the rows of each stretch `cuts[i]` … `cuts[i + 1] - 1` see between them.

    >>> import maskwright as mw
    >>> import numpy as np
    >>> seen_keys(mw.window(back=1).on(6), np.array([0, 3, 6])).row(1)
    [(2, 6)]
    """
    if _has_many(bound) and distances.goes_by_distance(bound):
        return distances.keys_of_stretches(bound, cuts)
    lines, height = _distinct(bound)
    low, high = cuts[:-1] // height, -(-cuts[1:] // height)
    stretch = np.repeat(np.arange(low.size), high - low)
    line = np.arange(stretch.size) - np.repeat(np.cumsum(high - low) - high, high - low)
    owners, starts, stops = ([np.zeros(0, np.int64)] for _ in range(3))
    row = 0
    for spans in lines._blocks():
        rows = spans.shape[2]
        part = slice(*np.searchsorted(line, (row, row + rows)))
        whose, held = stretch[part], _lines(spans, line[part] - row)
        offsets, first, last = held.flat
        number = np.repeat(np.arange(offsets.size - 1), np.diff(offsets)) % max(whose.size, 1)
        low_owner = int(whose[0]) if whose.size else 0
        count = int(whose[-1]) - low_owner + 1 if whose.size else 0
        joined = _union(count, spans.kv_len, whose[number] - low_owner, first, last)
        owners.append(np.repeat(np.arange(count) + low_owner, np.diff(joined.offsets)))
        starts.append(joined.starts)
        stops.append(joined.stops)
        row += rows
    flat = (np.concatenate(lists) for lists in (owners, starts, stops))
    return Spans.from_pieces((1, 1, cuts.size - 1), bound.frame.kv_len, *flat)


def _row_cells(bound: BoundMask) -> IntArray:
    """How many cells each row has, over the planes that differ."""
    if _has_many(bound) and distances.goes_by_distance(bound):
        return distances.row_cells(bound)
    lines, height = _distinct(bound)
    parts = [_cells(spans) for spans in lines._blocks()]
    cells = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return cells if height == 1 else np.repeat(cells, height)[: bound.frame.q_len]


def _has_many(bound: BoundMask) -> bool:
    return bound.mask._width(bound.frame.kv_len) > FEW


def _distinct(bound: BoundMask) -> tuple[BoundMask, int]:
    """A mask with one row for every `height` rows that are alike, and that height."""
    mask, frame = bound.mask, bound.frame
    if not isinstance(mask, Blocks) or mask.q_size == 1 or bound.has_cached("spans"):
        return bound, 1
    lines = math.ceil(frame.q_len / mask.q_size)
    flat = Blocks(mask.map, 1, mask.kv_size)
    return BoundMask(flat, Frame(lines, frame.kv_len, frame.batch, frame.heads)), mask.q_size


def _lines(spans: Spans, line: IntArray) -> Spans:
    """These lines of the spans, of which one may be asked for more than once."""
    b, h, rows = spans.shape
    if line.size == rows:
        return spans
    return spans.take(np.arange(b * h * rows).reshape(b, h, rows)[:, :, line])


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
