"""Atoms that select key columns or query rows: `keys`, `queries`, and the `IndexSet` they hold."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core import regions
from maskwright.core.atoms.position import Nothing
from maskwright.core.cache import mask_property
from maskwright.core.evaluate import View
from maskwright.core.expr import MAX_CHEAP_INTERVALS, Atom, Mask, set_max_intervals
from maskwright.core.frame import BroadcastDims, Frame
from maskwright.core.interval_ops import CSR, sweep
from maskwright.core.nodes import FormulaWriter, Operator, Row, Sizes
from maskwright.core.operators import Not
from maskwright.core.spans import Spans
from maskwright.core.validate import (
    MAX_INT,
    FrozenArray,
    read_array,
    read_bools,
    read_ints,
    token_rows,
)
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.regions import SignedRegions
    from maskwright.core.validate import BoolArray, IntArray

MAX_LISTED: Final = 64  # positions that text always lists one by one


@dataclass(frozen=True, repr=False)
class IndexSet:
    """A set of positions: intervals that are the same for all sequences, or flags per sequence."""

    runs: FrozenArray | None  # (n, 2): start and stop, sorted, neither overlapping nor touching
    flags: FrozenArray | None  # (batch, tokens)

    @classmethod
    def of_positions(cls, positions: IntArray) -> IndexSet:
        """The set of sorted, distinct positions."""
        begins = np.append(True, np.diff(positions) > 1)[: positions.size]
        ends = np.append(begins[1:], True)[: positions.size]
        return cls(FrozenArray(np.stack([positions[begins], positions[ends] + 1], axis=1)), None)

    @classmethod
    def of_flags(cls, flags: BoolArray) -> IndexSet:
        """The positions that are True, in each row of (batch, tokens)."""
        return cls(None, FrozenArray(flags))

    def __getstate__(self) -> dict[str, Any]:
        return {"runs": self.runs, "flags": self.flags}  # without cached properties

    @property
    def batch(self) -> int:
        """Number of sequences that differ."""
        return 1 if self.flags is None else int(self.flags.data.shape[0])

    @property
    def tokens(self) -> int | None:
        """Number of tokens that the flags describe; None for intervals."""
        return None if self.flags is None else int(self.flags.data.shape[1])

    @property
    def size(self) -> int:
        """Number of positions in the intervals."""
        assert self.runs is not None
        return int((self.runs.data[:, 1] - self.runs.data[:, 0]).sum())

    @cached_property
    def intervals(self) -> Spans:
        """The positions as intervals, one row per sequence."""
        if self.flags is not None:
            tokens = int(self.flags.data.shape[1])
            frame = Frame(1, tokens, batch=self.batch)
            return View(frame, 0, 1, 0, tokens).cells(self.flags.data[:, None, None])
        assert self.runs is not None
        starts, stops = self.runs.data.T
        flat = CSR(np.array([0, starts.size]), starts, stops)
        return Spans((1, 1, 1), int(stops.max(initial=1)), flat=flat)

    @cached_property
    def max_intervals(self) -> int:
        """Maximum number of intervals per sequence."""
        return int(np.diff(self.intervals.offsets).max(initial=0))

    def positions(self) -> IntArray:
        """All positions of the intervals."""
        assert self.runs is not None
        starts, stops = self.runs.data.T
        counts = stops - starts
        before = np.cumsum(counts) - counts
        positions: IntArray = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return positions

    def key_spans(self, view: View) -> Spans:
        """Spans in which every row attends to the keys at these positions."""
        offsets, starts, stops = self.intervals.flat
        picked, counts = [np.zeros(0, np.int64)], []
        for begin, end in pairwise(offsets.tolist()):
            low = begin + int(np.searchsorted(stops[begin:end], view.first, side="right"))
            high = begin + int(np.searchsorted(starts[begin:end], view.last + 1))
            picked.append(np.arange(low, max(low, high)))
            counts.append(max(0, high - low))
        index = np.concatenate(picked)
        distinct = view.ordered(np.array(counts, np.int64), starts[index], stops[index])
        return _repeat(distinct.reshape((self.batch, 1, 1)), view.rows)

    @cached_property
    def _few(self) -> list[list[tuple[int, int]]] | None:
        """The intervals of each sequence as a list; None if a sequence has many."""
        if self.max_intervals > MAX_CHEAP_INTERVALS:
            return None
        offsets, starts, stops = (part.tolist() for part in self.intervals.flat)
        pairs = list(zip(starts, stops, strict=True))
        return [pairs[begin:end] for begin, end in pairwise(offsets)]

    def key_row(self, row: Row) -> list[tuple[int, int]] | None:
        """The intervals among the keys of one row; None if there are many."""
        few = self._few
        if few is None:
            return None
        intervals = few[row.batch if len(few) > 1 else 0]
        return [part for start, stop in intervals for part in row.cut(start, stop)]

    def rows(self, view: View) -> BoolArray:
        """Whether each row's query is in the set, (batch, 1, rows)."""
        first = view.frame.q_start + view.row
        if self.flags is not None:
            return self.flags.data[:, None, first : first + view.rows]
        assert self.runs is not None
        starts, stops = self.runs.data.T
        nearest = np.searchsorted(starts, view.queries, side="right") - 1
        inside = view.queries < np.append(stops, np.iinfo(np.int64).min)[nearest]
        return inside[None, None]

    def merge(self, other: IndexSet, level: int) -> IndexSet | None:
        """The positions in at least `level` of two sets; None for flags, and beyond 2**60."""
        if self.runs is None or other.runs is None:
            return None
        both = np.concatenate([self.runs.data, other.runs.data])
        if int(both.max(initial=0)) > MAX_INT // 4:  # more than sweep can sort
            return None
        starts, stops = sweep(both[:, 0], both[:, 1], lambda covering: covering >= level)
        return IndexSet(FrozenArray(np.stack([starts, stops], axis=1)), None)

    def argument(self) -> object:
        """The argument that constructs the set: flags, positions, a range, or several ranges."""
        if self.runs is None:
            return self.flags
        runs = self.runs.data
        if len(runs) == 1 and self.size > 3:
            return range(*runs[0].tolist())
        if 4 * len(runs) < self.size and self.size > MAX_LISTED:
            return tuple(range(start, stop) for start, stop in runs.tolist())
        if len(runs) == self.size > 3:
            steps = np.diff(runs[:, 0])
            if bool((steps == steps[0]).all()):
                return range(int(runs[0, 0]), int(runs[-1, 0]) + 1, int(steps[0]))
        return FrozenArray(self.positions())

    def formula(self, writer: FormulaWriter, name: str, position: str) -> str:
        """Source code that tests whether `position` is in the set."""
        if self.flags is not None:
            return f"({writer.lookup(name, self.flags.data, position)} == 1)"
        assert self.runs is not None
        if self.size <= MAX_LISTED or 4 * len(self.runs.data) > self.size:
            return writer.contains(self.positions(), position)
        tests = [
            f"(({position} >= {start}) & ({position} < {stop}))"
            for start, stop in self.runs.data.tolist()
        ]
        return f"({' | '.join(tests)})" if len(tests) > 1 else tests[0]

    @cached_property
    def is_prefix(self) -> bool:
        """Whether the positions are the first ones of each sequence."""
        return self.max_intervals <= 1 and not bool(self.intervals.starts.any())

    def of_batch(self, batch: int) -> IntArray:
        """The intervals of one sequence, (n, 2)."""
        offsets, starts, stops = self.intervals.flat
        index = batch if self.batch > 1 else 0
        part = slice(offsets[index], offsets[index + 1])
        return np.stack([starts[part], stops[part]], axis=1)


