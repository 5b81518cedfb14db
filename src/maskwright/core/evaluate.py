"""Evaluation of masks: `View`, a rectangle of a frame, and `RowReader`, which evaluates row blocks.

A mask is evaluated in views. Memory is bounded however many intervals a row has, and an
intersection skips the keys that its cheapest term masks out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core import regions
from maskwright.core.expr import MAX_CHEAP_INTERVALS, MAX_VIEW_ROWS, Atom, brief, find
from maskwright.core.frame import MAX_BYTES
from maskwright.core.interval_ops import CSR
from maskwright.core.nodes import Row
from maskwright.core.spans import Spans, union
from maskwright.errors import ArgumentError, SizeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.core.validate import BoolArray, IntArray

MAX_CELLS: Final = 2**22  # boolean cells in memory at once
MAX_ROWS: Final = 2**14  # rows per block: their arrays fit into the CPU cache
MIN_ROWS: Final = 128  # smaller blocks are not worth splitting
MIN_KEYS: Final = 2**12  # keys per piece of a row
MAX_INTERVALS: Final = 2**19  # intervals per block
MAX_ROW_PLANES: Final = 16  # planes of one row up to which plain Python is faster than numpy
MAX_COUNTED: Final = 2**10  # planes that are counted one by one
INTERVALS_PER_REGION: Final = 2**13  # that are evaluated in the time of one formula, measured


class View(NamedTuple):
    """Rows `row` … `row_stop - 1` and key columns `key` … `key_stop - 1` of a frame.

    >>> import maskwright as mw
    >>> view = View(mw.causal().on(4).frame, 2, 4, 0, 3)
    >>> view.rows, view.queries.tolist(), view.keys.tolist(), view.first, view.last
    (2, [2, 3], [0, 1, 2], 0, 2)
    >>> mw.causal()._spans(view).row(1)
    [(0, 3)]
    """

    frame: Frame
    row: int
    row_stop: int
    key: int
    key_stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.row_stop - self.row

    @property
    def queries(self) -> IntArray:
        """Query position of each row."""
        start = self.frame.q_start
        return np.arange(start + self.row, start + self.row_stop)

    @property
    def keys(self) -> IntArray:
        """Position of each key."""
        return np.arange(self.first, self.last + 1)

    @property
    def first(self) -> int:
        """Position of the first key."""
        return self.frame.k_start + self.key

    @property
    def last(self) -> int:
        """Position of the last key; `first - 1` if the view has no keys."""
        return self.frame.k_start + self.key_stop - 1

    @property
    def transposed(self) -> View:
        """The view with queries and keys exchanged."""
        return View(self.frame.transposed, self.key, self.key_stop, self.row, self.row_stop)

    def narrow(self, key: int, key_stop: int) -> View:
        """The same rows with the key columns `key` … `key_stop - 1`."""
        return View(self.frame, self.row, self.row_stop, key, key_stop)

    def everything(self) -> Spans:
        """Spans in which every key of the view is visible."""
        return self.band(self.first, self.last + 1)

    def nothing(self) -> Spans:
        """Spans in which every key is masked."""
        return self.band(self.first, self.first)

    def band(self, low: IntArray | int, high: IntArray | int) -> Spans:
        """Spans of one interval per row, positions `low` … `high - 1`.

        Both broadcast to (batch, heads, rows).
        """
        rows = self.row_stop - self.row
        return Spans.from_band(self.columns(low), self.columns(high), self.frame.kv_len, rows)

    def pieces(
        self, rows: IntArray, low: IntArray, high: IntArray, batch: int = 1, heads: int = 1
    ) -> Spans:
        """Spans from intervals of positions in any order.

        `rows` holds the index of each interval's row in the flattened (batch, heads, rows).
        """
        shape = (batch, heads, self.rows)
        begin, end = self.columns(low), self.columns(high)
        return Spans.from_pieces(shape, self.frame.kv_len, rows, begin, end)

    def ordered(self, counts: IntArray, low: IntArray, high: IntArray) -> Spans:
        """Spans from sorted, disjoint intervals of positions; row r has `counts[r]` of them."""
        begin, end = self.columns(low), self.columns(high)
        nonempty = begin < end
        after = np.concatenate(([0], np.cumsum(counts)))
        offsets = np.concatenate(([0], np.cumsum(nonempty)))[after]
        flat = CSR(offsets, begin[nonempty], end[nonempty])
        return Spans((1, 1, counts.size), self.frame.kv_len, flat=flat)

    def cells(self, visible: BoolArray) -> Spans:
        """Spans from a boolean array (batch, heads, rows, keys) of this view."""
        kv_len, rows = self.frame.kv_len, visible.shape[2]
        step = max(1, MAX_CELLS * rows // max(1, visible.size))
        parts = [visible[:, :, row : row + step] for row in range(0, max(rows, 1), step)]
        return Spans.stack([Spans.from_cells(part, kv_len, self.key) for part in parts], axis=2)

    def columns(self, position: IntArray | int) -> IntArray:
        """Positions as key columns, clamped to the view."""
        start = self.frame.k_start
        if isinstance(position, int):
            return np.full((1, 1, 1), min(max(position - start, self.key), self.key_stop))
        column = np.maximum(position - start if start else position, self.key)
        return np.minimum(column, self.key_stop, out=column)


def row_intervals(
    mask: Mask, part: View, planes: tuple[int, int]
) -> tuple[list[int], list[int], list[int]] | None:
    """Offsets, starts and stops of the intervals of a part with one row, if the mask has them.

    >>> import maskwright as mw
    >>> row_intervals(mw.window(back=1), View(mw.causal().on(4).frame, 2, 3, 0, 4), (1, 1))
    ([0, 1], [1], [3])
    """
    frame, row, row_stop, _, key_stop = part
    batch, heads = planes
    if row_stop - row != 1 or frame.k_start or not 0 < batch * heads <= MAX_ROW_PLANES:
        return None
    query = frame.q_start + row
    if batch == heads == 1:
        intervals = mask._row(Row(query, 0, key_stop, 0, 0))
        if intervals is None:
            return None
        if len(intervals) == 1:  # as in most steps
            start, stop = intervals[0]
            return [0, 1], [start], [stop]
        return (
            [0, len(intervals)],
            [start for start, _ in intervals],
            [stop for _, stop in intervals],
        )
    offsets: list[int] = [0]
    starts: list[int] = []
    stops: list[int] = []
    for b in range(batch):
        for h in range(heads):
            intervals = mask._row(Row(query, 0, key_stop, b, h))
            if intervals is None:
                return None
            for start, stop in intervals:
                starts.append(start)
                stops.append(stop)
            offsets.append(len(starts))
    return offsets, starts, stops


class RowReader(NamedTuple):
    """Evaluates a mask in blocks of rows.

    Blocks have many rows if rows have few intervals, and few rows otherwise. `planes` is the
    number of batch rows and heads in the result, 1 where nothing varies.

    >>> import maskwright as mw
    >>> bound = mw.causal().on(5)
    >>> reader = RowReader(bound.mask, bound.frame, View(bound.frame, 0, 5, 0, 5), (1, 1))
    >>> [spans.shape for spans in reader.blocks(step=2)]
    [(1, 1, 2), (1, 1, 2), (1, 1, 1)]
    >>> reader.max_intervals()
    5
    """

    mask: Mask
    frame: Frame
    part: View
    planes: tuple[int, int]

    def blocks(self, block: int = 1, step: int | None = None) -> Iterator[Spans]:
        """Yields the spans of about `step` rows at a time.

        A yielded part contains whole blocks of `block` rows, or rows of a single block.

        Raises:
            SizeError: If the intervals of these rows do not fit into memory.
        """
        keys = self.max_keys()
        if keys >= self.part.key_stop:
            part, rows = self.part, self.part.row_stop - self.part.row
            step = self.step() if step is None else step
            for row, stop in [(0, rows)] if rows <= step else _cuts(rows, block, step):
                view = View(self.frame, part.row + row, part.row + stop, 0, part.key_stop)
                yield self._evaluate(view)
            return
        for pieces in self.pieces(block, step, keys):
            first = next(pieces)
            parts, size = [first], 16 * first.intervals()
            for spans in pieces:
                parts.append(spans)
                size += 16 * spans.intervals()
                if size > MAX_BYTES:
                    raise SizeError(
                        f"{brief(self.mask):.80}: the spans of {spans.shape[2]} rows would need "
                        f"more than {MAX_BYTES / 1e9:.1f} GB. Use .count(), or bind fewer keys."
                    )
            yield first if len(parts) == 1 else self._expand(union(parts))

    def pieces(
        self, block: int = 1, step: int | None = None, keys: int | None = None
    ) -> Iterator[Iterator[Spans]]:
        """For about `step` rows at a time, yields the spans of about `keys` keys at a time.

        By default that is all keys, unless a single row has very many intervals.
        """
        rows = self.part.row_stop - self.part.row
        step = self.step() if step is None else step
        keys = self.max_keys() if keys is None else keys
        for row, stop in [(0, rows)] if rows <= step else _cuts(rows, block, step):
            yield self._pieces_of(self.part.row + row, self.part.row + stop, keys)

    def _pieces_of(self, row: int, stop: int, piece: int) -> Iterator[Spans]:
        keys = self.part.key_stop
        for key in range(0, max(keys, 1), piece):
            yield self._evaluate(View(self.frame, row, stop, key, min(key + piece, keys)))

    def _evaluate(self, view: View) -> Spans:
        spans = self.mask._spans(view)
        if spans.kv_len != self.part.key_stop:
            spans = spans.shift(0, self.part.key_stop)
        return spans if spans.shape[:2] == self.planes else self._expand(spans)

    def plane(self, batch: int, head: int, rows: range, keys: range) -> Iterator[tuple[int, Spans]]:
        """Yields the spans of one batch row and head for some rows and keys, with the first row."""
        if not rows or not keys:
            return
        piece, top = self.max_keys(), self.part.row
        for first in range(rows.start, rows.stop, step := self.step()):
            stop = min(first + step, rows.stop)
            for key in range(keys.start, keys.stop, piece):
                last = min(key + piece, keys.stop)
                view = View(self.frame, top + first, top + stop, key, last)
                spans = self._expand(self.mask._spans(view))
                yield (
                    first - rows.start,
                    spans.plane(0, batch if self.planes[0] > 1 else 0).plane(
                        1, head if self.planes[1] > 1 else 0
                    ),
                )

    def step(self) -> int:
        """Number of rows per block."""
        rows, keys, max_rows = self.part.row_stop - self.part.row, self.part.key_stop, MAX_ROWS
        planes = max(1, self.planes[0] * self.planes[1])
        small = rows <= min(MIN_ROWS, MAX_ROWS)
        # No node has more than keys // 2 + 1 intervals per row: a small mask need not be walked.
        if small and rows * planes * self.mask._nodes * (keys // 2 + 1) <= MAX_INTERVALS:
            return MIN_ROWS
        width = planes * max(1, self.mask._width(keys))
        if small and rows * width <= MAX_INTERVALS:
            return MIN_ROWS
        if max(atom._width(keys) for atom in find(self.mask, Atom)) > MAX_CHEAP_INTERVALS:
            # Such a term is evaluated over all keys that the block's rows attend to together, so
            # a block is no taller than its rows are wide.
            extent = self.mask._extent()
            max_rows = (
                MAX_VIEW_ROWS if extent is None else min(max(extent, MIN_ROWS), MAX_VIEW_ROWS)
            )
        return max(1, min(max_rows, MAX_ROWS, MAX_INTERVALS // width))

    def max_keys(self) -> int:
        """Number of keys to evaluate at a time: all, unless one row has too many intervals."""
        keys = self.part.key_stop
        planes = max(1, self.planes[0] * self.planes[1])
        # No node has more than keys // 2 + 1 intervals per row.
        if planes * self.mask._nodes * (keys // 2 + 1) <= MAX_INTERVALS:
            return max(keys, 1)
        width = self.mask._width(keys)
        piece, piece_width = keys, width
        while planes * piece_width > MAX_INTERVALS and piece > MIN_KEYS:
            piece //= 2
            piece_width = self.mask._width(piece)
        return piece if piece_width < width else max(keys, 1)

    def count_cells(self) -> int:
        """Number of visible cells of the planes, in closed form where the mask has one."""
        closed = self._closed_count()
        if closed is not None:
            return closed
        return sum(spans.cells() for pieces in self.pieces() for spans in pieces)

    def _closed_count(self) -> int | None:
        """The number of cells by formula; None if that is not possible, or slower."""
        rows, keys = self.part.rows, self.part.key_stop
        start = self.frame.q_start + self.part.row
        intervals = rows * max(1, self.mask._width(keys))  # of a plane, about
        few = self.planes[0] * self.planes[1] <= MAX_COUNTED
        if self.frame.k_start or not few or intervals < INTERVALS_PER_REGION:
            return None
        total = 0
        for b, h in np.ndindex(self.planes):
            signed = self.mask._regions(b, h)
            if signed is None:
                return None
            if sum(INTERVALS_PER_REGION + 64 * region.size for _, region in signed) > intervals:
                return None
            total += sum(sign * regions.count(region, rows, keys, start) for sign, region in signed)
        return total

    def max_intervals(self) -> int:
        """Upper bound on the number of intervals, known without evaluating the mask."""
        planes = max(1, self.planes[0] * self.planes[1])
        return planes * max(1, self.mask._width(self.part.key_stop)) * self.part.rows

    def _expand(self, spans: Spans) -> Spans:
        """The spans with all planes of the mask, also where these rows do not vary."""
        shape = (*self.planes, spans.shape[2])
        if any(size not in (1, whole) for size, whole in zip(spans.shape, shape, strict=True)):
            raise ArgumentError(
                f"{brief(self.mask):.80}: the predicate returned batch and heads {spans.shape[:2]}, "
                f"expected {shape[:2]} as before. Its shape must depend on b and h alone."
            )
        return spans.expand(shape)


def _cuts(rows: int, block: int, step: int) -> Iterator[tuple[int, int]]:
    """Row ranges of about `step` rows, none of which contains parts of two blocks."""
    if step >= block:
        whole = step // block * block
        yield from ((row, min(row + whole, rows)) for row in range(0, max(rows, 1), whole))
        return
    for top in range(0, max(rows, 1), block):
        stop = min(top + block, rows)
        yield from ((row, min(row + step, stop)) for row in range(top, stop, step))
