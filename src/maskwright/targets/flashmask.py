"""flashmask: keyword arguments of PaddlePaddle's flashmask_attention: the masked rows of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.spans import Spans
from maskwright.targets.base import FORMAT_ONLY, Target, Unrepresentable
from maskwright.targets.predicates import EmptyRows, check_empty_rows, is_full, is_upper_left_causal

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

TARGET = Target(
    name="flashmask",
    returns="startend_row_indices and causal",
    supports="every mask in which each key is masked for at most two ranges of queries",
    polarity="masked rows",
    shape="(B, H or 1, S, 1, 2 or 4)",
    alignment="the frame's; causal only where there are as many queries as keys",
    empty_rows="as the kernel does",
    tested=FORMAT_ONLY,
    alternatives=("torch.flex", "cudnn"),
)


def lower(bound: BoundMask, *, empty_rows: EmptyRows = "native") -> dict[str, Any]:
    """The shortest of the four formats that is equal: one, two or four row indices per key."""
    check_empty_rows(bound, empty_rows, returns_zero=False)
    q_len, kv_len = bound.shape[2:]
    if is_full(bound):
        return {"startend_row_indices": None, "causal": False}
    if q_len == kv_len and is_upper_left_causal(bound):
        return {"startend_row_indices": None, "causal": True}
    visible = bound.spans.transpose()  # (B or 1, H or 1, keys) over rows
    masked = ~visible
    ends = _below_diagonal(visible, masked, q_len) if q_len == kv_len else None
    causal = ends is not None
    indices = np.stack(ends or _non_causal(visible, masked, q_len), axis=-1).astype(np.int32)
    per_plane = indices.reshape(*visible.shape, indices.shape[-1])
    full = np.broadcast_to(per_plane, (bound.frame.batch, *per_plane.shape[1:]))
    return {"startend_row_indices": full.copy(), "causal": causal}


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:  # noqa: ARG001
    """Lines that call it, with q, k, v of (batch, length, heads, head_dim)."""
    rows, call = lowered["startend_row_indices"], "# output = F.flashmask_attention(q, k, v"
    if rows is None:
        end = f"{call}, None, causal={lowered['causal']})"
        return ["startend_row_indices = None", end]
    return [
        "import numpy as np",
        "",
        "# the masked rows of each key; F is paddle.nn.functional",
        f"startend_row_indices = np.array({rows.tolist()}, dtype=np.int32)",
        f"{call}, paddle.to_tensor(startend_row_indices), causal={lowered['causal']})",
    ]


def _below_diagonal(visible: Spans, masked: Spans, length: int) -> list[IntArray] | None:
    """With causal=True: the range below the diagonal in which a key is masked, or its start."""
    key = np.arange(length)[None, None]
    above = Spans.from_band(key * 0, key, length, length)
    if (visible & above).cells():
        return None
    below = masked & Spans.from_band(key, key * 0 + length, length, length)
    if bool((np.diff(below.offsets) > 1).any()):
        return None
    start, stop = _nth(below, 0, length)
    to_last_row: BoolArray = (stop == length) | (start == stop)
    return [start] if bool(to_last_row.all()) else [start, stop]


def _non_causal(visible: Spans, masked: Spans, rows: int) -> list[IntArray]:
    """With causal=False: masked after and before one range, or in any two ranges."""
    count = int(np.diff(masked.offsets).max(initial=0))
    if count > 2:
        raise Unrepresentable(f"a key is masked for {count} ranges of queries")
    if bool((np.diff(visible.offsets) <= 1).all()):
        first, stop = _nth(visible, 0, 0)
        return [stop, first]
    return [*_nth(masked, 1, rows), *_nth(masked, 0, rows)]


def _nth(spans: Spans, n: int, empty: int) -> tuple[IntArray, IntArray]:
    """Start and stop of the nth interval per row; `empty` twice where there is none."""
    offsets, starts, stops = spans.flat
    there = np.diff(offsets) > n
    ends = np.full((2, offsets.size - 1), empty)
    ends[0, there], ends[1, there] = starts[offsets[:-1][there] + n], stops[offsets[:-1][there] + n]
    return ends[0], ends[1]
