"""The native backend: attention on the CPU by the C kernel.

PyTorch is imported only by the functions that take tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.engine.native.bindings import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MAX_HEAD_DIM,
    NO_BACKWARD,
    borrow_threads,
    loaded,
    pack_args,
    run,
    thread_count,
)
from maskwright.engine.native.spans import submasks

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from maskwright.engine.native.spans import DilatedSubmask
    from maskwright.engine.params import AttentionParams, Saved

SEED_BITS = 2**64 - 1
DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}


def unsupported(params: AttentionParams) -> str | None:
    """Returns why this backend cannot compute the call, as the end of a sentence; None if it can.

    Args:
        params: The parameters of the call.
    """
    if params.device != "cpu":
        return f"it runs on the CPU only, and the tensors are on {params.device}"
    if params.dtype not in DTYPES:
        return f"it supports {', '.join(DTYPES)}, and the tensors are {params.dtype}"
    dims = (params.shape.head_dim, params.shape.v_head_dim)
    if not all(1 <= dim <= MAX_HEAD_DIM for dim in dims):
        return (
            f"it supports head dims of 1 to {MAX_HEAD_DIM}, and those are {dims[0]} and {dims[1]}"
        )
    if loaded().library is None:
        return f"its C kernel is not available: {loaded().reason}"
    return None


def forward(
    params: AttentionParams, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention of tensors.

    Args:
        params: The parameters of the call; `unsupported(params)` is None.
        q: Queries (batch, heads, q_len, head_dim), any strides.
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).

    Returns:
        The output (batch, heads, q_len, v_head_dim) in the dtype of q, laid out in memory as
        (batch, q_len, heads, v_head_dim), and the logsumexp (batch, heads, q_len) in float32.
    """
    import torch

    borrow_threads()
    batch, heads, _, q_len, _, _, dim = params.shape
    out = torch.empty_strided(
        (batch, heads, q_len, dim),
        (q_len * heads * dim, dim, heads * dim, 1),
        dtype=q.dtype,
        device="cpu",
    )
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device="cpu")
    if 0 in params.shape:
        return out.zero_(), lse.fill_(-math.inf)
    q, k, v = _dense_rows(q), _dense_rows(k), _dense_rows(v)
    threads = torch.get_num_threads()
    parts = submasks(params.mask)
    if parts[0].step > 1:  # rows of no submask are fully masked
        out.zero_()
        lse.fill_(-math.inf)
    for part in parts:
        _forward_part(params, part, threads, (q, k, v, out, lse))
    return out, lse


def _forward_part(
    params: AttentionParams, part: DilatedSubmask, threads: int, tensors: tuple[Any, ...]
) -> None:
    q, k, v, out, lse = tensors
    if part.step > 1:
        q, out, lse = q[:, :, part.rows], out[:, :, part.rows], lse[:, :, part.rows]
        k, v = k[:, :, part.keys], v[:, :, part.keys]
    batch, heads, kv_heads, _, _, head_dim, v_head_dim = params.shape
    args = pack_args(
        batch,
        heads,
        kv_heads,
        q.shape[2],
        k.shape[2],
        head_dim,
        v_head_dim,
        DTYPES[params.dtype],
        threads,
        params.scale,
        *part.spans.args,
        *(params.seed & SEED_BITS, params.dropout_p),
        *(part.row, part.step, part.key, part.step),
        q.data_ptr(),
        *q.stride(),
        k.data_ptr(),
        *k.stride(),
        v.data_ptr(),
        *v.stride(),
        out.data_ptr(),
        *out.stride(),
        lse.data_ptr(),
        *lse.stride(),
        *NO_BACKWARD,
    )
    run("forward", args)


