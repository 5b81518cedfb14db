"""Equal stretches made level: small parts go from the busiest rank to the idlest, and few of them.

What may enter here: one way of assigning. It keeps most rows beside their neighbours, and so suits
masks that see near keys only, where a few stretches are much heavier than the rest.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.parallel.assign import MOST_ROWS, PER_RANK, Assignment, small_cuts

if TYPE_CHECKING:
    from maskwright.core.validate import IntArray

TRIED: Final = 8  # idle ranks that are asked before a busy one is left as it is
ENOUGH: Final = 1.04  # times the mean: then smaller parts are not tried
LEVEL: Final = 1.02  # times the mean: nothing is moved away from a rank that has less


def levelled(work: IntArray, ranks: int) -> Assignment:
    """Equal stretches, of which the busiest ranks give parts away: large ones where that will do.

    >>> import numpy as np
    >>> levelled(np.array([1, 1, 1, 1, 5, 5, 1, 1]), 2).owner.tolist()
    [0, 1, 0, 1, 1]
    """
    borders = np.arange(ranks + 1) * work.size // ranks
    before = np.concatenate(([0], np.cumsum(work)))
    for per_rank in (1, 2, 4, PER_RANK):
        cuts = np.unique(np.concatenate((small_cuts(work, ranks * per_rank), borders)))
        owner = np.searchsorted(borders, cuts[:-1], "right") - 1
        cells = np.diff(before[cuts])
        _level(cells, np.diff(cuts), owner, ranks)
        if np.bincount(owner, cells, ranks).max(initial=0) * ranks <= ENOUGH * before[-1]:
            break
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
        taker, gift, price = -1, -1, -1
        for taker in _idlest(idle, load):
            top = min(LEVEL * share - load[taker], float(load[giver] - load[taker] - 1))
            room = most - held[giver], most - held[taker]
            gift, price = _gift(has[giver], has[taker], work, rows, top, room)
            if gift >= 0:
                break
        if gift < 0:
            continue  # nobody can take a part of its work; the next one may be luckier
        for number, loser, winner in ((gift, giver, taker), (price, taker, giver)):
            if number >= 0:
                has[loser].remove(number)
                has[winner].append(number)
                owner[number] = winner
                load[loser] -= work[number]
                load[winner] += work[number]
                held[loser] -= rows[number]
                held[winner] += rows[number]
        for rank in (giver, taker):
            heapq.heappush(busy, (-int(load[rank]), rank))
            heapq.heappush(idle, (int(load[rank]), rank))


def _idlest(idle: list[tuple[int, int]], load: IntArray) -> list[int]:
    """A few ranks with the least work, which stay in the heap."""
    found: list[tuple[int, int]] = []
    while idle and len(found) < TRIED:
        entry = heapq.heappop(idle)
        if entry[0] == load[entry[1]] and entry not in found:
            found.append(entry)
    for entry in found:
        heapq.heappush(idle, entry)
    return [rank for _, rank in found]


def _gift(
    giver: list[int],
    taker: list[int],
    work: IntArray,
    rows: IntArray,
    top: float,
    room: tuple[float, float],
) -> tuple[int, int]:
    """What goes from one to the other, and what comes back for it, -1 where nothing does.

    That is the most work up to `top`, in as many rows as each of the two has room for.
    """
    mine, theirs = np.array(giver), np.array([*taker, -1])
    light = np.append(work[theirs[:-1]], 0), np.append(rows[theirs[:-1]], 0)
    gain = work[mine][:, None] - light[0]
    longer = rows[mine][:, None] - light[1]
    fits = (gain <= top) & (gain > 0) & (longer <= room[1]) & (-longer <= room[0])
    if not fits.any():
        return -1, -1
    # Where nothing has to come back, that keeps more rows beside their neighbours.
    alone = fits[:, -1]
    if bool(alone.any()) and gain[alone, -1].max() * 2 >= gain[fits].max():
        return int(mine[alone][np.argmax(gain[alone, -1])]), -1
    best = np.argmax(np.where(fits, gain, -1))
    gift, price = np.unravel_index(best, gain.shape)
    return int(mine[gift]), int(theirs[price])
