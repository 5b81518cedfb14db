"""Atoms that depend on positions only, and fit every frame: causal, window, prefix, chunks, stride."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core import regions
from maskwright.core.expr import Atom, KeyOnly, Mask
from maskwright.core.frame import BroadcastDims
from maskwright.core.operators import Not
from maskwright.core.regions import Region, SignedRegions
from maskwright.core.spans import Spans
from maskwright.core.validate import FrozenArray, parse_int, read_ints
from maskwright.errors import ArgumentError
from maskwright.messages import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.evaluate import View
    from maskwright.core.frame import Frame
    from maskwright.core.nodes import Cell, FormulaWriter, Operator, Row
    from maskwright.core.validate import IntArray


@dataclass(frozen=True, repr=False)
class Everything(Atom):
    """Every key."""

    name = "everything"
    _rank = 0
    _max_intervals = 1

    def _spans(self, view: View) -> Spans:
        return view.everything()

    def _row(self, row: Row) -> list[tuple[int, int]]:
        return row.cut(row.first, row.stop)

    def _transposed(self) -> Mask:
        return self

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:
        return writer.constant(True, row, col)

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return regions.ALL


@dataclass(frozen=True, repr=False)
class Nothing(Atom):
    """No key."""

    name = "nothing"
    _rank = 1
    _max_intervals = 1

    def _spans(self, view: View) -> Spans:
        return view.nothing()

    def _row(self, row: Row) -> list[tuple[int, int]]:  # noqa: ARG002
        return []

    def _extent(self) -> int:
        return 0

    def _transposed(self) -> Mask:
        return self

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:
        return writer.constant(False, row, col)

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return ()


@dataclass(frozen=True, repr=False)
class Window(Atom):
    """Keys q - back … q + ahead; None is no limit."""

    name = "window"
    _rank = 2
    _max_intervals = 1
    back: int | None
    ahead: int | None = 0

    def _spans(self, view: View) -> Spans:
        q = view.queries[None, None]
        # A reach beyond the frame is cut to it first, so that no sum can overflow.
        far = view.frame.q_len + view.frame.kv_len + abs(view.frame.q_start) + 1
        low = view.first if self.back is None else q - min(self.back, far)
        high = view.last + 1 if self.ahead is None else q + (min(self.ahead, far) + 1)
        return view.band(low, high)

    def _row(self, row: Row) -> list[tuple[int, int]]:
        low = row.first if self.back is None else row.query - self.back
        return row.cut(low, row.stop if self.ahead is None else row.query + self.ahead + 1)

    def _extent(self) -> int | None:
        return None if self.back is None or self.ahead is None else self.back + self.ahead + 1

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self.back is None and self.ahead == 0:
            return "causal", {}
        return super()._call()

    def _transposed(self) -> Mask:
        return Window(self.ahead, self.back)

    def _intersection(self, other: Any) -> Mask:
        return Window(_smaller(self.back, other.back), _smaller(self.ahead, other.ahead))

    def _union(self, other: Any) -> Mask:
        # Every window contains the query itself, so the union of two is one window.
        back, ahead = _larger(self.back, other.back), _larger(self.ahead, other.ahead)
        return Everything() if back is None and ahead is None else Window(back, ahead)

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        q, k = cell.query, cell.key
        newest = f"{q}" + (f" + {self.ahead}" if self.ahead else "")
        oldest = f"{q} - {self.back}"
        if self.ahead is not None and (k > q + self.ahead or (visible and self.back is None)):
            relation = f"{k} {'≤' if visible else '>'} {newest}"
        elif self.ahead is None or not visible:
            relation = f"{k} {'≥' if visible else '<'} {oldest}"
        else:
            relation = f"{oldest} ≤ {k} ≤ {newest}"
        return Reason("relation", {"relation": relation})

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        ends = []
        if self.back is not None:
            ends.append(f"({col} >= {_plus(row, -self.back)})")
        if self.ahead is not None:
            ends.append(f"({col} <= {_plus(row, self.ahead)})")
        return f"({' & '.join(ends)})" if len(ends) == 2 else ends[0]

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        low = -regions.MAX_DISTANCE if self.ahead is None else -self.ahead
        return regions.single(Region(low, regions.MAX_DISTANCE if self.back is None else self.back))


@dataclass(frozen=True, repr=False)
class Prefix(KeyOnly):
    """The first n keys of each sequence."""

    name = "prefix"
    _rank = 5
    _max_intervals = 1
    lengths: FrozenArray  # (batch,)

    def _spans(self, view: View) -> Spans:
        return view.band(0, self.lengths.data[:, None, None])

    def _row(self, row: Row) -> list[tuple[int, int]]:
        return row.cut(0, length_of(self.lengths, row.batch))

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("prefix: lengths", self.lengths.data.size, 1),)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:  # noqa: ARG002
        return Not(self) if operator == "~" else None

    def _intersection(self, other: Any) -> Mask | None:
        lengths = merge_lengths(np.minimum, self.lengths, other.lengths)
        return None if lengths is None else Prefix(lengths)

    def _union(self, other: Any) -> Mask | None:
        lengths = merge_lengths(np.maximum, self.lengths, other.lengths)
        return None if lengths is None else Prefix(lengths)

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        length = length_of(self.lengths, cell.batch)
        return self._reason_code(visible, key=cell.key, length=length)

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        return writer.before(col, self.lengths)

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return prefix_regions(self.lengths, batch)


@dataclass(frozen=True, repr=False)
class Chunks(Atom):
    """The keys of the query's own chunk."""

    name = "chunks"
    positional = ("size",)
    _rank = 3
    _max_intervals = 1
    size: int

    def _spans(self, view: View) -> Spans:
        low = view.queries // self.size * self.size
        return view.band(low[None, None], low[None, None] + self.size)

    def _row(self, row: Row) -> list[tuple[int, int]]:
        low = row.query // self.size * self.size
        return row.cut(low, low + self.size)

    def _extent(self) -> int:
        return self.size

    def _transposed(self) -> Mask:
        return self

    def _intersection(self, other: Any) -> Mask | None:
        small, large = sorted((self.size, other.size))
        return Chunks(small) if large % small == 0 else None

    def _union(self, other: Any) -> Mask | None:
        small, large = sorted((self.size, other.size))
        return Chunks(large) if large % small == 0 else None

    def _simpler(self) -> Mask | None:
        return Window(0, 0) if self.size == 1 else None

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        query, key = cell.query // self.size, cell.key // self.size
        return self._reason_code(visible, query_chunk=query, key_chunk=key)

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        return f"({row} // {self.size} == {col} // {self.size})"

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return regions.single(Region(chunk=self.size))


