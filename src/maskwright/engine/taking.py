"""Strips taken from a plane: which rows and keys each has, as it was ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from maskwright.core.line import covered, sweep
from maskwright.engine.problem import Intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import IntArray
    from maskwright.engine.problem import Problem

Positions = tuple[int, int, int]  # start, count, step
Held = tuple["Positions | IntArray", Intervals]  # keys, and intervals among them


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
