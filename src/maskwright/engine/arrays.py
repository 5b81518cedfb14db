"""Attention of numpy arrays by the kernel, without PyTorch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.arrays import kind_of
from maskwright.engine.backends import native
from maskwright.engine.inputs import bind, check_numbers
from maskwright.engine.native.bindings import FLOAT16, FLOAT32, MAX_HEAD_DIM, loaded
from maskwright.engine.params import AttentionParams, AttentionShape
from maskwright.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.mask import Mask

DTYPES = {np.dtype(np.float32): FLOAT32, np.dtype(np.float16): FLOAT16}


def attention(
    q: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    mask: Mask | BoundMask | None = None,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    q_start: int | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> Any:
    """As `maskwright.attention`, of arrays in float32 or float16, without gradients.

    >>> import numpy as np, maskwright as mw
    >>> q = k = np.zeros((1, 1, 4, 2), np.float32)
    >>> v = np.array([1.0, 2.0, 3.0, 4.0], np.float32).reshape(1, 1, 4, 1)
    >>> attention(q, k, v, mw.causal()).ravel().tolist()
    [1.0, 1.5, 2.0, 2.5]
    """
    _check(q, k, v, enable_gqa)
    check_numbers(scale, dropout_p)
    _check_way(impl, dropout_p)
    batch, heads, rows, dim = q.shape
    _, key_heads, keys, value_dim = v.shape
    bound = bind(mask, (batch, heads, rows, keys), q_start)
    factor = 1 / math.sqrt(dim) if scale is None else float(scale)
    shape = AttentionShape(batch, heads, key_heads, rows, keys, dim, value_dim)
    params = AttentionParams(bound, shape, factor, q.dtype.name)
    out, lse = native.forward_numpy(params, q, k, v)
    return (out, lse) if return_lse else out


def _check(q: Any, k: Any, v: Any, enable_gqa: bool) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, np.ndarray):
            raise ArgumentError(
                f"attention: {name} is {kind_of(x)}. Give three numpy arrays, or three tensors."
            )
        if x.ndim != 4 or x.dtype not in DTYPES or x.dtype != q.dtype:
            raise ArgumentError(
                f"attention: {name} is {x.dtype} of shape {x.shape}. Give arrays (batch, heads, "
                "length, head_dim), all in float32 or all in float16."
            )
    (b, h, _, d), (kb, kh, s, kd), (vb, vh, vs, vd) = q.shape, k.shape, v.shape
    grouped = h == kh or (enable_gqa and kh and h % kh == 0)
    if not (b == kb == vb and kh == vh and s == vs and d == kd and grouped):
        raise ArgumentError(
            f"attention: q {q.shape}, k {k.shape}, v {v.shape} do not fit together. Give one batch, "
            "one head_dim for q and k, one length for k and v, and enable_gqa=True where heads differ."
        )
    if not (0 < d <= MAX_HEAD_DIM and 0 < vd <= MAX_HEAD_DIM):
        raise ArgumentError(
            f"attention: heads of {d} and {vd} numbers. Give heads of 1 to {MAX_HEAD_DIM}."
        )


def _check_way(impl: str, dropout_p: float) -> None:
    if impl not in ("auto", "native"):
        raise Unsupported(
            f'attention: impl="{impl}" takes torch tensors. Leave impl out, or give those.',
            target=impl,
        )
    if dropout_p:
        raise Unsupported(
            "attention: of numpy arrays there is no dropout. Leave dropout_p out.", target="native"
        )
    if loaded().library is None:
        raise Unsupported(
            f"attention: numpy arrays need the kernel in C, and there is none: {loaded().reason}. "
            "Install a C compiler and maskwright anew, or give torch tensors.",
            target="native",
        )


def check_native(q: torch.Tensor, v: torch.Tensor, dropout_p: float) -> None:
    """Refuse what the kernel can't compute, where it was asked for by name."""
    batch, heads, rows, dim = q.shape
    shape = AttentionShape(batch, heads, v.shape[1], rows, v.shape[2], dim, v.shape[3])
    params = AttentionParams(None, shape, 1.0, str(q.dtype).removeprefix("torch."), q.device.type)  # type: ignore[arg-type]
    problem = native.unsupported(params)
    if dropout_p:
        problem = f"it has no dropout, and dropout_p is {dropout_p}"
    if problem:
        raise Unsupported(
            f'attention: impl="native" cannot compute this: {problem}. Leave impl out, or pass '
            'impl="strips".',
            target="native",
        )
