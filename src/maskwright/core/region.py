"""A region: some rows and some keys of a frame, the part of it that is being read.

Masks are read a region at a time, so that memory is bounded however many intervals a row has, and
so that an intersection need not look where its cheapest term already sees nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.line import Flat
from maskwright.core.spans import Spans

if TYPE_CHECKING:
    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.core.frame import Frame

MOST_CELLS: Final = 2**22  # so many cells are held as truth values at a time, whatever the frame


class Region(NamedTuple):
    """Rows `row` … `row_stop - 1` and keys `key` … `key_stop - 1` of a frame, counted from 0."""

    frame: Frame
    row: int
    row_stop: int
    key: int
    key_stop: int

    @property
    def rows(self) -> int:
        """How many rows the region has."""
        return self.row_stop - self.row

    @property
    def queries(self) -> IntArray:
        """The position of every row's query."""
        start = self.frame.q_start
        return np.arange(start + self.row, start + self.row_stop)

    @property
    def keys(self) -> IntArray:
        """The position of every key."""
        return np.arange(self.first, self.last + 1)

    @property
    def first(self) -> int:
        """The first key's position."""
        return self.frame.k_start + self.key

    @property
    def last(self) -> int:
        """The last key's position; one less than `first` where there is no key."""
        return self.frame.k_start + self.key_stop - 1

    @property
    def transposed(self) -> Region:
        """The same cells with queries and keys changed over."""
        return Region(self.frame.transposed, self.key, self.key_stop, self.row, self.row_stop)

    def narrow(self, key: int, key_stop: int) -> Region:
        """The same rows, fewer keys."""
        return Region(self.frame, self.row, self.row_stop, key, key_stop)

    def everything(self) -> Spans:
        """Every row sees every key of the region."""
        return self.band(self.first, self.last + 1)

    def nothing(self) -> Spans:
        """No row sees a key."""
        return self.band(self.first, self.first)

    def band(self, low: IntArray | int, high: IntArray | int) -> Spans:
        """Each row sees the positions low … high - 1. Both broadcast to (batch, heads, rows)."""
        return Spans.from_band(self.columns(low), self.columns(high), self.frame.kv_len, self.rows)

    def pieces(
        self, rows: IntArray, low: IntArray, high: IntArray, batch: int = 1, heads: int = 1
    ) -> Spans:
        """Intervals of positions in any order; `rows` count through (batch, heads, rows)."""
        shape = (batch, heads, self.rows)
        begin, end = self.columns(low), self.columns(high)
        return Spans.from_pieces(shape, self.frame.kv_len, rows, begin, end)

    def ordered(self, counts: IntArray, low: IntArray, high: IntArray) -> Spans:
        """Intervals of positions, already row by row and apart; `counts` says how many a row has."""
        begin, end = self.columns(low), self.columns(high)
        real = begin < end
        after = np.concatenate(([0], np.cumsum(counts)))
        offsets = np.concatenate(([0], np.cumsum(real)))[after]
        flat = Flat(offsets, begin[real], end[real])
        return Spans((1, 1, counts.size), self.frame.kv_len, flat=flat)

    def cells(self, seen: BoolArray) -> Spans:
        """A bool array (batch, heads, rows, keys) of exactly this region."""
        kv_len, rows = self.frame.kv_len, seen.shape[2]
        step = max(1, MOST_CELLS * rows // max(1, seen.size))
        parts = [seen[:, :, row : row + step] for row in range(0, max(rows, 1), step)]
        return Spans.stack([Spans.from_cells(part, kv_len, self.key) for part in parts], axis=2)

    def columns(self, position: IntArray | int) -> IntArray:
        """Positions as key columns, those outside the region moved to its edge."""
        start = self.frame.k_start
        if isinstance(position, int):
            return np.full((1, 1, 1), min(max(position - start, self.key), self.key_stop))
        column = np.maximum(position - start if start else position, self.key)
        return np.minimum(column, self.key_stop, out=column)
