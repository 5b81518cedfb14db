"""How much of every tile is seen: one sweep over the intervals, however large the tiles are.

The keys that an interval covers below an edge are `edge - start`, less `edge - stop` where it ends
below it too. Summed over the intervals of a row of tiles, that needs only how many starts and
stops lie in every tile, and what they add up to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.arrays import read_number, read_whole
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from maskwright.core.arrays import IntArray
    from maskwright.core.spans import Spans


def covered_cells(
    parts: Iterable[Spans], rows: int, keys: range, q_block: int, kv_block: int
) -> IntArray:
    """Seen cells of every tile, of spans of one plane that are given some rows at a time."""
    tall, broad = math.ceil(rows / q_block), math.ceil(len(keys) / kv_block)
    edges = np.arange(broad + 1) * kv_block
    below = np.zeros((tall, broad + 1))
    row = 0
    for spans in parts:
        offsets, starts, stops = spans.flat
        owner = np.repeat(np.arange(row, row + spans.shape[2]) // q_block, np.diff(offsets))
        for ends, sign in ((starts, 1), (stops, -1)):
            inside = ends - keys.start
            tile = owner * (broad + 1) + inside // kv_block
            size = tall * (broad + 1)
            count = np.bincount(tile, minlength=size).reshape(tall, broad + 1)
            total = np.bincount(tile, inside, minlength=size).reshape(tall, broad + 1)
            number, place = (_before(x) for x in (count, total))
            below += sign * (number * edges - place)
        row += spans.shape[2]
    return np.diff(below, axis=1).astype(np.int64)


def read_index(given: int, name: str, size: int) -> int:
    """A number of a batch row or head that is there."""
    number = read_number(given, f"coverage: {name}")
    if not 0 <= number < size:
        raise FrameError(
            f"coverage: {name} {number} is not there. Give a number from 0 to {size - 1}."
        )
    return number


def read_stretch(given: tuple[int, int] | None, name: str, size: int) -> range:
    """A first and one past the last as a range; all, if nothing is given."""
    if given is None:
        return range(size)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ArgumentError(
            f"coverage: {name}={given!r:.40} is no stretch. Give a first and one past the last."
        )
    first, stop = (read_whole(end, f"coverage: {name}", least=0) for end in given)
    if not first <= stop <= size:
        raise FrameError(
            f"coverage: {name}={first, stop} but there are {size}. "
            "Give a first and one past the last."
        )
    return range(first, stop)


def _before(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What lies in the tiles before each edge."""
    out = np.zeros(x.shape)
    np.cumsum(x[:, :-1], axis=1, out=out[:, 1:])
    return out
