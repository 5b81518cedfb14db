"""Arrays and tensors whose address is no multiple of the element size, as in byte buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, TensorTerm
from maskwright.core.interval_ops import CSR
from maskwright.core.spans import Spans
from maskwright.engine.backends.native import _dense_rows, _native_array, span_buffers
from maskwright.engine.native.score_args import _float32
from tests._helpers.attention_inputs import tensors
from tests._helpers.native_kernel import needs_kernel
from tests._helpers.score_terms import TermBias

pytestmark = needs_kernel


def unaligned(x: Any) -> Any:
    """A copy at an odd address."""
    if isinstance(x, torch.Tensor):
        buffer = torch.empty(x.nbytes + 1, dtype=torch.uint8)[1:]
        copy = torch.from_numpy(buffer.numpy()).view(x.dtype).view(x.shape)
        return copy.copy_(x.detach()).requires_grad_(x.requires_grad)
    copy = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays(dtype: Any) -> None:
    q, k, v = (x.numpy().astype(dtype) for x in tensors(1, 2, 70, dim=64, dtype=torch.float32))
    for x in (unaligned(q), unaligned(q)[:, :, ::2], unaligned(q.astype(q.dtype.newbyteorder()))):
        assert not x.flags.aligned
        copy = _native_array(x)
        assert copy.flags.aligned
        np.testing.assert_array_equal(copy, x)
    sinks, bias = np.linspace(-1, 1, 2, dtype=np.float32), np.ones((70, 70), np.float32)
    for options in ({}, {"sinks": sinks}, {"bias": bias}, {"bias": bias[:, :1]}):
        right = mw.attention(q, k, v, mw.causal(), **options)
        moved = {name: unaligned(x) for name, x in options.items()}
        found = mw.attention(*map(unaligned, (q, k, v)), mw.causal(), **moved)
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors(dtype: torch.dtype) -> None:
    given = tensors(1, 2, 70, dim=64, dtype=dtype).learning()
    for x in (unaligned(given.q), unaligned(given.q)[:, :, ::2]):
        assert x.data_ptr() % x.element_size() == 1
        assert _dense_rows(x).data_ptr() % x.element_size() == 0
    sinks, bias = torch.linspace(-1, 1, 2), torch.ones(70, 70)
    table = torch.linspace(-1, 1, 139).view(1, 139)
    grad, grad_lse = torch.randn(given.q.shape).to(dtype), torch.randn(1, 2, 70)
    for names in ([], ["sinks"], ["bias"], ["table", "sinks"]):
        results = []
        for copy in (lambda x: x, unaligned):
            leaves = [copy(x) for x in given]
            options: dict[str, Any] = {"sinks": copy(sinks)} if "sinks" in names else {}
            if "bias" in names:
                options["bias"] = copy(bias)
            if "table" in names:
                options["bias"] = TermBias(
                    (DistanceTerm(copy(table), 69), TensorTerm(copy(bias)[None, None]))
                )
            out, lse = mw.attention(*leaves, mw.causal(), return_lse=True, impl="native", **options)
            grads = torch.autograd.grad((out, lse), leaves, (copy(grad), copy(grad_lse)))
            results.append((out, lse, *grads))
        assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("read", [unaligned, lambda x: torch._neg_view(-x)])
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}])
def test_saved_tensors(options: dict[str, Any], read: Any) -> None:
    """Hooks may return tensors in another memory, as those that read them from a file."""
    given = tensors(1, 2, 70, dim=64, dtype=torch.float32).learning()
    results = []
    for unpack in (lambda x: x, read):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(), unpack):
            out, lse = mw.attention(*given, mw.causal(), return_lse=True, impl="native", **options)
        results.append(torch.autograd.grad(out.sum() + lse.sum(), given))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_terms_and_spans() -> None:
    for x in (np.ones((2, 5), np.float32), torch.ones(2, 5)):
        for contiguous in (0, 1, 2):
            copy = _float32(unaligned(x), contiguous)
            address = copy.ctypes.data if isinstance(x, np.ndarray) else copy.data_ptr()
            assert address % 4 == 0
    flat = (unaligned(np.array(n, np.int64)) for n in ([0, 1, 2], [0, 0], [1, 2]))
    buffers = span_buffers(Spans((1, 1, 2), 2, flat=CSR(*flat)))
    assert all(address % 8 == 0 for address in buffers.args[2:])


@pytest.mark.parametrize("order", [">", "<"])
def test_bias_and_sinks_in_any_byte_order(order: str) -> None:
    q = torch.randn(1, 2, 5, 8)
    bias, sinks = np.linspace(-1, 1, 25, dtype="f4").reshape(5, 5), np.array([1, -2], "f4")
    given = {"bias": bias.astype(f"{order}f4"), "sinks": sinks.astype(f"{order}f4")}
    found = mw.attention(q, q, q, mw.causal(), **given)
    assert torch.equal(found, mw.attention(q, q, q, mw.causal(), bias=bias, sinks=sinks))