@dataclass(frozen=True, repr=False)
class Stride(Atom):
    """Keys k with (q - k) % step == phase."""

    name = "stride"
    positional = ("step",)
    _rank = 4
    every: int = field(metadata={"argument": "step"})  # Mask.step is a method
    phase: int = 0

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

    def _transposed(self) -> Mask:
        return Stride(self.every, -self.phase % self.every)

    def _intersection(self, other: Any) -> Mask | None:
        small, large = sorted((self, other), key=lambda mask: mask.every)
        fits = large.every % small.every == 0 and large.phase % small.every == small.phase
        return large if fits else None

    def _simpler(self) -> Mask | None:
        return Everything() if self.every == 1 else None

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        sign = "=" if visible else "≠"
        relation = f"({cell.query} - {cell.key}) mod {self.every} {sign} {self.phase}"
        return Reason("relation", {"relation": relation})

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        return f"(({row} - {col}) % {self.every} == {self.phase})"

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        return regions.single(Region(step=self.every, phase=self.phase))


def everything() -> Mask:
    """The full mask: all queries attend to all keys.

    Returns:
        The mask in which nothing is masked.

    >>> import maskwright as mw
    >>> mw.everything().on(2).count()
    4
    """
    return Everything()


def nothing() -> Mask:
    """No query attends to any key.

    Returns:
        The mask in which every row is fully masked.

    >>> import maskwright as mw
    >>> mw.nothing().on(2).count()
    0
    """
    return Nothing()


