"""What PyTorch's own functions give when a mask is among their arguments; and masks in disguise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from maskwright.core.bound import BoundMask
from maskwright.core.expr import TORCH, Mask
from maskwright.core.validate import describe_type
from maskwright.engine.api import attention
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

AnyMask: TypeAlias = Mask | BoundMask

# ── torch's functions ─────────────────────────────────────────────────────────────────────────


def call_with_mask(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of torch's gives when a mask is among its arguments.

    >>> import torch, maskwright as mw
    >>> x = torch.zeros(2, 2)
    >>> torch.where(mw.causal(), x, x)
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: torch.where was given a mask, which is no tensor. Pass \
mw.lower(mask, "torch.bool", q_len=...), or call mw.attention(q, k, v, mask).
    """
    if func is F.scaled_dot_product_attention:
        return _sdpa(*args, **kwargs)
    if func is torch.is_floating_point:  # the first thing that nn.MultiheadAttention asks
        raise ArgumentError(
            "torch was asked for the dtype of a mask, as nn.MultiheadAttention does. Use "
            "maskwright.integrations.torch.MultiheadAttention, or pass **mw.lower(mask, "
            '"torch.mha", ...).'
        )
    raise ArgumentError(
        f"{_name(func)} was given a mask, which is no tensor. Pass mw.lower(mask, "
        '"torch.bool", q_len=...), or call mw.attention(q, k, v, mask).'
    )


TORCH["call"] = call_with_mask


def _name(func: Callable[..., Any]) -> str:
    try:
        known = torch.overrides.resolve_name(func)
    except Exception:  # a function that torch keeps no name for
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
    """SDPA under a mask; the last query sits at the last key, unless the mask is bound otherwise.

    Axes before (heads, length, head_dim) are the batch. (N, L, E) is a batch of one head each, or
    with `enable_gqa` N heads, as SDPA reads it.
    """
    mask, tensors = carried_by(attn_mask), (query, key, value)
    if mask is None or not all(isinstance(x, torch.Tensor) for x in tensors):
        raise ArgumentError(
            "scaled_dot_product_attention was given a mask in place of a tensor. "
            "Give it as attn_mask=mask."
        )
    if is_causal:
        raise ArgumentError(
            "scaled_dot_product_attention: is_causal=True was given together with a mask. "
            "Leave is_causal out, and pass mask & mw.causal()."
        )
    (q, k, v), lead = _as_4d(tensors, enable_gqa)
    out = attention(q, k, v, mask, scale=scale, dropout_p=dropout_p, enable_gqa=enable_gqa)
    return out.reshape(*lead, *out.shape[2:])


def _as_4d(
    tensors: tuple[torch.Tensor, ...], enable_gqa: bool
) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """(batch, heads, length, head_dim) each, and the axes before length that the result has."""
    axes = tensors[0].dim()
    if axes < 2 or any(x.dim() != axes for x in tensors):
        raise _misfit(tensors)
    if axes == 2:
        tensors = tuple(x[None, None] for x in tensors)
    elif axes == 3:
        tensors = tuple(x[None] if enable_gqa else x[:, None] for x in tensors)
    try:
        # A size of 1 broadcasts, as in SDPA.
        batch = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
        shared = () if enable_gqa else torch.broadcast_shapes(*(x.shape[-3:-2] for x in tensors))
    except RuntimeError:
        raise _misfit(tensors) from None
    planes = [(*batch, *(shared or x.shape[-3:-2])) for x in tensors]
    whole = [
        x.expand(*lead, *x.shape[-2:]).reshape(math.prod(batch), lead[-1], *x.shape[-2:])
        for x, lead in zip(tensors, planes, strict=True)
    ]
    if axes == 3:
        return whole, planes[0][1:] if enable_gqa else planes[0][:1]
    return whole, planes[0] if axes > 3 else ()


def _misfit(tensors: tuple[torch.Tensor, ...]) -> ArgumentError:
    given = ", ".join(str(tuple(x.shape)) for x in tensors)
    return ArgumentError(
        f"scaled_dot_product_attention: query, key and value have shapes {given}, which do not go "
        "together. Give (..., heads, length, head_dim) for each."
    )


# ── a mask where only tensors pass ────────────────────────────────────────────────────────────


class MaskTensor(torch.Tensor):
    """A tensor in name only, which holds a mask. Made by `carry`."""

    mask: AnyMask

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Say what a tensor is asked about itself; all else is a mask's affair."""
        kwargs = kwargs or {}
        if func in ASKED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        # nn.Transformer makes floats of truth values: zeros, then -inf where the mask is true.
        if func is torch.zeros_like:
            return carry(args[0].mask, kwargs.get("dtype"))
        if func is torch.Tensor.masked_fill_:
            return args[0]
        if func is torch._transformer_encoder_layer_fwd:
            return _encoder_layer(*args)
        if func is F.scaled_dot_product_attention:
            return _sdpa(*args, **kwargs)
        raise ArgumentError(
            f"{_name(func)} was given a carried mask. Let maskwright.integrations.torch."
            "MultiheadAttention be the attention of the layer that it goes to."
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"carry({self.mask!r})"


ASKED = {
    torch.is_floating_point,
    torch.Tensor.size,
    *(getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "requires_grad")),
}


def carry(mask: AnyMask, dtype: Any = None) -> MaskTensor:
    """The mask as an empty tensor that holds it, for layers which pass on tensors only.

    nn.TransformerEncoder, nn.TransformerDecoder and nn.Transformer look at their masks before they
    hand them to the attention inside. Put a `MultiheadAttention` of this module there, and carry
    the mask past them. `dtype` is what nn asks of it, and of no consequence.

    >>> import torch, maskwright as mw
    >>> from maskwright.integrations.torch import MultiheadAttention, carry
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> layer.self_attn = MultiheadAttention(8, 2, batch_first=True)
    >>> layer(torch.zeros(1, 4, 8), src_mask=carry(mw.causal())).shape
    torch.Size([1, 4, 8])
    """
    if not isinstance(mask, (Mask, BoundMask)):
        raise ArgumentError(
            f"carry: the mask is {describe_type(mask)}. Give a mask of maskwright's."
        )
    empty = torch.empty(0, dtype=torch.bool if dtype is None else dtype)
    held: MaskTensor = empty.as_subclass(MaskTensor)
    held.mask = mask
    return held


def carried_by(given: Any) -> AnyMask | None:
    """The mask that was given, as it is or carried; None for anything else."""
    if isinstance(given, MaskTensor):
        return given.mask
    return given if isinstance(given, (Mask, BoundMask)) else None


def _encoder_layer(
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
    """nn.TransformerEncoderLayer's fused inference, under the mask that came with it.

    That path reads the weights of the attention inside, and never calls it.
    """
    norm1, norm2, linear1, linear2 = (rest[i : i + 2] for i in range(0, 8, 2))
    mask = rest[8].mask

    def attend(x: torch.Tensor) -> torch.Tensor:
        parts = F.linear(x, in_weight, in_bias).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        return F.linear(attention(q, k, v, mask).transpose(1, 2).flatten(2), out_weight, out_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        return F.linear((F.gelu if gelu else F.relu)(F.linear(x, *linear1)), *linear2)

    def norm(x: torch.Tensor, which: Any) -> torch.Tensor:
        weight, bias = which
        return F.layer_norm(x, (dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, norm1))
        return x + feed(norm(x, norm2))
    x = norm(src + attend(src), norm1)
    return norm(x + feed(x), norm2)
