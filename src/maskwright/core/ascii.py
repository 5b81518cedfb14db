"""A bound mask as text: a grid of its cells, or of tiles if there are too many cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.expr import brief, data_size
from maskwright.core.simplify import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.spans import Spans
    from maskwright.core.validate import BoolArray

MAX_CELLS: Final = 40  # along one side: 80 columns of a terminal
TILES: Final = 32
MAX_PLANES: Final = 8
MAX_INTERVALS: Final = 2**23  # that are computed for a grid
LINE: Final = 100  # characters of the expression
VISIBLE, MASKED, PARTIAL = "■", "·", "▒"


def render(bound: BoundMask) -> str:
    """The expression, its sizes, and a grid per batch row and head that differs."""
    if bound._reader.max_intervals() > MAX_INTERVALS and max(bound.shape[2:]) > MAX_CELLS:
        note = "too many intervals to draw; print some .rows(start, stop)"
        return "\n".join([title_of(bound), sizes_of(bound), note])
    return "\n".join([title_of(bound), f"{sizes_of(bound)}, {density_of(bound)}", *_grids(bound)])


def density_of(bound: BoundMask) -> str:
    """The fraction of visible cells as text."""
    density = bound.density
    return f"density {density:.2g}" if 0 < density < 0.1 else f"density {density:.2f}"


def title_of(bound: BoundMask) -> str:
    """The mask as text, and its simplified form if that is shorter."""
    text, shorter = short_text(bound.mask), short_text(simplify(bound.mask))
    return f"{text} = {shorter}" if len(shorter) < len(text) else text


def short_text(mask: Mask) -> str:
    """The mask in at most one line, with `...` in place of long arrays."""
    text = repr(mask) if data_size(mask) <= LINE else brief(mask)
    text = text if len(text) <= LINE else brief(mask)
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def sizes_of(bound: BoundMask) -> str:
    """The sizes of the frame as text."""
    frame = bound.frame
    parts = [f"{frame.q_len:,} {'query' if frame.q_len == 1 else 'queries'} × {frame.kv_len:,} "
             f"{'key' if frame.kv_len == 1 else 'keys'}"]  # fmt: skip
    if frame.batch != 1:
        parts.append(f"batch {frame.batch}")
    if frame.heads != 1:
        parts.append(f"heads {frame.heads}")
    if frame.q_start and frame.q_len == 1:
        parts.append(f"query at {frame.q_start:,}")
    elif frame.q_start and frame.q_len:
        parts.append(f"queries at {frame.q_start:,} … {frame.q_stop - 1:,}")
    return ", ".join(parts)


def _grids(bound: BoundMask) -> Iterator[str]:
    batch, heads, q_len, kv_len = bound.shape
    if max(q_len, kv_len) <= MAX_CELLS:
        some = whole = bound.spans
    else:
        tall, broad = math.ceil(q_len / TILES) or 1, math.ceil(kv_len / TILES) or 1
        yield f"each character is {tall} × {broad} cells: {VISIBLE} full, {PARTIAL} partial, {MASKED} empty"
        tiles = bound.tiles(tall, broad)
        some, whole = tiles.touched, tiles.full
    for plane in range(min(batch * heads, MAX_PLANES)):
        b, h = divmod(plane, heads)
        names = [f"batch {b}"] * (batch > 1) + [f"head {h}"] * (heads > 1)
        if names:
            yield ", ".join(names)
        touched, full = (_plane(spans, b, h) for spans in (some, whole))
        for row in np.where(full, VISIBLE, np.where(touched, PARTIAL, MASKED)):
            yield " ".join(row)
    if batch * heads > MAX_PLANES:
        yield f"… and {batch * heads - MAX_PLANES} more"


def _plane(spans: Spans, batch: int, head: int) -> BoolArray:
    plane = spans.plane(0, batch).plane(1, head)
    cells = np.zeros((1, 1, plane.shape[2], plane.kv_len), np.bool_)
    plane.write_dense(cells)
    return cells.reshape(plane.shape[2], plane.kv_len)
