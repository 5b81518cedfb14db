"""What a plan is made of: pieces, each of them one call of a kernel on some rows and keys.

A piece knows nothing of tensors. It names batch rows and heads, query rows and keys by their
positions, and the small mask, its stencil, that says which of the keys each row sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maskwright.engine.costs import causal_cells

if TYPE_CHECKING:
    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.core.spans import Spans


class Planes(NamedTuple):
    """Some batch rows and some heads, evenly spaced; None is all."""

    batch: range | None
    heads: range | None

    @property
    def slices(self) -> tuple[slice, slice]:
        """Both, to take them from an array."""
        batch, heads = (
            slice(None) if part is None else slice(part.start, part.stop, part.step)
            for part in self
        )
        return batch, heads

    def number(self, batch: int, heads: int) -> int:
        """How many planes these are, of so many batch rows and heads."""
        rows = batch if self.batch is None else len(self.batch)
        return rows * (heads if self.heads is None else len(self.heads))


class Steps(NamedTuple):
    """`size` positions from `start`, `step` apart."""

    start: int
    size: int
    step: int = 1

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + (self.size - 1) * self.step + 1 if self.size else self.start

    def __str__(self) -> str:
        every = f" by {self.step}" if self.step != 1 else ""
        return f"{self.start} … {self.stop - 1}{every}" if self.size else "none"


@dataclass(frozen=True, eq=False)
class Stencil:
    """A small mask that strips share: each row's intervals of keys, counted from one end.

    Where all rows see the strip's first key, the intervals are counted from its last one, and the
    stencil serves strips of any width.
    """

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    from_right: bool

    def paint(self, width: int) -> BoolArray:
        """The mask, (rows, width)."""
        shift = width if self.from_right else 0
        rows = self.offsets.size - 1
        edges = np.zeros((rows, width + 1), np.int8)
        owner = np.repeat(np.arange(rows), np.diff(self.offsets))
        edges[owner, np.maximum(self.starts + shift, 0)] = 1
        edges[owner, self.stops + shift] -= 1
        seen: BoolArray = np.cumsum(edges[:, :-1], axis=1, dtype=np.int8).view(np.bool_)
        return seen

    def cells(self, width: int) -> int:
        """How many cells the mask has."""
        return (int(self.offsets.size) - 1) * width

    @cached_property
    def empty(self) -> BoolArray:
        """Which rows see nothing at all."""
        return np.equal(np.diff(self.offsets), 0)


@dataclass(frozen=True, eq=False)
class Table:
    """The mask of all planes at once, for small ones that all differ: a stencil of four axes."""

    spans: Spans

    def paint(self, width: int) -> BoolArray:
        """The mask, (batch or 1, heads or 1, rows, width)."""
        seen = np.empty((*self.spans.shape, width), np.bool_)
        self.spans.paint(seen)
        return seen

    def cells(self, width: int) -> int:
        """How many cells the mask has."""
        return math.prod(self.spans.shape) * width

    @cached_property
    def empty(self) -> BoolArray:
        """Which rows see nothing at all."""
        return self.spans.empty_rows()


@dataclass(frozen=True, eq=False)
class Piece:
    """One call of a kernel: strips of one shape, `times` of them, each shifted from the one before.

    `keys` are positions, or an array of them where they lie apart. With `causal` row i sees the
    first i + 1 keys; else the stencil says what is seen, and all is where there is none. `first`
    is False where these rows have been computed in part before, and the results are merged.
    """

    planes: Planes
    rows: Steps
    keys: Steps | IntArray
    stencil: Stencil | Table | None = None
    causal: bool = False
    first: bool = True
    times: int = 1
    row_shift: int = 0
    key_shift: int = 0

    @property
    def width(self) -> int:
        """How many keys a strip has."""
        return int(self.keys.size)

    @cached_property
    def ranges(self) -> list[tuple[int, int]]:
        """Keys that lie apart, as ranges."""
        assert not isinstance(self.keys, Steps)
        edges = np.flatnonzero(np.diff(self.keys) != 1) + 1
        starts, stops = np.append(0, edges), np.append(edges, self.keys.size)
        first = self.keys[starts]
        return list(zip(first.tolist(), (first + stops - starts).tolist(), strict=True))

    def cells(self) -> int:
        """How many cells are computed, in one plane; the causal mode skips about half."""
        if self.causal:
            return self.times * causal_cells(self.rows.size, self.width)
        return self.times * self.rows.size * self.width

    def __str__(self) -> str:
        kind = "causal" if self.causal else "all seen" if self.stencil is None else "masked"
        keys = str(self.keys) if isinstance(self.keys, Steps) else f"{self.keys.size} gathered"
        more = f", {self.times} times, each {self.row_shift} on" if self.times > 1 else ""
        merged = "" if self.first else ", merged"
        where = "".join(
            f", {name} {Steps(part.start, len(part), part.step)}"
            for name, part in zip(("batch", "heads"), self.planes, strict=True)
            if part is not None
        )
        return f"rows {self.rows} × keys {keys}, {kind}{more}{merged}{where}"


@dataclass(frozen=True, eq=False)
class Bundle:
    """Strips of one shape from many planes, whose keys lie apart: one call for many of them.

    Strip n is of batch row `batch[n]` and head `heads[n]`, has `height` rows from `rows[n]`, `step`
    apart, and the keys `keys[n]`.
    """

    batch: IntArray
    heads: IntArray
    rows: IntArray
    height: int
    step: int
    keys: IntArray
    stencil: Stencil | Table | None
    first: bool

    @property
    def width(self) -> int:
        """How many keys a strip has."""
        return int(self.keys.shape[1])

    def cells(self) -> int:
        """How many cells are computed, over all planes."""
        return int(self.keys.size) * self.height

    def __str__(self) -> str:
        kind = "all seen" if self.stencil is None else "masked"
        merged = "" if self.first else ", merged"
        return (
            f"{self.rows.size} strips of {self.height} rows × {self.width} keys gathered, "
            f"{kind}{merged}, each of one plane"
        )
