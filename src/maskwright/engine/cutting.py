"""How the rows of one plane are cut into strips: the cheapest way that is found, by the costs.

Rows that go on evenly (each interval's ends either stay or move by one key a row) make a run, and
a run is cut by a closed formula: a causal triangle, a band, a block. Whatever does not go on
evenly is cut into strips of one height. A mask whose keys lie `step` apart is `step` masks without
gaps, each over every `step`-th row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from maskwright.core.line import covered, sweep
from maskwright.engine.costs import KEYS, causal_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.engine.costs import Costs

HEIGHTS: Final = (16, 32, 64, 128, 192, 256, 512, 768)
LEAST_RUN: Final = 8  # rows that make a run; fewer are cut together with their neighbours
MOST_TRACKS: Final = 16  # intervals a row beyond which a run is not looked at one by one
SHORT: Final = 64  # rows of a run of several tracks up to which few ways are looked at
LIKELY: Final = 64  # a height that is often the best
OUTLINE: Final = 16  # rows; every height is a multiple
FAR: Final = 2**40

Positions = tuple[int, int, int]  # start, count, step
Intervals = tuple["IntArray", "IntArray", "IntArray"]  # offsets, starts, stops
Flat = tuple["IntArray", "IntArray", "IntArray"]  # row, start and stop of intervals
Held = tuple["Positions | IntArray", Intervals]  # keys, and intervals among them


@dataclass(frozen=True, eq=False)
class Problem:
    """One plane: every row's intervals of keys."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    kv_len: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        return (
            self.cells == other.cells
            and self.kv_len == other.kv_len
            and all(
                np.array_equal(mine, theirs)
                for mine, theirs in (
                    (self.offsets, other.offsets),
                    (self.starts, other.starts),
                    (self.stops, other.stops),
                )
            )
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.offsets.size) - 1

    @cached_property
    def counts(self) -> IntArray:
        """How many intervals each row has."""
        counts: IntArray = np.diff(self.offsets)
        return counts

    @cached_property
    def cells(self) -> int:
        """How many cells may be seen."""
        return int((self.stops - self.starts).sum())

    @cached_property
    def ends(self) -> tuple[IntArray, IntArray]:
        """Each row's first key and one past its last; far away and 0 where it sees nothing."""
        real = self.counts > 0
        low = np.full(self.rows, FAR)
        high = np.zeros(self.rows, np.int64)
        low[real] = self.starts[self.offsets[:-1][real]]
        high[real] = self.stops[self.offsets[1:][real] - 1]
        return low, high

    @cached_property
    def outline(self) -> Flat:
        """Row, start and stop of the intervals that matter to what some rows see between them.

        An interval that the row above has too, as its nth, adds nothing; but strips may begin at
        any multiple of `OUTLINE` rows, and there all are kept.
        """
        owner = np.repeat(np.arange(self.rows), self.counts)
        above = np.arange(owner.size) - np.append(0, self.counts[:-1])[owner]
        above = np.where(self.counts[owner] == np.append(-1, self.counts[:-1])[owner], above, -1)
        new = (above < 0) | (self.starts[above] != self.starts) | (self.stops[above] != self.stops)
        kept = np.flatnonzero(new | (owner % OUTLINE == 0))
        return owner[kept], self.starts[kept], self.stops[kept]


class Strip(NamedTuple):
    """Rows and keys of one strip, and each row's intervals among those keys; None is all of them."""

    rows: Positions
    keys: Positions | IntArray
    intervals: Intervals | None
    causal: bool = False
    first: bool = True

    @property
    def width(self) -> int:
        """How many keys it has."""
        return self.keys[1] if isinstance(self.keys, tuple) else int(self.keys.size)


class Order(NamedTuple):
    """What to cut: rows `start` … `stop - 1`; all their intervals, or only the nth of each."""

    start: int
    stop: int
    gather: bool = False
    track: int | None = None
    causal: bool = False
    first: bool = True
    keys: tuple[int, int] | None = None  # only these keys


