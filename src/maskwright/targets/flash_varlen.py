"""flash.varlen: keyword arguments of flash_attn_varlen_func, for tokens laid end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets.facts import EmptyRows, check_empty_rows
from maskwright.targets.segments import segments
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import numbers

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray

TARGET = Target(
    name="flash.varlen",
    gives="cu_seqlens_q and _k, max_seqlen_q and _k, causal, window_size",
    says="causal, window and documents",
    polarity="offsets of what is seen",
    shape="tokens of all sequences end to end: (B·T, H, D) and (B·S, H, D)",
    alignment="lower right in every segment",
    empty_rows="zero",
    needs="torch",
    checked="format checked, kernel not run here",
    instead=("torch.flex", "torch.bool"),
)


def lower(
    bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "zero"
) -> dict[str, Any]:
    """Where each segment of queries and of keys ends, and the one window that holds in all."""
    check_empty_rows(bound, empty_rows, gives_zero=True)
    found = segments(bound)
    causal = found.ahead == 0
    open_ended = found.back is None and (causal or found.ahead is None)
    window = (-1, -1) if open_ended else (_side(found.back), _side(found.ahead))
    return {
        "cu_seqlens_q": numbers(_ends(found.queries), device),
        "cu_seqlens_k": numbers(_ends(found.keys), device),
        "max_seqlen_q": int(found.queries.max(initial=0)),
        "max_seqlen_k": int(found.keys.max(initial=0)),
        "causal": causal,
        "window_size": window,
    }


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:
    """The lines that call it, with q, k, v of (tokens, heads, head_dim)."""
    frame = bound.frame
    ends = [
        f"    {name}=torch.tensor({given[name].tolist()}, dtype=torch.int32),"
        for name in ("cu_seqlens_q", "cu_seqlens_k")
    ]
    rest = [
        f"    {name}={given[name]},"
        for name in ("max_seqlen_q", "max_seqlen_k", "causal", "window_size")
    ]
    return [
        "import torch",
        "",
        f"# {frame.batch} × {frame.q_len} queries and {frame.kv_len} keys, end to end",
        "# causal and window count from the lower right of every segment",
        "given = dict(",
        *ends,
        *rest,
        ")",
        "# output = flash_attn.flash_attn_varlen_func(q, k, v, **given)",
    ]


def _ends(sizes: IntArray) -> IntArray:
    return np.concatenate(([0], np.cumsum(sizes)))


def _side(limit: int | None) -> int:
    return -1 if limit is None else limit
