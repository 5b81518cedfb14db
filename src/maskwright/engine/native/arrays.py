"""Attention of numpy arrays by the kernel, without PyTorch."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.arrays import kind_of
from maskwright.engine.native.layout import FLOAT16, FLOAT32, MOST_DIM, Given
from maskwright.engine.native.library import loaded, run
from maskwright.engine.native.spans import held_spans
from maskwright.engine.validate import bind
from maskwright.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask

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

    _check_way(impl, dropout_p)
    batch, heads, rows, dim = q.shape
    _, key_heads, keys, value_dim = v.shape
    bound = bind(mask, (batch, heads, rows, keys), q_start)
    out = np.zeros((batch, heads, rows, value_dim), q.dtype)
    lse = np.full((batch, heads, rows), -math.inf, np.float32)
    if out.size and keys:
        q, k, v = (_closed(x) for x in (q, k, v))
        held = held_spans(bound)
        sizes = (
            batch,
            heads,
            key_heads,
            rows,
            keys,
            dim,
            value_dim,
            DTYPES[q.dtype],
            thread_count(),
        )
        factor = 1 / math.sqrt(dim) if scale is None else float(scale)
        given = Given(
            sizes,
            factor,
            held.pointers,
            q=_strided(q),
            k=_strided(k),
            v=_strided(v),
            out=_strided(out),
            lse=lse.ctypes.data,
        )
        run("forward", given, held.cells_for(*q.shape[:2]))
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
    if not (0 < d <= MOST_DIM and 0 < vd <= MOST_DIM):
        raise ArgumentError(
            f"attention: heads of {d} and {vd} numbers. Give heads of 1 to {MOST_DIM}."
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
    if loaded().functions is None:
        raise Unsupported(
            f"attention: numpy arrays need the kernel in C, and there is none: {loaded().why}. "
            "Install a C compiler and maskwright anew, or give torch tensors.",
            target="native",
        )


def _closed(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the machine's own byte order, each number where its type may lie."""
    size = x.itemsize
    even = all(step % size == 0 for step in x.strides) and x.flags.aligned
    return x if even and x.strides[-1] == size else np.ascontiguousarray(x)


def _strided(x: npt.NDArray[Any]) -> tuple[int, int, int, int]:
    batch, head, row, _ = (step // x.itemsize for step in x.strides)
    return x.ctypes.data, batch, head, row


def thread_count() -> int:
    """As many as OpenMP would take.

    >>> thread_count() >= 1
    True
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
