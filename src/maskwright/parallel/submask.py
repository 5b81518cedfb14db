"""The mask of some rows and keys of another mask, in the order in which a rank stores them."""

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


class Submask(Atom):
    """A mask given by its spans. It is equal to itself only."""

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

    def _planes(self, frame: Frame) -> tuple[int, int]:  # noqa: ARG002 - given by the spans
        return self.spans.shape[:2]

    def _text(self, data: bool = True) -> str:  # noqa: ARG002
        return f"submask({self.spans!r})"


def submask(
    bound: BoundMask, rows: IntArray, keys: IntArray, heads: slice | None = None
) -> BoundMask:
    """The mask of some rows and keys of a bound mask.

    Args:
        bound: The mask.
        rows: The rows, in ascending order.
        keys: The keys, in ascending order.
        heads: The heads, by default all.

    >>> import maskwright as mw
    >>> import numpy as np
    >>> part = submask(mw.causal().on(6), np.array([1, 5]), np.array([0, 4, 5]))
    >>> part.dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 1]]]]
    """
    spans, frame = bound.spans, bound.frame
    count = frame.heads if heads is None else heads.stop - heads.start
    planes = slice(None) if heads is None or spans.shape[1] == 1 else heads
    if spans.band is not None:
        low, high = (np.searchsorted(keys, end[:, planes][:, :, rows]) for end in spans.band)
        part = Spans.from_band(low, high, keys.size, rows.size)
    else:
        index = np.arange(int(np.prod(spans.shape))).reshape(spans.shape)
        spans = spans.take(index[:, planes][:, :, rows])
        offsets, starts, stops = spans.flat
        owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        # Two intervals become one if all keys between them are left out.
        low, high = np.searchsorted(keys, starts), np.searchsorted(keys, stops)
        part = Spans.from_pieces(spans.shape, keys.size, owner, low, high)
    restricted = BoundMask(Submask(part), Frame(rows.size, keys.size, frame.batch, count, 0))
    restricted.cached("spans", part.freeze)
    return restricted
