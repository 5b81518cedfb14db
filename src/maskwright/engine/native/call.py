"""From tensors to pointers: one call of the kernel, with everything checked before."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from maskwright.engine.native.layout import (
    BFLOAT16,
    DONE,
    FLOAT16,
    FLOAT32,
    MOST_DIM,
    Attention,
    Spans,
    Tensor,
)
from maskwright.engine.native.library import borrow_threads, loaded
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from maskwright.core.arrays import IntArray
    from maskwright.core.bound import BoundMask

DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

borrow_threads()


def serves(q: torch.Tensor, v: torch.Tensor) -> bool:
    """Can the kernel compute attention of such tensors, and is it there?"""
    return (
        q.dtype in DTYPES
        and q.device.type == "cpu"
        and 0 < q.shape[-1] <= MOST_DIM
        and 0 < v.shape[-1] <= MOST_DIM
        and loaded().functions is not None
    )


def check_native(q: torch.Tensor, v: torch.Tensor, dropout_p: float) -> None:
    """Refuse what the kernel can't compute, where it was asked for by name."""
    if loaded().functions is None:
        problem = f"needs the kernel in C, and there is none: {loaded().why}"
    elif dropout_p:
        problem = f"has no dropout, and dropout_p is {dropout_p}"
    elif not serves(q, v):
        problem = (
            f"takes float32, bfloat16 and float16 on the CPU, heads of 1 to {MOST_DIM} numbers, and "
            f"q and v are {str(q.dtype).removeprefix('torch.')} on {q.device} with heads of "
            f"{q.shape[-1]} and {v.shape[-1]}"
        )
    else:
        return
    raise Unsupported(
        f'attention: impl="native" {problem}. Leave impl out, or pass impl="strips".',
        target="native",
    )


def forward(
    bound: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in q's dtype, laid out as SDPA lays it out, and logsumexp in float32."""
    batch, heads, rows, _ = q.shape
    out = q.new_empty((batch, rows, heads, v.shape[-1])).transpose(1, 2)
    lse = q.new_empty((batch, heads, rows), dtype=torch.float32)
    call, kept = _call(bound, q, k, v, scale)
    call.out, call.lse = _tensor(out), lse.data_ptr()
    _run(loaded().functions.maskwright_forward, call)
    del kept  # until here C reads it
    return out, lse


def backward(
    bound: BoundMask,
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v."""
    dq, dk, dv = (torch.empty_like(_closed(x)) for x in (q, k, v))
    call, kept = _call(bound, q, k, v, scale)
    grad, out, lse = _closed(grad), _closed(out), lse.contiguous()
    call.grad, call.out, call.lse = _tensor(grad), _tensor(out), lse.data_ptr()
    call.dq, call.dk, call.dv = _tensor(dq), _tensor(dk), _tensor(dv)
    if grad_lse is not None:
        grad_lse = grad_lse.to(torch.float32).contiguous()
        call.grad_lse = grad_lse.data_ptr()
    _run(loaded().functions.maskwright_backward, call)
    del kept
    return dq, dk, dv


class _Held(NamedTuple):
    """A bound mask's spans as C reads them."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    spans: Spans


def _held(bound: BoundMask) -> _Held:
    """The spans for C, made once; the arrays behind the pointers live as long as the mask."""
    held: _Held | None = bound.__dict__.get("_native")
    if held is None:
        spans = bound.spans
        offsets, starts, stops = (np.ascontiguousarray(x, np.int64) for x in spans.flat)
        batch, heads, rows = spans.shape
        sound = (
            offsets.size == batch * heads * rows + 1
            and starts.size == stops.size == offsets[-1]
            and (not starts.size or (starts.min() >= 0 and stops.max() <= spans.kv_len))
        )
        assert sound, "spans lie within their frame"
        pointers = (x.ctypes.data for x in (offsets, starts, stops))
        held = _Held(offsets, starts, stops, Spans(batch, heads, *pointers))
        bound.__dict__["_native"] = held
    return held


def _call(
    bound: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[Attention, Any]:
    """What both passes hand over, and what must live until C is done."""
    held = _held(bound)
    given = tuple(_closed(x) for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    _, key_heads, keys, value_dim = v.shape
    call = Attention(
        *(batch, heads, key_heads, rows, keys, dim, value_dim),
        *(DTYPES[q.dtype], torch.get_num_threads(), scale),
        held.spans,
        *(_tensor(x) for x in given),
    )
    return call, (held, given)


def _closed(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a last axis without gaps, and no sign kept aside."""
    if x.is_neg():
        x = x.resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _tensor(x: torch.Tensor) -> Tensor:
    return Tensor(x.data_ptr(), *x.stride()[:3])


def _run(function: Any, call: Attention) -> None:
    if function(ctypes.byref(call)) != DONE:
        raise MemoryError("attention: there is not enough memory for a copy of the keys")
