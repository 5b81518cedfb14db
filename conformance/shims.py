"""maskwright with the signature of other libraries' functions."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends
from torch.nn.attention.bias import CausalBias, CausalVariant

import maskwright as mw

# Made once, since graphs of torch.compile refer to the masks that they use.
EVERYTHING, CAUSAL = mw.everything(), mw.causal()

original = torch.nn.functional.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """SDPA by maskwright. Where a test asks for the math path, its reference, that is PyTorch's."""
    if _cur_sdpa_kernel_backends() == [SDPBackend.MATH]:
        return original(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if isinstance(attn_mask, CausalBias):
        if is_causal:
            raise ValueError("CausalBias should not be used with causal=True")
        is_causal = attn_mask.variant == CausalVariant.UPPER_LEFT
        mask, bias = CAUSAL, None
    else:
        mask, bias = read_mask(attn_mask, query.dim())
        if is_causal:
            mask = CAUSAL if attn_mask is None else mask & CAUSAL
    q_start = 0 if is_causal else None  # aligned at the upper left, or at the last key
    tensors, shape = (query, key, value), None
    axes = [x.dim() for x in tensors]
    if min(axes) >= 2 and max(axes) != 4:
        tensors, shape = as_4d(tensors)
    options = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    out = mw.attention(*tensors, mask, bias=bias, q_start=q_start, **options)
    return out if shape is None else out.reshape(*shape, *out.shape[-2:])


def as_4d(tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], torch.Size]:
    """Tensors (..., length, head_dim) as (batch, heads, length, head_dim), and their leading sizes."""
    shape = torch.broadcast_shapes(*(x.shape[:-2] for x in tensors))
    batch, heads = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)
    flat = (x.expand(*shape, *x.shape[-2:]).reshape(batch, heads, *x.shape[-2:]) for x in tensors)
    return tuple(flat), shape


def read_mask(attn_mask: Tensor | None, axes: int) -> tuple[Any, Any]:
    """The mask and the bias, or None, of `attn_mask` of SDPA; `axes` is the number of axes of q."""
    if attn_mask is None:
        return EVERYTHING, None
    if axes == 3 and attn_mask.dim() == 3:  # (batch, queries, keys)
        attn_mask = attn_mask[:, None]
    if attn_mask.dtype == torch.bool:
        return mw.dense(attn_mask[(None,) * (4 - attn_mask.dim())]), None
    return mw.from_additive(attn_mask)
