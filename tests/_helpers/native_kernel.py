"""Shared by the kernel's tests: every instruction set, a float64 reference, and tolerances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

from maskwright.engine.backends import native
from maskwright.engine.dropout import dropout_keep
from maskwright.engine.native.kernel import loaded, use_isa
from maskwright.engine.reference import reference as dense_attention
from tests._helpers.attention_inputs import tensors
from tests._helpers.calls import call_of as make_call

if TYPE_CHECKING:
    from collections.abc import Iterator

    import maskwright as mw
    from maskwright.engine.call import Call

needs_kernel = pytest.mark.skipif(loaded().module is None, reason="the kernel was not built")


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


def call_of(mask: mw.Mask | mw.BoundMask, x: Inputs, **options: Any) -> Call:
    """The call of attention over these tensors."""
    return make_call(x[:3], mask, **options)


def run_native(call: Call, x: Inputs, threads: int | None = None) -> Result:
    """Both passes of the native backend."""
    default = torch.get_num_threads()
    torch.set_num_threads(default if threads is None else threads)
    try:
        call = call.with_tensors(x[:3])
        out, lse = native.forward(call)
        return Result(out, lse, *native.backward(call, out, lse, x.dout, x.dlse))
    finally:
        torch.set_num_threads(default)


def reference(call: Call, x: Inputs) -> Result:
    """Dense attention and its gradients in float64. Fully masked rows are 0, with lse -inf."""
    q, k, v = (t.double().requires_grad_() for t in x[:3])
    out, lse, weights = dense_attention(q, k, v, call.mask, call.scale)
    if call.dropout_p:
        rows, keys = (np.arange(n) for n in weights.shape[2:])
        keep = dropout_keep(call.seed, call.dropout_p, *weights.shape[:2], rows, keys)
        weights = weights * torch.from_numpy(keep) / (1 - call.dropout_p)
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
    call = call_of(mask, x, **options)
    found = run_native(call, x)
    if 0 not in call.shape:
        length = max(call.shape.q_len, call.shape.kv_len)
        assert_close(found, reference(call, x), x.q.dtype, length)
    return found
