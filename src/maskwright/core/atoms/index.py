"""Atoms that choose key columns or query rows, by position or by a truth value for each token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.evaluate import View
from maskwright.core.expr import Atom, Cell, Mask
from maskwright.core.frame import BroadcastDims, Frame
from maskwright.core.interval_ops import CSR
from maskwright.core.spans import Spans
from maskwright.core.validate import FrozenArray, read_array, read_bools, read_ints
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.validate import BoolArray


@dataclass(frozen=True, repr=False)
class IndexSet:
    """A set of positions: numbers, or a truth value for every token of each sequence."""

    positions: FrozenArray | None  # (n,), sorted
    flags: FrozenArray | None  # (batch, tokens)

    @property
    def batch(self) -> int:
        """How many sequences the choice differs between."""
        return 1 if self.flags is None else int(self.flags.data.shape[0])

    @cached_property
    def stretches(self) -> Spans:
        """Neighbouring chosen positions as intervals, one row a sequence."""
        if self.flags is not None:
            tokens = int(self.flags.data.shape[1])
            frame = Frame(1, tokens, batch=self.batch)
            return View(frame, 0, 1, 0, tokens).cells(self.flags.data[:, None, None])
        assert self.positions is not None
        chosen = self.positions.data
        begins = np.append(True, np.diff(chosen) > 1)[: chosen.size]
        starts, stops = chosen[begins], chosen[np.append(begins[1:], True)[: chosen.size]] + 1
        flat = CSR(np.array([0, starts.size]), starts, stops)
        return Spans((1, 1, 1), int(chosen.max(initial=0)) + 1, flat=flat)

    @cached_property
    def runs(self) -> int:
        """The most stretches in one sequence."""
        return int(np.diff(self.stretches.offsets).max(initial=0))

    def key_spans(self, view: View) -> Spans:
        """Every row of the view sees the chosen keys."""
        offsets, starts, stops = self.stretches.flat
        picked, counts = [np.zeros(0, np.int64)], []
        for begin, end in pairwise(offsets.tolist()):
            low = begin + int(np.searchsorted(stops[begin:end], view.first, side="right"))
            high = begin + int(np.searchsorted(starts[begin:end], view.last + 1))
            picked.append(np.arange(low, max(low, high)))
            counts.append(max(0, high - low))
        index = np.concatenate(picked)
        distinct = view.ordered(np.array(counts, np.int64), starts[index], stops[index])
        return _repeat(distinct.reshape((self.batch, 1, 1)), view.rows)

    def rows(self, view: View) -> BoolArray:
        """(batch, 1, rows): is the row's query chosen?"""
        first = view.frame.q_start + view.row
        inside = np.zeros((self.batch, 1, view.rows), np.bool_)
        if self.positions is not None:
            chosen = self.positions.data
            begin, end = np.searchsorted(chosen, [first, first + view.rows])
            inside[..., chosen[begin:end] - first] = True
        elif self.flags is not None:
            inside[:, 0] = self.flags.data[:, first : first + view.rows]
        return inside

    def argument(self) -> object:
        """What was given, as source can say it."""
        if self.positions is None:
            return self.flags
        chosen = self.positions.data
        steps = np.diff(chosen)
        if chosen.size > 3 and bool((steps == steps[0]).all()):
            return range(int(chosen[0]), int(chosen[-1]) + 1, int(steps[0]))
        return self.positions


@dataclass(frozen=True, repr=False)
class Keys(Atom):
    """IndexSet key columns."""

    name = "keys"
    where: IndexSet

    def _spans(self, view: View) -> Spans:
        return self.where.key_spans(view)

    def _fit(self, frame: Frame) -> None:
        if self.where.flags is not None:
            count = int(self.where.flags.data.shape[1])
            frame.check_keys(
                count,
                "keys",
                f"where has {count} columns",
                f"Pass kv_len={count}, or give positions instead of truth values.",
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("keys: where", self.where.batch, 1),)

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self.where.runs)

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"": self.where.argument()}

    def _reason(self, cell: Cell, sees: bool) -> str:
        return f"key {cell.key} is {'' if sees else 'not '}chosen"


