"""xformers: the attn_bias of memory_efficient_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets._torch import additive_mask, check_options
from maskwright.targets.base import FORMAT_ONLY, Target, Unrepresentable
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows, is_full, is_upper_left_causal
from maskwright.targets.scores import NO_SCORES, Scores
from maskwright.targets.varlen import Segments, find_segments

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="xformers",
    returns="an AttentionBias, None, or a float tensor",
    polarity="0 keeps, -inf masks",
    shape="an AttentionBias where one is equal, else (B, H, T, S)",
    alignment="that of the AttentionBias, which is compared with the frame's",
    empty_rows="as the kernel does",
    encoding="additive",
    requires="xformers",
    tested=FORMAT_ONLY,
    scores={"bias": "in a float tensor, (B, H, T, S)"},
    score_call="# output = xformers.ops.memory_efficient_attention(q, k, v, attn_bias=lowered)",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "native",
    scores: Scores = NO_SCORES,
) -> Any:
    """The AttentionBias that is equal to this mask, if there is one; else a float tensor."""
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, returns_zero=False)
    if scores.bias is not None:
        mask = additive_mask(bound.dense(), dtype, None, device, scores.dense_bias(bound))
        return mask.expand(bound.frame.batch, bound.frame.heads, -1, -1)
    if is_full(bound):
        return None
    from xformers.ops.fmha import attn_bias

    if is_upper_left_causal(bound):
        return attn_bias.LowerTriangularMask()
    if bound.frame.batch == 1:
        try:
            segments = find_segments(bound)
        except Unrepresentable:
            pass
        else:
            found = _attention_bias(segments, attn_bias)
            if found is not None:
                return found
    dense, frame = bound.dense(), bound.frame
    full = np.broadcast_to(dense, (frame.batch, frame.heads, *dense.shape[2:]))
    return additive_mask(full, dtype, None, device)


def usage(bound: BoundMask, lowered: Any) -> list[str]:
    """Lines that build it, with q, k, v of (batch, length, heads, head_dim)."""
    end = "# output = xformers.ops.memory_efficient_attention(q, k, v, attn_bias=attn_bias)"
    start = ["from xformers.ops.fmha import attn_bias as biases", ""]
    if lowered is None:
        return ["attn_bias = None  # every query attends to every key", end]
    name = type(lowered).__name__
    if hasattr(lowered, "q_seqinfo"):
        lengths = [
            np.diff(info.seqstart_py).tolist() for info in (lowered.q_seqinfo, lowered.k_seqinfo)
        ]
        make = f"{name}.from_seqlens({lengths[0]}, {lengths[1]})"
        if name == "BlockDiagonalCausalFromBottomRightMask":
            base = f"BlockDiagonalMask.from_seqlens({lengths[0]}, {lengths[1]})"
            make = f"{base}.make_causal_from_bottomright()"
        return [*start, f"attn_bias = biases.{make}", end]
    if not hasattr(lowered, "dtype"):
        made = repr(lowered) if "=" in repr(lowered) else f"{name}()"
        return [*start, f"attn_bias = biases.{made}", end]
    make = f"torch.zeros({tuple(lowered.shape)}, dtype={lowered.dtype})"
    return [
        *mask_code(bound, "torch"),
        f'attn_bias = {make}.masked_fill(~mask, float("-inf"))  # added: 0 keeps, -inf masks',
        end,
    ]


def _attention_bias(segments: Segments, attn_bias: Any) -> Any:
    """The block-diagonal or windowed AttentionBias of these segments, or None."""
    queries, keys = segments.queries.tolist(), segments.keys.tolist()
    window = segments.back, segments.ahead
    if len(queries) > 1:
        if min(queries) == 0 or min(keys) == 0:
            return None
        blocks = attn_bias.BlockDiagonalMask.from_seqlens(queries, keys)
        if window == (None, None):
            return blocks
        return blocks.make_causal_from_bottomright() if window == (None, 0) else None
    if window == (None, 0):
        return attn_bias.LowerTriangularFromBottomRightMask()
    if None in window:
        return None
    return attn_bias.LocalAttentionFromBottomRightMask(
        window_left=segments.back, window_right=segments.ahead
    )
