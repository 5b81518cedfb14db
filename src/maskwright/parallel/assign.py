"""Ways to give the rows of a sequence to ranks: each one cuts it into stretches that have owners.

What may enter here: functions of the rows' work. Nothing here knows what a mask is.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from maskwright.core.validate import IntArray

PER_RANK: Final = 16  # stretches that a rank gets of each kind, heavy and long
MOST_WORK: Final = 1.05  # times the mean, where that can be had
MORE_ROWS: Final = (1.3, 2.0)  # where a few rows have so much work that others must have many
MOST_ROWS: Final = 1.1  # times the mean: a model's other layers take as long as a rank has rows


class Assignment(NamedTuple):
    """Rows `cuts[i]` … `cuts[i + 1] - 1` belong to rank `owner[i]`."""

    cuts: IntArray
    owner: IntArray


def contiguous(rows: int, ranks: int) -> Assignment:
    """Each rank gets one stretch, all equally long.

    >>> contiguous(8, 2).cuts.tolist()
    [0, 4, 8]
    """
    return _without_empty(_equal_cuts(rows, ranks), np.arange(ranks))


def zigzag(rows: int, ranks: int) -> Assignment:
    """Twice as many stretches as ranks, dealt forwards and then backwards.

    >>> zigzag(8, 2).owner.tolist()
    [0, 1, 1, 0]
    """
    forth = np.arange(ranks)
    return _without_empty(_equal_cuts(rows, 2 * ranks), np.concatenate((forth, forth[::-1])))


def even(work: IntArray, ranks: int) -> Assignment:
    """Each rank gets one stretch, all with equal work, however long.

    >>> import numpy as np
    >>> even(np.array([3, 1, 1, 1]), 2).cuts.tolist()
    [0, 1, 4]
    """
    before = np.concatenate(([0], np.cumsum(work)))
    shares = before[-1] * np.arange(ranks + 1) / ranks
    cuts = _nearest(before, shares)
    cuts[0], cuts[-1] = 0, work.size
    return _without_empty(cuts, np.arange(ranks))


def chunked(work: IntArray, ranks: int, per_rank: int = PER_RANK) -> Assignment:
    """Many short stretches, the heaviest first, each to the rank with the least work so far.

    A rank that has the stretch next to it takes it instead, as long as it does not get ahead of
    its share by that: neighbours see much the same keys.

    >>> import numpy as np
    >>> chunked(np.arange(1, 9), 2, per_rank=2).owner.tolist()
    [1, 1, 0, 0, 1, 1, 0]
    """
    cuts = small_cuts(work, ranks * per_rank)
    cells = np.diff(np.concatenate(([0], np.cumsum(work)))[cuts])
    for most in (MOST_ROWS, *MORE_ROWS):
        owner = _deal(cells, np.diff(cuts), ranks, most)
        if np.bincount(owner, cells, ranks).max(initial=0) * ranks <= MOST_WORK * cells.sum():
            break
    return Assignment(cuts, owner)


def small_cuts(work: IntArray, count: int) -> IntArray:
    """Stretches with at most about 1/count of the rows, and of the work unless it is one row's."""
    total = max(1, int(work.sum()))
    cost = np.concatenate(([0.0], np.cumsum(work / total + 1 / max(1, work.size))))
    marks = np.arange(1, 2 * count) * (cost[-1] / (2 * count))
    inner = _nearest(cost, marks)
    # A row that is heavy by itself stands alone.
    heavy = np.flatnonzero(work * count > total)
    return np.unique(np.concatenate(([0], inner, heavy, heavy + 1, [work.size])))


def _deal(work: IntArray, rows: IntArray, ranks: int, times: float) -> IntArray:
    """The owner of each stretch; nobody has more than so many times the mean of rows."""
    total = int(work.sum())
    share, most = total / ranks, times * int(rows.sum()) / ranks
    pace = total / max(1, int(rows.sum()))  # work a row, on average
    owner = np.full(work.size + 2, -1)  # one stretch more at each end, that nobody has
    load, held = [0] * ranks, [0] * ranks
    heap = [(0, 0, rank) for rank in range(ranks)]  # may lag behind: who moved is pushed again
    # By steps of work, so that stretches of about the same work come in their order.
    step = max(1.0, share / PER_RANK / 8)
    order = np.lexsort((np.arange(work.size), -np.round(work / step)))
    for number, cells, length in zip(
        order.tolist(), work[order].tolist(), rows[order].tolist(), strict=True
    ):
        chosen = -1
        for rank in (int(owner[number]), int(owner[number + 2])):
            ahead = load[rank] + cells - pace * (held[rank] + length)
            if (
                rank >= 0
                and ahead <= step
                and load[rank] + cells <= share
                and held[rank] + length <= most
            ):
                chosen = rank
                break
        if chosen < 0:
            chosen = _least(heap, load, held, length, most)
        owner[number + 1] = chosen
        load[chosen] += cells
        held[chosen] += length
        heapq.heappush(heap, (load[chosen], held[chosen], chosen))
    return owner[1:-1]


def _least(
    heap: list[tuple[int, int, int]], load: list[int], held: list[int], length: int, most: float
) -> int:
    """The rank with the least work that still has room for so many rows."""
    aside: list[tuple[int, int, int]] = []
    chosen = -1
    while heap:
        entry = heapq.heappop(heap)
        rank = entry[2]
        if entry != (load[rank], held[rank], rank):
            continue  # it has moved on, and stands in the heap again
        if held[rank] + length <= most:
            chosen = rank
            break
        aside.append(entry)
    if chosen < 0:  # nobody has room: the one with the fewest rows
        chosen = min((rows, rank) for _, rows, rank in aside)[1]
    for entry in aside:
        heapq.heappush(heap, entry)
    return chosen


def _nearest(before: np.ndarray, marks: np.ndarray) -> IntArray:
    """The places where a growing sum comes nearest to the marks."""
    after = np.clip(np.searchsorted(before, marks), 1, max(1, before.size - 1))
    after = np.minimum(after, before.size - 1)
    lower = np.maximum(after - 1, 0)
    nearer = marks - before[lower] < before[after] - marks
    return np.where(nearer, lower, after).astype(np.int64)


def _equal_cuts(rows: int, count: int) -> IntArray:
    return np.arange(count + 1) * rows // count


def _without_empty(cuts: IntArray, owner: IntArray) -> Assignment:
    real = np.diff(cuts) > 0
    return Assignment(np.append(cuts[:-1][real], cuts[-1]), owner[real])
