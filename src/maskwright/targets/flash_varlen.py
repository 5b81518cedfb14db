"""flash.varlen: keyword arguments of flash_attn_varlen_func, for concatenated sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.targets._torch import int32_tensor, to_tensor
from maskwright.targets.base import FORMAT_ONLY, Target
from maskwright.targets.predicates import EmptyRows, check_empty_rows
from maskwright.targets.scores import UnsupportedScore, alibi_slopes
from maskwright.targets.varlen import find_segments

if TYPE_CHECKING:
    from maskwright.bias import Bias
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray
    from maskwright.targets.varlen import Segments

TARGET = Target(
    name="flash.varlen",
    returns="cu_seqlens_q and _k, max_seqlen_q and _k, causal, window_size",
    supports="causal, window and documents",
    polarity="offsets of visible segments",
    shape="concatenated tokens of all sequences: (B·T, H, D) and (B·S, H, D)",
    alignment="lower right in every segment",
    empty_rows="zero",
    requires="torch",
    tested=FORMAT_ONLY,
    alternatives=("torch.flex", "torch.bool"),
    scores={"bias": "ALiBi only: alibi_slopes", "softcap": "softcap"},
    score_call="# output = flash_attn.flash_attn_varlen_func(q, k, v, **lowered)",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> dict[str, Any]:
    """The offsets of the segments of queries and keys, and the window that applies to all."""
    check_empty_rows(bound, empty_rows, returns_zero=True)
    segments = find_segments(bound)
    causal = segments.ahead == 0
    unlimited = segments.back is None and (causal or segments.ahead is None)
    window = (-1, -1) if unlimited else (_window_side(segments.back), _window_side(segments.ahead))
    extra: dict[str, Any] = {}
    if scores.bias is not None:
        extra["alibi_slopes"] = _slopes(bound, segments, scores.bias, device)
    if scores.softcap is not None:
        extra["softcap"] = scores.softcap
    return {
        "cu_seqlens_q": int32_tensor(_offsets(segments.queries), device),
        "cu_seqlens_k": int32_tensor(_offsets(segments.keys), device),
        "max_seqlen_q": int(segments.queries.max(initial=0)),
        "max_seqlen_k": int(segments.keys.max(initial=0)),
        "causal": causal,
        "window_size": window,
        **extra,
    }


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it, with q, k, v of (tokens, heads, head_dim)."""
    frame = bound.frame
    offsets = [
        f"    {name}=torch.tensor({lowered[name].tolist()}, dtype=torch.int32),"
        for name in ("cu_seqlens_q", "cu_seqlens_k")
    ]
    rest = [
        f"    {name}={lowered[name]},"
        for name in ("max_seqlen_q", "max_seqlen_k", "causal", "window_size")
    ]
    return [
        "import torch",
        "",
        f"# {frame.batch} × {frame.q_len} queries and {frame.kv_len} keys, concatenated;",
        "# causal and window_size are aligned at the lower right of every segment",
        "kwargs = dict(",
        *offsets,
        *rest,
        ")",
        "# output = flash_attn.flash_attn_varlen_func(q, k, v, **kwargs)",
    ]


def _slopes(bound: BoundMask, segments: Segments, bias: Bias, device: object) -> Any:
    """alibi_slopes, (heads,) in float32.

    The kernel measures distances in each segment, whose last query is aligned with its last key.
    They are the frame's where the positions of these two are equal.
    """
    slopes = alibi_slopes(bias)
    frame = bound.frame
    size = np.broadcast_to(slopes, (frame.heads,)).astype(np.float32)
    last = np.stack([np.cumsum(segments.queries), np.cumsum(segments.keys)])  # over all sequences
    last = last[:, (segments.queries > 0) & (segments.keys > 0)]
    rows, keys = (last[0] - 1) % max(frame.q_len, 1), (last[1] - 1) % max(frame.kv_len, 1)
    if bool((rows + frame.q_start != keys).any()):
        raise UnsupportedScore(
            repr(bias),
            "it measures distances from the last key of each segment, and the frame's differ",
        )
    return to_tensor(size, device)


def _offsets(sizes: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(sizes)))


def _window_side(limit: int | None) -> int:
    return -1 if limit is None else limit
