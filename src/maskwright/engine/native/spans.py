"""The spans of a bound mask as the C kernel reads them.

A dilated mask, whose keys in every row are `step` apart, is computed as up to `step` submasks
without gaps, each over every `step`-th row and key. The kernel takes any row stride, so a submask
is one call on views of the same tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray
    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans


class SpanBuffers(NamedTuple):
    """The arrays of the spans, and the values of the C structure `Spans` that points to them."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    args: tuple[int, int, int, int, int]


class DilatedSubmask(NamedTuple):
    """A mask over the rows `row`, `row + step`, ... and the keys `key`, `key + step`, ...

    With `step` 1 it is the whole mask.
    """

    spans: SpanBuffers
    row: int = 0
    key: int = 0
    step: int = 1

    @property
    def rows(self) -> slice:
        """The rows of the whole mask."""
        return slice(self.row, None, self.step)

    @property
    def keys(self) -> slice:
        """The keys of the whole mask."""
        return slice(self.key, None, self.step)


def submasks(bound: BoundMask) -> list[DilatedSubmask]:
    """Returns the submasks that the kernel computes one by one; mostly the mask itself.

    The result is cached with the mask, which keeps the arrays alive.

    >>> import maskwright as mw
    >>> len(submasks(mw.causal().on(8))), len(submasks(mw.stride(2).on(8)))
    (1, 2)
    """
    return bound.cached("native.submasks", lambda: _decompose(bound.spans))


def span_buffers(spans: Spans) -> SpanBuffers:
    """Returns the spans as contiguous int64 arrays, checked once before C reads them.

    Args:
        spans: The spans of all planes.

    Raises:
        ValueError: If an interval is empty or outside the keys, or offsets are not sorted.

    >>> import maskwright as mw
    >>> span_buffers(mw.causal().on(3).spans).stops.tolist()
    [1, 2, 3]
    """
    return _checked(spans.shape, spans.kv_len, *spans.flat)


def _checked(
    shape: tuple[int, int, int], kv_len: int, offsets: IntArray, starts: IntArray, stops: IntArray
) -> SpanBuffers:
    offsets = np.ascontiguousarray(offsets, np.int64)
    starts = np.ascontiguousarray(starts, np.int64)
    stops = np.ascontiguousarray(stops, np.int64)
    batch, heads, rows = shape
    valid = (
        offsets.size == batch * heads * rows + 1
        and offsets[0] == 0
        and starts.size == stops.size == offsets[-1]
        and (offsets[1:] >= offsets[:-1]).all()
        and (starts < stops).all()
        and (not starts.size or (starts.min() >= 0 and stops.max() <= kv_len))
    )
    if not valid:
        raise ValueError(f"invalid spans for {rows} rows and {kv_len} keys")
    if not starts.size:  # an address that is not NULL
        starts = stops = np.zeros(1, np.int64)
    args = (batch, heads, offsets.ctypes.data, starts.ctypes.data, stops.ctypes.data)
    return SpanBuffers(offsets, starts, stops, args)


def _decompose(spans: Spans) -> list[DilatedSubmask]:
    whole = [DilatedSubmask(span_buffers(spans))]
    offsets, starts, stops = spans.flat
    batch, heads, rows = spans.shape
    if batch * heads != 1 or not starts.size or starts[0] + 1 != stops[0]:
        return whole
    step = _dilation(offsets, starts, stops)
    if step == 1:
        return whole
    found: dict[int, DilatedSubmask] = {}
    for row in range(min(step, rows)):
        counts = np.diff(offsets)[row::step]
        visible = counts > 0
        if not visible.any():
            continue
        first = offsets[row:-1:step][visible]
        last = first + counts[visible] - 1
        key = int(starts[first[0]] % step)
        if key in found or bool((starts[first] % step != key).any()):
            return whole  # two submasks would write the same gradients, or a row mixes residues
        kv_len = -(-(spans.kv_len - key) // step)
        buffers = _checked(
            (1, 1, counts.size),
            kv_len,
            np.append(0, np.cumsum(visible)),
            (starts[first] - key) // step,
            (starts[last] - key) // step + 1,
        )
        found[key] = DilatedSubmask(buffers, row, key, step)
    return list(found.values())


def _dilation(offsets: IntArray, starts: IntArray, stops: IntArray) -> int:
    """The distance between neighbouring keys, if it is the same in all rows; otherwise 1."""
    if bool((stops - starts != 1).any()) or starts.size < 2:
        return 1
    same_row = np.ones(starts.size, np.bool_)
    same_row[offsets[:-1][np.diff(offsets) > 0]] = False
    gaps = np.diff(starts)[same_row[1:]]
    if not gaps.size or gaps[0] < 2 or bool((gaps != gaps[0]).any()):
        return 1
    return int(gaps[0])
