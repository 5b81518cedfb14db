"""xformers: the attn_bias of memory_efficient_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.core.validate import parse_bool, parse_int
from maskwright.errors import ArgumentError
from maskwright.targets._torch import additive_mask, check_options, parse_device
from maskwright.targets.base import FORMAT_ONLY, Target, Unrepresentable
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import (
    EmptyRows,
    band,
    causal_spans,
    check_empty_rows,
    is_full,
    is_upper_left_causal,
    row_index,
)
from maskwright.targets.scores import UnsupportedScore, dense_bias, source_of
from maskwright.targets.xformers_blocks import (
    contiguous_bias,
    gappy_bias,
    padded_bias,
    paged_bias,
)

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="xformers",
    returns="an AttentionBias, None, or a float tensor",
    polarity="0 keeps, -inf masks",
    shape="an AttentionBias where one is equal, else (B, H, T, S); packed: over (B·T, B·S)",
    alignment="that of the AttentionBias, which is compared with the frame's",
    empty_rows="as the kernel does",
    encoding="additive",
    requires="xformers",
    tested=FORMAT_ONLY,
    scores={"bias": "LowerTriangularMaskWithTensorBias or a float tensor, (B, H, T, S)"},
    score_call="# output = xformers.ops.memory_efficient_attention(q, k, v, attn_bias=lowered)",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "native",
    packed: bool = False,
    page_size: int | None = None,
    backward: bool = False,
    scores: Scores = NO_SCORES,
) -> Any:
    """The AttentionBias that is equal to this mask, if there is one; else a float tensor.

    `packed`: for the concatenated tokens of all sequences, (1, B·T, H, D). `page_size`: keys are
    in pages of that size. `backward`: only a class that xformers has a backward pass for.
    """
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, returns_zero=False)
    packed = parse_bool(packed, "lower: packed")
    backward = parse_bool(backward, "lower: backward")
    if scores.bias is not None and (packed or page_size is not None):
        raise UnsupportedScore(
            source_of(scores)["bias"], "xformers takes no bias with packed=True or page_size"
        )
    if scores.bias is not None:
        return _with_bias(bound, device, dtype, scores, backward)
    from xformers.ops.fmha import attn_bias as biases

    where = parse_device(device)
    if page_size is not None:
        if backward:
            raise ArgumentError(
                f"lower: page_size={page_size!r} with backward=True, but xformers has no backward "
                "pass for keys in pages. Omit one of them."
            )
        size = parse_int(page_size, "lower: page_size", minimum=1)
        return paged_bias(bound, size, biases, where)
    if packed:
        return _packed_bias(bound, biases, where, backward)
    if is_full(bound):
        return None
    single = _single_block(bound, biases)
    if single is not None:
        return single
    if bound.frame.batch == 1:
        try:
            blocks = _block_diagonal(bound, biases, where, backward)
        except Unrepresentable:
            blocks = None
        if blocks is not None:
            return blocks
    dense, frame = bound.dense(), bound.frame
    full = np.broadcast_to(dense, (frame.batch, frame.heads, *dense.shape[2:]))
    return additive_mask(full, dtype, None, device)


def usage(bound: BoundMask, lowered: Any) -> list[str]:
    """Lines that build it, with q, k, v of (batch, length, heads, head_dim)."""
    end = "# output = xformers.ops.memory_efficient_attention(q, k, v, attn_bias=attn_bias)"
    start = ["from xformers.ops.fmha import attn_bias as biases", ""]
    if lowered is None:
        return ["attn_bias = None  # every query attends to every key", end]
    if hasattr(lowered, "block_tables"):
        table = f"torch.tensor({lowered.block_tables.tolist()}, dtype=torch.int32)"
        return ["import torch", *start, f"attn_bias = biases.{_paged_code(lowered, table)}", end]
    if hasattr(lowered, "q_seqinfo"):
        return [*start, f"attn_bias = biases.{_blocks_code(lowered)}", end]
    if not hasattr(lowered, "dtype"):
        return [*start, f"attn_bias = biases.{_single_code(lowered)}", end]
    make = f"torch.zeros({tuple(lowered.shape)}, dtype={lowered.dtype})"
    return [
        *mask_code(bound, "torch"),
        f'attn_bias = {make}.masked_fill(~mask, float("-inf"))  # added: 0 keeps, -inf masks',
        end,
    ]


def _with_bias(
    bound: BoundMask, device: object, dtype: object, scores: Scores, backward: bool
) -> Any:
    """LowerTriangularMaskWithTensorBias, which has no backward pass, or a float tensor."""
    frame, bias = bound.frame, dense_bias(scores, bound)
    learned = getattr(bias, "requires_grad", False)
    causal = is_upper_left_causal(bound) and not (learned or backward)
    visible = np.ones((1, 1, *bound.shape[2:]), np.bool_) if causal else bound.dense()
    tensor = additive_mask(visible, dtype, None, device, bias)
    tensor = tensor.expand(frame.batch, frame.heads, -1, -1)
    if not causal:
        return tensor
    from xformers.ops.fmha import attn_bias as biases

    return biases.LowerTriangularMaskWithTensorBias(tensor)


def _single_block(bound: BoundMask, biases: Any) -> Any:
    """The triangle or window that all sequences and heads have, or None."""
    if is_upper_left_causal(bound):
        return biases.LowerTriangularMask()
    spans, (queries, keys) = bound.spans, bound.shape[2:]
    if spans == causal_spans(bound, keys - queries):
        return biases.LowerTriangularFromBottomRightMask()
    offsets, starts, stops = spans.flat
    if not starts.size:
        return None
    row = np.repeat(np.arange(offsets.size - 1) % spans.shape[2], np.diff(offsets))
    place = row + keys - queries
    back, ahead = max(int((place - starts).max()), 0), max(int((stops - 1 - place).max()), 0)
    position = row_index(bound) + keys - queries
    if spans != band(bound, position - back, position + ahead + 1):
        return None
    if ahead == 0:
        return biases.LowerTriangularFromBottomRightLocalAttentionMask(back + 1)
    return biases.LocalAttentionFromBottomRightMask(window_left=back, window_right=ahead)


def _block_diagonal(bound: BoundMask, biases: Any, device: Any, backward: bool) -> Any:
    """The block-diagonal class whose blocks have no keys in common, or None."""
    bias = contiguous_bias(bound, biases, device)
    if bias is None and not backward:
        bias = padded_bias(bound, biases, device)
    if bias is None and not backward:
        bias = gappy_bias(bound, biases, device, shared_keys=False)
    return bias


def _packed_bias(bound: BoundMask, biases: Any, device: Any, backward: bool) -> Any:
    """A block-diagonal class over the concatenated tokens of all sequences."""
    bias = _block_diagonal(bound, biases, device, backward)
    if bias is None and not backward:
        bias = gappy_bias(bound, biases, device, shared_keys=True)
    if bias is None and backward:
        raise Unrepresentable("no block-diagonal class with a backward pass is equal to it")
    if bias is None:
        raise Unrepresentable("it is not a block of keys per block of queries")
    return bias


def _single_code(lowered: Any) -> str:
    name = type(lowered).__name__
    if hasattr(lowered, "_window_size"):
        return f"{name}({lowered._window_size})"
    if hasattr(lowered, "window_left"):
        sides = f"window_left={lowered.window_left}, window_right={lowered.window_right}"
        return f"{name}({sides})"
    return f"{name}()"


def _blocks_code(lowered: Any) -> str:
    name, keys = type(lowered).__name__, lowered.k_seqinfo
    queries = np.diff(lowered.q_seqinfo.seqstart_py).tolist()
    window = getattr(lowered, "_window_size", None)
    if hasattr(keys, "padding"):
        lengths = f"{queries}, {keys.padding}, {list(keys.seqlen_py)}"
        if window is not None:
            return f"{name}.from_seqlens_local({lengths}, window_size={window})"
        if hasattr(lowered, "window_left"):
            sides = lowered.window_left, lowered.window_right
            return f"{name}.from_seqlens_local({lengths}, window_left={sides[0]}, window_right={sides[1]})"
        return f"{name}.from_seqlens({lengths})"
    if hasattr(keys, "seqlen_py"):
        return f"{name}.from_seqlens({queries}, {list(keys.seqstart_py)}, {list(keys.seqlen_py)})"
    lengths = f"{queries}, {np.diff(keys.seqstart_py).tolist()}"
    method = {
        "BlockDiagonalMask": "",
        "BlockDiagonalCausalMask": ".make_causal()",
        "BlockDiagonalCausalFromBottomRightMask": ".make_causal_from_bottomright()",
        "BlockDiagonalCausalLocalAttentionMask": f".make_local_attention({window})",
        "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (
            f".make_local_attention_from_bottomright({window})"
        ),
    }[name]
    return f"BlockDiagonalMask.from_seqlens({lengths}){method}"


def _paged_code(lowered: Any, table: str) -> str:
    name, keys, page_size = type(lowered).__name__, lowered.k_seqinfo, lowered.page_size
    queries = np.diff(lowered.q_seqinfo.seqstart_py).tolist()
    if hasattr(keys, "padding"):
        return f"{name}.from_seqlens({queries}, {list(keys.seqlen_py)}, {table}, {page_size})"
    size = lowered.block_tables.shape[1] * page_size
    starts = [index * size + at for index, at in enumerate(keys.seqstart_py[:-1])]
    lengths = [stop - at for at, stop in zip(keys.seqstart_py, keys.seqlen_py, strict=False)]
    gappy = f"{lowered._UNPAGED_TYPE.__name__}.from_seqlens"
    gappy += f"({queries}, {[*starts, len(starts) * size]}, {lengths})"
    return f"{gappy}.make_paged({table}, {page_size}, {size}, biases.{name})"
