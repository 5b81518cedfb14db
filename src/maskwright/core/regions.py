"""Closed-form cell counts: masks as sums and differences of regions that are counted by formula.

A region is an intersection of conditions that need no enumeration of rows: a band of `q - k`, an
arithmetic progression of `q - k`, chunks, and rectangles. Intersections of regions are regions.
Unions and complements follow by inclusion and exclusion, as signed sums of regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from maskwright.core.validate import IntArray

MAX_REGIONS: Final = 64  # of one mask; inclusion and exclusion double their number with each term
MAX_RECTANGLES: Final = 2**18
MAX_DISTANCE: Final = 2**40  # beyond every position of a frame


class Region(NamedTuple):
    """The cells (q, k) that satisfy all conditions, by default all cells.

    >>> band = Region(low=0, high=2)  # a causal window of 3 keys
    >>> count(band, 5, 5), count(band._replace(step=2), 5, 5)
    (12, 8)
    """

    low: int = -MAX_DISTANCE  # of q - k
    high: int = MAX_DISTANCE
    step: int = 1  # (q - k) % step == phase
    phase: int = 0
    chunk: int = 0  # q // chunk == k // chunk; 0 for any
    rectangles: IntArray | None = None  # (n, 4), disjoint: q start, q stop, k start, k stop

    @property
    def size(self) -> int:
        """Number of rectangles."""
        return 0 if self.rectangles is None else len(self.rectangles)


SignedRegions = Sequence[tuple[int, Region]]  # the mask is the sum of sign × region

ALL: Final[SignedRegions] = ((1, Region()),)


def single(region: Region) -> SignedRegions:
    """One region as a sum."""
    return ((1, _normal(region)),)


def of_rectangles(q: IntArray | None, k: IntArray | None) -> SignedRegions:
    """The rectangles of query and key intervals, each (n, 2); None for all positions."""
    count = len(q) if q is not None else len(k) if k is not None else 1
    everywhere = np.broadcast_to(np.array([[-MAX_DISTANCE, MAX_DISTANCE]]), (count, 2))
    parts = [everywhere if q is None else q, everywhere if k is None else k]
    return single(Region(rectangles=np.concatenate(parts, axis=1)))


def complement(regions: SignedRegions | None) -> SignedRegions | None:
    """All cells except those of the mask."""
    if regions is None:
        return None
    return (*ALL, *((-sign, region) for sign, region in regions))


def transpose(regions: SignedRegions | None) -> SignedRegions | None:
    """The same cells with queries and keys exchanged."""
    if regions is None:
        return None
    return tuple((sign, _transpose(region)) for sign, region in regions)


def intersection(masks: Sequence[SignedRegions | None]) -> SignedRegions | None:
    """The cells of all masks; None if a mask has no closed form, or there are too many regions."""
    result: SignedRegions = ALL
    for regions in masks:
        if regions is None or len(result) * len(regions) > MAX_REGIONS:
            return None
        product = []
        for sign, region in result:
            for other_sign, other in regions:
                both = _intersect(region, other)
                if both is None:
                    return None
                if both.rectangles is None or len(both.rectangles):
                    product.append((sign * other_sign, both))
        result = product
    return result


def count(region: Region, q_len: int, kv_len: int, q_start: int = 0) -> int:
    """Number of cells of a region in `q_len` queries from `q_start` and `kv_len` keys from 0."""
    frame = np.array([[q_start, q_start + q_len, 0, kv_len]])
    rectangles = frame if region.rectangles is None else _clip(region.rectangles, frame)
    counts = _count_chunks if region.chunk else _count_rectangles
    return int(counts(region, rectangles).sum())


def _intersect(region: Region, other: Region) -> Region | None:
    empty = np.empty((0, 4), np.int64)
    progression = _intersect_progressions(region, other)
    low, high = max(region.low, other.low), min(region.high, other.high)
    if progression is None or low > high:
        return Region(rectangles=empty)
    chunk = region.chunk or other.chunk
    if region.chunk and other.chunk:
        small, large = sorted((region.chunk, other.chunk))
        if large % small:
            return None
        chunk = small
    rectangles = region.rectangles if other.rectangles is None else other.rectangles
    if region.rectangles is not None and other.rectangles is not None:
        if region.size * other.size > MAX_RECTANGLES:
            return None
        rectangles = _clip(region.rectangles[:, None], other.rectangles[None])
    return _normal(Region(low, high, *progression, chunk, rectangles))


def _transpose(region: Region) -> Region:
    rectangles = None if region.rectangles is None else region.rectangles[:, [2, 3, 0, 1]]
    return region._replace(
        low=-region.high,
        high=-region.low,
        phase=-region.phase % region.step,
        rectangles=rectangles,
    )


def _normal(region: Region) -> Region:
    """The same region, with numbers that int64 can compute with."""
    low, high = max(region.low, -MAX_DISTANCE), min(region.high, MAX_DISTANCE)
    # Beyond that size, all positions are in one chunk.
    region = region._replace(chunk=min(region.chunk, MAX_DISTANCE))
    if region.step <= 2 * MAX_DISTANCE:
        return region._replace(low=low, high=high)
    # At most one member of the progression is not beyond every frame.
    members = [d for d in (region.phase, region.phase - region.step) if low <= d <= high]
    only = members[0] if members else MAX_DISTANCE
    return region._replace(low=only, high=only if members else -MAX_DISTANCE, step=1, phase=0)


def _intersect_progressions(region: Region, other: Region) -> tuple[int, int] | None:
    """Step and phase of two progressions together, by the Chinese remainder theorem."""
    divisor = math.gcd(region.step, other.step)
    if (other.phase - region.phase) % divisor:
        return None
    step = region.step // divisor * other.step
    if other.step == divisor:
        return step, region.phase
    turns = (
        (other.phase - region.phase)
        // divisor
        * pow(region.step // divisor, -1, other.step // divisor)
    )
    return step, (region.phase + region.step * turns) % step


def _clip(rectangles: IntArray, other: IntArray) -> IntArray:
    """The non-empty intersections of rectangles, broadcast against each other."""
    start = np.maximum(rectangles[..., 0::2], other[..., 0::2])
    stop = np.minimum(rectangles[..., 1::2], other[..., 1::2])
    kept = (start < stop).all(axis=-1)
    return np.stack([start, stop], axis=-1).reshape(*start.shape[:-1], 4)[kept]


def _count_chunks(region: Region, rectangles: IntArray) -> IntArray:
    """Cells of each rectangle in which query and key are in one chunk.

    A rectangle is counted by inclusion and exclusion of those that begin at 0 and end at one of its
    corners. Such a one has whole chunks, which are all the same, and a part of the next.
    """
    size = region.chunk
    whole = _count_rectangles(region, np.array([[0, size, 0, size]]))
    total = np.zeros(len(rectangles), np.int64)
    for sign, corner in ((1, [1, 3]), (-1, [0, 3]), (-1, [1, 2]), (1, [0, 2])):
        q, k = np.maximum(rectangles[:, corner], 0).T  # no key is in a chunk before 0
        chunks = np.minimum(q, k) // size
        start, stop = chunks * size, (chunks + 1) * size
        part = np.stack([start, np.minimum(q, stop), start, np.minimum(k, stop)], axis=1)
        total += sign * (chunks * whole + _count_rectangles(region, part))
    return total


def _count_rectangles(region: Region, rectangles: IntArray) -> IntArray:
    """Cells of each rectangle in the region's band and progression, ignoring chunks.

    In a rectangle of `rows` × `keys`, let e = q - k - base count from the smallest difference. The
    number of cells with a given e is the convolution of two boxes,
    r(e + 1) - r(e + 1 - rows) - r(e + 1 - keys) + r(e + 1 - rows - keys), where r(x) = max(x, 0).
    """
    q, q_stop, k, k_stop = rectangles.T
    rows, keys = q_stop - q, k_stop - k
    base = q - (k_stop - 1)
    first = np.maximum(region.low - base, 0)
    last = np.minimum(region.high - base, rows + keys - 2)
    phase = (region.phase - base) % region.step

    def ramps(stop: IntArray) -> IntArray:
        """Sum over e < stop."""
        total = np.zeros_like(stop)
        for sign, shift in ((1, 0 * rows), (-1, rows), (-1, keys), (1, rows + keys)):
            total += sign * _sum_ramp(stop - shift, (phase + 1 - shift) % region.step, region.step)
        return total

    # int64 may wrap around in a sum, but the result is smaller than 2**62, so it is exact.
    return np.where(first <= last, ramps(last + 1) - ramps(first), 0)


def _sum_ramp(top: IntArray, phase: IntArray, step: int) -> IntArray:
    """Sum of the x in 1 … top with x % step == phase."""
    first = np.where(phase > 0, phase, step)
    terms = np.where(top >= first, (top - first) // step + 1, 0)
    pairs = np.where(terms % 2, (terms - 1) // 2 * terms, terms // 2 * (terms - 1))
    total: IntArray = terms * first + step * pairs
    return total
