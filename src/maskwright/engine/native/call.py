"""From tensors to pointers: one call of the kernel, with everything checked before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from maskwright.engine.native.dilated import thin_masks
from maskwright.engine.native.layout import BFLOAT16, FLOAT16, FLOAT32, MOST_DIM, Given
from maskwright.engine.native.library import borrow_threads, loaded, run
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.native.spans import Held

DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
FEW_NUMBERS = 2**14  # of keys, up to which no digit is spared for the backward pass

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
    bound: BoundMask,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    binary: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in q's dtype, laid out as SDPA lays it out, and logsumexp in float32.

    With `binary` the logsumexp is in powers of 2, as it was computed, for the backward pass alone.
    """
    batch, heads, rows, _ = q.shape
    dim = v.shape[-1]
    apart = (rows * heads * dim, dim, heads * dim, 1)
    out = torch.empty_strided((batch, heads, rows, dim), apart, dtype=q.dtype)
    lse = torch.empty((batch, heads, rows), dtype=torch.float32)
    q, k, v = _closed(q), _closed(k), _closed(v)
    masks = thin_masks(bound)
    if masks[0].whole:
        _forward(masks[0].held, q, k, v, out, lse, scale, binary)
        return out, lse
    out.zero_()
    lse.fill_(-math.inf)
    for part, keys, held in masks:
        found = torch.empty_like(lse[:, :, part], memory_format=torch.contiguous_format)
        given = (q[:, :, part], k[:, :, keys], v[:, :, keys], out[:, :, part])
        _forward(held, *given, found, scale, binary)
        lse[:, :, part] = found
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
    alone: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v; without `alone`, output and logsumexp are over other keys too."""
    dtype = q.dtype
    uneven = dtype != torch.float32 and q.shape[-1] != v.shape[-1]
    again = alone and (uneven or k.numel() <= FEW_NUMBERS)
    if again:
        # Torch keeps more digits here than a half has, or, of few numbers, may round by chance to the
        # very truth; so output and logsumexp are had again, unrounded.
        q, k, v, grad = (x.to(torch.float32) for x in (q, k, v, grad))
        out, lse = forward(bound, q, k, v, scale, binary=True)
    q, k, v, grad, out = (_closed(x) for x in (q, k, v, grad, out))
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    if grad_lse is not None:
        grad_lse = grad_lse.to(torch.float32)
    masks = thin_masks(bound)
    if masks[0].whole:
        outputs, found = (out, lse), (dq, dk, dv)
        _backward(masks[0].held, (grad, grad_lse), (q, k, v), outputs, found, scale, again)
        return dq.to(dtype), dk.to(dtype), dv.to(dtype)
    for x in (dq, dk, dv):
        x.zero_()
    for part, keys, held in masks:
        _backward(
            held,
            (grad[:, :, part], None if grad_lse is None else grad_lse[:, :, part]),
            (q[:, :, part], k[:, :, keys], v[:, :, keys]),
            (out[:, :, part], lse[:, :, part]),
            (dq[:, :, part], dk[:, :, keys], dv[:, :, keys]),
            scale,
            again,
        )
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


def _forward(
    held: Held,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    binary: bool,
) -> None:
    given = Given(
        _sizes(q, v),
        scale,
        held.pointers,
        q=_strided(q),
        k=_strided(k),
        v=_strided(v),
        out=_strided(out),
        lse=lse.data_ptr(),
        binary=binary,
    )
    run("forward", given, held.cells_for(*q.shape[:2]))


def _backward(
    held: Held,
    grads: tuple[torch.Tensor, torch.Tensor | None],
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    outputs: tuple[torch.Tensor, torch.Tensor],
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scale: float,
    binary: bool,
) -> None:
    (grad, grad_lse), (q, k, v), (out, lse), (dq, dk, dv) = grads, inputs, outputs, found
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    given = Given(
        _sizes(q, v),
        scale,
        held.pointers,
        q=_strided(q),
        k=_strided(k),
        v=_strided(v),
        out=_strided(out),
        lse=lse.data_ptr(),
        grad=_strided(grad),
        dq=_strided(dq),
        dk=_strided(dk),
        dv=_strided(dv),
        grad_lse=0 if grad_lse is None else grad_lse.data_ptr(),
        binary=binary,
    )
    run("backward", given, held.cells_for(*q.shape[:2]))


def _sizes(q: torch.Tensor, v: torch.Tensor) -> tuple[int, ...]:
    batch, heads, rows, dim = q.shape
    _, key_heads, keys, value_dim = v.shape
    threads = torch.get_num_threads()
    return batch, heads, key_heads, rows, keys, dim, value_dim, DTYPES[q.dtype], threads


def _closed(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a last axis without gaps, and no sign kept aside."""
    if x.is_neg():
        x = x.resolve_neg()
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _strided(x: torch.Tensor) -> tuple[int, int, int, int]:
    batch, head, row, _ = x.stride()
    return x.data_ptr(), batch, head, row
