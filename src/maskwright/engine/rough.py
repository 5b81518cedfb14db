"""Rough rows, which do not go on evenly: strips of one height, the best that is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.line import covered, sweep
from maskwright.engine.costs import KEYS
from maskwright.engine.problem import HEIGHTS, OUTLINE
from maskwright.engine.taking import Order

if TYPE_CHECKING:
    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.engine.costs import Costs
    from maskwright.engine.problem import Problem

LIKELY: Final = 64  # a height that is often the best


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


def best_strips(problem: Problem, costs: Costs, planes: int) -> Rough:
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
