"""Shared by the kernel's tests: every instruction set, a float64 reference, and tolerances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

from maskwright.engine.backends import native
from maskwright.engine.dropout import dropout_keep
from maskwright.engine.native.bindings import loaded, use_isa
from maskwright.engine.params import AttentionParams, AttentionShape, Saved
from tests.engine.given import MASKS, T

if TYPE_CHECKING:
    from collections.abc import Iterator

    import maskwright as mw

needs_kernel = pytest.mark.skipif(loaded().library is None, reason="the kernel was not built")


@pytest.fixture(params=loaded().isas)
def isa(request: Any) -> Iterator[str]:
    """Each instruction set of this processor."""
    default = loaded().isa
    use_isa(request.param)
    yield request.param
    assert default is not None
    use_isa(default)


class Inputs(NamedTuple):
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor


class Result(NamedTuple):
    out: torch.Tensor
    lse: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def inputs(
    batch: int = 1,
    heads: int = 2,
    q_len: int = 48,
    kv_len: int | None = None,
    dim: int = 16,
    v_dim: int | None = None,
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Inputs:
    """Random tensors of these sizes."""
    kv_len = q_len if kv_len is None else kv_len
    kv_heads = heads if kv_heads is None else kv_heads
    v_dim = dim if v_dim is None else v_dim
    draw = torch.Generator().manual_seed(seed)
    shapes = (
        (heads, q_len, dim),
        (kv_heads, kv_len, dim),
        (kv_heads, kv_len, v_dim),
        (heads, q_len, v_dim),
    )
    q, k, v, dout = (torch.randn(batch, *s, generator=draw).to(dtype) for s in shapes)
    return Inputs(q, k, v, dout, torch.randn(batch, heads, q_len, generator=draw))


def params_of(mask: mw.Mask | mw.BoundMask, x: Inputs, **options: Any) -> AttentionParams:
    """The parameters of attention over these tensors."""
    batch, heads, q_len, dim = x.q.shape
    _, kv_heads, kv_len, v_dim = x.v.shape
    bound = mask if hasattr(mask, "spans") else mask.on(q_len, kv_len, batch=batch, heads=heads)
    options = {"scale": 1 / math.sqrt(max(dim, 1)), **options}
    return AttentionParams(
        bound,
        AttentionShape(batch, heads, kv_heads, q_len, kv_len, dim, v_dim),
        dtype=str(x.q.dtype).removeprefix("torch."),
        **options,
    )


def run_native(params: AttentionParams, x: Inputs, threads: int | None = None) -> Result:
    """Both passes of the native backend."""
    default = torch.get_num_threads()
    torch.set_num_threads(default if threads is None else threads)
    try:
        out, lse = native.forward(params, x.q, x.k, x.v)
        saved = Saved(x.q, x.k, x.v, out, lse)
        return Result(out, lse, *native.backward(params, saved, x.dout, x.dlse))
    finally:
        torch.set_num_threads(default)


def reference(params: AttentionParams, x: Inputs) -> Result:
    """Dense attention and its gradients in float64. Fully masked rows are 0, with lse -inf."""
    q, k, v = (t.double().requires_grad_() for t in x[:3])
    group = q.shape[1] // k.shape[1]
    visible = torch.from_numpy(params.mask.dense()).expand(*q.shape[:3], k.shape[2])
    empty = ~visible.any(-1)
    scores = params.scale * q @ k.repeat_interleave(group, 1).transpose(-1, -2)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(empty[..., None], 0.0)
    weights = torch.softmax(scores, -1).masked_fill(~visible, 0.0)
    if params.dropout_p:
        rows, keys = (np.arange(n) for n in visible.shape[2:])
        sizes = (params.shape.batch, params.shape.heads)
        keep = torch.from_numpy(dropout_keep(params.seed, params.dropout_p, *sizes, rows, keys))
        weights = weights * keep / (1 - params.dropout_p)
    out = weights @ v.repeat_interleave(group, 1)
    lse = torch.logsumexp(scores, -1)
    total = (out * x.dout.double()).sum() + (lse * x.dlse.double()).masked_fill(empty, 0.0).sum()
    grads = torch.autograd.grad(total, (q, k, v))
    return Result(out.detach(), lse.detach().masked_fill(empty, -torch.inf), *grads)


def assert_close(found: Result, exact: Result, dtype: torch.dtype, length: int) -> None:
    """Errors are within a few roundings of the dtype, growing with the square root of the length.

    A fully masked row has a logsumexp of exactly -inf.
    """
    for name, mine, true in zip(Result._fields, found, exact, strict=True):
        eps = torch.finfo(torch.float32 if name == "lse" else dtype).eps
        finite = true.isfinite()
        assert torch.equal(mine.isfinite(), finite), name
        if not finite.any():
            continue
        error = (mine.double() - true)[finite].abs().max().item()
        largest = true[finite].abs().max().item()
        floor = torch.finfo(torch.float32).eps
        allowed = 4 * max(eps, floor) * math.sqrt(length) * max(largest, 1.0)
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def check(mask: mw.Mask | mw.BoundMask, x: Inputs, **options: Any) -> Result:
    """Compares both passes with float64, and returns them."""
    params = params_of(mask, x, **options)
    found = run_native(params, x)
    if 0 not in params.shape:
        length = max(params.shape.q_len, params.shape.kv_len)
        assert_close(found, reference(params, x), x.q.dtype, length)
    return found


def planes_of(name: str) -> dict[str, int]:
    """The batch size and the number of heads that a mask of `MASKS` needs."""
    batch, heads = MASKS[name].on(T).shape[:2]
    return {"batch": batch, "heads": max(heads, 2)}