class _Indexed(Atom):
    """Base class of `keys` and `queries`."""

    positional = ("where",)
    where: IndexSet

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims(f"{self.name}: where", self.where.batch, 1),)

    def _fit(self, frame: Frame) -> None:
        count = self.where.tokens
        if count is not None:
            self._check_columns(frame, count, f"where has {count} columns")

    @abstractmethod
    def _check_columns(self, frame: Frame, count: int, data: str) -> None:
        """Raises FrameError unless flags of `count` positions fit the frame."""

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"where": self.where.argument()}

    def _intersection(self, other: Any) -> Mask | None:
        return self._merge(other, 2)

    def _union(self, other: Any) -> Mask | None:
        return self._merge(other, 1)

    def _merge(self, other: _Indexed, level: int) -> Mask | None:
        where = self.where.merge(other.where, level)
        return None if where is None else type(self)(where)

    def _simpler(self) -> Mask | None:
        runs = self.where.runs
        return Nothing() if runs is not None and not len(runs.data) else None


@dataclass(frozen=True, repr=False)
class Keys(_Indexed):
    """The keys at some positions, for every query."""

    name = "keys"
    _rank = 8
    where: IndexSet

    def __post_init__(self) -> None:
        runs, flags = self.where.runs, self.where.flags
        count = len(runs.data) if runs is not None else 0
        set_max_intervals(self, count if flags is None else max_runs(flags.data))

    def _spans(self, view: View) -> Spans:
        return self.where.key_spans(view)

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        return self.where.key_row(row)

    def _check_columns(self, frame: Frame, count: int, data: str) -> None:
        fix = f"Pass kv_len={count}, or pass positions instead of booleans."
        frame.check_keys(count, self.name, data, fix)

    def _transposed(self) -> Mask:
        return Queries(self.where)

    def _sizes(self, exact: bool) -> Sizes:  # noqa: ARG002
        return Sizes(None, self.where.tokens)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:  # noqa: ARG002
        return Not(self) if operator == "~" and self.where.is_prefix else None

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        return self.where.formula(writer, "selected_keys", col)

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return regions.of_rectangles(None, self.where.of_batch(batch))


