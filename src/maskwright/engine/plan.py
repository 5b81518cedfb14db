"""A plan: the strips of rows and keys that attention under a mask is computed by.

A strip is a run of query rows and the keys that they see between them. Where every row of it sees
every key, it needs no mask; else a small one, its stencil, which strips of like shape share. Rows
and keys that nobody needs are cut off a strip's ends; keys within one that no row sees are listed
as `unseen`. A plan knows nothing of tensors: what runs it reads the same strips on any kernel.

How the rows are cut is in `cutting`; what a strip costs, in `costs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright.engine.costs import Costs, causal_cells, table
from maskwright.engine.cutting import Problem, Strip, cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans

MOST_TABLE: Final = 2**24  # cells of a mask that is taken as a whole
LEAST_TABLE: Final = 16  # rows; fewer wait for memory, and are best off with just their own keys
BUSY: Final = 0.7  # what a call of all planes costs, where calls of one leave threads waiting
SHOWN: Final = 12  # pieces that a printed plan lists


class Planes(NamedTuple):
    """Batch rows `batch[0]` … `batch[1] - 1` and heads `heads[0]` … `heads[1] - 1`; None is all."""

    batch: tuple[int, int] | None
    heads: tuple[int, int] | None


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
            f", {name} {a} … {b - 1}"
            for name, part in zip(("batch", "heads"), self.planes, strict=True)
            if part is not None
            for a, b in [part]
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


@dataclass(frozen=True, eq=False)
class Plan:
    """The pieces of attention under one bound mask, and what they are thought to cost.

    >>> import maskwright as mw
    >>> from maskwright.engine.plan import plan_of
    >>> plan = plan_of(mw.window(back=255).on(4096, heads=8))
    >>> plan.useful == mw.window(back=255).on(4096, heads=8).count()
    True
    """

    shape: tuple[int, int, int, int]
    pieces: tuple[Piece | Bundle, ...]
    useful: int
    unseen: BoolArray | None  # (batch or 1, heads or 1, keys): read by some piece, seen by no row
    nanoseconds: float
    made: dict[Any, Any] = field(default_factory=dict, repr=False)  # tensors of it, by executor

    @cached_property
    def computed(self) -> int:
        """How many cells are computed, over all batch rows and heads."""
        return sum(piece.cells() * self.planes(piece) for piece in self.pieces)

    def planes(self, piece: Piece | Bundle) -> int:
        """How many batch rows times heads a piece is computed for; a bundle counts its own."""
        if isinstance(piece, Bundle):
            return 1
        sizes = [
            whole if part is None else part[1] - part[0]
            for whole, part in zip(self.shape, piece.planes, strict=False)
        ]
        return sizes[0] * sizes[1]

    @cached_property
    def covers(self) -> bool:
        """Does one piece write every row of every plane?"""
        (piece, *more) = self.pieces or (None,)
        if not isinstance(piece, Piece) or more or piece.planes != (None, None):
            return False
        rows = piece.rows
        return rows.start == 0 and rows.step == 1 and rows.size * piece.times == self.shape[2]

    @cached_property
    def single(self) -> bool:
        """Is it one strip?"""
        (piece, *more) = self.pieces or (None,)
        return isinstance(piece, Piece) and not more and piece.times == 1

    @cached_property
    def one_strip(self) -> Piece | None:
        """The piece, where there is just one: a strip of all rows, each of which sees something."""
        (piece, *_) = self.pieces or (None,)
        if not isinstance(piece, Piece) or not self.covers or not self.single:
            return None
        blank = piece.stencil is not None and bool(piece.stencil.empty.any())
        return None if blank or self.unseen is not None else piece

    @cached_property
    def merges(self) -> bool:
        """Are some rows computed in parts?"""
        return any(not piece.first for piece in self.pieces)

    def __str__(self) -> str:
        batch, heads, q_len, kv_len = self.shape
        waste = 1 - self.useful / self.computed if self.computed else 0.0
        lines = [
            f"{q_len} queries × {kv_len} keys, batch {batch}, heads {heads}: "
            f"{len(self.pieces)} pieces, about {self.nanoseconds / 1e6:.3g} ms",
            f"{self.useful:,} cells seen, {self.computed:,} computed ({waste:.0%} of them in vain)",
            *(f"  {piece}" for piece in self.pieces[:SHOWN]),
        ]
        if len(self.pieces) > SHOWN:
            lines.append(f"  … and {len(self.pieces) - SHOWN} more")
        return "\n".join(lines)


def plan_of(
    bound: BoundMask, direction: str = "forward", planes: tuple[int, int] | None = None
) -> Plan:
    """The plan of a bound mask, made once; `planes` are the batch rows and heads it will serve.

    The direction is "forward" or "backward"; "plain" is the forward plan without bundles.
    """
    batch, heads = planes or (bound.frame.batch, bound.frame.heads)
    kept: dict[Any, Plan] = bound.__dict__.setdefault("_plans", {})
    key = (direction, batch, heads)
    if key not in kept:
        costs = table()["backward" if direction == "backward" else "forward"]
        plan = make_plan(bound.spans, batch, heads, costs)
        kept[key] = bundled(plan) if direction == "forward" else plan
    return kept[key]


def make_plan(spans: Spans, batch: int, heads: int, costs: Costs) -> Plan:
    """Cut the planes of spans into pieces, as cheap as `costs` says."""
    pieces: list[Piece] = []
    stencils: dict[Any, Stencil] = {}
    cost = 0.0
    useful = 0
    for planes, problem in distinct_planes(spans):
        sequences = batch if planes.batch is None else planes.batch[1] - planes.batch[0]
        shared = sequences * (heads if planes.heads is None else planes.heads[1] - planes.heads[0])
        strips, price = cut(problem, costs, shared, sequences)
        pieces += fold(planes, strips, stencils)
        cost += price
        useful += shared * problem.cells
    shape = (batch, heads, spans.shape[2], spans.kv_len)
    small = math.prod(spans.shape) * spans.kv_len <= MOST_TABLE
    if len(pieces) > 1 and small and shape[2] >= LEAST_TABLE:
        at_once = costs.strip(shape[2], shape[3], masked=True, planes=batch * heads)
        at_once *= BUSY if spans.shape[0] * spans.shape[1] > 1 else 1.0
        if at_once < cost:
            rows, keys = Steps(0, shape[2]), Steps(0, shape[3])
            pieces, cost = [Piece(Planes(None, None), rows, keys, Table(spans))], at_once
    return Plan(shape, tuple(pieces), useful, unseen_but_read(spans, pieces), cost)


def distinct_planes(spans: Spans) -> Iterator[tuple[Planes, Problem]]:
    """Planes that are alike and side by side are planned once."""
    batch, heads, rows = spans.shape
    offsets, starts, stops = spans.flat
    problems: list[list[Problem]] = []
    for b in range(batch):
        problems.append([])
        for h in range(heads):
            first = (b * heads + h) * rows
            own = offsets[first : first + rows + 1]
            part = slice(own[0], own[-1])
            problems[b].append(Problem(own - own[0], starts[part], stops[part], spans.kv_len))
    b = 0
    while b < batch:
        same = b + 1
        while same < batch and problems[same] == problems[b]:
            same += 1
        h = 0
        while h < heads:
            alike = h + 1
            while alike < heads and problems[b][alike] == problems[b][h]:
                alike += 1
            planes = Planes(
                None if (b, same) == (0, batch) else (b, same),
                None if (h, alike) == (0, heads) else (h, alike),
            )
            yield planes, problems[b][h]
            h = alike
        b = same


def bundled(plan: Plan) -> Plan:
    """The same plan, with gathered strips of single planes put together by their shape."""
    alike: dict[Any, list[Piece]] = {}
    rest: list[Piece | Bundle] = []
    for piece in plan.pieces:
        single = isinstance(piece, Piece) and not isinstance(piece.keys, Steps)
        if not single or plan.planes(piece) != 1:
            rest.append(piece)
            continue
        assert isinstance(piece, Piece)
        shape = (piece.rows[1:], piece.width, id(piece.stencil), piece.first)
        alike.setdefault(shape, []).append(piece)
    for same in alike.values():
        rest += [_bundle(same)] if len(same) > 1 else same
    rest.sort(key=lambda piece: not piece.first)  # what is merged comes after what it joins
    return replace(plan, pieces=tuple(rest), made={})


def _bundle(pieces: list[Piece]) -> Bundle:
    batch, heads = (
        np.array([0 if part is None else part[0] for part in axis])
        for axis in zip(*(piece.planes for piece in pieces), strict=True)
    )
    one = pieces[0]
    rows = np.array([piece.rows.start for piece in pieces])
    keys = np.stack([np.asarray(piece.keys) for piece in pieces])
    return Bundle(batch, heads, rows, one.rows.size, one.rows.step, keys, one.stencil, one.first)


def fold(planes: Planes, strips: list[Strip], stencils: dict[Any, Stencil]) -> Iterator[Piece]:
    """Strips as pieces; those of one shape that follow each other evenly become one piece."""
    held: Piece | None = None
    for strip in strips:
        piece = _piece(planes, strip, stencils)
        if held is not None and (joined := _join(held, piece)) is not None:
            held = joined
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def _piece(planes: Planes, strip: Strip, stencils: dict[Any, Stencil]) -> Piece:
    stencil = None
    if strip.intervals is not None:
        key, made = _stencil(strip)
        stencil = stencils.setdefault(key, made)
    keys = Steps(*strip.keys) if isinstance(strip.keys, tuple) else strip.keys
    return Piece(planes, Steps(*strip.rows), keys, stencil, strip.causal, strip.first)


def _stencil(strip: Strip) -> tuple[Any, Stencil]:
    """The strip's mask and what names it: two strips of like shape have one name."""
    assert strip.intervals is not None
    offsets, starts, stops = strip.intervals
    counts = np.diff(offsets)
    first = offsets[:-1][counts > 0]
    if first.size == counts.size and not starts[first].any():
        width = strip.width
        starts, stops = starts - width, stops - width
        starts[first] = -(2**31)
        key: Any = ("right", offsets.tobytes(), starts.tobytes(), stops.tobytes())
        return key, Stencil(offsets, starts, stops, from_right=True)
    key = (strip.width, offsets.tobytes(), starts.tobytes(), stops.tobytes())
    return key, Stencil(offsets, starts, stops, from_right=False)


