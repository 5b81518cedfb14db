"""`Plane`: cells (batch, queries, keys) that an expression must contain or must not contain.

Properties of its rows, columns and diagonals are computed once and cached. `Term` is a mask that
may be part of the expression, and `cost` its description length.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from weakref import ref

import numpy as np
from numpy.lib.stride_tricks import as_strided

from maskwright.core.atoms.structure import Tree
from maskwright.core.atoms.tokens import Padding
from maskwright.core.operators import And, Or

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray, IntArray

    RowReader = Callable[[IntArray | slice], BoolArray]

Operator = Literal["and", "or"]

MAX_SMALL_CELLS: Final = 2**18  # up to which terms are evaluated on all rows
NUM_SAMPLE_ROWS: Final = 48  # of a larger plane, on which terms are evaluated first
PADDING_BONUS: Final = 12.0  # characters by which padding() may be longer than an equal key set
OPERATORS: Final[dict[Operator, type[And] | type[Or]]] = {"and": And, "or": Or}


class Term(NamedTuple):
    """A mask that may be part of the expression, its cells, and its cost."""

    mask: Mask
    read: RowReader  # the cells of some rows, (batch or 1, rows, keys)
    cost: float


class RowRange(NamedTuple):
    """For each row its first and last position."""

    low: IntArray  # (batch, queries)
    high: IntArray
    nonempty: BoolArray  # whether the row has required cells


class Plane:
    """Cells (batch, queries, keys) to be described: required, forbidden, or else free."""

    def __init__(
        self, required: BoolArray, forbidden: BoolArray, q_start: int, *, is_strip: bool = False
    ) -> None:
        self.required = required
        self.forbidden = forbidden
        self.q_start = q_start
        self.is_strip = is_strip  # some rows of a large plane
        self._inverse: Plane | ref[Plane] | None = None
        self.batch, self.q_len, self.kv_len = (int(size) for size in required.shape)

    @property
    def q_stop(self) -> int:
        """Position of the last query, plus 1."""
        return self.q_start + self.q_len

    @property
    def num_tokens(self) -> int:
        """Number of positions up to the last query or key."""
        return max(self.q_stop, self.kv_len, 0)

    @property
    def queries_near_keys(self) -> bool:
        """Whether the queries are so close to the keys that data per position is affordable."""
        distance = self.num_tokens - min(self.q_start, 0)
        return distance <= 4 * (self.q_len + self.kv_len) + 64

    @property
    def has_tokens(self) -> bool:
        """Whether queries and keys are positions of one token sequence, counted from 0."""
        return self.q_start >= 0 and self.queries_near_keys

    @property
    def queries(self) -> IntArray:
        """Position of each row's query."""
        return np.arange(self.q_start, self.q_stop)

    def with_cells(self, required: BoolArray, forbidden: BoolArray) -> Plane:
        """The same rows and keys with other cells."""
        return Plane(required, forbidden, self.q_start, is_strip=self.is_strip)

    @property
    def inverse(self) -> Plane:
        """The plane with required and forbidden cells exchanged."""
        known = self._inverse() if isinstance(self._inverse, ref) else self._inverse
        if known is None:
            known = self._inverse = self.with_cells(self.forbidden, self.required)
            known._inverse = ref(self)  # a cycle would keep large arrays alive
        return known

    @cached_property
    def merged(self) -> Plane:
        """All batch rows as one: a cell is required or forbidden if it is in any of them."""
        if self.batch == 1:
            return self
        return self.with_cells(
            any_along(self.required, 0)[None], any_along(self.forbidden, 0)[None]
        )

    @cached_property
    def transposed(self) -> Plane | None:
        """Queries and keys exchanged; None if the first query is not at position 0."""
        if self.q_start != 0:
            return None
        return Plane(self.required.swapaxes(1, 2), self.forbidden.swapaxes(1, 2), 0)

    @cached_property
    def has_required(self) -> bool:
        """Whether any cell is required."""
        return bool(self.required.any())

    @cached_property
    def keys_used(self) -> BoolArray:
        """Whether a key has required cells, (batch, keys)."""
        return any_along(self.required, 1)

    @cached_property
    def queries_used(self) -> BoolArray:
        """Whether a query has required cells, (batch, queries)."""
        return any_along(self.required, 2)

    @cached_property
    def diagonals_used(self) -> BoolArray:
        """Whether a diagonal, numbered as in `offsets`, has required cells in any batch row."""
        plane = self.merged.required[0]
        wide = np.zeros((self.q_len, self.kv_len + self.q_len), np.bool_)
        wide[:, : self.kv_len] = plane[::-1]
        # With rows one element shorter, each row is shifted by one against the row before.
        size = self.kv_len + self.q_len - 1
        return any_along(wide.ravel()[: self.q_len * size].reshape(self.q_len, size), 0)

    @cached_property
    def offsets(self) -> IntArray:
        """Offset k - q of each diagonal, from -(q_stop - 1) to kv_len - 1 - q_start."""
        return np.arange(self.kv_len + self.q_len - 1) - (self.q_stop - 1)

    @cached_property
    def required_offsets(self) -> IntArray:
        """The values of k - q among the required cells."""
        return self.offsets[self.diagonals_used]

    @cached_property
    def key_range(self) -> RowRange:
        """First and last required key of each row."""
        first = self.required.argmax(axis=2)
        last = self.kv_len - 1 - self.required[:, :, ::-1].argmax(axis=2)
        return RowRange(first, last, self.queries_used)

    @cached_property
    def token_range(self) -> RowRange:
        """First and last position of each row's required keys and its own query."""
        first, last, nonempty = self.key_range
        queries = self.queries
        return RowRange(np.minimum(first, queries), np.maximum(last, queries), nonempty)

    @cached_property
    def nearest_keys(self) -> tuple[IntArray, IntArray]:
        """For each query the nearest required key at or before it, and at or after it."""
        plane = self.merged.required[0]
        past = plane & cells_by_diagonal(self, self.offsets <= 0)[0]
        left = np.where(past.any(axis=1), self.kv_len - 1 - past[:, ::-1].argmax(axis=1), -1)
        future = plane & cells_by_diagonal(self, self.offsets >= 0)[0]
        right = np.where(future.any(axis=1), future.argmax(axis=1), 2**31)
        return left, right

    @property
    def is_small(self) -> bool:
        """Whether terms can be evaluated on all cells."""
        return self.required.size <= MAX_SMALL_CELLS

    @cached_property
    def views(self) -> tuple[tuple[Plane, slice], ...]:
        """Planes to describe, cheapest first: two strips of rows of a large plane, then all."""
        everything = ((self, slice(0, self.q_len)),)
        if self.is_small:
            return everything
        last = max(self.q_len - NUM_SAMPLE_ROWS, 0)
        starts = np.linspace(0, last, 8).astype(np.int64).tolist()
        strips = [slice(start, start + NUM_SAMPLE_ROWS) for start in starts]
        # Strips whose cells are nearly all required or all forbidden exclude few expressions.
        mixed = sorted((rows for rows in strips if self._balance(rows)), key=self._balance)
        return (*((self._strip(rows), rows) for rows in mixed[::-1][:2]), *everything)

    def _balance(self, rows: slice) -> int:
        parts = (self.required, self.forbidden)
        return min(int(np.count_nonzero(part[:, rows])) for part in parts)

    def _strip(self, rows: slice) -> Plane:
        start = self.q_start + int(rows.start)
        return Plane(self.required[:, rows], self.forbidden[:, rows], start, is_strip=True)

    def sample(self) -> IntArray:
        """Rows on which terms are evaluated first: all of a small plane, some of a large one."""
        if self.is_small:
            return np.arange(self.q_len)
        edge = np.arange(8)
        spread = np.linspace(0, self.q_len - 1, NUM_SAMPLE_ROWS).astype(np.int64)
        rows = np.concatenate([edge, self.q_len - 1 - edge, spread, spread + 1])
        return np.unique(rows.clip(0, self.q_len - 1))


