"""Shared by the tests of attention: tensors, masks, backends, and tolerances."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import torch

import maskwright as mw

NAN, INF = math.nan, math.inf

T = 48

# Each has other fully masked rows, other keys that no row attends to, or neither.
MASKS: dict[str, mw.Mask] = {
    "everything": mw.everything(),
    "nothing": mw.nothing(),
    "causal": mw.causal(),
    "window": mw.window(back=5),
    "ahead": mw.window(back=0, ahead=7) - mw.window(back=0, ahead=3),
    "sinks": (mw.window(back=4) | mw.keys(range(2))) & mw.causal(),
    "documents": mw.causal() & mw.documents(lengths=[7, 16, 1, 20, 4]),
    "prefix": mw.causal() | mw.prefix(9),
    "dilated": mw.window(back=15) & mw.stride(4),
    "holes": mw.causal() - mw.keys(range(0, T, 5)),
    "periodic holes": mw.window(back=11) - mw.keys(range(3, T, 8)),
    "some rows": mw.queries([0, 1, 9, 30, 47]) & mw.everything(),
    "no first or last row": mw.everything() - mw.queries([0, T - 1]),
    "padding": mw.causal() & mw.padding(lengths=[20, T]),
    "empty sequence": mw.causal() & mw.padding(lengths=[0, 33]),
    "left padding": mw.causal()
    & mw.padding(keep=torch.arange(T) >= torch.tensor([[19], [0]])),
    "both sides padded": mw.padding(lengths=[20, 5]) & mw.padding(lengths=[20, 5]).T,
    "by head": mw.by_head(
        [mw.causal(), mw.window(back=3) - mw.keys([2, 3]), mw.nothing(), mw.chunks(8)]
    ),
    "heads in turn": mw.by_head([mw.causal() & mw.keys(list(range(9))), mw.chunks(4)] * 2),
    "by batch": mw.by_batch([mw.nothing(), mw.chunks(16) & mw.causal()]),
    "scattered": mw.where(lambda b, h, q, k: ((q * 31 + k * 17) % 11 == 0) & (k % 6 != 1)),
}  # fmt: skip


class Tensors(NamedTuple):
    """q, k and v."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def learning(self) -> Tensors:
        return Tensors(*(x.detach().clone().requires_grad_() for x in self))

    def __repr__(self) -> str:
        return f"Tensors({[tuple(x.shape) for x in self]}, {self.q.dtype})"


def tensors(
    batch: int = 1,
    heads: int = 2,
    q_len: int = T,
    kv_len: int | None = None,
    dim: int = 4,
    value_dim: int | None = None,
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Tensors:
    """Random tensors, by default in float64, in which rounding hides no error."""
    made = torch.Generator().manual_seed(seed)
    keys = q_len if kv_len is None else kv_len
    key_heads = heads if kv_heads is None else kv_heads
    shapes = (
        (heads, q_len, dim),
        (key_heads, keys, dim),
        (key_heads, keys, dim if value_dim is None else value_dim),
    )
    return Tensors(*(torch.randn(batch, *shape, generator=made).to(dtype) for shape in shapes))


def sizes_of(name: str) -> dict[str, int]:
    """The batch size and heads that a mask of `MASKS` needs."""
    batch, heads = MASKS[name].on(T).shape[:2]
    return {"batch": batch, "heads": max(heads, 2)}


def gradients(out: Any, given: Any, grad: Any = None) -> tuple[torch.Tensor, ...]:
    """Gradients of all tensors given, zeros where there is none."""
    total = out.sum() if grad is None else (out * grad).sum()
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(total, given, materialize_grads=True)
    return found


# With MASKWRIGHT_ISA=none the suite runs without the C kernel, as on a machine without a compiler.
HAS_KERNEL = os.environ.get("MASKWRIGHT_ISA") != "none"
BACKENDS: list[tuple[str, torch.dtype]] = [
    *(("blocks", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)),
    *(("native", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16) if HAS_KERNEL),
]
BACKEND_NAMES = sorted({impl for impl, _ in BACKENDS})


def tolerance(dtype: torch.dtype, exact: torch.Tensor, length: int, summand: float = 1.0) -> float:
    """The rounding error of a sum over `length` terms, rounded to `dtype` at the end.

    `summand` bounds the terms: a sum that cancels is as inexact as its largest term.
    """
    finite = exact.detach()[exact.isfinite()]
    largest = max(float(finite.abs().max()) if finite.numel() else 0.0, summand)
    accumulated = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    return largest * (4 * accumulated * math.sqrt(max(length, 1)) + 2 * torch.finfo(dtype).eps)


def largest_summand(tensors: Any, grad: torch.Tensor, scale: float | None) -> float:
    """A bound on the terms dS · k and dS · q of the gradients, where dS = P · (dO · v - delta)."""
    q, k, v = (x.detach().double() for x in tensors)
    if not (q.numel() and k.numel() and v.numel()):
        return 1.0
    factor = q.shape[-1] ** -0.5 if scale is None else abs(scale)
    ds = float(grad.double().norm(dim=-1).max() * v.norm(dim=-1).max())
    return max(1.0, 2 * ds * factor * float(max(q.abs().max(), k.abs().max())))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest absolute difference; infinite where one is finite and the other is not."""
    if not found.numel():
        return 0.0
    found, exact = found.detach().double(), exact.detach().double()
    if not torch.equal(found.isfinite(), exact.isfinite()):
        return math.inf
    return float((found - exact).nan_to_num(0.0, 0.0, 0.0).abs().max())
