"""The operator of graphs on fake CUDA tensors, which need no GPU: devices, dtypes and shapes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import maskwright as mw


@pytest.mark.parametrize("impl", ["auto", "triton"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_forward(impl: str, dtype: torch.dtype) -> None:
    with FakeTensorMode():
        q = torch.empty(2, 4, 33, 16, device="cuda", dtype=dtype)
        k, v = q.new_empty(2, 2, 70, 16), q.new_empty(2, 2, 70, 24)
        out, lse = mw.attention(q, k, v, mw.causal(), enable_gqa=True, impl=impl, return_lse=True)
    assert (out.device.type, out.dtype, out.shape) == ("cuda", dtype, (2, 4, 33, 24))
    assert (lse.device.type, lse.dtype, lse.shape) == ("cuda", torch.float32, (2, 4, 33))


def test_backward() -> None:
    """The fake backward operator is called by itself: autograd needs torch for CUDA."""
    with FakeTensorMode():
        q = torch.empty(2, 4, 33, 16, device="cuda", dtype=torch.float16)
        out, lse = mw.attention(q, q, q, mw.causal(), impl="triton", return_lse=True)
        table, fixed = q.new_empty(4, 65), q.new_empty(1, 1, 1, 33)
        sinks = q.new_empty(4)
        grads = torch.ops.maskwright.attend_backward(
            *(out, None, [out, lse, q, q, q, table, fixed, sinks], None),
            *(mw.causal()._handle, None),
            q_start=None,
            scale=1.0,
            softcap=None,
            terms=[0, 32, 0, 1, 2, 0, 0, 0],
            dropout_p=0.0,
            impl="triton",
        )
    assert [tuple(x.shape) for x in grads] == [*[(2, 4, 33, 16)] * 3, (4, 65), (0,), (4,)]
    assert {(x.device.type, x.dtype) for x in grads} == {("cuda", torch.float16)}


def test_one_traced_graph_serves_all_masks_and_lengths() -> None:
    """Dynamo traces a call on fake CUDA tensors once: mask and lengths are inputs of the graph."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(
        lambda q, mask: mw.attention(q, q, q, mask, impl="triton"),
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    with FakeTensorMode(), torch.no_grad():
        for length, back in ((33, 4), (48, 7), (65, 20)):
            q = torch.empty(2, 4, length, 16, device="cuda", dtype=torch.float16)
            assert compiled(q, mw.window(back=back)).shape == q.shape
    assert counter.frame_count == 1