@dataclass(frozen=True, repr=False)
class Queries(_Indexed):
    """All keys, for the queries at some positions."""

    name = "queries"
    _rank = 9
    _max_intervals = 1
    where: IndexSet

    def _spans(self, view: View) -> Spans:
        selected = self.where.rows(view)
        return view.band(view.first, np.where(selected, view.last + 1, view.first))

    def _check_columns(self, frame: Frame, count: int, data: str) -> None:
        fix = "Pass a column per query position, or pass positions."
        frame.check_queries(count, self.name, data, fix)

    def _transposed(self) -> Mask:
        return Keys(self.where)

    def _sizes(self, exact: bool) -> Sizes:  # noqa: ARG002
        return Sizes(self.where.tokens, None)

    @mask_property
    def _query_tokens(self) -> int | None:
        return self.where.tokens

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        return self.where.formula(writer, "selected_queries", row)

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return regions.of_rectangles(self.where.of_batch(batch), None)


def keys(where: Any) -> Mask:
    """Every query attends to the keys at these positions.

    Args:
        where: Positions as a list, an array, a range or a list of ranges; or a boolean per token,
            (tokens,) or (batch, tokens).

    Returns:
        The mask.

    Raises:
        ArgumentError: If a position is negative or repeated, or the values are neither integers
            nor booleans.

    >>> import maskwright as mw
    >>> mw.keys([0, 2]).on(3).spans.row(1)
    [(0, 1), (2, 3)]
    >>> mw.keys([[True, False, True], [True, True, False]]).on(3).spans.row(1, batch=1)
    [(0, 2)]
    """
    return Keys(_read_index_set(where, "keys"))