def cut(
    problem: Problem, costs: Costs, planes: int, sequences: int = 1
) -> tuple[list[Strip], float]:
    """The strips of a plane, and their cost for `planes` planes like it, of so many sequences."""
    if not problem.starts.size or not planes:
        return [], 0.0
    step = dilation(problem)
    if step == 1:
        return _cut(problem, costs, planes, sequences)
    strips: list[Strip] = []
    price = 0.0
    for row in range(min(step, problem.rows)):
        part, key = thinned(problem, row, step)
        if not part.starts.size:
            continue
        found, cost = _cut(part, costs, planes, sequences)
        strips += [_spread(strip, row, key, step) for strip in found]
        price += cost
    return strips, price


def _cut(problem: Problem, costs: Costs, planes: int, sequences: int) -> tuple[list[Strip], float]:
    orders, price, even = by_runs(problem, costs, planes, sequences)
    if not even:
        rough = _best_strips(problem, costs, planes)
        if rough.price < price:
            orders, price = rough.orders(), rough.price
    return take(problem, orders), price


def _best_strips(problem: Problem, costs: Costs, planes: int) -> Rough:
    """Strips of the best height: from a middling one up or down, as long as that is cheaper."""
    heights = [*(h for h in HEIGHTS if h < problem.rows), problem.rows]
    tried: dict[int, Rough] = {}

    def price(n: int) -> float:
        if not 0 <= n < len(heights):
            return float("inf")
        if n not in tried:
            tried[n] = in_strips(problem, 0, problem.rows, heights[n], costs, planes)
        return tried[n].price

    best = min(HEIGHTS.index(LIKELY), len(heights) - 1)
    while (better := min((best, best - 1, best + 1), key=price)) != best:
        best = better
    return tried[best]


# ── cutting by runs ───────────────────────────────────────────────────────────────────────────


class Track(NamedTuple):
    """One interval of a run's first row, and whether its ends move by one key a row."""

    start: int
    stop: int
    low_moves: int
    high_moves: int


class Run(NamedTuple):
    """Rows `start` … `stop - 1`, in which every interval goes on evenly; no tracks: rough rows."""

    start: int
    stop: int
    tracks: tuple[Track, ...] | None


def by_runs(
    problem: Problem, costs: Costs, planes: int, sequences: int
) -> tuple[list[Order], float, bool]:
    """Each run cut in its own best way; also whether there is nothing else."""
    orders: list[Order] = []
    price, even = 0.0, True
    runs = find_runs(problem)
    if runs is None:
        return [], float("inf"), False
    for start, stop, tracks in runs:
        if tracks is None:
            rough = in_strips(problem, start, stop, min(64, stop - start), costs, planes)
            found, cost = rough.orders(), rough.price
            even = False
        elif not tracks:
            continue
        else:
            base = tracks[0].start
            local = tuple(Track(t.start - base, t.stop - base, *t[2:]) for t in tracks)
            cost, ways = best_way(stop - start, local, costs, planes, sequences)
            found = [o for way in ways for o in _orders(way, start, stop, tracks)]
            even = even and (len(tracks) == 1 or stop - start >= 4 * LEAST_RUN)
        orders += found
        price += cost
    return orders, price, even