def backward(
    params: AttentionParams,
    saved: Saved,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes the gradients of q, k and v.

    Args:
        params: The parameters of the forward call.
        saved: The inputs and results of the forward pass.
        grad_out: The gradient of the output.
        grad_lse: The gradient of the logsumexp, or None.

    Returns:
        The gradients in the dtype and shape of q, k and v.
    """
    import torch

    borrow_threads()
    q, k, v = _dense_rows(saved.q), _dense_rows(saved.k), _dense_rows(saved.v)
    out, grad_out = _dense_rows(saved.out), _dense_rows(grad_out)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if 0 in params.shape:
        return dq.zero_(), dk.zero_(), dv.zero_()
    if grad_lse is not None:
        grad_lse = grad_lse.to(torch.float32)
        if grad_lse.is_neg():
            grad_lse = grad_lse.resolve_neg()
    parts = submasks(params.mask)
    if parts[0].step > 1:
        for x in (dq, dk, dv):
            x.zero_()
    threads = torch.get_num_threads()
    for part in parts:
        rows = (q, out, saved.lse, grad_out, dq, grad_lse)
        _backward_part(params, part, threads, rows, (k, v, dk, dv))
    return dq, dk, dv


def _backward_part(
    params: AttentionParams,
    part: DilatedSubmask,
    threads: int,
    row_tensors: tuple[Any, ...],
    key_tensors: tuple[Any, ...],
) -> None:
    if part.step > 1:
        row_tensors = tuple(x if x is None else x[:, :, part.rows] for x in row_tensors)
        key_tensors = tuple(x[:, :, part.keys] for x in key_tensors)
    (q, out, lse, dout, dq, dlse), (k, v, dk, dv) = row_tensors, key_tensors
    batch, heads, kv_heads, _, _, head_dim, v_head_dim = params.shape
    args = pack_args(
        batch,
        heads,
        kv_heads,
        q.shape[2],
        k.shape[2],
        head_dim,
        v_head_dim,
        DTYPES[params.dtype],
        threads,
        params.scale,
        *part.spans.args,
        *(params.seed & SEED_BITS, params.dropout_p),
        *(part.row, part.step, part.key, part.step),
        q.data_ptr(),
        *q.stride(),
        k.data_ptr(),
        *k.stride(),
        v.data_ptr(),
        *v.stride(),
        out.data_ptr(),
        *out.stride(),
        lse.data_ptr(),
        *lse.stride(),
        dout.data_ptr(),
        *dout.stride(),
        dq.data_ptr(),
        *dq.stride(),
        dk.data_ptr(),
        *dk.stride(),
        dv.data_ptr(),
        *dv.stride(),
        *((0, 0, 0, 0) if dlse is None else (dlse.data_ptr(), *dlse.stride())),
    )
    run("backward", args)


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a last dimension of stride 1, and without a lazy negation."""
    if x.stride(-1) != 1 and x.shape[-1] != 1:
        return x.contiguous()
    return x.resolve_neg() if x.is_neg() else x


def forward_numpy(
    params: AttentionParams, q: npt.NDArray[Any], k: npt.NDArray[Any], v: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Computes attention of float32 or float16 arrays, without PyTorch.

    Args:
        params: The parameters of the call; `unsupported(params)` is None.
        q: Queries (batch, heads, q_len, head_dim), any strides.
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).

    Returns:
        The output (batch, heads, q_len, v_head_dim) in the dtype of q, and the logsumexp
        (batch, heads, q_len) in float32.
    """
    batch, heads, kv_heads, q_len, _, head_dim, v_head_dim = params.shape
    out = np.zeros((batch, heads, q_len, v_head_dim), q.dtype.newbyteorder("="))
    lse = np.full((batch, heads, q_len), -math.inf, np.float32)
    if 0 in params.shape:
        return out, lse
    q, k, v = (_native_array(x) for x in (q, k, v))
    for part in submasks(params.mask):
        rows, keys = part.rows, part.keys
        args = pack_args(
            batch,
            heads,
            kv_heads,
            q[:, :, rows].shape[2],
            k[:, :, keys].shape[2],
            head_dim,
            v_head_dim,
            DTYPES[params.dtype],
            thread_count(),
            params.scale,
            *part.spans.args,
            *(params.seed & SEED_BITS, params.dropout_p),
            *(part.row, part.step, part.key, part.step),
            *_pointer(q[:, :, rows]),
            *_pointer(k[:, :, keys]),
            *_pointer(v[:, :, keys]),
            *_pointer(out[:, :, rows]),
            *_pointer(lse[:, :, rows]),
            *NO_BACKWARD,
        )
        run("forward", args)
    return out, lse


def _native_array(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in native byte order, aligned, with a last dimension of stride 1."""
    aligned = x.flags.aligned and x.dtype.isnative and x.strides[-1] == x.itemsize
    if aligned and not any(stride % x.itemsize for stride in x.strides):
        return x
    return np.ascontiguousarray(x, x.dtype.newbyteorder("="))


def _pointer(x: npt.NDArray[Any]) -> tuple[int, ...]:
    return x.ctypes.data, *(stride // x.itemsize for stride in x.strides)
