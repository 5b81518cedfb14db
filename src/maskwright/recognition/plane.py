"""A plane to be explained: cells that must be seen, cells that must not, and the rest, free.

What may enter here: what a plane looks like along its rows, columns and diagonals, each found in
one pass over its cells. Which atoms that suggests is for the other `patterns_*` files.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import ref

import numpy as np
from numpy.lib.stride_tricks import as_strided

from maskwright.core.atoms.tokens import Padding
from maskwright.core.expr import And, Or

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray, IntArray

    Read = Callable[[IntArray | slice], BoolArray]

SMALL: Final = 2**18  # cells up to which terms are weighed on all rows
FEW_ROWS: Final = 48  # so many stand for all, at first, in a larger plane
PADDING_GAIN: Final = 12.0  # so many letters padding may have more than the same set of keys


class Term(NamedTuple):
    """A mask that may be part of the answer, its cells, and how many letters it counts for."""

    mask: Mask
    read: Read  # some rows' cells, (batch or 1, those rows, keys)
    cost: float


class Reach(NamedTuple):
    """For every row the first and last token that it ties together, its own query among them."""

    low: IntArray  # (batch, queries)
    high: IntArray
    tied: BoolArray  # does the row have a cell at all?


class Plane:
    """Cells (batch, queries, keys) that must be seen, and cells that must not be."""

    def __init__(
        self, must: BoolArray, bar: BoolArray, q_start: int, *, strip: bool = False
    ) -> None:
        self.must = must
        self.bar = bar
        self.q_start = q_start
        self.is_strip = strip  # a few rows of a large plane
        self._inverse: Plane | ref[Plane] | None = None
        self.batch, self.q_len, self.kv_len = (int(size) for size in must.shape)

    @property
    def q_stop(self) -> int:
        """One past the last query's position."""
        return self.q_start + self.q_len

    @property
    def tokens(self) -> int:
        """How many positions there are up to the last query or key."""
        return max(self.q_stop, self.kv_len, 0)

    @property
    def near_keys(self) -> bool:
        """Do the queries sit so near the keys that data for every position is worth thinking of?"""
        reach = self.tokens - min(self.q_start, 0)
        return reach <= 4 * (self.q_len + self.kv_len) + 64

    @property
    def has_tokens(self) -> bool:
        """Do queries and keys stand among one sequence of tokens, counted from 0?"""
        return self.q_start >= 0 and self.near_keys

    @property
    def queries(self) -> IntArray:
        """The position of every row's query."""
        return np.arange(self.q_start, self.q_stop)

    def but(self, must: BoolArray, bar: BoolArray) -> Plane:
        """The same rows and keys with other cells."""
        return Plane(must, bar, self.q_start, strip=self.is_strip)

    @property
    def inverse(self) -> Plane:
        """The same with what must be seen and what must not changed over."""
        known = self._inverse() if isinstance(self._inverse, ref) else self._inverse
        if known is None:
            known = self._inverse = self.but(self.bar, self.must)
            known._inverse = ref(self)  # a cycle would keep large arrays alive
        return known

    @cached_property
    def shared(self) -> Plane:
        """All batch rows as one: what any of them must see, and must not."""
        if self.batch == 1:
            return self
        return self.but(any_along(self.must, 0)[None], any_along(self.bar, 0)[None])

    @cached_property
    def turned(self) -> Plane | None:
        """Queries and keys changed over, where both count from position 0."""
        if self.q_start != 0:
            return None
        return Plane(self.must.swapaxes(1, 2), self.bar.swapaxes(1, 2), 0)

    @cached_property
    def some(self) -> bool:
        """Must anything be seen?"""
        return bool(self.must.any())

    @cached_property
    def columns(self) -> BoolArray:
        """(batch, keys): must some query see the key?"""
        return any_along(self.must, 1)

    @cached_property
    def rows(self) -> BoolArray:
        """(batch, queries): must the query see something?"""
        return any_along(self.must, 2)

    @cached_property
    def diagonals(self) -> BoolArray:
        """For k - q = -(q_stop - 1) …, the last being kv_len - 1 - q_start: is a cell there?"""
        plane = self.shared.must[0]
        wide = np.zeros((self.q_len, self.kv_len + self.q_len), np.bool_)
        wide[:, : self.kv_len] = plane[::-1]
        # Read with rows one cell shorter, every row stands one cell further right than the last.
        size = self.kv_len + self.q_len - 1
        return any_along(wide.ravel()[: self.q_len * size].reshape(self.q_len, size), 0)

    @cached_property
    def offsets(self) -> IntArray:
        """What k - q is on every diagonal."""
        return np.arange(self.kv_len + self.q_len - 1) - (self.q_stop - 1)

    @cached_property
    def seen_offsets(self) -> IntArray:
        """The values of k - q that occur among what must be seen."""
        return self.offsets[self.diagonals]

    @cached_property
    def ends(self) -> Reach:
        """The first and last key that every row must see."""
        first = self.must.argmax(axis=2)
        last = self.kv_len - 1 - self.must[:, :, ::-1].argmax(axis=2)
        return Reach(first, last, self.rows)

    @cached_property
    def reach(self) -> Reach:
        """The stretch of tokens from the query to what it must see."""
        first, last, tied = self.ends
        own = self.queries
        return Reach(np.minimum(first, own), np.maximum(last, own), tied)

    @cached_property
    def near(self) -> tuple[IntArray, IntArray]:
        """For every query the nearest key on either side that must be seen, itself too."""
        plane = self.shared.must[0]
        past = plane & by_diagonal(self, self.offsets <= 0)[0]
        left = np.where(past.any(axis=1), self.kv_len - 1 - past[:, ::-1].argmax(axis=1), -1)
        future = plane & by_diagonal(self, self.offsets >= 0)[0]
        right = np.where(future.any(axis=1), future.argmax(axis=1), 2**31)
        return left, right

    @property
    def small(self) -> bool:
        """Can all of it be looked at again and again?"""
        return self.must.size <= SMALL

    @cached_property
    def views(self) -> tuple[tuple[Plane, slice], ...]:
        """What to look at, quickest first: in a large plane two strips of rows, then the whole."""
        every = ((self, slice(0, self.q_len)),)
        if self.small:
            return every
        starts = np.linspace(0, max(self.q_len - FEW_ROWS, 0), 8).astype(np.int64).tolist()
        strips = [slice(start, start + FEW_ROWS) for start in starts]
        # Of rows that all see the same there is little to say.
        mixed = sorted((rows for rows in strips if self._mixed(rows)), key=self._mixed)
        return (*((self._strip(rows), rows) for rows in mixed[::-1][:2]), *every)

    def _mixed(self, rows: slice) -> int:
        must, bar = (int(np.count_nonzero(part[:, rows])) for part in (self.must, self.bar))
        return min(must, bar)

    def _strip(self, rows: slice) -> Plane:
        start = self.q_start + int(rows.start)
        return Plane(self.must[:, rows], self.bar[:, rows], start, strip=True)

    def sample(self) -> IntArray:
        """Rows on which terms are weighed first: all of a small plane, some of a large one."""
        if self.small:
            return np.arange(self.q_len)
        edge = np.arange(8)
        spread = np.linspace(0, self.q_len - 1, FEW_ROWS).astype(np.int64)
        some = np.concatenate([edge, self.q_len - 1 - edge, spread, spread + 1])
        return np.unique(some.clip(0, self.q_len - 1))


