"""Reading the rows of a mask, some at a time.

Many where a row has few intervals, few where it has many, so that memory is bounded by the answer
and not by what leads to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maskwright.core.compose import CHEAP, VIEW
from maskwright.core.mask import Atom, walk
from maskwright.core.region import Region
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.frame import Frame
    from maskwright.core.mask import Mask
    from maskwright.core.spans import Spans

MOST_ROWS: Final = 2**14  # read at a time: their arrays stay in the cache
LEAST_ROWS: Final = 128  # worth a block of their own
MOST_INTERVALS: Final = 2**19


@dataclass(frozen=True)
class Reading:
    """What is read: a part of a mask on a frame, with as many batch rows and heads as differ."""

    mask: Mask
    frame: Frame
    part: Region
    planes: tuple[int, int]

    def blocks(self, block: int = 1, step: int | None = None) -> Iterator[Spans]:
        """Spans of some rows at a time: whole blocks of `block` rows, or parts of one."""
        part, keys = self.part, self.part.key_stop
        step = self.step() if step is None else step
        cuts = [(0, part.rows)] if part.rows <= step else _cuts(part.rows, block, step)
        for row, stop in cuts:
            region = Region(self.frame, part.row + row, part.row + stop, 0, keys)
            spans = self.mask._read(region)
            if spans.kv_len != keys:
                spans = spans.shift(0, keys)
            yield self._spread(spans)

    def plane(self, batch: int, head: int, rows: range, keys: range) -> Iterator[Spans]:
        """Spans of one plane, cut to some rows and keys, some rows at a time."""
        if not rows or not keys:
            return
        for first in range(rows.start, rows.stop, step := self.step()):
            stop, top = min(first + step, rows.stop), self.part.row
            region = Region(self.frame, top + first, top + stop, keys.start, keys.stop)
            spans = self._spread(self.mask._read(region))
            yield spans.plane(0, batch if self.planes[0] > 1 else 0).plane(
                1, head if self.planes[1] > 1 else 0
            )

    def step(self) -> int:
        """How many rows to read at a time."""
        rows, keys, most = self.part.rows, self.part.key_stop, MOST_ROWS
        width = max(1, self.mask._width(keys)) * max(1, self.planes[0] * self.planes[1])
        if rows <= min(LEAST_ROWS, MOST_ROWS) and rows * width <= MOST_INTERVALS:
            return LEAST_ROWS
        if max(part._width(keys) for part in walk(self.mask) if isinstance(part, Atom)) > CHEAP:
            # Such a term is read over all keys that the block's rows see between them, so a
            # block is no taller than its rows are wide.
            extent = self.mask._extent()
            most = VIEW if extent is None else min(max(extent, LEAST_ROWS), VIEW)
        return max(1, min(most, MOST_ROWS, MOST_INTERVALS // width))

    def intervals_at_most(self) -> int:
        """A bound on how many intervals the spans have, known without reading them."""
        planes = max(1, self.planes[0] * self.planes[1])
        return planes * max(1, self.mask._width(self.part.key_stop)) * self.part.rows

    def _spread(self, spans: Spans) -> Spans:
        """All batch rows and heads that differ anywhere, also where these rows are alike."""
        shape = (*self.planes, spans.shape[2])
        if spans.shape == shape:
            return spans
        if any(size not in (1, whole) for size, whole in zip(spans.shape, shape, strict=True)):
            raise ArgumentError(
                f"{self.mask!r:.80}: a predicate gave batch and heads {spans.shape[:2]} where it had "
                f"given {shape[:2]}. Let its shape depend on b and h alone."
            )
        return spans.expand(shape)


def _cuts(rows: int, block: int, step: int) -> Iterator[tuple[int, int]]:
    """Row ranges of about `step` rows that never hold a part of one block and of another."""
    if step >= block:
        whole = step // block * block
        yield from ((row, min(row + whole, rows)) for row in range(0, max(rows, 1), whole))
        return
    for top in range(0, max(rows, 1), block):
        stop = min(top + block, rows)
        yield from ((row, min(row + step, stop)) for row in range(top, stop, step))
