"""Equal stretches made level: small ones go from the busiest rank to the idlest, and few of them.

What may enter here: one way of assigning. It keeps most rows beside their neighbours, and so suits
masks that see near keys only, where a few stretches are much heavier than the rest.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.parallel.assign import MOST_ROWS, PER_RANK, Assignment, small_cuts

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray

LEVEL: Final = 1.02  # times the mean: nothing is moved away from a rank that has less


def levelled(work: IntArray, ranks: int, per_rank: int = PER_RANK) -> Assignment:
    """Equal stretches, cut small, of which the busiest ranks give some away.

    >>> import numpy as np
    >>> levelled(np.array([1, 1, 1, 1, 5, 5, 1, 1]), 2, per_rank=2).owner.tolist()
    [0, 0, 0, 1, 0, 1]
    """
    borders = np.arange(ranks + 1) * work.size // ranks
    cuts = np.unique(np.concatenate((small_cuts(work, ranks * per_rank), borders)))
    owner = np.searchsorted(borders, cuts[:-1], "right") - 1
    before = np.concatenate(([0], np.cumsum(work)))
    _level(np.diff(before[cuts]), np.diff(cuts), owner, ranks)
    return Assignment(cuts, owner)


def _level(work: IntArray, rows: IntArray, owner: IntArray, ranks: int) -> None:
    """Move stretches, in place, until no rank has much more than the mean, or nothing helps."""
    load = np.bincount(owner, work, ranks).astype(np.int64)
    held = np.bincount(owner, rows, ranks).astype(np.int64)
    share, most = int(load.sum()) / ranks, MOST_ROWS * int(held.sum()) / ranks
    has = [np.flatnonzero(owner == rank).tolist() for rank in range(ranks)]
    busy = [(-int(cells), rank) for rank, cells in enumerate(load)]
    idle = [(int(cells), rank) for rank, cells in enumerate(load)]
    heapq.heapify(busy)
    heapq.heapify(idle)
    while busy:
        cells, giver = heapq.heappop(busy)
        if -cells != load[giver]:
            continue  # it has moved on, and stands there again
        if load[giver] <= LEVEL * share:
            return
        number, taker = _gift(giver, idle, work, rows, has, load, held, share, most)
        if number < 0:
            continue  # nobody can take a part of its work; the next one may be luckier
        has[giver].remove(number)
        has[taker].append(number)
        owner[number] = taker
        for rank, sign in ((giver, -1), (taker, 1)):
            load[rank] += sign * work[number]
            held[rank] += sign * rows[number]
            heapq.heappush(busy, (-int(load[rank]), rank))
            heapq.heappush(idle, (int(load[rank]), rank))


def _gift(
    giver: int,
    idle: list[tuple[int, int]],
    work: IntArray,
    rows: IntArray,
    has: list[list[int]],
    load: IntArray,
    held: IntArray,
    share: float,
    most: float,
) -> tuple[int, int]:
    """Which stretch goes to whom: the heaviest that the idlest rank takes without being too busy."""
    own = np.array(has[giver], np.int64)
    aside: list[tuple[int, int]] = []
    found = (-1, -1)
    while idle and len(aside) < 8:
        cells, taker = heapq.heappop(idle)
        if cells != load[taker]:
            continue
        aside.append((cells, taker))
        top = min(LEVEL * share - load[taker], float(load[giver] - load[taker] - 1))
        fits = (work[own] <= top) & (work[own] > 0) & (held[taker] + rows[own] <= most)
        if fits.any():
            best = np.flatnonzero(fits)[np.argmax(work[own][fits])]
            found = int(own[best]), taker
            break
    for entry in aside:
        heapq.heappush(idle, entry)
    return found