def causal() -> Mask:
    """The causal mask: a query attends to itself and to earlier keys, `k <= q`.

    The same as `window(back=None)`.

    Returns:
        The mask.

    >>> import maskwright as mw
    >>> mw.causal().on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Window(None, 0)


def window(back: int | None, ahead: int | None = 0) -> Mask:
    """A sliding window: a query attends to keys `q - back` … `q + ahead`, both included.

    A window of W tokens, as in Mistral's `sliding_window`, is `window(back=W - 1)`: the query
    itself is one of them.

    Args:
        back: Number of earlier keys; None for no limit.
        ahead: Number of later keys; None for no limit.

    Returns:
        The mask.

    Raises:
        ArgumentError: If a value is negative or not an integer.

    >>> import maskwright as mw
    >>> mw.window(back=1).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]]
    """
    for name, value in (("back", back), ("ahead", ahead)):
        if value is not None and isinstance(value, (int, np.integer)) and value < 0:
            raise ArgumentError(
                f"window: {name}={value} is negative. "
                "Pass the number of keys from the query, 0 or more, or None for no limit."
            )
    behind = None if back is None else parse_int(back, "window: back", minimum=0)
    before = None if ahead is None else parse_int(ahead, "window: ahead", minimum=0)
    return Everything() if behind is None and before is None else Window(behind, before)


def prefix(lengths: Any) -> Mask:
    """A prefix: every query attends to the first `lengths` keys of its sequence.

    `causal() | prefix(n)` is the mask of a prefix LM.

    Args:
        lengths: One length for all sequences, or an array of one per sequence.

    Returns:
        The mask.

    Raises:
        ArgumentError: If a length is negative or not an integer.

    >>> import maskwright as mw
    >>> (mw.causal() | mw.prefix(2)).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return Prefix(FrozenArray(read_lengths(lengths, "prefix")))


def chunks(size: int) -> Mask:
    """A query attends to the keys of its own chunk of `size` positions.

    Args:
        size: Positions per chunk, 1 or more.

    Returns:
        The mask.

    Raises:
        ArgumentError: If `size` is less than 1 or not an integer.

    >>> import maskwright as mw
    >>> mw.chunks(2).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    return Chunks(parse_int(size, "chunks: size", minimum=1))


def stride(step: int, phase: int = 0) -> Mask:
    """A query attends to every `step`-th key: those with `(q - k) % step == phase`.

    Args:
        step: Distance between visible keys, 1 or more.
        phase: Distance of the query from the last visible key, less than `step`.

    Returns:
        The mask.

    Raises:
        ArgumentError: If a value is out of range or not an integer.

    >>> import maskwright as mw
    >>> mw.stride(2).on(3).dense().astype(int).tolist()
    [[[[1, 0, 1], [0, 1, 0], [1, 0, 1]]]]
    """
    steps = parse_int(step, "stride: step", minimum=1)
    offset = parse_int(phase, "stride: phase", minimum=0)
    if offset >= steps:
        raise ArgumentError(
            f"stride: phase={offset} is not less than step={steps}. Pass phase={offset % steps}."
        )
    return Stride(steps, offset)


def read_lengths(lengths: Any, atom: str) -> IntArray:
    """Lengths as an array (batch,), from one length for all sequences or one per sequence."""
    array = read_ints(lengths, f"{atom}: lengths")
    if array.ndim > 1:
        raise ArgumentError(
            f"{atom}: lengths has {array.ndim} dimensions. Pass one length, or one per sequence."
        )
    if array.size and int(array.min()) < 0:
        raise ArgumentError(
            f"{atom}: lengths contains {int(array.min())}. Pass lengths of 0 or more."
        )
    return array.reshape(-1)


def merge_lengths(
    choose: Callable[..., IntArray], lengths: FrozenArray, other: FrozenArray
) -> FrozenArray | None:
    """The lengths of two masks combined; None if their batch sizes do not broadcast."""
    if lengths.data.size != other.data.size and 1 not in (lengths.data.size, other.data.size):
        return None  # binding the two raises an error
    return FrozenArray(choose(lengths.data, other.data))


def length_of(lengths: FrozenArray, batch: int) -> int:
    """The length of one sequence."""
    return int(lengths.data[batch if lengths.data.size > 1 else 0])


def prefix_regions(lengths: FrozenArray, batch: int) -> SignedRegions:
    """The first keys of one sequence as a region."""
    length = length_of(lengths, batch)
    return regions.of_rectangles(None, np.array([[0, length]]))


def _plus(name: str, by: int) -> str:
    return f"{name} {'-' if by < 0 else '+'} {abs(by)}" if by else name


def _smaller(a: int | None, b: int | None) -> int | None:
    known = [limit for limit in (a, b) if limit is not None]
    return min(known, default=None)


def _larger(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)
