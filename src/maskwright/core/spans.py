"""The normal form of a mask: for each query row the sorted, disjoint intervals of visible keys.

There are two layouts. If no row has more than one interval, two arrays `low` and `high` of shape
(batch, heads, rows) suffice, and intersection is a maximum and a minimum. Otherwise the intervals
of all rows are in compressed sparse row format, `offsets`, `starts` and `stops`, and each set
operation is one sweep over them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.interval_ops import (
    CSR,
    Band,
    column_major_cells,
    covered,
    join_bands,
    sweep,
)
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from maskwright.core.validate import BoolArray, IntArray

Planes = tuple[int, int, int]


class Spans:
    """The visible keys of each query row, as intervals. Immutable.

    `shape` is (batch, heads, rows), with 1 where nothing varies. `starts[i]` … `stops[i] - 1` are
    the keys of interval i, and row r of the flattened shape owns the intervals
    `offsets[r]` … `offsets[r + 1] - 1`.

    >>> import maskwright as mw
    >>> spans = (mw.window(back=1) | mw.keys([0])).on(4).spans
    >>> spans
    Spans(shape=(1, 1, 4), kv_len=4, intervals=5)
    >>> spans.row(3)
    [(0, 1), (2, 4)]
    >>> spans.starts.tolist(), spans.stops.tolist(), spans.offsets.tolist()
    ([0, 0, 0, 0, 2], [1, 2, 3, 1, 4], [0, 1, 2, 3, 5])
    >>> spans.intervals(), spans.cells(), spans.reach(), spans.empty_rows().tolist()
    (5, 9, (0, 4), [[[False, False, False, False]]])

    They combine by `&`, `|`, `-` and `~` like sets; other methods return parts:

    >>> (~spans).row(3), spans.rows(2, 4).row(1), spans.clip(3).row(3), spans.shift(1, 5).row(3)
    ([(1, 2)], [(0, 1), (2, 4)], [(0, 1), (2, 3)], [(1, 2), (3, 5)])
    >>> spans.transpose().row(0), spans.plane(0, 0) is spans, spans.expand((2, 1, 4)).shape
    ([(0, 4)], True, (2, 1, 4))
    >>> spans.first_difference(mw.causal().on(4).spans)
    (0, 0, 3, 1)
    """

    __slots__ = ("_band", "_flat", "kv_len", "shape")

    def __init__(
        self, shape: Planes, kv_len: int, *, band: Band | None = None, flat: CSR | None = None
    ) -> None:
        self.shape = shape
        self.kv_len = kv_len
        self._band = band  # either end may still be 1 along an axis of `shape`
        self._flat = flat

    # ── making ────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def from_band(cls, low: IntArray, high: IntArray, kv_len: int, rows: int) -> Spans:
        """One interval per row; `low` and `high` broadcast to (batch, heads, rows)."""
        high = np.maximum(low, high)
        b, h, num_rows = high.shape
        return cls((b, h, rows if num_rows == 1 else num_rows), kv_len, band=Band(low, high))

    @classmethod
    def from_pieces(
        cls, shape: Planes, kv_len: int, rows: IntArray, starts: IntArray, stops: IntArray
    ) -> Spans:
        """Intervals in any order, which may overlap, touch or be empty, with their flat rows."""
        line = kv_len + 1
        nonempty = stops > starts
        base = rows[nonempty] * line
        return cls.from_line(
            shape, kv_len, *sweep(base + starts[nonempty], base + stops[nonempty], covered)
        )

    @classmethod
    def from_line(cls, shape: Planes, kv_len: int, starts: IntArray, stops: IntArray) -> Spans:
        """Sorted, disjoint intervals on the line where row r begins at r * (kv_len + 1)."""
        line = kv_len + 1
        rows = starts // line
        count = shape[0] * shape[1] * shape[2]
        offsets = np.searchsorted(rows, np.arange(count + 1))
        base = rows * line
        return cls(shape, kv_len, flat=CSR(offsets, starts - base, stops - base))

    @classmethod
    def from_cells(cls, cells: BoolArray, kv_len: int, first_key: int = 0) -> Spans:
        """From a boolean array (batch, heads, rows, columns) whose column 0 is key `first_key`."""
        b, h, rows, columns = cells.shape
        edges = np.zeros((b * h * rows, columns + 2), np.int8)
        edges[:, 1:-1] = cells.reshape(b * h * rows, columns)
        change = np.diff(edges, axis=1)
        row, start = np.nonzero(change == 1)
        stop = np.nonzero(change == -1)[1]
        offsets = np.searchsorted(row, np.arange(b * h * rows + 1))
        flat = CSR(offsets, start + first_key, stop + first_key)
        return cls((b, h, rows), kv_len, flat=flat)

    @classmethod
    def stack(cls, parts: Sequence[Spans], axis: int) -> Spans:
        """Concatenates parts along axis 0 (batch), 1 (heads) or 2 (rows)."""
        if len(parts) == 1:
            return parts[0]
        common_shape = [max((p.shape[i] for p in parts), key=lambda n: n != 1) for i in range(3)]
        parts = [p.expand(_with(common_shape, axis, p.shape[axis])) for p in parts]
        kv_len = parts[0].kv_len
        shape = _with(common_shape, axis, sum(p.shape[axis] for p in parts))
        bands = [p.band for p in parts]
        if all(band is not None for band in bands):
            low = np.concatenate([band.low for band in bands if band is not None], axis)
            high = np.concatenate([band.high for band in bands if band is not None], axis)
            return cls(shape, kv_len, band=Band(low, high))
        flats = [p.flat for p in parts]
        counts = np.concatenate([np.diff(f.offsets) for f in flats])
        starts = np.concatenate([f.starts for f in flats])
        stops = np.concatenate([f.stops for f in flats])
        offsets = np.concatenate(([0], np.cumsum(counts)))
        order, row = [], 0
        for part in parts:
            size = part.shape[0] * part.shape[1] * part.shape[2]
            order.append(np.arange(row, row + size).reshape(part.shape))
            row += size
        joined = cls((1, 1, row), kv_len, flat=CSR(offsets, starts, stops))
        index = np.concatenate(order, axis)
        if shape[0] * shape[1] == 1:
            return cls(shape, kv_len, flat=joined.flat)
        return joined.take(index)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    @property
    def band(self) -> Band | None:
        """The one-interval layout in full shape; None if the spans have the other layout."""
        if self._band is None:
            return None
        low, high = self._band
        if low.shape != self.shape or high.shape != self.shape:
            self._band = Band(np.broadcast_to(low, self.shape), np.broadcast_to(high, self.shape))
        return self._band

    @property
    def flat(self) -> CSR:
        """The compressed sparse row layout, created on first use."""
        if self._flat is None:
            band = self.band
            assert band is not None
            low, high = band.low.ravel(), band.high.ravel()
            nonempty = high > low
            if nonempty.all():
                self._flat = CSR(np.arange(low.size + 1), low, high)
            else:
                offsets = np.concatenate(([0], np.cumsum(nonempty)))
                self._flat = CSR(offsets, low[nonempty], high[nonempty])
        return self._flat

    @property
    def offsets(self) -> IntArray:
        """Index of the first interval of each flattened row, and the number of intervals."""
        return self.flat.offsets

    @property
    def starts(self) -> IntArray:
        """The first key of each interval."""
        return self.flat.starts

    @property
    def stops(self) -> IntArray:
        """One past the last key of each interval."""
        return self.flat.stops

    def row(self, q: int, batch: int = 0, head: int = 0) -> list[tuple[int, int]]:
        """The intervals of one row as (start, stop) pairs.

        >>> import maskwright as mw
        >>> (mw.causal() & mw.keys([0, 1, 3])).on(4).spans.row(3)
        [(0, 2), (3, 4)]
        """
        b, h, rows = self.shape
        q, batch, head = (
            parse_int(index, f"row: {name}")
            for name, index in (("q", q), ("batch", batch), ("head", head))
        )
        batch, head = (0 if b == 1 else batch), (0 if h == 1 else head)
        if not (0 <= q < rows and 0 <= batch < b and 0 <= head < h):
            raise FrameError(
                f"row: ({batch}, {head}, {q}) is out of range for shape {self.shape}. "
                "Batch, heads and rows count from 0."
            )
        offsets, starts, stops = self.flat
        index = (batch * h + head) * rows + q
        part = slice(offsets[index], offsets[index + 1])
        return list(zip(starts[part].tolist(), stops[part].tolist(), strict=True))

    def intervals(self) -> int:
        """Upper bound on the number of intervals: the rows, if none has more than one."""
        if self._band is not None:
            return self.shape[0] * self.shape[1] * self.shape[2]
        return int(self.flat.starts.size)

    def cells(self) -> int:
        """Number of visible cells; a plane that several heads share counts once."""
        band = self.band
        if band is not None:
            return int(band.high.sum()) - int(band.low.sum())
        return int((self.flat.stops - self.flat.starts).sum())

    def empty_rows(self) -> BoolArray:
        """True for fully masked rows, (batch, heads, rows)."""
        band = self.band
        if band is not None:
            return np.equal(band.high, band.low)
        return np.equal(np.diff(self.flat.offsets), 0).reshape(self.shape)

    def reaches(self, most: int = 8) -> list[tuple[int, int]]:
        """Intervals of keys that some row attends to, at most `most`, merged over the smallest gaps."""
        first, stop = self.reach()
        if self.band is not None and first < stop:
            # If the band of each row overlaps the next one's, there is only one interval.
            low, high = self.band
            seen = high > low
            if bool(seen.all()) and not bool((low[..., 1:] > high[..., :-1]).any()):
                return [(first, stop)]
        begin, end = sweep(self.flat.starts, self.flat.stops, covered)
        if begin.size > most:
            gaps = np.sort(np.argsort(begin[1:] - end[:-1])[1 - most :])
            begin, end = begin[np.append(0, gaps + 1)], end[np.append(gaps, end.size - 1)]
        return list(zip(begin.tolist(), end.tolist(), strict=True))

    def reach(self) -> tuple[int, int]:
        """The first key that any row attends to, and one past the last; (0, 0) if there is none."""
        band = self.band
        if band is not None:
            nonempty = band.high > band.low
            if not nonempty.any():
                return 0, 0
            return int(band.low[nonempty].min()), int(band.high[nonempty].max())
        if not self.flat.starts.size:
            return 0, 0
        return int(self.flat.starts.min()), int(self.flat.stops.max())

    def write_dense(self, out: BoolArray) -> None:
        """Writes the cells into `out`, (batch, heads, rows, kv_len)."""
        b, h, rows = self.shape
        if self._band is not None:
            _write_band(self._band, out, self.kv_len)
            return
        offsets, starts, stops = self.flat
        edges = np.zeros((b * h * rows, self.kv_len + 1), np.int8)
        row = np.repeat(np.arange(b * h * rows), np.diff(offsets))
        edges[row, starts] += 1  # intervals never touch, so no index occurs twice
        edges[row, stops] -= 1
        np.cumsum(edges[:, :-1], axis=1, dtype=np.int8, out=edges[:, :-1])
        out[...] = edges[:, :-1].reshape(b, h, rows, self.kv_len)

    # ── set operations ────────────────────────────────────────────────────────────────────────

    def __and__(self, other: Spans) -> Spans:
        return intersection([self, self._partner(other)])

    def __or__(self, other: Spans) -> Spans:
        return union([self, self._partner(other)])

    def __sub__(self, other: Spans) -> Spans:
        return intersection([self, ~self._partner(other)])

    def __invert__(self) -> Spans:
        return self.complement(0, self.kv_len)

    def complement(self, first: int, stop: int) -> Spans:
        """The masked keys among `first` … `stop - 1`. All spans must be within these."""
        rows = self.shape[2]
        if self.band is not None:
            low, high = self.band
            if not low.size or (bool((low == first).all()) or bool((high == low).all())):
                after = np.where(high > low, high, first)
                return Spans.from_band(after, np.full_like(after, stop), self.kv_len, rows)
            if bool((high == stop).all()):
                return Spans.from_band(np.full_like(low, first), low, self.kv_len, rows)
        offsets, starts, stops = self.flat
        begin = np.insert(stops, offsets[:-1], first)  # a row of n intervals has n + 1 gaps
        end = np.insert(starts, offsets[1:], stop)
        nonempty = end > begin
        before = np.concatenate(([0], np.cumsum(nonempty)))
        gaps = offsets + np.arange(offsets.size)
        return Spans(
            self.shape, self.kv_len, flat=CSR(before[gaps], begin[nonempty], end[nonempty])
        )

    def transpose(self, first: int = 0, stop: int | None = None) -> Spans:
        """Exchanges rows and keys: row k - first contains the rows that attend to key k.

        A vertical run begins where a row attends to a key and the row above does not, so the ends
        of runs are the differences of neighbouring rows: the work is that of the result.
        All spans must be within `first` … `stop - 1`.
        """
        stop = self.kv_len if stop is None else stop
        b, h, rows = self.shape
        padded = np.full((b, h, rows + 2), -1)
        padded[:, :, 1:-1] = np.arange(b * h * rows).reshape(self.shape)
        here, above = self.take(padded[:, :, 1:]), self.take(padded[:, :, :-1])
        line = rows + 1
        begin, end = (
            column_major_cells(part.flat, b * h, line, first, stop)
            for part in (here - above, above - here)
        )
        offsets = np.searchsorted(begin // line, np.arange(b * h * (stop - first) + 1))
        return Spans((b, h, stop - first), rows, flat=CSR(offsets, begin % line, end % line))

    def shift(self, by: int, kv_len: int) -> Spans:
        """The same intervals `by` keys later, among `kv_len` keys."""
        if self._band is not None:
            return Spans(self.shape, kv_len, band=Band(self._band.low + by, self._band.high + by))
        offsets, starts, stops = self.flat
        return Spans(self.shape, kv_len, flat=CSR(offsets, starts + by, stops + by))

    def take(self, index: npt.NDArray[np.intp]) -> Spans:
        """Rows by flat index, in the shape of `index` (batch, heads, rows); -1 is an empty row."""
        b, h, rows = index.shape
        shape = (b, h, rows)
        offsets, starts, stops = self.flat
        pick = index.ravel()
        counts = np.where(pick >= 0, np.diff(offsets, append=offsets[-1])[pick], 0)
        after = np.concatenate(([0], np.cumsum(counts)))
        source = np.repeat(offsets[pick] - after[:-1], counts) + np.arange(after[-1])
        return Spans(shape, self.kv_len, flat=CSR(after, starts[source], stops[source]))

    def rows(self, first: int, stop: int) -> Spans:
        """The rows `first` … `stop - 1` of each plane."""
        b, h, rows = self.shape
        if self.band is not None:
            low, high = self.band
            part = Band(low[:, :, first:stop], high[:, :, first:stop])
            return Spans((b, h, stop - first), self.kv_len, band=part)
        if b * h == 1:
            offsets, starts, stops = self.flat
            cut = offsets[first : stop + 1]
            index = slice(cut[0], cut[-1])
            flat = CSR(cut - cut[0], starts[index], stops[index])
            return Spans((b, h, stop - first), self.kv_len, flat=flat)
        return self.take(np.arange(b * h * rows).reshape(self.shape)[:, :, first:stop])

    def clip(self, stop: int) -> Spans:
        """The spans of the keys before `stop`."""
        if self._band is not None:
            low, high = np.minimum(self._band.low, stop), np.minimum(self._band.high, stop)
            return Spans(self.shape, stop, band=Band(low, high))
        b, h, rows = self.shape
        offsets, starts, stops = self.flat
        nonempty = starts < stop
        before = np.concatenate(([0], np.cumsum(nonempty)))
        flat = CSR(before[offsets], starts[nonempty], np.minimum(stops[nonempty], stop))
        return Spans((b, h, rows), stop, flat=flat)

    def plane(self, axis: int, index: int) -> Spans:
        """One batch row (axis 0) or head (axis 1); all if the spans do not vary along it."""
        if self.shape[axis] == 1:
            return self
        part = (slice(None),) * axis + (slice(index, index + 1),)
        if self.band is not None:
            low, high = self.band.low[part], self.band.high[part]
            return Spans(_with(self.shape, axis, 1), self.kv_len, band=Band(low, high))
        numbers = np.arange(self.shape[0] * self.shape[1] * self.shape[2]).reshape(self.shape)
        return self.take(numbers[part])

    def reshape(self, shape: Planes) -> Spans:
        """The same rows in the same order, in another shape."""
        return Spans(shape, self.kv_len, flat=self.flat)

    def expand(self, shape: Planes) -> Spans:
        """The same rows repeated along a batch or head axis of 1."""
        if shape == self.shape:
            return self
        if self._band is not None:
            return Spans(shape, self.kv_len, band=self._band)
        numbers = np.arange(self.shape[0] * self.shape[1] * self.shape[2]).reshape(self.shape)
        return self.take(np.broadcast_to(numbers, shape))

    # ── comparing ─────────────────────────────────────────────────────────────────────────────

    def first_difference(self, other: Spans) -> tuple[int, int, int, int] | None:
        """The first (batch, head, row, key) in which the two differ, or None."""
        mine, theirs = together([self, other])
        starts = np.concatenate([mine._line(0), theirs._line(0)])
        stops = np.concatenate([mine._line(1), theirs._line(1)])
        begin, _ = sweep(starts, stops, lambda level: level == 1)
        if not begin.size:
            return None
        row, key = divmod(int(begin[0]), self.kv_len + 1)
        b, h, r = (int(i) for i in np.unravel_index(row, mine.shape))
        return b, h, r, key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        if self.kv_len != other.kv_len or not _broadcasts(self.shape, other.shape):
            return False
        return self.first_difference(other) is None

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Spans(shape={self.shape}, kv_len={self.kv_len}, intervals={self.starts.size})"

    def freeze(self) -> Spans:
        """Makes the arrays read-only, and returns the spans."""
        for part in (*self.flat, *(self._band or ())):
            part.setflags(write=False)
        return self

    def _partner(self, other: object) -> Spans:
        if not isinstance(other, Spans):
            raise ArgumentError(
                f"Expected spans, got {type(other).__name__}. Bind a mask, and use its .spans."
            )
        if self.kv_len != other.kv_len or not _broadcasts(self.shape, other.shape):
            raise ArgumentError(
                f"Spans of shape {self.shape} and {self.kv_len} keys cannot be combined with "
                f"{other.shape} and {other.kv_len} keys. Bind both masks to the same frame."
            )
        return other

    def _line(self, which: int) -> IntArray:
        """Starts (0) or stops (1) on the line of all rows."""
        offsets, starts, stops = self.flat
        base = np.repeat(np.arange(offsets.size - 1) * (self.kv_len + 1), np.diff(offsets))
        return base + (stops if which else starts)


def intersection(parts: Sequence[Spans]) -> Spans:
    """The keys that are visible in all parts."""
    narrow: Band | None = None
    flat_parts: list[Spans] = []
    for part in parts:
        band = part._band
        if band is None:
            flat_parts.append(part)
        elif narrow is None:
            narrow = band
        else:
            narrow = Band(np.maximum(narrow.low, band.low), np.minimum(narrow.high, band.high))
    if narrow is not None:
        cut = Spans.from_band(*narrow, parts[0].kv_len, parts[0].shape[2])
        if not flat_parts:
            return cut
        common = flat_parts[0] if len(flat_parts) == 1 else intersection(flat_parts)
        return _cut_by_band(*together([common, cut]))
    return _combine(parts, lambda level: level == len(parts))


def _cut_by_band(spans: Spans, band: Spans) -> Spans:
    """Spans of any layout cut to one interval per row."""
    assert band.band is not None
    offsets, starts, stops = spans.flat
    counts = np.diff(offsets)
    low, high = (np.repeat(end.ravel(), counts) for end in band.band)
    begin, end = np.maximum(starts, low), np.minimum(stops, high)
    nonempty = begin < end
    kept = np.concatenate(([0], np.cumsum(nonempty)))[offsets]
    return Spans(spans.shape, spans.kv_len, flat=CSR(kept, begin[nonempty], end[nonempty]))


def union(parts: Sequence[Spans]) -> Spans:
    """The keys that are visible in at least one part."""
    bands = [part._band for part in parts if part._band is not None]
    if len(bands) == len(parts):
        joined = join_bands(bands)
        if joined is not None:
            return Spans.from_band(*joined, parts[0].kv_len, parts[0].shape[2])
    return _combine(parts, covered)


def together(parts: Sequence[Spans]) -> list[Spans]:
    """The parts, broadcast along batch and heads to their common shape."""
    b, h, rows = np.broadcast_shapes(*(part.shape for part in parts))
    return [part.expand((b, h, rows)) for part in parts]


def _combine(parts: Sequence[Spans], wanted: Callable[[IntArray], BoolArray]) -> Spans:
    parts = together(parts)
    starts = np.concatenate([part._line(0) for part in parts])
    stops = np.concatenate([part._line(1) for part in parts])
    kv_len = parts[0].kv_len
    return Spans.from_line(parts[0].shape, kv_len, *sweep(starts, stops, wanted))


def _broadcasts(mine: Planes, theirs: Planes) -> bool:
    planes = zip(mine[:2], theirs[:2], strict=True)
    return mine[2] == theirs[2] and all(a == b or 1 in (a, b) for a, b in planes)


def _with(shape: Sequence[int], axis: int, size: int) -> Planes:
    sizes = list(shape)
    sizes[axis] = size
    return sizes[0], sizes[1], sizes[2]


def _write_band(band: Band, out: BoolArray, kv_len: int) -> None:
    """Writes the cells of one interval per row into (batch, heads, rows, kv_len)."""
    low, high = band
    if high.shape != out.shape[:3]:
        high = np.broadcast_to(high, out.shape[:3])
    if high.size > kv_len:
        # Many rows: each is copied from a table whose row n has the first n keys.
        table = _short_rows(kv_len) if kv_len <= 512 else _all_rows(kv_len)
        np.take(table, high, axis=0, out=out, mode="clip")
        if low.any():
            out ^= table[low]
        return
    keys = np.arange(kv_len)
    np.less(keys, high[..., None], out=out)
    out &= keys >= low[..., None]


def _all_rows(kv_len: int) -> BoolArray:
    """A table whose row n has the first n keys."""
    return np.tri(kv_len + 1, kv_len, -1, dtype=np.bool_)


_short_rows = lru_cache(maxsize=8)(_all_rows)  # training binds the same lengths repeatedly
