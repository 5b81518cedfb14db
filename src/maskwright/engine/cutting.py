"""How the rows of one plane are cut into strips: the cheapest way that is found, by the costs.

Rows that go on evenly make a run (`runs`), and a run is cut by a closed formula (`ways`).
Whatever does not go on evenly is cut into strips of one height (`rough`). A mask whose keys lie
`step` apart is first taken apart into `step` masks without gaps (`dilation`). What is to be cut is
ordered, and then taken (`taking`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.engine.dilation import dilation, spread, thinned
from maskwright.engine.rough import best_strips
from maskwright.engine.runs import by_runs
from maskwright.engine.taking import take

if TYPE_CHECKING:
    from maskwright.engine.costs import Costs
    from maskwright.engine.problem import Problem
    from maskwright.engine.taking import Strip


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
        strips += [spread(strip, row, key, step) for strip in found]
        price += cost
    return strips, price


def _cut(problem: Problem, costs: Costs, planes: int, sequences: int) -> tuple[list[Strip], float]:
    orders, price, even = by_runs(problem, costs, planes, sequences)
    if not even:
        rough = best_strips(problem, costs, planes)
        if rough.price < price:
            orders, price = rough.orders(), rough.price
    return take(problem, orders), price
