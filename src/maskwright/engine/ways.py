"""How a run is cut: by a closed formula for the cost of every way, the cheapest of them.

A run's rows go on evenly, so its shape alone decides: a causal triangle, a band, a block, or
several of these beside each other, cut together or one by one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from maskwright.engine.costs import KEYS, causal_cells
from maskwright.engine.problem import HEIGHTS
from maskwright.engine.taking import Order

if TYPE_CHECKING:
    from maskwright.engine.costs import Costs

SHORT: Final = 64  # rows of a run of several tracks up to which few ways are looked at


class Track(NamedTuple):
    """One interval of a run's first row, and whether its ends move by one key a row."""

    start: int
    stop: int
    low_moves: int
    high_moves: int


class Way(NamedTuple):
    """How to cut a run: in strips of `height` rows, of all tracks or one of them."""

    kind: Literal["strips", "causal", "body"]
    height: int
    gather: bool = False
    track: int | None = None
    first: bool = True


@lru_cache(maxsize=4096)
def best_way(
    rows: int, tracks: tuple[Track, ...], costs: Costs, planes: int, sequences: int
) -> tuple[float, tuple[Way, ...]]:
    """The cheapest way to cut a run, and its cost."""
    still = not any(t.low_moves or t.high_moves for t in tracks)
    whole = still or (len(tracks) > 1 and rows <= SHORT)
    heights = {rows} if whole else {*(h for h in HEIGHTS if h < rows), rows}
    options: list[tuple[float, tuple[Way, ...]]] = [
        (
            _strips_cost(rows, height, tracks, costs, planes, sequences, gather),
            (Way("strips", height, gather),),
        )
        for height in heights
        for gather in ((False, True) if len(tracks) > 1 else (False,))
    ]
    if len(tracks) == 1:
        (track,) = tracks
        if (track.low_moves, track.high_moves) == (0, 1):
            options += _triangles(rows, track.stop - track.start, costs, planes)
    elif rows > SHORT or len(tracks) == 2:
        parts = [
            best_way(rows, (Track(0, t.stop - t.start, *t[2:]),), costs, planes, sequences)
            for t in tracks
        ]
        apart = sum(cost for cost, _ in parts) + (len(tracks) - 1) * _merge(rows, costs, planes)
        ways = tuple(
            way._replace(track=n, first=way.first and n == 0)
            for n, (_, found) in enumerate(parts)
            for way in found
        )
        options.append((apart, ways))
    return min(options, key=lambda option: option[0])


def orders_of(way: Way, start: int, stop: int, tracks: tuple[Track, ...]) -> list[Order]:
    """What to cut, of a run of rows `start` … `stop - 1`."""
    track = None if len(tracks) == 1 else way.track
    if way.kind == "strips":
        return [
            Order(row, min(row + way.height, stop), way.gather, track, first=way.first)
            for row in range(start, stop, way.height)
        ]
    own = tracks[0 if track is None else track]
    if way.kind == "body":
        return [Order(start, stop, track=track, first=way.first, keys=(own.start, own.stop - 1))]
    keys = (own.stop - 1, own.stop - 1 + stop - start)
    return [Order(start, stop, track=track, causal=True, first=way.first, keys=keys)]


def _triangles(
    rows: int, width: int, costs: Costs, planes: int
) -> list[tuple[float, tuple[Way, ...]]]:
    """The kernel's own causal mode: on a triangle, or beside the block that all rows see."""
    turns = rows * (1 + rows / (2 * KEYS))
    causal = planes * (
        causal_cells(rows, rows) * costs.causal_cell + turns * costs.rates(rows, False)[1]
    )
    causal += costs.call
    if width == 1:
        return [(causal, (Way("causal", rows),))]
    body = costs.strip(rows, width - 1, masked=False, planes=planes)
    merge = _merge(rows, costs, planes)
    return [(causal + body + merge, (Way("body", rows), Way("causal", rows, first=False)))]


def _merge(rows: int, costs: Costs, planes: int) -> float:
    """Merging is a handful of small calls, and some work on each row."""
    return 2 * costs.call + costs.merge * rows * planes


def _strips_cost(
    rows: int,
    height: int,
    tracks: tuple[Track, ...],
    costs: Costs,
    planes: int,
    sequences: int,
    gather: bool,
) -> float:
    """Strips of one height over a run, by the formula for the sum of their widths."""
    count = -(-rows // height)
    low, high = tracks[0].low_moves, tracks[-1].high_moves
    hull = tracks[-1].stop - tracks[0].start
    still = not any(t.low_moves or t.high_moves for t in tracks)
    masked = not still or (len(tracks) > 1 and not gather)
    grown = (height - 1) * high + (high - low) * height * (count - 1) / 2
    width = max(hull + grown, 1.0)
    if gather:
        width = min(
            width, sum(t.stop - t.start + (height - 1) * t.high_moves for t in tracks) * 1.0
        )
    cell, row = costs.rates(height, masked)
    if left := rows % height:
        dear, slow = costs.rates(left, masked)
        share = left / rows
        cell, row = cell + (dear - cell) * share, row + (slow - row) * share
    folded = low == high and not still and not gather
    turns = -(-width // KEYS)
    price = planes * rows * (width * cell + turns * row) + costs.call * (
        min(count, sequences) if folded else count
    )
    if gather:
        price += count * (costs.gather + planes * width * costs.copy)
    return price
