"""The fast path of `attention`: plain CPU tensors, outside any transform, in one call of C.

`try_native` returns the result, or None: then the general path computes the call, or raises the error
that explains why it cannot. It takes only calls that `select_backend` gives to the C kernel, and its
results are equal to those of the general path, bit for bit.

Nothing is cached here. C compares shapes and strides per call, in less time than a lookup of them
would take. The spans of the mask are cached with the bound mask.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, get_num_threads, is_autocast_enabled, is_grad_enabled

from maskwright._torch_state import autocast, is_batched, is_observed
from maskwright.core.bound import BoundMask
from maskwright.engine.backends import native
from maskwright.engine.call import AttentionOptions, Mode, read_call
from maskwright.engine.layout import empty_out
from maskwright.engine.native.kernel import borrow_threads, loaded
from maskwright.engine.torch_op import gradients
from maskwright.engine.validate import bind
from maskwright.errors import ArgumentError, AttentionError, FrameError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # in the order of their codes in C
MAX_LSE_ROWS = 4096  # up to which the logsumexp is no tensor, which would take longer to make


def try_native(
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
    if torch.compiler.is_compiling() or is_observed():
        return None
    kernel = _kernel()
    if kernel is None:
        return None
    q, k, v = autocast(*tensors) if is_autocast_enabled("cpu") else tensors
    parsed = kernel.parse_qkv(q, k, v)
    if parsed is None:
        return None
    shape, args = parsed
    if type(mask) is not BoundMask or q_start is not None:
        try:
            mask = bind(mask, shape, q_start)
        except (ArgumentError, FrameError):
            return None
    spans = mask._values.get(native.PACKED_SPANS) or native.packed_spans(mask)
    if spans is None:
        return None
    requires_grad = is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    lse = data = None  # the logsumexp as a tensor, or as bytes
    if return_lse or requires_grad:
        batch, heads, q_len, _ = shape
        rows = batch * heads * q_len
        if return_lse or rows > MAX_LSE_ROWS:
            lse = q.new_empty((batch, heads, q_len), dtype=torch.float32)
        else:
            data = bytearray(4 * rows)
    settings = (get_num_threads(), scale, enable_gqa)
    out = kernel.plain_forward(args, spans, settings, data if lse is None else lse, q)
    if out is None:
        return None
    if requires_grad:
        return _apply(q, k, v, (out, lse, return_lse, (mask, spans, settings, data)))
    return (out, lse) if return_lse else out


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The extension module, or None. It runs on the threads of PyTorch."""
    borrow_threads()
    kernel = loaded().module
    if kernel is not None:
        dlpack = getattr(Tensor, "__dlpack_c_exchange_api__", None)  # not in older versions
        kernel.set_types(Tensor, torch.strided, torch.empty_like, empty_out, DTYPES, dlpack)
    return kernel


class PlainAttention(torch.autograd.Function):
    """Makes results of the C kernel differentiable, once.

    Without `setup_context` and `vmap`, which `Attention` has for transforms, applying it takes a
    third of the time.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, results: tuple[Any, ...]) -> Any:
        """Return the results, which are in a tuple so that autograd does not take them as inputs."""
        out, lse, return_lse, ctx.call = results
        # What set_materialize_grads(False) and save_for_backward(...) set, without two calls.
        ctx.materialize_grads = False
        ctx.to_save = (q, k, v, out) if lse is None else (q, k, v, out, lse)
        return (out, lse) if return_lse else out

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any = None) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        saved = ctx.saved_tensors  # read once: checkpointing recomputes it
        if grad_out is None:
            if grad_lse is None:
                return None, None, None, None
            grad_out = torch.zeros_like(saved[3])
        if not (is_grad_enabled() or is_observed() or is_batched(grad_out, grad_lse)):
            _, spans, settings, data = ctx.call
            lse = saved[4] if data is None else data
            grads = _kernel().plain_backward(spans, settings, lse, saved, grad_out, grad_lse)
            if grads is not None:
                return grads  # type: ignore[no-any-return]
        return *_general_backward(ctx.call, saved, grad_out, grad_lse), None


# `Function.apply` without what it does for `setup_context` and for transforms. Neither is here.
_apply = super(torch.autograd.Function, PlainAttention).apply


def _general_backward(
    call: tuple[Any, ...], saved: tuple[Tensor, ...], grad_out: Any, grad_lse: Any
) -> tuple[Tensor, ...]:
    """The gradients of the call with which the general path computes the same."""
    mask, _, (_, scale, _), data = call
    q, k, v, out = (x.to(grad_out.dtype) for x in saved[:4])  # hooks may have changed it
    if len(saved) > 4:
        lse = saved[4].to(torch.float32)
    else:
        lse = torch.frombuffer(data, dtype=torch.float32).view(q.shape[:3])
    options = AttentionOptions(scale, enable_gqa=True)
    try:
        general = read_call((q, k, v), mask, options, mode=Mode.EAGER)
    except (ArgumentError, FrameError) as error:
        raise AttentionError(
            f"attention: a saved tensor was changed before the backward pass: {error}"
        ) from None
    return gradients(None, general, native, grad_out, grad_lse, out, lse, q, k, v)