def queries(where: Any) -> Mask:
    """The queries at these positions attend to all keys.

    Args:
        where: As for `keys`.

    Returns:
        The mask.

    Raises:
        ArgumentError: If a position is negative or repeated, or the values are neither integers
            nor booleans.

    >>> import maskwright as mw
    >>> mw.queries([1]).on(3).dense().astype(int).tolist()
    [[[[0, 0, 0], [1, 1, 1], [0, 0, 0]]]]
    """
    return Queries(_read_index_set(where, "queries"))


def _repeat(distinct: Spans, rows: int) -> Spans:
    """One row per sequence, repeated for all query rows."""
    batch = distinct.shape[0]
    counts = np.diff(distinct.offsets)
    if int(counts.max(initial=0)) <= 1:
        low, high = np.zeros((2, batch, 1, 1), np.int64)
        low[counts == 1, 0, 0], high[counts == 1, 0, 0] = distinct.starts, distinct.stops
        return Spans.from_band(low, high, distinct.kv_len, rows)
    number = np.arange(batch).reshape(batch, 1, 1)
    return distinct.take(np.broadcast_to(number, (batch, 1, rows)))


def max_runs(flags: BoolArray) -> int:
    """Maximum number of runs of True in one row of (rows, columns)."""
    if not flags.size:
        return 0
    begins = flags.copy()
    begins[:, 1:] &= ~flags[:, :-1]
    return int(begins.sum(axis=1).max())


def _read_index_set(where: Any, atom: str) -> IndexSet:
    name = f"{atom}: where"
    ranges = [where] if isinstance(where, range) else where
    if (
        isinstance(ranges, (list, tuple))
        and ranges
        and all(isinstance(part, range) for part in ranges)
    ):
        return _read_ranges(list(ranges), name)
    array = read_array(where, name)
    if array.dtype == np.bool_ or array.ndim > 1:
        flags = read_bools(array, name, instead="Pass positions in one dimension, or booleans.")
        return IndexSet.of_flags(token_rows(flags, name, min_rows=1))
    return _read_positions(np.sort(read_ints(where, name).reshape(-1)), name)


def _read_positions(positions: IntArray, name: str) -> IndexSet:
    repeated = positions[1:][positions[1:] == positions[:-1]]
    if repeated.size:
        raise ArgumentError(
            f"{name} contains position {int(repeated[0])} twice. "
            "Pass each position once, or booleans as True and False."
        )
    if positions.size and int(positions[0]) < 0:
        raise ArgumentError(
            f"{name} contains {int(positions[0])}. Positions count from 0 at the first key."
        )
    return IndexSet.of_positions(positions)


def _read_ranges(ranges: list[range], name: str) -> IndexSet:
    """Ranges of step 1 are not expanded."""
    whole = [part for part in ranges if part.step == 1 and part.start < part.stop]
    strided = [read_array(part, name) for part in ranges if part.step != 1]
    runs = np.array([(part.start, part.stop) for part in whole], np.object_).reshape(-1, 2)
    if runs.size and max(int(runs.max()), -int(runs.min())) > MAX_INT:
        raise ArgumentError(f"{name} goes beyond 2**62. Pass smaller numbers.")
    runs = runs.astype(np.int64)
    if strided:
        single = np.sort(np.concatenate(strided))
        runs = np.concatenate([runs, _read_positions(single, name).runs.data])  # type: ignore[union-attr]
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    if runs.size and int(runs[0, 0]) < 0:
        raise ArgumentError(f"{name} contains {int(runs[0, 0])}. Positions count from 0.")
    overlap = np.flatnonzero(runs[1:, 0] < runs[:-1, 1])
    if overlap.size:
        raise ArgumentError(
            f"{name}: ranges overlap at position {int(runs[overlap[0] + 1, 0])}, which is contained "
            "twice. Pass ranges that do not overlap."
        )
    begins = np.append(True, runs[1:, 0] > runs[:-1, 1])[: len(runs)]  # touching runs are one
    ends = np.append(begins[1:], True)[: len(runs)]
    return IndexSet(FrozenArray(np.stack([runs[begins, 0], runs[ends, 1]], axis=1)), None)
