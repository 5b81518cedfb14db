"""Atoms that choose by position alone: they know nothing of tokens and fit every frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.expr import Atom, Cell, KeyOnly, Mask
from maskwright.core.frame import BroadcastDims
from maskwright.core.spans import Spans
from maskwright.core.validate import FrozenArray, parse_int, read_ints
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.validate import IntArray


@dataclass(frozen=True, repr=False)
class Everything(Atom):
    """Every key."""

    name = "everything"

    def _spans(self, view: View) -> Spans:
        return view.everything()

    def _reason(self, cell: Cell, sees: bool) -> str:  # noqa: ARG002
        return "it allows every key"


@dataclass(frozen=True, repr=False)
class Nothing(Atom):
    """No key."""

    name = "nothing"

    def _spans(self, view: View) -> Spans:
        return view.nothing()

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

    def _spans(self, view: View) -> Spans:
        q = view.queries[None, None]
        # A reach beyond the frame is cut to it first, so that no sum can overflow.
        far = view.frame.q_len + view.frame.kv_len + abs(view.frame.q_start) + 1
        low = view.first if self.back is None else q - min(self.back, far)
        high = view.last + 1 if self.ahead is None else q + (min(self.ahead, far) + 1)
        return view.band(low, high)

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
class Prefix(KeyOnly):
    """The first n keys of each sequence."""

    name = "prefix"
    lengths: FrozenArray  # (batch,)

    def _spans(self, view: View) -> Spans:
        return view.band(0, self.lengths.data[:, None, None])

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("prefix: lengths", self.lengths.data.size, 1),)

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

    def _spans(self, view: View) -> Spans:
        low = view.queries // self.size * self.size
        return view.band(low[None, None], low[None, None] + self.size)

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

    def _spans(self, view: View) -> Spans:
        if self.every == 1:
            return view.everything()
        offset = view.queries - self.phase - view.first
        first = view.first + offset % self.every  # the first such key in view
        count = np.maximum(0, (view.last - first) // self.every + 1)
        row = np.repeat(np.arange(view.rows), count)
        nth = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
        starts = np.repeat(first, count) + nth * self.every - view.frame.k_start
        line = row * (view.frame.kv_len + 1) + starts
        return Spans.from_line((1, 1, view.rows), view.frame.kv_len, line, line + 1)

    def _width(self, keys: int) -> int:
        return 1 if self.every == 1 else keys // self.every + 1

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"": self.every} | ({"phase": self.phase} if self.phase else {})

    def _reason(self, cell: Cell, sees: bool) -> str:
        sign = "=" if sees else "≠"
        return f"({cell.query} - {cell.key}) mod {self.every} {sign} {self.phase}"


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
    behind = None if back is None else parse_int(back, "window: back", minimum=0)
    before = None if ahead is None else parse_int(ahead, "window: ahead", minimum=0)
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
    return Chunks(parse_int(size, "chunks: size", minimum=1))


def stride(step: int, phase: int = 0) -> Mask:
    """A query sees every `step`-th key: those with (q - k) mod step = phase.

    >>> import maskwright as mw
    >>> mw.stride(2).on(3).dense().astype(int).tolist()
    [[[[1, 0, 1], [0, 1, 0], [1, 0, 1]]]]
    """
    steps = parse_int(step, "stride: step", minimum=1)
    offset = parse_int(phase, "stride: phase", minimum=0)
    if offset >= steps:
        raise ArgumentError(
            f"stride: phase={offset} is not below step={steps}. Give {offset % steps}, its remainder."
        )
    return Stride(steps, offset)


def read_lengths(lengths: Any, atom: str) -> IntArray:
    """One length for all sequences, or one for each, as (batch,)."""
    array = read_ints(lengths, f"{atom}: lengths")
    if array.ndim > 1:
        raise ArgumentError(
            f"{atom}: lengths has {array.ndim} axes. Give one number, or one for each sequence."
        )
    if array.size and int(array.min()) < 0:
        raise ArgumentError(f"{atom}: lengths holds {int(array.min())}. Give lengths of 0 or more.")
    return array.reshape(-1)
