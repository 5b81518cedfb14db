"""Masks as arguments of PyTorch functions, and `wrap_mask` for modules that accept only tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch.utils.checkpoint import checkpoint

from maskwright._torch_state import no_torch_function
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type
from maskwright.engine.api import attention
from maskwright.errors import ArgumentError, AttentionError

if TYPE_CHECKING:
    from collections.abc import Callable

AnyMask: TypeAlias = Mask | BoundMask

# ── torch functions ──────────────────────────────────────────────────────────────────────────


def call_with_mask(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function that was called with a mask among its arguments.

    `F.scaled_dot_product_attention` computes attention under it; other functions are refused.

    >>> import torch, maskwright as mw
    >>> x = torch.zeros(2, 2)
    >>> torch.where(mw.causal(), x, x)
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: torch.where: got a mask, expected a tensor. Pass \
mw.lower(mask, "torch.bool", q_len=...), or call mw.attention(q, k, v, mask).
    """
    if func is F.scaled_dot_product_attention:
        return _sdpa(*args, **kwargs)
    if func is checkpoint:  # torch.compile dispatches it by its arguments; eager code does not
        return _checkpoint(*args, **kwargs)
    if func is torch.is_floating_point:  # the first call of nn.MultiheadAttention
        raise ArgumentError(
            "nn.MultiheadAttention does not accept a mask of maskwright. Use "
            "maskwright.integrations.MultiheadAttention, or pass **mw.lower(mask, "
            '"torch.mha", ...).'
        )
    raise ArgumentError(
        f"{_name(func)}: got a mask, expected a tensor. Pass mw.lower(mask, "
        '"torch.bool", q_len=...), or call mw.attention(q, k, v, mask).'
    )


def _checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Gradient checkpointing of a function that takes masks: they become part of the function."""
    masks = {n: x for n, x in enumerate(args) if isinstance(x, (Mask, BoundMask))}
    named = {name: x for name, x in kwargs.items() if isinstance(x, (Mask, BoundMask))}
    other_kwargs = {name: x for name, x in kwargs.items() if name not in named}
    rest = [x for n, x in enumerate(args) if n not in masks]

    def run(*inputs: Any, **options: Any) -> Any:
        left = list(inputs)
        whole = [masks[n] if n in masks else left.pop(0) for n in range(len(args))]
        return function(*whole, **named, **options)

    return checkpoint(run, *rest, **other_kwargs)


def _name(func: Callable[..., Any]) -> str:
    try:
        known = torch.overrides.resolve_name(func)
    except Exception:  # torch has no name for this function
        known = None
    return str(known or getattr(func, "__name__", repr(func)))


def _sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """SDPA under a mask. An unbound mask is aligned at the last key.

    Dimensions before (heads, length, head_dim) are the batch. (N, L, E) is a batch of one head, or N
    heads with `enable_gqa`, as in SDPA.
    """
    mask, tensors = unwrap_mask(attn_mask), (query, key, value)
    if mask is None or not all(isinstance(x, torch.Tensor) for x in tensors):
        raise AttentionError(
            "scaled_dot_product_attention: query, key or value is a mask, expected a tensor. "
            "Pass the mask as attn_mask=mask."
        )
    if is_causal:
        raise AttentionError(
            "scaled_dot_product_attention: is_causal=True cannot be combined with a mask. "
            "Remove is_causal, and pass mask & mw.causal()."
        )
    (q, k, v), lead = _as_4d(tensors, enable_gqa)
    out = attention(q, k, v, mask, scale=scale, dropout_p=dropout_p, enable_gqa=enable_gqa)
    return out.reshape(*lead, *out.shape[2:])


def _as_4d(
    tensors: tuple[torch.Tensor, ...], enable_gqa: bool
) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The tensors as (batch, heads, length, head_dim), and the leading dimensions of the result."""
    axes = max(x.dim() for x in tensors)
    if min(x.dim() for x in tensors) < 2:
        raise _incompatible_shapes(tensors)
    if any(x.dim() != axes for x in tensors):
        tensors = tuple(x[(None,) * (axes - x.dim())] for x in tensors)  # as SDPA broadcasts
    if axes == 2:
        tensors = tuple(x[None, None] for x in tensors)
    elif axes == 3:
        tensors = tuple(x[None] if enable_gqa else x[:, None] for x in tensors)
    try:
        # A size of 1 broadcasts, as in SDPA.
        batch = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
        shared = () if enable_gqa else torch.broadcast_shapes(*(x.shape[-3:-2] for x in tensors))
    except RuntimeError:
        raise _incompatible_shapes(tensors) from None
    planes = [(*batch, *(shared or x.shape[-3:-2])) for x in tensors]
    whole = [
        x.expand(*lead, *x.shape[-2:]).reshape(math.prod(batch), lead[-1], *x.shape[-2:])
        for x, lead in zip(tensors, planes, strict=True)
    ]
    if axes == 3:
        return whole, planes[0][1:] if enable_gqa else planes[0][:1]
    return whole, planes[0] if axes > 3 else ()


