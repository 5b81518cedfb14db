"""Shared by the kernel's tests: every instruction set, a float64 reference, and tolerances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

from maskwright.engine.backends import native
from maskwright.engine.dropout import dropout_keep
from maskwright.engine.native import loaded, use_isa
from maskwright.engine.params import AttentionParams, AttentionShape, Saved
from maskwright.engine.reference import reference as dense_attention
from tests._helpers.attention_inputs import tensors

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
    dim: int = 16,
    v_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **sizes: Any,
) -> Inputs:
    """Random tensors of these sizes."""
    q, k, v = tensors(dim=dim, value_dim=v_dim, dtype=dtype, seed=seed, **sizes)
    draw = torch.Generator().manual_seed(seed + 1)
    dout = torch.randn(*q.shape[:3], v.shape[3], generator=draw).to(dtype)
    return Inputs(q, k, v, dout, torch.randn(q.shape[:3], generator=draw))


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
    out, lse, weights = dense_attention(q, k, v, params.mask, params.scale)
    if params.dropout_p:
        rows, keys = (np.arange(n) for n in weights.shape[2:])
        keep = dropout_keep(params.seed, params.dropout_p, *weights.shape[:2], rows, keys)
        weights = weights * torch.from_numpy(keep) / (1 - params.dropout_p)
        out = weights @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)
    finite = lse.masked_fill(lse.isinf(), 0.0)
    total = (out * x.dout.double()).sum() + (finite * x.dlse.double()).sum()
    grads = torch.autograd.grad(total, (q, k, v))
    return Result(out.detach(), lse.detach(), *grads)


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
