"""Runs: rows that go on evenly, each interval's ends either staying or moving by one key a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.engine.rough import in_strips
from maskwright.engine.ways import SHORT, Track, best_way, orders_of

if TYPE_CHECKING:
    from maskwright.engine.costs import Costs
    from maskwright.engine.problem import Problem
    from maskwright.engine.taking import Order

LEAST_RUN: Final = 8  # rows that make a run; fewer are cut together with their neighbours
MOST_TRACKS: Final = 16  # intervals a row beyond which a run is not looked at one by one


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
            found = [o for way in ways for o in orders_of(way, start, stop, tracks)]
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
