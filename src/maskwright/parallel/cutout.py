"""A mask cut down to some rows and some keys of another one, in the order in which they are held.

What may enter here: how spans of the whole become spans of a part. Nothing here knows ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.bound import BoundMask
from maskwright.core.expr import Atom
from maskwright.core.frame import Frame
from maskwright.core.spans import Spans

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.validate import IntArray


class Cutout(Atom):
    """Spans that were cut out of a mask; equal to nothing but itself."""

    name = "submask"
    serializable = False
    _dims_known = False

    def __init__(self, spans: Spans) -> None:
        self.spans = spans

    def _spans(self, view: View) -> Spans:
        return self.spans.rows(view.row, view.row_stop).clip(view.key_stop)

    def _width(self, keys: int) -> int:
        counts = np.diff(self.spans.offsets)
        return min(keys // 2 + 1, int(counts.max(initial=0)))

    def _planes(self, frame: Frame) -> tuple[int, int]:  # noqa: ARG002 - the spans have the say
        return self.spans.shape[:2]

    def _text(self, data: bool = True) -> str:  # noqa: ARG002
        return f"cutout({self.spans!r})"


def cut_out(
    bound: BoundMask, rows: IntArray, keys: IntArray, heads: slice | None = None
) -> BoundMask:
    """The mask of chosen rows and keys, both given as rising numbers; and of some heads only.

    >>> import maskwright as mw
    >>> import numpy as np
    >>> part = cut_out(mw.causal().on(6), np.array([1, 5]), np.array([0, 4, 5]))
    >>> part.dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 1]]]]
    """
    spans = _chosen(bound.spans, rows, heads)
    frame = bound.frame
    count = frame.heads if heads is None else heads.stop - heads.start
    held = Frame(rows.size, keys.size, frame.batch, count, 0)
    if spans.band is not None:
        low, high = (np.searchsorted(keys, end) for end in spans.band)
        part = Spans.from_band(low, high, keys.size, rows.size)
    else:
        offsets, starts, stops = spans.flat
        owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        # Where keys between two intervals are left out, the two become one.
        low, high = np.searchsorted(keys, starts), np.searchsorted(keys, stops)
        part = Spans.from_pieces(spans.shape, keys.size, owner, low, high)
    made = BoundMask(Cutout(part), held)
    made.cached("spans", part.freeze)
    return made


def _chosen(spans: Spans, rows: IntArray, heads: slice | None) -> Spans:
    planes = slice(None) if heads is None or spans.shape[1] == 1 else heads
    if spans.band is not None:
        low, high = (end[:, planes][:, :, rows] for end in spans.band)
        return Spans.from_band(low, high, spans.kv_len, rows.size)
    b, h, count = spans.shape
    numbers = np.arange(b * h * count).reshape(spans.shape)
    return spans.take(numbers[:, planes][:, :, rows])
