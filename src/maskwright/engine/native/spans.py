"""A bound mask's spans as C reads them, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray
    from maskwright.core.bound import BoundMask


class Held(NamedTuple):
    """The arrays, how many cells they hold, and what C is told: batch, heads, three addresses."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    cells: int
    pointers: tuple[int, ...]

    def cells_for(self, batch: int, heads: int) -> int:
        """How many cells there are for so many batch rows and heads, shared planes for each."""
        return self.cells * (batch // self.pointers[0]) * (heads // self.pointers[1])


def held_spans(bound: BoundMask) -> Held:
    """The spans for C; the arrays behind the addresses live as long as the mask.

    >>> import maskwright as mw
    >>> held_spans(mw.causal().on(3)).stops.tolist()
    [1, 2, 3]
    """
    held: Held | None = bound.__dict__.get("_native")
    if held is None:
        spans = bound.spans
        held = bound.__dict__["_native"] = held_of(spans.shape, spans.kv_len, *spans.flat)
    return held


def held_of(
    shape: tuple[int, int, int], kv_len: int, offsets: IntArray, starts: IntArray, stops: IntArray
) -> Held:
    """Flat spans of planes (batch, heads, rows), once more looked at before C reads them."""
    offsets, starts, stops = (np.ascontiguousarray(x, np.int64) for x in (offsets, starts, stops))
    batch, heads, rows = shape
    sound = (
        offsets.size == batch * heads * rows + 1
        and starts.size == stops.size == offsets[-1]
        and bool((np.diff(offsets) >= 0).all() and (starts < stops).all())
        and (not starts.size or (starts.min() >= 0 and stops.max() <= kv_len))
    )
    assert sound, "spans lie within their frame"
    pointers = (batch, heads, *(x.ctypes.data for x in (offsets, starts, stops)))
    return Held(offsets, starts, stops, int((stops - starts).sum()), pointers)