def find_runs(problem: Problem) -> list[Run] | None:
    """The rows as runs and rough stretches between them; None where hardly any row goes on."""
    rows, counts = problem.rows, problem.counts
    if rows == 1 or int(counts.max()) > MOST_TRACKS:
        return [Run(0, 1, _tracks(problem, 0, 0))] if rows == 1 else None
    owner = np.repeat(np.arange(rows), counts)
    after = np.minimum(np.arange(owner.size) + counts[owner], owner.size - 1)
    low = problem.starts[after] - problem.starts
    high = problem.stops[after] - problem.stops
    bad = np.append(counts[1:] != counts[:-1], True)
    odd = (low < 0) | (low > 1) | (high < 0) | (high > 1)
    np.logical_or.at(bad, owner[odd], True)
    nth = np.arange(owner.size) - problem.offsets[:-1][owner]
    code = np.zeros(rows, np.int64)
    np.add.at(code, owner, (low * 2 + high).clip(0, 3) << (2 * nth))
    code[bad] = -1
    # Pairs of neighbouring rows, in groups of one code.
    pairs = code[:-1]
    edges = np.flatnonzero(np.diff(pairs)) + 1
    begins, ends = np.concatenate(([0], edges)), np.concatenate((edges, [pairs.size]))
    if begins.size > rows // 4 + 8 and rows > 4 * LEAST_RUN:
        return None
    if owner.size > 2 * rows and begins.size >= rows // SHORT > 8:
        return None  # short blocks of many intervals: strips of one height serve as well
    runs: list[Run] = []
    done = 0
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        if pairs[begin] == -1:
            continue
        start, stop = max(begin, done), end + 1
        if stop - start < (LEAST_RUN if pairs[begin] else 2):
            continue
        if start > done:
            runs.append(Run(done, start, None))
        runs.append(Run(start, stop, _tracks(problem, start, int(pairs[begin]))))
        done = stop
    if done < rows:
        runs.append(Run(done, rows, None))
    return runs


def _tracks(problem: Problem, row: int, code: int) -> tuple[Track, ...]:
    part = slice(problem.offsets[row], problem.offsets[row + 1])
    pairs = zip(problem.starts[part].tolist(), problem.stops[part].tolist(), strict=True)
    return tuple(
        Track(start, stop, code >> (2 * n + 1) & 1, code >> (2 * n) & 1)
        for n, (start, stop) in enumerate(pairs)
    )


class Way(NamedTuple):
    """How to cut a run: in strips of `height` rows, of all tracks or one of them."""

    kind: Literal["strips", "causal", "body"]
    height: int
    gather: bool = False
    track: int | None = None
    first: bool = True


@lru_cache(maxsize=4096)
def best_way(
    rows: int, tracks: tuple[Track, ...], costs: Costs, planes: int, sequences: int
) -> tuple[float, tuple[Way, ...]]:
    """The cheapest way to cut a run, and its cost."""
    still = not any(t.low_moves or t.high_moves for t in tracks)
    whole = still or (len(tracks) > 1 and rows <= SHORT)
    heights = {rows} if whole else {*(h for h in HEIGHTS if h < rows), rows}
    options: list[tuple[float, tuple[Way, ...]]] = [
        (
            _strips_cost(rows, height, tracks, costs, planes, sequences, gather),
            (Way("strips", height, gather),),
        )
        for height in heights
        for gather in ((False, True) if len(tracks) > 1 else (False,))
    ]
    if len(tracks) == 1:
        (track,) = tracks
        if (track.low_moves, track.high_moves) == (0, 1):
            options += _triangles(rows, track.stop - track.start, costs, planes)
    elif rows > SHORT or len(tracks) == 2:
        parts = [
            best_way(rows, (Track(0, t.stop - t.start, *t[2:]),), costs, planes, sequences)
            for t in tracks
        ]
        apart = sum(cost for cost, _ in parts) + (len(tracks) - 1) * _merge(rows, costs, planes)
        ways = tuple(
            way._replace(track=n, first=way.first and n == 0)
            for n, (_, found) in enumerate(parts)
            for way in found
        )
        options.append((apart, ways))
    return min(options, key=lambda option: option[0])


def _triangles(
    rows: int, width: int, costs: Costs, planes: int
) -> list[tuple[float, tuple[Way, ...]]]:
    """The kernel's own causal mode: on a triangle, or beside the block that all rows see."""
    turns = rows * (1 + rows / (2 * KEYS))
    causal = planes * (
        causal_cells(rows, rows) * costs.causal_cell + turns * costs.rates(rows, False)[1]
    )
    causal += costs.call
    if width == 1:
        return [(causal, (Way("causal", rows),))]
    body = costs.strip(rows, width - 1, masked=False, planes=planes)
    merge = _merge(rows, costs, planes)
    return [(causal + body + merge, (Way("body", rows), Way("causal", rows, first=False)))]