@dataclass(frozen=True, repr=False)
class Queries(Atom):
    """All keys, for chosen query rows."""

    name = "queries"
    where: IndexSet

    def _spans(self, view: View) -> Spans:
        chosen = self.where.rows(view)
        return view.band(view.first, np.where(chosen, view.last + 1, view.first))

    def _fit(self, frame: Frame) -> None:
        if self.where.flags is not None:
            count = int(self.where.flags.data.shape[1])
            frame.check_queries(
                count,
                "queries",
                f"where has {count} columns",
                "Give a column for every query position, or give positions.",
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("queries: where", self.where.batch, 1),)

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"": self.where.argument()}

    def _reason(self, cell: Cell, sees: bool) -> str:
        return f"query {cell.query} is {'' if sees else 'not '}chosen"


def keys(where: Any) -> Mask:
    """Every query sees the chosen keys: positions, or a truth value for each token.

    >>> import maskwright as mw
    >>> mw.keys([0, 2]).on(3).spans.row(1)
    [(0, 1), (2, 3)]
    >>> mw.keys([[True, False, True], [True, True, False]]).on(3).spans.row(1, batch=1)
    [(0, 2)]
    """
    return Keys(_read_choice(where, "keys"))


def queries(where: Any) -> Mask:
    """The chosen queries see all keys: positions, or a truth value for each token.

    >>> import maskwright as mw
    >>> mw.queries([1]).on(3).dense().astype(int).tolist()
    [[[[0, 0, 0], [1, 1, 1], [0, 0, 0]]]]
    """
    return Queries(_read_choice(where, "queries"))


def _repeat(distinct: Spans, rows: int) -> Spans:
    """One row for each sequence, repeated for all query rows."""
    batch = distinct.shape[0]
    counts = np.diff(distinct.offsets)
    if int(counts.max(initial=0)) <= 1:
        low, high = np.zeros((2, batch, 1, 1), np.int64)
        low[counts == 1, 0, 0], high[counts == 1, 0, 0] = distinct.starts, distinct.stops
        return Spans.from_band(low, high, distinct.kv_len, rows)
    number = np.arange(batch).reshape(batch, 1, 1)
    return distinct.take(np.broadcast_to(number, (batch, 1, rows)))


def most_runs(flags: BoolArray) -> int:
    """The most stretches of neighbouring True values in one row of (rows, columns)."""
    if not flags.size:
        return 0
    begins = flags.copy()
    begins[:, 1:] &= ~flags[:, :-1]
    return int(begins.sum(axis=1).max())


def _read_choice(where: Any, atom: str) -> IndexSet:
    array = read_array(where, f"{atom}: where")
    if array.dtype == np.bool_ or array.ndim > 1:
        flags = read_bools(
            array, f"{atom}: where", instead="Give positions in one axis, or truth values."
        )
        if flags.ndim == 1:
            flags = flags[None]
        if flags.ndim != 2 or not flags.shape[0]:
            raise ArgumentError(
                f"{atom}: where has shape {array.shape}. Give (tokens,) or (batch, tokens)."
            )
        return IndexSet(None, FrozenArray(flags))
    given = read_ints(where, f"{atom}: where").reshape(-1)
    positions = np.sort(given)
    again = positions[1:][positions[1:] == positions[:-1]]
    if again.size:
        raise ArgumentError(
            f"{atom}: where names position {int(again[0])} twice. "
            "Give each position once, or truth values as True and False."
        )
    if positions.size and int(positions[0]) < 0:
        raise ArgumentError(
            f"{atom}: where holds {int(positions[0])}. Count positions from 0 at the first key."
        )
    return IndexSet(FrozenArray(positions), None)