def _incompatible_shapes(tensors: tuple[torch.Tensor, ...]) -> AttentionError:
    shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
    return AttentionError(
        f"scaled_dot_product_attention: query, key and value have incompatible shapes "
        f"{shapes}. Pass (..., heads, length, head_dim) for each."
    )


# ── masks wrapped as tensors ──────────────────────────────────────────────────────────────────


class WrappedMask(torch.Tensor):
    """An empty tensor that holds a mask. Made by `wrap_mask`."""

    mask: AnyMask

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answer queries of tensor metadata, run SDPA, and refuse other functions."""
        kwargs = kwargs or {}
        if func in METADATA_QUERIES:
            with no_torch_function():
                return func(*args, **kwargs)
        # nn.Transformer converts bool masks to float: zeros, then -inf where the mask is True.
        if func is torch.zeros_like:
            return wrap_mask(args[0].mask, kwargs.get("dtype"))
        if func is torch.Tensor.masked_fill_:
            return args[0]
        if func is torch._transformer_encoder_layer_fwd:
            return _fused_encoder_layer(*args)
        if func is F.scaled_dot_product_attention:
            return _sdpa(*args, **kwargs)
        raise ArgumentError(
            f"{_name(func)}: got a wrapped mask. Replace the attention module of this layer by "
            "maskwright.integrations.MultiheadAttention."
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"wrap_mask({self.mask!r})"


METADATA_QUERIES = {
    torch.is_floating_point,
    torch.Tensor.size,
    *(getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "requires_grad")),
}


def wrap_mask(mask: AnyMask, dtype: Any = None) -> WrappedMask:
    """Wraps a mask in an empty tensor, for modules that accept only tensors as masks.

    nn.TransformerEncoder, nn.TransformerDecoder and nn.Transformer inspect their masks before they
    pass them to the attention module inside. Replace that module by `MultiheadAttention` of this
    package, and pass the wrapped mask.

    Args:
        mask: A mask, bound or not.
        dtype: The dtype that the tensor reports; bool by default. The result does not depend on it.

    Returns:
        A tensor without elements that holds the mask.

    Raises:
        ArgumentError: If `mask` is not a mask of maskwright.

    >>> import torch, maskwright as mw
    >>> from maskwright.integrations import MultiheadAttention, wrap_mask
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> layer.self_attn = MultiheadAttention(8, 2, batch_first=True)
    >>> layer(torch.zeros(1, 4, 8), src_mask=wrap_mask(mw.causal())).shape
    torch.Size([1, 4, 8])
    """
    if not isinstance(mask, (Mask, BoundMask)):
        raise ArgumentError(
            f"wrap_mask: mask is {describe_type(mask)}, expected a mask of maskwright."
        )
    empty = torch.empty(0, dtype=torch.bool if dtype is None else dtype)
    wrapped: WrappedMask = empty.as_subclass(WrappedMask)
    wrapped.mask = mask
    return wrapped


def unwrap_mask(argument: Any) -> AnyMask | None:
    """The mask of an argument, wrapped or not; None for anything else."""
    if isinstance(argument, WrappedMask):
        return argument.mask
    return argument if isinstance(argument, (Mask, BoundMask)) else None


def _fused_encoder_layer(
    src: torch.Tensor,
    dim: int,
    heads: int,
    in_weight: torch.Tensor,
    in_bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> torch.Tensor:
    """The fused inference path of nn.TransformerEncoderLayer, under the mask in its arguments.

    That path reads the weights of the attention module and does not call it.
    """
    norm1, norm2, linear1, linear2 = (rest[i : i + 2] for i in range(0, 8, 2))
    mask = rest[8].mask

    def self_attn(x: torch.Tensor) -> torch.Tensor:
        parts = F.linear(x, in_weight, in_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        return F.linear(attention(q, k, v, mask).transpose(1, 2).flatten(2), out_weight, out_bias)

    def mlp(x: torch.Tensor) -> torch.Tensor:
        return F.linear((F.gelu if gelu else F.relu)(F.linear(x, *linear1)), *linear2)

    def norm(x: torch.Tensor, which: Any) -> torch.Tensor:
        weight, bias = which
        return F.layer_norm(x, (dim,), weight, bias, eps)

    if norm_first:
        x = src + self_attn(norm(src, norm1))
        return x + mlp(norm(x, norm2))
    x = norm(src + self_attn(src), norm1)
    return norm(x + mlp(x), norm2)
