"""xformers: the attn_bias of memory_efficient_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets.code import mask_code
from maskwright.targets.facts import (
    EmptyRows,
    check_empty_rows,
    is_upper_left_causal,
    sees_everything,
)
from maskwright.targets.segments import Segments, segments
from maskwright.targets.target import CannotSay, Target
from maskwright.targets.torch_tensors import additive, check_options

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="xformers",
    gives="an AttentionBias, None, or a float tensor",
    says="every mask",
    polarity="0 keeps, -inf hides",
    shape="an object where one is equal; else (B, H, T, S)",
    alignment="that of the object, which is compared with the frame's",
    empty_rows="as the kernel does",
    reads="additive",
    needs="xformers",
    checked="format checked, kernel not run here",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "native",
) -> Any:
    """The object that says exactly this mask, where xFormers has one; else a tensor of floats."""
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, gives_zero=False)
    if sees_everything(bound):
        return None
    from xformers.ops.fmha import attn_bias

    if is_upper_left_causal(bound):
        return attn_bias.LowerTriangularMask()
    if bound.frame.batch == 1:
        try:
            found = segments(bound)
        except CannotSay:
            pass
        else:
            said = _object(found, attn_bias)
            if said is not None:
                return said
    dense, frame = bound.dense(), bound.frame
    wide = np.broadcast_to(dense, (frame.batch, frame.heads, *dense.shape[2:]))
    return additive(wide, dtype, None, device)


def usage(bound: BoundMask, given: Any) -> list[str]:
    """The lines that make it by hand, with q, k, v of (batch, length, heads, head_dim)."""
    end = "# output = xformers.ops.memory_efficient_attention(q, k, v, attn_bias=attn_bias)"
    start = ["from xformers.ops.fmha import attn_bias as biases", ""]
    if given is None:
        return ["attn_bias = None  # every query sees every key", end]
    if hasattr(given, "q_seqinfo"):
        lengths = [
            np.diff(info.seqstart_py).tolist() for info in (given.q_seqinfo, given.k_seqinfo)
        ]
        make = f"{type(given).__name__}.from_seqlens({lengths[0]}, {lengths[1]})"
        if type(given).__name__ in ("BlockDiagonalCausalFromBottomRightMask",):
            base = f"BlockDiagonalMask.from_seqlens({lengths[0]}, {lengths[1]})"
            make = f"{base}.make_causal_from_bottomright()"
        return [*start, f"attn_bias = biases.{make}", end]
    if not hasattr(given, "dtype"):
        made = repr(given) if "=" in repr(given) else f"{type(given).__name__}()"
        return [*start, f"attn_bias = biases.{made}", end]
    make = f"torch.zeros({tuple(given.shape)}, dtype={given.dtype})"
    return [
        *mask_code(bound, "torch"),
        f'attn_bias = {make}.masked_fill(~mask, float("-inf"))  # added: 0 keeps, -inf hides',
        end,
    ]


def _object(found: Segments, attn_bias: Any) -> Any:
    """The block-diagonal or windowed object for these segments, or None."""
    queries, keys = found.queries.tolist(), found.keys.tolist()
    if len(queries) > 1:
        if min(queries) == 0 or min(keys) == 0:
            return None
        whole = attn_bias.BlockDiagonalMask.from_seqlens(queries, keys)
        if (found.back, found.ahead) == (None, None):
            return whole
        if (found.back, found.ahead) == (None, 0):
            return whole.make_causal_from_bottomright()
        return None
    if found.back is None and found.ahead == 0:
        return attn_bias.LowerTriangularFromBottomRightMask()
    if found.back is None or found.ahead is None:
        return None
    return attn_bias.LocalAttentionFromBottomRightMask(
        window_left=found.back, window_right=found.ahead
    )
