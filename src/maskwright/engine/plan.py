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
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.engine.costs import Costs, table
from maskwright.engine.cutting import cut
from maskwright.engine.pieces import Bundle, Piece, Planes, Stencil, Steps, Table
from maskwright.engine.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import BoolArray
    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans
    from maskwright.engine.taking import Strip

MOST_TABLE: Final = 2**24  # cells of a mask that is taken as a whole
LEAST_TABLE: Final = 16  # rows; fewer wait for memory, and are best off with just their own keys
MANY_ROWS: Final = 768  # from which on a call keeps all threads at work
BUSY: Final = 0.75  # what one call of fewer rows costs, beside several that leave threads waiting
FEW_PLANES: Final = 2  # up to which gathered strips are better off with others than by themselves
SHOWN: Final = 12  # pieces that a printed plan lists


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

    @cached_property
    def reads(self) -> int:
        """How many keys are read, over all strips, batch rows and heads."""
        return sum(
            piece.keys.size
            if isinstance(piece, Bundle)
            else piece.width * piece.times * self.planes(piece)
            for piece in self.pieces
        )

    def planes(self, piece: Piece | Bundle) -> int:
        """How many batch rows times heads a piece is computed for; a bundle counts its own."""
        return 1 if isinstance(piece, Bundle) else piece.planes.number(*self.shape[:2])

    @cached_property
    def covers(self) -> bool:
        """Does one piece write every row of every plane?"""
        (piece, *more) = self.pieces or (None,)
        if not isinstance(piece, Piece) or more or piece.planes != (None, None):
            return False
        rows = piece.rows
        closely = rows.step == 1 and piece.row_shift in (0, rows.size)
        return closely and rows.start == 0 and rows.size * piece.times == self.shape[2]

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
    def whole(self) -> Piece | None:
        """The piece, where there is just one: a strip of all rows and all keys."""
        (piece, *_) = self.pieces or (None,)
        if not isinstance(piece, Piece) or not self.covers or not self.single:
            return None
        lying = isinstance(piece.keys, Steps)
        return piece if lying and piece.keys == Steps(0, self.shape[3]) else None

    @cached_property
    def telling_row(self) -> int | None:
        """A row that reads every key that is read at all, and sees some, in all planes."""
        (piece, *_) = self.pieces or (None,)
        if not self.covers or not self.single or piece is None or piece.stencil is None:
            return None
        empty = piece.stencil.empty
        seeing = ~empty.reshape(-1, empty.shape[-1]).any(0)
        return int(seeing.argmax()) if seeing.any() else None

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
        sequences = planes.number(batch, 1)
        shared = planes.number(batch, heads)
        strips, price = cut(problem, costs, shared, sequences)
        pieces += fold(planes, strips, stencils)
        cost += price
        useful += shared * problem.cells
    shape = (batch, heads, spans.shape[2], spans.kv_len)
    small = math.prod(spans.shape) * spans.kv_len <= MOST_TABLE
    if len(pieces) > 1 and small and shape[2] >= LEAST_TABLE:
        at_once = costs.strip(shape[2], shape[3], masked=True, planes=batch * heads)
        at_once *= BUSY if shape[2] < MANY_ROWS else 1.0
        copied = costs.merge * shape[2] * batch * heads  # what pieces give, into one output
        if at_once < cost + copied:
            rows, keys = Steps(0, shape[2]), Steps(0, shape[3])
            pieces, cost = [Piece(Planes(None, None), rows, keys, Table(spans))], at_once
    return Plan(shape, tuple(pieces), useful, unseen_but_read(spans, pieces), cost)


def distinct_planes(spans: Spans) -> Iterator[tuple[Planes, Problem]]:
    """Planes that are alike and evenly spaced are planned once."""
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
        sequences = None if (b, same) == (0, batch) else range(b, same)
        for alike in _evenly_alike(problems[b]):
            own_heads = None if len(alike) == heads else alike
            yield Planes(sequences, own_heads), problems[b][alike.start]
        b = same


