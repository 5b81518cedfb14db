"""Bundles: the finest parting of queries and keys that no cell of a mask crosses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.interval_ops import sweep

if TYPE_CHECKING:
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray


def bundles(spans: Spans) -> tuple[IntArray, IntArray]:
    """A number for every row and for every key, over all heads of one sequence.

    A row and a key that it sees have the same number. Those that see nothing, or are seen by
    nobody, have one of their own, so that no number means more than it must.
    """
    rows, keys = spans.shape[2], spans.kv_len
    offsets, starts, stops = spans.flat
    # Keys in one interval belong together, so intervals that overlap do: they are one stretch.
    begin, end = sweep(2 * starts, 2 * stops - 1, lambda level: level > 0)
    begin, end = begin // 2, (end + 1) // 2
    stretch = np.searchsorted(begin, starts, side="right") - 1
    owner = np.repeat(np.arange(offsets.size - 1) % max(rows, 1), np.diff(offsets))
    leader = _joined(owner, stretch, begin.size)
    row_number, key_number = np.full(rows, -1), np.full(keys, -2)
    row_number[owner] = leader[stretch]
    key_number[np.arange(keys)] = -2
    inside = np.repeat(np.arange(begin.size), end - begin)
    place = np.arange(inside.size) - np.repeat(np.cumsum(end - begin) - (end - begin), end - begin)
    key_number[np.repeat(begin, end - begin) + place] = leader[inside]
    return row_number, key_number


def _joined(owner: IntArray, stretch: IntArray, count: int) -> IntArray:
    """The least stretch that each stretch is joined with by rows that see both."""
    leader = np.arange(count)
    order = np.argsort(owner, kind="stable")
    owner, stretch = owner[order], stretch[order]
    linked = owner[1:] == owner[:-1]
    left, right = stretch[:-1][linked], stretch[1:][linked]

    def root(at: int) -> int:
        while leader[at] != at:
            leader[at] = leader[leader[at]]
            at = int(leader[at])
        return at

    for a, b in set(zip(left.tolist(), right.tolist(), strict=True)):
        one, other = root(a), root(b)
        leader[max(one, other)] = min(one, other)
    return np.array([root(at) for at in range(count)], np.int64)
