"""maskwright with the signature of other libraries' functions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

import maskwright as mw

if TYPE_CHECKING:
    from collections.abc import Callable

original: Callable[..., torch.Tensor] = torch.nn.functional.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """SDPA by maskwright. Where a test asks for the math path, its reference, that is PyTorch's."""
    if _cur_sdpa_kernel_backends() == [SDPBackend.MATH]:
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        return original(query, key, value, attn_mask, **options, enable_gqa=enable_gqa)
    mask, bias = read_mask(attn_mask, query.dim())
    q_start = None
    if is_causal:
        mask, q_start = mask & mw.causal(), 0  # aligned at the upper left
    tensors, shape = (query, key, value), None
    if {x.dim() for x in tensors} != {4}:
        tensors, shape = as_4d(tensors)
    options = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    out = mw.attention(*tensors, mask, bias=bias, q_start=q_start, **options)
    return out if shape is None else out.reshape(*shape, *out.shape[-2:])


def as_4d(tensors: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], torch.Size]:
    """Tensors (..., length, head_dim) as (batch, heads, length, head_dim), and their leading sizes."""
    shape = torch.broadcast_shapes(*(x.shape[:-2] for x in tensors))
    batch, heads = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)
    flat = (x.expand(*shape, *x.shape[-2:]).reshape(batch, heads, *x.shape[-2:]) for x in tensors)
    return tuple(flat), shape


def read_mask(attn_mask: torch.Tensor | None, axes: int) -> tuple[Any, Any]:
    """The mask and the bias, or None, of `attn_mask` of SDPA; `axes` is the number of axes of q."""
    if attn_mask is None:
        return mw.everything(), None
    if axes == 3 and attn_mask.dim() == 3:  # (batch, queries, keys)
        attn_mask = attn_mask[:, None]
    if attn_mask.dtype == torch.bool:
        return mw.dense(attn_mask[(None,) * (4 - attn_mask.dim())]), None
    return mw.from_additive(attn_mask)
