"""Tiles: which blocks of a mask are empty, full or partial, and the number of visible cells in each.

A tile is touched if one of its rows has an interval in it. A tile is full if the complement does
not touch it. Both are one sweep over the intervals, with keys counted in blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.frame import check_size
from maskwright.core.interval_ops import covered, sweep
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from maskwright.core.validate import IntArray


@dataclass(frozen=True)
class Tiles:
    """The blocks of a mask that have visible cells, and those that are full, as spans of blocks.

    Row r of the spans is the r-th block of queries; their keys are blocks of keys.

    >>> import maskwright as mw
    >>> tiles = mw.causal().on(8).tiles(2, 2)
    >>> tiles
    Tiles(q_block=2, kv_block=2, grid=(4, 4), empty=6, partial=4, full=6)
    >>> tiles.kinds()[0, 0].tolist()
    [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]]
    >>> tiles.shape
    (1, 1, 4, 4)
    """

    q_block: int
    kv_block: int
    touched: Spans
    full: Spans

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, query blocks, key blocks), with 1 where nothing varies."""
        return (*self.touched.shape, self.touched.kv_len)

    def kinds(self) -> npt.NDArray[np.uint8]:
        """An array of the kind of each tile: 0 empty, 1 partial, 2 full.

        >>> import maskwright as mw
        >>> mw.window(back=1).on(4).tiles(2, 2).kinds().tolist()
        [[[[1, 0], [1, 1]]]]
        """
        fix = ".touched and .full, which are spans of blocks"
        check_size("kinds()", math.prod(self.shape), fix)
        touched, full = np.zeros((2, *self.shape), np.bool_)
        self.touched.write_dense(touched)
        self.full.write_dense(full)
        return touched.astype(np.uint8) + full

    def counts(self) -> dict[str, int]:
        """Number of tiles of each kind, over the planes that differ.

        >>> import maskwright as mw
        >>> mw.causal().on(4).tiles(2, 2).counts()
        {'empty': 1, 'partial': 2, 'full': 1}
        """
        touched, full = self.touched.cells(), self.full.cells()
        return {
            "empty": math.prod(self.shape) - touched,
            "partial": touched - full,
            "full": full,
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{kind}={number}" for kind, number in self.counts().items())
        return (
            f"Tiles(q_block={self.q_block}, kv_block={self.kv_block}, "
            f"grid={self.shape[2:]}, {counts})"
        )


def cut(parts: Iterable[Spans], q_block: int, kv_block: int) -> Tiles:
    """Tiles from the spans of some rows at a time, whole blocks or parts of one block."""
    touched: list[Spans] = []
    full: list[Spans] = []
    row = size = 0
    for spans in parts:
        some, whole = _cut(spans, q_block, kv_block)
        size += 16 * (some.intervals() + whole.intervals())
        check_size("tiles()", size, "larger blocks or .rows(start, stop)")
        if row % q_block:  # a further part of the last block
            touched[-1], full[-1] = touched[-1] | some, full[-1] & whole
        else:
            touched.append(some)
            full.append(whole)
        row += spans.shape[2]
    return Tiles(q_block, kv_block, Spans.stack(touched, axis=2), Spans.stack(full, axis=2))


def _cut(spans: Spans, q_block: int, kv_block: int) -> tuple[Spans, Spans]:
    """The touched and the full tiles of some rows."""
    pair = _cut_band(spans, q_block, kv_block)
    if pair is not None:
        return pair
    return _touched(spans, q_block, kv_block), ~_touched(~spans, q_block, kv_block)


def _cut_band(spans: Spans, q_block: int, kv_block: int) -> tuple[Spans, Spans] | None:
    """The tiles if each row has one interval that overlaps those of the next row; else None.

    Then the touched tiles of a block of rows go from its minimum `low` to its maximum `high`, and
    the full ones from its maximum `low` to its minimum `high`.
    """
    band, (b, h, rows) = spans.band, spans.shape
    if band is None or not rows or not b * h:
        return None
    low, high = band
    if bool((high == low).any()):
        return None
    broad = math.ceil(spans.kv_len / kv_block)
    block_starts = np.arange(0, rows, q_block)
    apart = (low[..., 1:] > high[..., :-1]) | (low[..., :-1] > high[..., 1:])
    apart[..., block_starts[1:] - 1] = False  # the last row of a block and the first of the next
    if bool(apart.any()):
        return None
    first, last = (
        np.minimum.reduceat(low, block_starts, axis=2),
        np.maximum.reduceat(low, block_starts, axis=2),
    )
    min_high, max_high = (
        np.minimum.reduceat(high, block_starts, axis=2),
        np.maximum.reduceat(high, block_starts, axis=2),
    )
    touched = Spans.from_band(first // kv_block, -(-max_high // kv_block), broad, block_starts.size)
    whole = np.where(min_high == spans.kv_len, broad, min_high // kv_block)
    return touched, Spans.from_band(-(-last // kv_block), whole, broad, block_starts.size)


def _touched(spans: Spans, q_block: int, kv_block: int) -> Spans:
    b, h, rows = spans.shape
    tall, broad = math.ceil(rows / q_block), math.ceil(spans.kv_len / kv_block)
    offsets, starts, stops = spans.flat
    row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    plane, line = np.divmod(row, max(rows, 1))
    base = (plane * tall + line // q_block) * (broad + 1)
    low, high = base + starts // kv_block, base + (stops - 1) // kv_block + 1
    # Neighbouring rows mostly touch the same tiles, which need not be sorted again.
    fresh = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))[: low.size]
    low, high = sweep(low[fresh], high[fresh], covered)
    return Spans.from_line((b, h, tall), broad, low, high)


def covered_cells(
    parts: Iterable[tuple[int, Spans]], rows: int, keys: range, q_block: int, kv_block: int
) -> IntArray:
    """Number of visible cells per tile, from the spans of one plane with their first rows.

    An interval covers `edge - start` keys below an edge, less `edge - stop` if it ends below it.
    Summed over the intervals of a row of tiles, that needs only the number and the sum of the
    starts and stops in each tile.
    """
    tall, broad = math.ceil(rows / q_block), math.ceil(len(keys) / kv_block)
    edges = np.arange(broad + 1) * kv_block
    below = np.zeros((tall, broad + 1))
    for row, spans in parts:
        offsets, starts, stops = spans.flat
        owner = np.repeat(np.arange(row, row + spans.shape[2]) // q_block, np.diff(offsets))
        for ends, sign in ((starts, 1), (stops, -1)):
            inside = ends - keys.start
            tile = owner * (broad + 1) + inside // kv_block
            size = tall * (broad + 1)
            count = np.bincount(tile, minlength=size).reshape(tall, broad + 1)
            total = np.bincount(tile, inside, minlength=size).reshape(tall, broad + 1)
            number, place = (_before(x) for x in (count, total))
            below += sign * (number * edges - place)
    return np.diff(below, axis=1).astype(np.int64)


def read_index(index: int, name: str, size: int) -> int:
    """A valid index of a batch row or head."""
    number = parse_int(index, f"coverage: {name}")
    if not 0 <= number < size:
        raise FrameError(
            f"coverage: {name} {number} is out of range. Pass a number from 0 to {size - 1}."
        )
    return number


def read_range(pair: tuple[int, int] | None, name: str, size: int) -> range:
    """A pair (start, stop) as a range; by default everything."""
    if pair is None:
        return range(size)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ArgumentError(f"coverage: {name}={pair!r:.40} is not a pair. Pass (start, stop).")
    first, stop = (parse_int(end, f"coverage: {name}", minimum=0) for end in pair)
    if not first <= stop <= size:
        raise FrameError(
            f"coverage: {name}={first, stop} but there are {size}. Pass start <= stop within them."
        )
    return range(first, stop)


def _before(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Cumulative sum over the tiles before each edge."""
    out = np.zeros(x.shape)
    np.cumsum(x[:, :-1], axis=1, out=out[:, 1:])
    return out
