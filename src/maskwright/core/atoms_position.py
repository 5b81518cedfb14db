"""Atoms that choose by position alone: they know nothing of tokens and fit every frame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.arrays import FrozenArray, read_array, read_bools, read_ints, read_whole
from maskwright.core.mask import Atom, Axes, Cell, Mask
from maskwright.core.spans import Spans
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.core.frame import Frame
    from maskwright.core.region import Region


@dataclass(frozen=True, repr=False)
class Everything(Atom):
    """Every key."""

    name = "everything"

    def _read(self, region: Region) -> Spans:
        return region.everything()

    def _reason(self, cell: Cell, sees: bool) -> str:  # noqa: ARG002
        return "it allows every key"


@dataclass(frozen=True, repr=False)
class Nothing(Atom):
    """No key."""

    name = "nothing"

    def _read(self, region: Region) -> Spans:
        return region.nothing()

    def _extent(self) -> int:
        return 0

    def _reason(self, cell: Cell, sees: bool) -> str:  # noqa: ARG002
        return "it allows no key"


@dataclass(frozen=True, repr=False)
class Window(Atom):
    """Keys q - back … q + ahead; None is no limit."""

    name = "window"
    back: int | None
    ahead: int | None

    def _read(self, region: Region) -> Spans:
        q = region.queries
        # A reach beyond the frame is cut to it first, so that no sum can overflow.
        far = region.frame.q_len + region.frame.kv_len + abs(region.frame.q_start) + 1
        low = region.first if self.back is None else (q - min(self.back, far))[None, None]
        high = (
            region.last + 1 if self.ahead is None else (q + (min(self.ahead, far) + 1))[None, None]
        )
        return region.band(low, high)

    def _extent(self) -> int | None:
        return None if self.back is None or self.ahead is None else self.back + self.ahead + 1

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self.back is None and self.ahead == 0:
            return "causal", {}
        return self.name, {"back": self.back} | ({"ahead": self.ahead} if self.ahead != 0 else {})

    def _reason(self, cell: Cell, sees: bool) -> str:
        q, k = cell.query, cell.key
        if self.ahead is not None and (k > q + self.ahead or (sees and self.back is None)):
            sign = "≤" if sees else ">"
            return f"{k} {sign} {q}" + (f" + {self.ahead}" if self.ahead else "")
        if self.ahead is None or not sees:
            sign = "≥" if sees else "<"
            return f"{k} {sign} {q} - {self.back}"
        return f"{q} - {self.back} ≤ {k} ≤ {q}" + (f" + {self.ahead}" if self.ahead else "")


@dataclass(frozen=True, repr=False)
class Prefix(Atom):
    """The first n keys of each sequence."""

    name = "prefix"
    lengths: FrozenArray  # (batch,)

    def _read(self, region: Region) -> Spans:
        return region.band(0, self.lengths.data[:, None, None])

    def _axes(self) -> Iterator[Axes]:
        yield Axes("prefix: lengths", self.lengths.data.size, 1)

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"lengths": self.lengths}

    def _reason(self, cell: Cell, sees: bool) -> str:
        length = self.lengths.data[cell.batch if self.lengths.data.size > 1 else 0]
        return f"key {cell.key} is {'in' if sees else 'after'} the prefix of {length}"


@dataclass(frozen=True, repr=False)
class Chunks(Atom):
    """The keys of the query's own chunk."""

    name = "chunks"
    size: int

    def _read(self, region: Region) -> Spans:
        low = region.queries // self.size * self.size
        return region.band(low[None, None], low[None, None] + self.size)

    def _extent(self) -> int:
        return self.size

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"": self.size}

    def _reason(self, cell: Cell, sees: bool) -> str:
        q, k = cell.query // self.size, cell.key // self.size
        return f"both in chunk {q}" if sees else f"query in chunk {q}, key in chunk {k}"