def _merge(rows: int, costs: Costs, planes: int) -> float:
    """Merging is a handful of small calls, and some work on each row."""
    return 2 * costs.call + costs.merge * rows * planes


def _strips_cost(
    rows: int,
    height: int,
    tracks: tuple[Track, ...],
    costs: Costs,
    planes: int,
    sequences: int,
    gather: bool,
) -> float:
    """Strips of one height over a run, by the formula for the sum of their widths."""
    count = -(-rows // height)
    low, high = tracks[0].low_moves, tracks[-1].high_moves
    hull = tracks[-1].stop - tracks[0].start
    still = not any(t.low_moves or t.high_moves for t in tracks)
    masked = not still or (len(tracks) > 1 and not gather)
    grown = (height - 1) * high + (high - low) * height * (count - 1) / 2
    width = max(hull + grown, 1.0)
    if gather:
        width = min(
            width, sum(t.stop - t.start + (height - 1) * t.high_moves for t in tracks) * 1.0
        )
    cell, row = costs.rates(height, masked)
    if left := rows % height:
        dear, slow = costs.rates(left, masked)
        share = left / rows
        cell, row = cell + (dear - cell) * share, row + (slow - row) * share
    folded = low == high and not still and not gather
    turns = -(-width // KEYS)
    price = planes * rows * (width * cell + turns * row) + costs.call * (
        min(count, sequences) if folded else count
    )
    if gather:
        price += count * (costs.gather + planes * width * costs.copy)
    return price


def _orders(way: Way, start: int, stop: int, tracks: tuple[Track, ...]) -> list[Order]:
    track = None if len(tracks) == 1 else way.track
    if way.kind == "strips":
        return [
            Order(row, min(row + way.height, stop), way.gather, track, first=way.first)
            for row in range(start, stop, way.height)
        ]
    own = tracks[0 if track is None else track]
    if way.kind == "body":
        return [Order(start, stop, track=track, first=way.first, keys=(own.start, own.stop - 1))]
    keys = (own.stop - 1, own.stop - 1 + stop - start)
    return [Order(start, stop, track=track, causal=True, first=way.first, keys=keys)]


# ── cutting rough rows ────────────────────────────────────────────────────────────────────────


class Rough(NamedTuple):
    """Strips of one height: where each begins and ends, whether it gathers its keys."""

    tops: IntArray
    ends: IntArray
    gathers: BoolArray
    price: float

    def orders(self) -> list[Order]:
        """What to cut."""
        lists = (x.tolist() for x in (self.tops, self.ends, self.gathers))
        return [Order(*order) for order in zip(*lists, strict=True)]


def in_strips(
    problem: Problem, start: int, stop: int, height: int, costs: Costs, planes: int
) -> Rough:
    """Strips of one height; each reads its keys as they lie, or gathers them where that is cheaper."""
    tops = np.arange(start, stop, height)
    low = np.minimum.reduceat(problem.ends[0][start:stop], tops - start)
    high = np.maximum.reduceat(problem.ends[1][start:stop], tops - start)
    hull = np.maximum(high - low, 0)
    rows = np.minimum(tops + height, stop) - tops
    # The last strip may be a low one, whose cells are dearer.
    rates = [costs.rates(int(size), True) for size in (height, rows[-1])]
    last = np.arange(tops.size) == tops.size - 1
    cell, row = (
        np.where(last, low_one, high_one) for high_one, low_one in zip(*rates, strict=True)
    )
    lying = planes * rows * (hull * cell - (-hull // KEYS) * row) + costs.call
    price, gathers = lying, np.zeros(tops.size, np.bool_)
    if bool((problem.counts[start:stop] > 1).any()):
        union = _union_widths(problem, start, stop, height, tops.size)
        apart = planes * (rows * (union * cell - (-union // KEYS) * row) + union * costs.copy)
        apart = apart + costs.call + costs.gather
        gathers = apart < lying
        price = np.minimum(lying, apart)
    ends = np.minimum(tops + height, stop)
    real = hull > 0
    return Rough(tops[real], ends[real], gathers[real], float(price[real].sum()))


def _union_widths(problem: Problem, start: int, stop: int, height: int, strips: int) -> IntArray:
    """How many keys the rows of each strip see between them."""
    if start == 0 and height % OUTLINE == 0:
        rows, starts, stops = problem.outline
        if stop < problem.rows:
            rows, starts, stops = (x[rows < stop] for x in problem.outline)
    else:
        part = slice(problem.offsets[start], problem.offsets[stop])
        starts, stops = problem.starts[part], problem.stops[part]
        rows = np.repeat(np.arange(stop - start), problem.counts[start:stop])
    base = rows // height * (problem.kv_len + 1)
    begin, end = sweep(base + starts, base + stops, covered)
    widths = np.bincount(begin // (problem.kv_len + 1), end - begin, minlength=strips)
    return widths.astype(np.int64)


# ── taking strips ─────────────────────────────────────────────────────────────────────────────


def take(problem: Problem, orders: list[Order]) -> list[Strip]:
    """The strips that are ordered, but those whose rows see nothing."""
    closed = _close_up(problem, [order for order in orders if order.gather])
    strips: list[Strip] = []
    for order in orders:
        if order.keys is not None:
            first, stop = order.keys
            rows = (order.start, order.stop - order.start, 1)
            strips.append(Strip(rows, (first, stop - first, 1), None, order.causal, order.first))
            continue
        held = next(closed) if order.gather else _as_they_lie(problem, order)
        if held is not None:
            strips.append(_trimmed(order, *held))
    return strips


def _trimmed(order: Order, keys: Positions | IntArray, intervals: Intervals) -> Strip:
    """A strip without the rows at its ends that see nothing."""
    offsets, starts, stops = intervals
    above, below = 0, order.stop - order.start
    if offsets[1] == 0 or offsets[-2] == offsets[-1]:
        real = np.flatnonzero(np.diff(offsets))
        above, below = int(real[0]), int(real[-1]) + 1
        offsets = offsets[above : below + 1]
    rows = (order.start + above, below - above, 1)
    width = keys[1] if isinstance(keys, tuple) else int(keys.size)
    whole = int(stops.sum() - starts.sum()) == rows[1] * width
    return Strip(rows, keys, None if whole else (offsets, starts, stops), first=order.first)


def _as_they_lie(problem: Problem, order: Order) -> Held | None:
    """All keys from the first to the last that the rows of an order see, and their intervals."""
    offsets = problem.offsets[order.start : order.stop + 1]
    if order.track is not None:
        at = offsets[:-1] + order.track
        offsets = np.arange(at.size + 1)
        starts, stops = problem.starts[at], problem.stops[at]
    else:
        part = slice(offsets[0], offsets[-1])
        starts, stops = problem.starts[part], problem.stops[part]
        offsets = offsets - offsets[0]
    if not starts.size:
        return None
    low = int(starts.min())
    keys = (low, int(stops.max()) - low, 1)
    return keys, (offsets, starts - low, stops - low)


def _close_up(problem: Problem, orders: list[Order]) -> Iterator[Held | None]:
    """For each order the keys that are seen at all, closed up, and the intervals among them.

    All orders at once: the keys of the nth one are moved n lengths on, and then swept together.
    """
    if not orders:
        return
    starts_at = problem.offsets[[order.start for order in orders]]
    sizes = problem.offsets[[order.stop for order in orders]] - starts_at
    first = np.cumsum(sizes) - sizes
    owner = np.repeat(np.arange(len(orders)), sizes)
    at = np.arange(owner.size) + np.repeat(starts_at - first, sizes)
    moved = owner * (problem.kv_len + 1)
    starts, stops = problem.starts[at] + moved, problem.stops[at] + moved
    begin, end = sweep(starts, stops, covered)
    lengths = end - begin
    before = np.cumsum(lengths) - lengths
    # Where each union of keys, and so each strip, begins among all the keys that are seen.
    strip = begin // (problem.kv_len + 1)
    bounds = np.searchsorted(strip, np.arange(len(orders) + 1))
    edges = np.append(before, lengths.sum())[bounds]
    union = np.searchsorted(begin, starts, "right") - 1
    places = before[union] + starts - begin[union] - edges[owner]
    keys = np.arange(edges[-1]) + np.repeat(begin - strip * (problem.kv_len + 1) - before, lengths)
    widths = stops - starts
    for n, order in enumerate(orders):
        if bounds[n] == bounds[n + 1]:
            yield None
            continue
        part = slice(first[n], first[n] + sizes[n])
        offsets = problem.offsets[order.start : order.stop + 1]
        intervals = (offsets - offsets[0], places[part], places[part] + widths[part])
        seen = keys[edges[n] : edges[n + 1]]
        if bounds[n + 1] - bounds[n] == 1:
            yield (int(seen[0]), int(seen.size), 1), intervals
        else:
            yield seen, intervals


# ── masks with even gaps ──────────────────────────────────────────────────────────────────────


def dilation(problem: Problem) -> int:
    """How far apart the keys of every row lie, where all do evenly; else 1.

    Rows one such step apart must see keys of the same residue, so that each is a mask of its own.
    """
    if bool((problem.stops - problem.starts != 1).any()) or int(problem.counts.max()) < 2:
        return 1
    inner = np.ones(problem.starts.size, np.bool_)
    inner[problem.offsets[:-1][problem.counts > 0]] = False
    gaps = np.diff(problem.starts)[inner[1:]]
    step = int(gaps[0])
    if step < 2 or bool((gaps != step).any()):
        return 1
    real = problem.counts > 0
    residue = np.full(problem.rows, -1)
    residue[real] = problem.starts[problem.offsets[:-1][real]] % step
    for row in range(min(step, problem.rows)):
        seen = residue[row::step]
        seen = seen[seen >= 0]
        if seen.size and bool((seen != seen[0]).any()):
            return 1
    return step


def thinned(problem: Problem, row: int, step: int) -> tuple[Problem, int]:
    """Every `step`-th row from `row`, over every `step`-th key; and the first such key."""
    counts = problem.counts[row::step]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    take_all = np.repeat(problem.offsets[row:-1:step] - offsets[:-1], counts) + np.arange(
        offsets[-1]
    )
    starts = problem.starts[take_all]
    key = int(starts[0] % step) if starts.size else 0
    starts = (starts - key) // step
    joined = _rejoined(offsets, starts)
    return Problem(*joined, -(-(problem.kv_len - key) // step)), key


def _rejoined(offsets: IntArray, keys: IntArray) -> Intervals:
    """Single keys that have become neighbours are one interval; there is one a row."""
    real = np.diff(offsets) > 0
    starts = keys[offsets[:-1][real]]
    stops = keys[offsets[1:][real] - 1] + 1
    return np.concatenate(([0], np.cumsum(real))), starts, stops


def _spread(strip: Strip, row: int, key: int, step: int) -> Strip:
    """A strip of a thinned mask, at the rows and keys where it really lies."""
    start, count, by = strip.rows
    rows = (row + start * step, count, by * step if count > 1 else 1)
    if isinstance(strip.keys, tuple):
        first, width, apart = strip.keys
        return strip._replace(rows=rows, keys=(key + first * step, width, apart * step))
    return strip._replace(rows=rows, keys=key + strip.keys * step)
