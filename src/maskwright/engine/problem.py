"""One plane of a mask as it is cut: every row's intervals of keys, and what is asked of them often."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray

HEIGHTS: Final = (16, 32, 64, 128, 192, 256, 512, 768)  # rows of a strip
OUTLINE: Final = 16  # rows; every height is a multiple
FAR: Final = 2**40

Intervals = tuple["IntArray", "IntArray", "IntArray"]  # offsets, starts, stops
Flat = tuple["IntArray", "IntArray", "IntArray"]  # row, start and stop of intervals


@dataclass(frozen=True, eq=False)
class Problem:
    """One plane: every row's intervals of keys."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    kv_len: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        return (
            self.cells == other.cells
            and self.kv_len == other.kv_len
            and all(
                np.array_equal(mine, theirs)
                for mine, theirs in (
                    (self.offsets, other.offsets),
                    (self.starts, other.starts),
                    (self.stops, other.stops),
                )
            )
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.offsets.size) - 1

    @cached_property
    def counts(self) -> IntArray:
        """How many intervals each row has."""
        counts: IntArray = np.diff(self.offsets)
        return counts

    @cached_property
    def cells(self) -> int:
        """How many cells may be seen."""
        return int((self.stops - self.starts).sum())

    @cached_property
    def ends(self) -> tuple[IntArray, IntArray]:
        """Each row's first key and one past its last; far away and 0 where it sees nothing."""
        real = self.counts > 0
        low = np.full(self.rows, FAR)
        high = np.zeros(self.rows, np.int64)
        low[real] = self.starts[self.offsets[:-1][real]]
        high[real] = self.stops[self.offsets[1:][real] - 1]
        return low, high

    @cached_property
    def outline(self) -> Flat:
        """Row, start and stop of the intervals that matter to what some rows see between them.

        An interval that the row above has too, as its nth, adds nothing; but strips may begin at
        any multiple of `OUTLINE` rows, and there all are kept.
        """
        owner = np.repeat(np.arange(self.rows), self.counts)
        above = np.arange(owner.size) - np.append(0, self.counts[:-1])[owner]
        above = np.where(self.counts[owner] == np.append(-1, self.counts[:-1])[owner], above, -1)
        new = (above < 0) | (self.starts[above] != self.starts) | (self.stops[above] != self.stops)
        kept = np.flatnonzero(new | (owner % OUTLINE == 0))
        return owner[kept], self.starts[kept], self.stops[kept]