def _evenly_alike(problems: list[Problem]) -> Iterator[range]:
    """The indices of equal problems, as ranges; every index is in one of them."""
    left = list(range(len(problems)))
    while left:
        first = left[0]
        alike = [n for n in left if problems[n] == problems[first]]
        step = alike[1] - first if len(alike) > 1 else 1
        size = 1
        while size < len(alike) and alike[size] == first + size * step:
            size += 1
        found = range(first, first + (size - 1) * step + 1, step)
        yield found
        left = [n for n in left if n not in found]


def bundled(plan: Plan) -> Plan:
    """The same plan, with gathered strips of few planes put together by their shape."""
    alike: dict[Any, list[Piece]] = {}
    rest: list[Piece | Bundle] = []
    for piece in plan.pieces:
        single = isinstance(piece, Piece) and not isinstance(piece.keys, Steps)
        if not single or plan.planes(piece) > FEW_PLANES:
            rest.append(piece)
            continue
        assert isinstance(piece, Piece)
        shape = (piece.rows[1:], piece.width, id(piece.stencil), piece.first)
        alike.setdefault(shape, []).append(piece)
    for same in alike.values():
        rest += [_bundle(same, plan.shape)] if len(same) > 1 else same
    rest.sort(key=lambda piece: not piece.first)  # what is merged comes after what it joins
    return replace(plan, pieces=tuple(rest), made={})


def _bundle(pieces: list[Piece], shape: tuple[int, int, int, int]) -> Bundle:
    each = [
        (b, h, piece.rows.start, piece.keys)
        for piece in pieces
        for b in piece.planes.batch or range(shape[0])
        for h in piece.planes.heads or range(shape[1])
    ]
    batch, heads, rows, keys = (np.asarray(column) for column in zip(*each, strict=True))
    one = pieces[0]
    return Bundle(batch, heads, rows, one.rows.size, one.rows.step, keys, one.stencil, one.first)


def fold(planes: Planes, strips: list[Strip], stencils: dict[Any, Stencil]) -> list[Piece]:
    """Strips as pieces; those of one shape that follow each other evenly become one piece."""
    alike: dict[Any, list[Piece]] = {}
    for n, strip in enumerate(strips):
        piece = _piece(planes, strip, stencils)
        shape: Any = n  # what is gathered stays by itself
        if isinstance(piece.keys, Steps):
            shape = (piece.rows[1:], piece.keys[1:], id(piece.stencil), piece.causal, piece.first)
        alike.setdefault(shape, []).append(piece)
    folded = [piece for same in alike.values() for piece in _folded(same)]
    return sorted(folded, key=lambda piece: (not piece.first, piece.rows.start))


def _folded(pieces: list[Piece]) -> Iterator[Piece]:
    """Pieces of one shape, those that are evenly spaced as one."""
    held = pieces[0]
    for piece in pieces[1:]:
        joined = _join(held, piece)
        if joined is None:
            yield held
        held = piece if joined is None else joined
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
    first = offsets[:-1]
    lying = isinstance(strip.keys, tuple)
    if lying and bool((np.diff(offsets) > 0).all()) and not starts[first].any():
        width = strip.width
        starts, stops = starts - width, stops - width
        starts[first] = -(2**31)
        key: Any = ("right", offsets.tobytes(), starts.tobytes(), stops.tobytes())
        return key, Stencil(offsets, starts, stops, from_right=True)
    key = (strip.width, offsets.tobytes(), starts.tobytes(), stops.tobytes())
    return key, Stencil(offsets, starts, stops, from_right=False)


def _join(held: Piece, piece: Piece) -> Piece | None:
    """Both as one piece, where the second is the next of the first's strips."""
    if not isinstance(held.keys, Steps) or not isinstance(piece.keys, Steps):
        return None
    rows = piece.rows.start - held.rows.start
    keys = piece.keys.start - held.keys.start
    if held.times == 1:
        apart = rows % held.rows.step == 0 and rows >= held.rows.size * held.rows.step
        return (
            replace(held, times=2, row_shift=rows, key_shift=keys) if apart and keys >= 0 else None
        )
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
        part = piece.planes.slices
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
