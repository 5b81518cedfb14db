"""Masks with even gaps: one whose keys lie `step` apart is `step` masks without gaps.

Each of them is over every `step`-th row and every `step`-th key, and is cut by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.engine.problem import Problem

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray
    from maskwright.engine.problem import Intervals
    from maskwright.engine.taking import Strip


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


def spread(strip: Strip, row: int, key: int, step: int) -> Strip:
    """A strip of a thinned mask, at the rows and keys where it really lies."""
    start, count, by = strip.rows
    rows = (row + start * step, count, by * step if count > 1 else 1)
    if isinstance(strip.keys, tuple):
        first, width, apart = strip.keys
        return strip._replace(rows=rows, keys=(key + first * step, width, apart * step))
    return strip._replace(rows=rows, keys=key + strip.keys * step)


def _rejoined(offsets: IntArray, keys: IntArray) -> Intervals:
    """Single keys that have become neighbours are one interval; there is one a row."""
    real = np.diff(offsets) > 0
    starts = keys[offsets[:-1][real]]
    stops = keys[offsets[1:][real] - 1] + 1
    return np.concatenate(([0], np.cumsum(real))), starts, stops
