"""Atoms that choose key columns or query rows, by position or by a truth value for each token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.arrays import FrozenArray, read_array, read_bools, read_ints
from maskwright.core.mask import Atom, Axes, Cell, Mask
from maskwright.core.spans import Spans
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import BoolArray
    from maskwright.core.frame import Frame
    from maskwright.core.region import Region


@dataclass(frozen=True, repr=False)
class Chosen:
    """A set of positions: numbers, or a truth value for every token of each sequence."""

    positions: FrozenArray | None  # (n,), sorted
    flags: FrozenArray | None  # (batch, tokens)

    @property
    def batch(self) -> int:
        """How many sequences the choice differs between."""
        return 1 if self.flags is None else int(self.flags.data.shape[0])

    def within(self, first: int, stop: int) -> BoolArray:
        """(batch, stop - first): is that position chosen?"""
        inside = np.zeros((self.batch, max(0, stop - first)), np.bool_)
        if self.positions is not None:
            chosen = self.positions.data
            inside[:, chosen[(chosen >= first) & (chosen < stop)] - first] = True
        elif self.flags is not None:
            inside[:] = self.flags.data[:, first:stop]
        return inside

    @cached_property
    def runs(self) -> int:
        """The most stretches of neighbouring chosen positions in one sequence."""
        if self.positions is not None:
            return int((np.diff(self.positions.data) > 1).sum()) + 1
        return most_runs(self.flags.data) if self.flags is not None else 0

    def has(self, batch: int, position: int) -> bool:
        """Is this position of this sequence chosen?"""
        if self.positions is not None:
            return position in self.positions.data
        assert self.flags is not None
        return bool(self.flags.data[batch if self.batch > 1 else 0, position])

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
    """Chosen key columns."""

    name = "keys"
    where: Chosen

    def _read(self, region: Region) -> Spans:
        inside = self.where.within(region.first, region.last + 1)
        return every_row(region.cells(inside[:, None, None, :]), region.rows)

    def _fit(self, frame: Frame) -> None:
        if self.where.flags is not None:
            count = int(self.where.flags.data.shape[1])
            frame.check_tokens(
                count,
                "keys",
                f"where has {count} columns",
                f"Pass kv_len={count}, or give positions instead of truth values.",
            )

    def _axes(self) -> Iterator[Axes]:
        yield Axes("keys: where", self.where.batch, 1)

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
    where: Chosen

    def _read(self, region: Region) -> Spans:
        q = region.queries
        first = int(q[0]) if q.size else 0
        inside = self.where.within(first, first + q.size)[:, None, :]
        return region.band(region.first, np.where(inside, region.last + 1, region.first))

    def _fit(self, frame: Frame) -> None:
        if self.where.flags is not None:
            count = int(self.where.flags.data.shape[1])
            frame.check_queries(count, "queries", f"where has {count} columns")

    def _axes(self) -> Iterator[Axes]:
        yield Axes("queries: where", self.where.batch, 1)

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


def every_row(distinct: Spans, rows: int) -> Spans:
    """One row for each (batch, head), repeated for all query rows."""
    b, h, _ = distinct.shape
    if rows == 1:
        return distinct
    counts = np.diff(distinct.offsets)
    if int(counts.max(initial=0)) <= 1:
        low, high = np.zeros((2, b * h), np.int64)
        low[counts == 1], high[counts == 1] = distinct.starts, distinct.stops
        ends = low.reshape(b, h, 1), high.reshape(b, h, 1)
        return Spans.from_band(*ends, distinct.kv_len, rows)
    number = np.arange(b * h).reshape(b, h, 1)
    return distinct.take(np.broadcast_to(number, (b, h, rows)))


def most_runs(flags: BoolArray) -> int:
    """The most stretches of neighbouring True values in one row of (rows, columns)."""
    if not flags.size:
        return 0
    begins = flags.copy()
    begins[:, 1:] &= ~flags[:, :-1]
    return int(begins.sum(axis=1).max())


def _read_choice(where: Any, atom: str) -> Chosen:
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
        return Chosen(None, FrozenArray(flags))
    positions = np.unique(read_ints(array, f"{atom}: where"))
    if positions.size and int(positions[0]) < 0:
        raise ArgumentError(
            f"{atom}: where holds {int(positions[0])}. Positions count from 0 at the first key."
        )
    return Chosen(FrozenArray(positions), None)
