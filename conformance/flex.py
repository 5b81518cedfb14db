"""FlexAttention by maskwright, and the comparison of BlockMasks."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import AuxOutput, BlockMask, _vmap_for_bhqkv

import maskwright as mw

if TYPE_CHECKING:
    from collections.abc import Callable

PROBES = (1.0, -2.5, 100.0, -100.0)  # scores at which a score_mod must be linear
LISTS = ("kv", "q")  # the blocks of each row, and, for the backward pass, of each column


def read_score_mod(
    score_mod: Callable[..., Tensor], shape: tuple[int, int, int, int]
) -> tuple[float, Tensor] | None:
    """The factor and the values of a score_mod that is `factor * score + values`; None for any other.

    Args:
        score_mod: A score_mod of FlexAttention.
        shape: (batch, heads, queries, keys).

    Returns:
        The factor, and the values with -inf where a cell is masked, in float32.
    """
    modify = _vmap_for_bhqkv(score_mod, prefix=(0,))
    index = tuple(map(torch.arange, shape))
    with TransformGetItemToIndex(), torch.no_grad():
        values, *others = (
            modify(torch.full(shape, score, dtype=torch.float64), *index)
            for score in (0.0, *PROBES)
        )
    visible = values != -torch.inf
    if not values[visible].isfinite().all() or not values.is_floating_point():
        return None
    at_one = others[0][visible]
    factor = (at_one - values[visible])[0].item() if at_one.numel() else 1.0
    for score, other in zip(PROBES, others, strict=True):
        expected = values[visible] + factor * score
        same_cells = torch.equal(other != -torch.inf, visible)
        if not same_cells or not torch.allclose(other[visible], expected, rtol=1e-6, atol=1e-6):
            return None
    return factor, values.float()


def read_call(
    tensors: tuple[Tensor, Tensor, Tensor],
    score_mod: Callable[..., Tensor] | None,
    block_mask: BlockMask | None,
    scale: float | None,
) -> dict[str, Any] | None:
    """The arguments of `mw.attention` for a call of flex_attention, or None if there are none.

    None stands for a score_mod that is not linear, and for what flex_attention refuses on the CPU:
    gradients, and nested tensors.
    """
    query, key, value = tensors
    if query.is_nested or any(x.requires_grad for x in (query, key, value)):
        return None
    mask = mw.everything() if block_mask is None else mw.where(block_mask.mask_mod)
    bias = None
    if score_mod is not None:
        read = read_score_mod(score_mod, (*query.shape[:3], key.shape[2]))
        if read is None:
            return None
        factor, values = read
        visible, bias = mw.from_additive(values)
        mask = mask & visible
        if factor != 1:
            scale = factor * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    return {"mask": mask, "bias": bias, "scale": scale, "q_start": 0}


def attend(
    tensors: tuple[Tensor, Tensor, Tensor],
    call: dict[str, Any],
    enable_gqa: bool,
    return_lse: bool,
    return_aux: Any,
) -> Any:
    """The result of flex_attention by maskwright, for the arguments of `read_call`."""
    lse_too = return_lse or bool(return_aux is not None and return_aux.lse)
    result = mw.attention(*tensors, **call, enable_gqa=enable_gqa, return_lse=lse_too)
    out, lse = result if lse_too else (result, None)
    if return_aux is not None:
        return out, AuxOutput(lse=lse)
    return (out, lse) if return_lse else out


def block_difference(theirs: BlockMask, ours: BlockMask, separate_full: bool = True) -> str | None:
    """Where two BlockMasks differ in sizes, counts or indices; None if they are equal.

    Args:
        theirs: The expected BlockMask.
        ours: The other one, in which axes of batch and heads may be 1.
        separate_full: Whether full blocks are listed apart from partial ones.
    """
    for name in ("seq_lengths", "BLOCK_SIZE"):
        pair = tuple(getattr(theirs, name)), tuple(getattr(ours, name))
        if pair[0] != pair[1]:
            return f"{name} is {pair[1]}, expected {pair[0]}"
    for side in LISTS:
        expected, blocks = listed(theirs, side), listed(ours, side)
        if not separate_full:
            expected, blocks = [sum(expected) > 0], [sum(blocks) > 0]
        for name, right, cells in zip(("partial", "full"), expected, blocks, strict=False):
            if not np.array_equal(np.broadcast_to(cells, right.shape), right):
                return f"{name} blocks of {side} differ"
    return None


def listed(block_mask: BlockMask, side: str) -> list[np.ndarray]:
    """Whether each block is partial, and whether it is full: (batch, heads, rows, columns)."""
    both = []
    for part in ("", "full_"):
        counts = getattr(block_mask, f"{part}{side}_num_blocks")
        indices = getattr(block_mask, f"{part}{side}_indices")
        if counts is None:  # no full blocks are listed
            both.append(np.zeros_like(both[0]))
            continue
        order, count = indices.cpu().long(), counts.cpu()[..., None]
        first = torch.arange(order.shape[-1]) < count  # the entries that count
        blocks = torch.zeros(order.shape, dtype=torch.int64).scatter_add_(-1, order, first.long())
        both.append(blocks.numpy())
    return both


def uncompiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """A `torch.compile` that compiles only what flex_attention itself compiles.

    Args:
        run: Called as `run(function, *args, **kwargs)` by functions that a test compiles. Compiled
            modules stay as they are.
    """
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001
        if model is None:
            return functools.partial(compile, **options)
        if getattr(model, "__name__", "") == "_flex_attention_hop_wrapper":
            return original(model, **options)
        if isinstance(model, nn.Module):
            return model
        return functools.wraps(model)(functools.partial(run, model))

    return compile
