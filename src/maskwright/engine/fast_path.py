"""The fast path of `attention`: plain CPU tensors, outside any transform, in one call of C.

`attend` computes a call, or returns None, and then the general path computes it or raises the error
that explains why it cannot. It takes only calls that `select_backend` gives to the C kernel, and its
results are equal to those of the general path, bit for bit.

Nothing is cached here. C compares shapes and strides in every call, in less time than a lookup of
them would take. The spans of the mask are cached with the bound mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from maskwright.core.bound import BoundMask
from maskwright.engine.autograd import DTYPE_NAMES, AttentionBackward, autocast
from maskwright.engine.backends import native
from maskwright.engine.native import (
    ERR_INTERRUPTED,
    ERR_NO_MEMORY,
    borrow_threads,
    loaded,
    raise_error,
)
from maskwright.engine.params import AttentionParams, AttentionShape
from maskwright.engine.validate import bind, default_scale
from maskwright.errors import ArgumentError, FrameError

DTYPES = {
    dtype: native.DTYPES[name] for dtype, name in DTYPE_NAMES.items() if name in native.DTYPES
}
MIN_ADDRESS = 2**40  # below, an address may be the offset in a storage that was freed


def attend(
    tensors: tuple[Any, Any, Any],
    mask: Any,
    scale: float | None,
    enable_gqa: bool,
    q_start: int | None,
    return_lse: bool,
) -> Any:
    """Compute a call without soft cap, bias, sinks and dropout, if it is a plain one.

    Args:
        tensors: q, k and v, not checked.
        mask: A mask, bound or not, or None; not checked.
        scale: As for `attention`.
        enable_gqa: As for `attention`.
        q_start: As for `attention`.
        return_lse: As for `attention`.

    Returns:
        What `attention` returns, or None if the general path has to compute the call.
    """
    if torch.compiler.is_compiling() or is_transformed():
        return None
    q, k, v = autocast(*tensors) if torch.is_autocast_enabled("cpu") else tensors
    if not is_plain(q, k, v):
        return None
    dtype = q.dtype
    if not (dtype is k.dtype is v.dtype and dtype in DTYPES):
        return None
    try:
        batch, heads, q_len, _ = shape = q.shape
        _, _, kv_len, _ = k_shape = k.shape
        _, _, _, dim = v_shape = v.shape
        if type(mask) is not BoundMask or q_start is not None:
            mask = bind(mask, (batch, heads, q_len, kv_len), q_start)
        q_data = (q.data_ptr(), q.stride())
        k_data = (k.data_ptr(), k.stride())
        v_data = (v.data_ptr(), v.stride())
    except (RuntimeError, ValueError, ArgumentError, FrameError):
        return None  # no storage, not four sizes, or a mask that does not match
    if min(q_data[0], k_data[0], v_data[0]) < MIN_ADDRESS and _is_freed(q, k, v):
        return None
    spans = native.packed_spans(mask)
    kernel = loaded().extension
    if spans is None or kernel is None:
        return None
    requires_grad = torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad
    )
    borrow_threads()
    # (batch, heads, q_len, v_head_dim), in memory (batch, q_len, heads, v_head_dim)
    strides = (q_len * heads * dim, dim, heads * dim, 1)
    out = q.new_empty_strided((batch, heads, q_len, dim), strides)
    lse = lse_data = None
    if requires_grad or return_lse:
        lse = q.new_empty((batch, heads, q_len), dtype=torch.float32)
        lse_data = (lse.data_ptr(), (heads * q_len, q_len, 1))
    shapes = (shape, k_shape, v_shape)
    settings = (DTYPES[dtype], torch.get_num_threads(), scale, enable_gqa)
    out_data = (out.data_ptr(), strides)
    code = kernel.forward(spans, shapes, settings, q_data, k_data, v_data, out_data, lse_data)
    if code:
        if code in (ERR_NO_MEMORY, ERR_INTERRUPTED):
            raise_error("forward", code)
        return None
    if requires_grad:
        return PlainAttention.apply(q, k, v, (out, lse), (mask, shapes, settings), return_lse)
    return (out, lse) if return_lse else out


class PlainAttention(torch.autograd.Function):
    """Makes results of the C kernel differentiable, once.

    Without `setup_context` and `vmap`, which `Attention` has for transforms, applying it takes a
    third of the time.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, results: Any, call: Any, return_lse: bool
    ) -> Any:
        """Return the results, which are in a tuple so that autograd does not take them as inputs."""
        ctx.call = call
        ctx.save_for_backward(q, k, v, *results)
        ctx.set_materialize_grads(False)
        return results if return_lse else results[0]

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any = None) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        q, k, v, out, lse = saved = ctx.saved_tensors  # read once: checkpointing recomputes it
        if grad_out is None and grad_lse is None:
            return (None,) * 6
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        grads = None
        if not torch.is_grad_enabled() and not is_transformed():
            grads = _backward(ctx.call, saved, grad_out, grad_lse)
        if grads is None:
            params = _params(ctx.call, q.dtype)
            tensors = (grad_out, grad_lse, out, lse, q, k, v)
            grads = AttentionBackward.apply(None, params, native, *tensors)
        return (*grads, None, None, None)


def _backward(
    call: tuple[BoundMask, Any, Any], saved: tuple[Tensor, ...], grad_out: Any, grad_lse: Any
) -> tuple[Tensor, ...] | None:
    """The gradients by one call of C, or None."""
    mask, shapes, settings = call
    q, k, v, *_ = given = (*saved, grad_out)
    if not is_plain(*given, *(() if grad_lse is None else (grad_lse,))):
        return None
    results = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    try:
        data = [(x.data_ptr(), x.stride()) for x in (*given, *results)]
        lse_data = None if grad_lse is None else (grad_lse.data_ptr(), grad_lse.stride())
    except RuntimeError:
        return None  # no storage
    if min(data)[0] < MIN_ADDRESS and _is_freed(*given):
        return None
    kernel, spans = loaded().extension, native.packed_spans(mask)
    code = kernel.backward(spans, shapes, settings, *data, lse_data)
    if code in (ERR_NO_MEMORY, ERR_INTERRUPTED):
        raise_error("backward", code)
    return None if code else results


def _params(call: tuple[BoundMask, Any, Any], dtype: torch.dtype) -> AttentionParams:
    """The parameters with which the general path computes the same call."""
    mask, shapes, settings = call
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _), (*_, v_head_dim) = shapes
    shape = AttentionShape(batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim)
    scale = default_scale(head_dim) if settings[2] is None else float(settings[2])
    return AttentionParams(mask, shape, scale, DTYPE_NAMES[dtype], requires_grad=True)


def is_plain(*tensors: Any) -> bool:
    """Whether these are dense CPU tensors, no subclasses, without a lazy negation."""
    for x in tensors:
        if type(x) is not Tensor or not x.is_cpu or x.layout is not torch.strided or x.is_neg():
            return False
    return True


def is_transformed() -> bool:
    """Whether a mode, a transform, forward-mode AD or a tracer has to see the call."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def _is_freed(*tensors: Tensor) -> bool:
    """Whether a tensor has no memory, as a zero of autograd, or after `resize_(0)` of its storage."""
    return any(x._is_zerotensor() or not x.untyped_storage().data_ptr() for x in tensors)