# ── cells ─────────────────────────────────────────────────────────────────────────────────────


def any_along(cells: BoolArray, axis: int) -> BoolArray:
    """`cells.any(axis)`."""
    result: BoolArray = np.logical_or.reduce(cells, axis=axis)
    return result


def cells_by_diagonal(plane: Plane, visible: BoolArray) -> BoolArray:
    """Cells (1, queries, keys) from one bool per diagonal, as a view."""
    if not visible.size or not plane.q_len or not plane.kv_len:
        return np.zeros((1, plane.q_len, plane.kv_len), np.bool_)
    line = np.ascontiguousarray(visible)
    size = (plane.q_len, plane.kv_len)
    return as_strided(line[plane.q_len - 1 :], size, (-1, 1), writeable=False)[None]


def read_equal_labels(row_labels: IntArray, key_labels: IntArray) -> RowReader:
    """Reader of the cells in which the query and the key have the same label."""
    return lambda rows: np.equal(row_labels[:, rows, None], key_labels[:, None, :])


def read_cells(cells: BoolArray) -> RowReader:
    """Reader of an array (batch or 1, queries, keys)."""
    return lambda rows: cells[:, rows]


def prefix_lengths(chosen: BoolArray) -> IntArray | None:
    """The number of chosen columns per row of (batch, columns); None if they are not the first."""
    if bool((chosen[:, 1:] & ~chosen[:, :-1]).any()):
        return None
    lengths: IntArray = chosen.sum(axis=1, dtype=np.int64)
    return lengths


# ── expressions ───────────────────────────────────────────────────────────────────────────────


def terms_of(mask: Mask, operator: Operator) -> tuple[Mask, ...]:
    """The terms that this operator combines; the mask itself if it is not such a combination."""
    return mask._terms_of(OPERATORS[operator])


def cost(mask: Mask) -> float:
    """Description length: the characters of its text, less those that say what is usual.

    An expression with padding() states what is meant, so it is preferred to an equal key set. The
    parents of the tokens of a prompt are known; the tree of drafts after it is not charged for them.
    """
    terms = terms_of(mask, "and")
    padding = sum(map(_is_typical_padding, terms))
    prompts = sum(_prompt_length(term) for term in terms if isinstance(term, Tree))
    return len(repr(mask)) - PADDING_BONUS * padding - prompts


def _prompt_length(mask: Tree) -> int:
    """Characters of the parents of the tokens before the first branch, where all share one root."""
    parents = mask.parents.data
    is_chain = np.logical_and.accumulate(parents == np.arange(parents.shape[1]) - 1, axis=1)
    one_root = (parents < 0).sum(axis=1) == 1
    return sum(len(f"{parent}, ") for parent in parents[is_chain & one_root[:, None]].tolist())


def _is_typical_padding(mask: Mask) -> bool:
    """Whether it is padding on the right of each sequence, or on the left of several."""
    if not isinstance(mask, Padding):
        return False
    if mask.keep is None:
        return True
    keep = mask.keep.data
    return keep.shape[0] > 1 and prefix_lengths(keep[:, ::-1]) is not None