def _join(held: Piece, piece: Piece) -> Piece | None:
    """Both as one piece, where the second is the next of the first's strips."""
    same = (
        held.stencil is piece.stencil
        and held.causal == piece.causal
        and held.first == piece.first
        and isinstance(held.keys, Steps)
        and isinstance(piece.keys, Steps)
        and held.rows[1:] == piece.rows[1:]
        and held.keys[1:] == piece.keys[1:]
    )
    if not same or piece.row_shift:
        return None
    assert isinstance(held.keys, Steps)
    assert isinstance(piece.keys, Steps)
    rows = piece.rows.start - held.rows.start
    keys = piece.keys.start - held.keys.start
    if held.times == 1:
        if rows != held.rows.size * held.rows.step or keys < 0:
            return None
        return replace(held, times=2, row_shift=rows, key_shift=keys)
    if rows == held.times * held.row_shift and keys == held.times * held.key_shift:
        return replace(held, times=held.times + 1)
    return None


def unseen_but_read(spans: Spans, pieces: list[Piece]) -> BoolArray | None:
    """Keys inside some strip that no row of their plane sees; they may hold NaN, so are cleared."""
    batch, heads, _ = spans.shape
    keys = spans.kv_len
    read = np.zeros((batch, heads, keys), np.bool_)
    for piece in pieces:
        if not isinstance(piece.keys, Steps) or piece.stencil is None:
            continue
        part = tuple(slice(None) if p is None else slice(*p) for p in piece.planes)
        for n in range(piece.times):
            first = n * piece.key_shift
            steps = slice(piece.keys.start + first, piece.keys.stop + first, piece.keys.step)
            read[part][..., steps] = True
    if not read.any():
        return None
    seen = np.zeros((batch, heads, keys + 1), np.int64)
    offsets, starts, stops = spans.flat
    plane = np.repeat(np.arange(offsets.size - 1) // max(spans.shape[2], 1), np.diff(offsets))
    size = batch * heads * (keys + 1)
    seen += np.bincount(plane * (keys + 1) + starts, minlength=size).reshape(seen.shape)
    seen -= np.bincount(plane * (keys + 1) + stops, minlength=size).reshape(seen.shape)
    lost: BoolArray = read & (np.cumsum(seen, 2) == 0)[..., :-1]
    return lost if lost.any() else None