def any_along(cells: BoolArray, axis: int) -> BoolArray:
    """Is anything true along this axis?"""
    found: BoolArray = np.logical_or.reduce(cells, axis=axis)
    return found


def by_diagonal(plane: Plane, lit: BoolArray) -> BoolArray:
    """The cells (1, queries, keys) of a truth value for every diagonal, as a view."""
    if not lit.size or not plane.q_len or not plane.kv_len:
        return np.zeros((1, plane.q_len, plane.kv_len), np.bool_)
    line = np.ascontiguousarray(lit)
    size = (plane.q_len, plane.kv_len)
    return as_strided(line[plane.q_len - 1 :], size, (-1, 1), writeable=False)[None]


def by_label(row_labels: IntArray, key_labels: IntArray) -> Read:
    """Reads the cells in which the query's and the key's label are the same."""
    return lambda rows: np.equal(row_labels[:, rows, None], key_labels[:, None, :])


def from_cells(cells: BoolArray) -> Read:
    """Reads what an array (batch or 1, queries, keys) holds."""
    return lambda rows: cells[:, rows]


def cost(mask: Mask) -> float:
    """How long the mask's text is; what looks like padding counts less, as it says what is meant."""
    if isinstance(mask, And):
        inner = sum(cost(term) + 2 * isinstance(term, Or) for term in mask.terms)
        return inner + 3 * (len(mask.terms) - 1)
    return len(repr(mask)) - (PADDING_GAIN if _looks_like_padding(mask) else 0)


def first_lines(chosen: BoolArray) -> IntArray | None:
    """(batch,): how many of (batch, lines) are chosen, where they are the first ones."""
    if bool((chosen[:, 1:] & ~chosen[:, :-1]).any()):
        return None
    lengths: IntArray = chosen.sum(axis=1, dtype=np.int64)
    return lengths


def _looks_like_padding(mask: Mask) -> bool:
    """On the right of each sequence, or on the left of several."""
    if not isinstance(mask, Padding) or mask.keep is None:
        return isinstance(mask, Padding)
    keep = mask.keep.data
    return keep.shape[0] > 1 and first_lines(keep[:, ::-1]) is not None
