"""Sequences into rows, and rows to ranks, by the attention work that they bring.

What may enter here: lists of sizes. The work of a sequence is the square of its length.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def even_fit(sizes: Sequence[int], width: int, count: int) -> list[list[int]]:
    """Which sequences share a row: `count` rows of about equal work, and more where they must.

    >>> even_fit([6, 3, 3, 6], 12, 2)
    [[0, 1], [2, 3]]
    """
    bins: list[list[int]] = [[] for _ in range(count)]
    room = [width] * count
    heap = [(0, number) for number in range(count)]  # (work, row)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        aside = []
        while heap and room[heap[0][1]] < sizes[index]:
            aside.append(heapq.heappop(heap))
        if heap:
            work, number = heapq.heappop(heap)
        else:
            work, number = 0, len(bins)
            bins.append([])
            room.append(width)
        bins[number].append(index)
        room[number] -= sizes[index]
        for entry in (*aside, (work + sizes[index] ** 2, number)):
            if room[entry[1]]:
                heapq.heappush(heap, entry)
    return [sorted(members) for members in bins]


def dealt(bins: list[list[int]], sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """The rows in an order in which row i is for rank i % ranks, equally many and heavy for each.

    >>> dealt([[0], [1], [2], [3]], [4, 1, 1, 4], 2)
    [[0], [3], [1], [2]]
    """
    each = -(-len(bins) // ranks)
    bins = bins + [[] for _ in range(each * ranks - len(bins))]
    work = [sum(sizes[member] ** 2 for member in members) for members in bins]
    given: list[list[list[int]]] = [[] for _ in range(ranks)]
    heap = [(0, rank) for rank in range(ranks)]
    for number in sorted(range(len(bins)), key=lambda n: -work[n]):
        load, rank = heapq.heappop(heap)
        given[rank].append(bins[number])
        if len(given[rank]) < each:
            heapq.heappush(heap, (load + work[number], rank))
    return [given[rank][place] for place in range(each) for rank in range(ranks)]
