"""Tiles: which blocks of a mask are empty, full or partial, exactly, without looking at every cell.

A tile is touched if some row of it has an interval in it. A tile is full if the complement does
not touch it. Both are one sweep over the intervals, with keys counted in blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.frame import MOST_BYTES
from maskwright.core.line import covered, sweep
from maskwright.core.spans import Spans
from maskwright.errors import SizeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt


@dataclass(frozen=True)
class Tiles:
    """The blocks of a mask, as spans of blocks: those that are touched, and those that are full.

    Row r of the spans is the r-th block of queries; "keys" in them are blocks of keys.

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
        """Every tile as a number: 0 empty, 1 partial, 2 full.

        >>> import maskwright as mw
        >>> mw.window(back=1).on(4).tiles(2, 2).kinds().tolist()
        [[[[1, 0], [1, 1]]]]
        """
        if math.prod(self.shape) > MOST_BYTES:
            raise SizeError(
                f"kinds() would need {math.prod(self.shape) / 1e9:.1f} GB. "
                "Use .touched and .full, which are spans of blocks."
            )
        touched, full = np.zeros((2, *self.shape), np.bool_)
        self.touched.paint(touched)
        self.full.paint(full)
        return touched.astype(np.uint8) + full

    def counts(self) -> dict[str, int]:
        """How many tiles of each kind there are in the planes held.

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
    """Tiles of spans that are given some rows at a time, whole blocks or parts of one block."""
    touched: list[Spans] = []
    full: list[Spans] = []
    row = 0
    for spans in parts:
        some, whole = _cut(spans, q_block, kv_block)
        if row % q_block:  # another part of the block before
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
    """Where every row sees one interval and those of neighbours meet, so do the tiles'.

    Then the touched tiles of a block of rows go from its least `low` to its greatest `high`, and
    the full ones from its greatest `low` to its least `high`.
    """
    band, (b, h, rows) = spans.band, spans.shape
    if band is None or not rows or not b * h:
        return None
    low, high = band
    if bool((high == low).any()):
        return None
    broad = math.ceil(spans.kv_len / kv_block)
    heads = np.arange(0, rows, q_block)
    apart = (low[..., 1:] > high[..., :-1]) | (low[..., :-1] > high[..., 1:])
    apart[..., heads[1:] - 1] = False  # the last row of a block and the first of the next
    if bool(apart.any()):
        return None
    first, last = np.minimum.reduceat(low, heads, axis=2), np.maximum.reduceat(low, heads, axis=2)
    least, most = np.minimum.reduceat(high, heads, axis=2), np.maximum.reduceat(high, heads, axis=2)
    touched = Spans.from_band(first // kv_block, -(-most // kv_block), broad, heads.size)
    whole = np.where(least == spans.kv_len, broad, least // kv_block)
    return touched, Spans.from_band(-(-last // kv_block), whole, broad, heads.size)


def _touched(spans: Spans, q_block: int, kv_block: int) -> Spans:
    b, h, rows = spans.shape
    tall, broad = math.ceil(rows / q_block), math.ceil(spans.kv_len / kv_block)
    offsets, starts, stops = spans.flat
    row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    plane, line = np.divmod(row, max(rows, 1))
    base = (plane * tall + line // q_block) * (broad + 1)
    low, high = base + starts // kv_block, base + (stops - 1) // kv_block + 1
    # Neighbouring rows mostly touch the same tiles: the sweep need not sort those again.
    fresh = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))[: low.size]
    low, high = sweep(low[fresh], high[fresh], covered)
    return Spans.from_line((b, h, tall), broad, low, high)
