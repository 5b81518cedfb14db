"""flashmask: keyword arguments of PaddlePaddle's flashmask_attention: hidden rows of every key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.spans import Spans
from maskwright.targets.facts import (
    EmptyRows,
    check_empty_rows,
    is_upper_left_causal,
    sees_everything,
)
from maskwright.targets.target import CannotSay, Target

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

TARGET = Target(
    name="flashmask",
    gives="startend_row_indices and causal",
    says="every mask that hides each key from at most two stretches of queries",
    polarity="rows that are hidden",
    shape="(B, H or 1, S, 1, 2 or 4)",
    alignment="the frame's; causal is used only for as many queries as keys",
    empty_rows="as the kernel does",
    checked="format checked, kernel not run here",
    instead=("torch.flex", "intervals"),
)


def lower(bound: BoundMask, *, empty_rows: EmptyRows = "native") -> dict[str, Any]:
    """The shortest of the four forms that says it: one, two or four numbers for a key."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    q_len, kv_len = bound.shape[2:]
    if sees_everything(bound):
        return {"startend_row_indices": None, "causal": False}
    if q_len == kv_len and is_upper_left_causal(bound):
        return {"startend_row_indices": None, "causal": True}
    seen = bound.spans.transpose()  # (B or 1, H or 1, keys) over rows
    hidden = ~seen
    ends = _below_the_diagonal(seen, hidden, q_len) if q_len == kv_len else None
    causal = ends is not None
    numbers = np.stack(ends or _anywhere(seen, hidden, q_len), axis=-1).astype(np.int32)
    held = numbers.reshape(*seen.shape, numbers.shape[-1])
    every = np.broadcast_to(held, (bound.frame.batch, *held.shape[1:]))
    return {"startend_row_indices": every.copy(), "causal": causal}


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:  # noqa: ARG001 - all is given
    """The lines that call it, with q, k, v of (batch, length, heads, head_dim)."""
    rows, call = given["startend_row_indices"], "# output = F.flashmask_attention(q, k, v"
    if rows is None:
        end = f"{call}, None, causal={given['causal']})"
        return ["startend_row_indices = None", end]
    return [
        "import numpy as np",
        "",
        "# for every key, the rows from which it is hidden; F is paddle.nn.functional",
        f"startend_row_indices = np.array({rows.tolist()}, dtype=np.int32)",
        f"{call}, paddle.to_tensor(startend_row_indices), causal={given['causal']})",
    ]


def _below_the_diagonal(seen: Spans, hidden: Spans, length: int) -> list[IntArray] | None:
    """With causal=True: where a key is hidden below the diagonal, in one stretch or to the end."""
    key = np.arange(length)[None, None]
    above = Spans.from_band(key * 0, key, length, length)
    if (seen & above).cells():
        return None
    below = hidden & Spans.from_band(key, key * 0 + length, length, length)
    if bool((np.diff(below.offsets) > 1).any()):
        return None
    start, stop = _nth(below, 0, length)
    to_the_end: BoolArray = (stop == length) | (start == stop)
    return [start] if bool(to_the_end.all()) else [start, stop]


def _anywhere(seen: Spans, hidden: Spans, rows: int) -> list[IntArray]:
    """With causal=False: hidden after and before one stretch, or in any two stretches."""
    most = int(np.diff(hidden.offsets).max(initial=0))
    if most > 2:
        raise CannotSay(f"one key is hidden from {most} stretches of queries")
    if bool((np.diff(seen.offsets) <= 1).all()):
        first, stop = _nth(seen, 0, 0)
        return [stop, first]
    return [*_nth(hidden, 1, rows), *_nth(hidden, 0, rows)]


def _nth(spans: Spans, n: int, empty: int) -> tuple[IntArray, IntArray]:
    """Start and stop of the nth interval of every row; `empty` twice where there is none."""
    offsets, starts, stops = spans.flat
    there = np.diff(offsets) > n
    ends = np.full((2, offsets.size - 1), empty)
    ends[0, there], ends[1, there] = starts[offsets[:-1][there] + n], stops[offsets[:-1][there] + n]
    return ends[0], ends[1]