@dataclass(frozen=True, repr=False)
class Stride(Atom):
    """Keys k with (q - k) mod every = phase."""

    name = "stride"
    every: int
    phase: int

    def _read(self, region: Region) -> Spans:
        if self.every == 1:
            return region.everything()
        offset = region.queries - self.phase - region.first
        first = region.first + offset % self.every  # the first such key in view
        count = np.maximum(0, (region.last - first) // self.every + 1)
        row = np.repeat(np.arange(region.rows), count)
        nth = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
        starts = np.repeat(first, count) + nth * self.every - region.frame.k_start
        line = row * (region.frame.kv_len + 1) + starts
        return Spans.from_line((1, 1, region.rows), region.frame.kv_len, line, line + 1)

    def _width(self, keys: int) -> int:
        return 1 if self.every == 1 else keys // self.every + 1

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"": self.every} | ({"phase": self.phase} if self.phase else {})

    def _reason(self, cell: Cell, sees: bool) -> str:
        sign = "=" if sees else "≠"
        return f"({cell.query} - {cell.key}) mod {self.every} {sign} {self.phase}"


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


def everything() -> Mask:
    """Every query sees every key.

    >>> import maskwright as mw
    >>> mw.everything().on(2).count()
    4
    """
    return Everything()


def nothing() -> Mask:
    """No query sees any key.

    >>> import maskwright as mw
    >>> mw.nothing().on(2).count()
    0
    """
    return Nothing()


def causal() -> Mask:
    """A query sees itself and what came before it: keys ≤ q. The same as `window(back=None)`.

    >>> import maskwright as mw
    >>> mw.causal().on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Window(None, 0)


def window(back: int | None, ahead: int | None = 0) -> Mask:
    """A query sees keys q - back … q + ahead, both ends included; None is no limit.

    A window that others call "of W tokens" is `window(back=W - 1)`: the query itself is one of
    them.

    >>> import maskwright as mw
    >>> mw.window(back=1).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    """
    for name, value in (("back", back), ("ahead", ahead)):
        if value is not None and isinstance(value, (int, np.integer)) and value < 0:
            raise ArgumentError(
                f"window: {name}={value} is negative. "
                "Count keys from the query, 0 or more, or give None for no limit."
            )
    behind = None if back is None else read_whole(back, "window: back", least=0)
    before = None if ahead is None else read_whole(ahead, "window: ahead", least=0)
    return Everything() if behind is None and before is None else Window(behind, before)


def prefix(lengths: Any) -> Mask:
    """Every query sees the first n keys: one number for all sequences, or one for each.

    >>> import maskwright as mw
    >>> (mw.causal() | mw.prefix(2)).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Prefix(FrozenArray(read_lengths(lengths, "prefix")))


def chunks(size: int) -> Mask:
    """A query sees its own chunk of `size` positions.

    >>> import maskwright as mw
    >>> mw.chunks(2).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    return Chunks(read_whole(size, "chunks: size", least=1))


def stride(step: int, phase: int = 0) -> Mask:
    """A query sees every `step`-th key: those with (q - k) mod step = phase.

    >>> import maskwright as mw
    >>> mw.stride(2).on(3).dense().astype(int).tolist()
    [[[[1, 0, 1], [0, 1, 0], [1, 0, 1]]]]
    """
    steps = read_whole(step, "stride: step", least=1)
    offset = read_whole(phase, "stride: phase", least=0)
    if offset >= steps:
        raise ArgumentError(
            f"stride: phase={offset} is not below step={steps}. Give {offset % steps}, its remainder."
        )
    return Stride(steps, offset)


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


def read_lengths(lengths: Any, atom: str) -> IntArray:
    """One length for all sequences, or one for each, as (batch,)."""
    array = read_ints(lengths, f"{atom}: lengths")
    if array.ndim > 1:
        raise ArgumentError(
            f"{atom}: lengths has {array.ndim} axes. Give one number, or one for each sequence."
        )
    if array.size and int(array.min()) < 0:
        raise ArgumentError(f"{atom}: lengths holds {int(array.min())}. Lengths are 0 or more.")
    return array.reshape(-1)


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
