"""The Triton kernels on a GPU: `make test-gpu`. Collected only where torch finds one."""

from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.engine import gpu_verify
from tests._helpers.attention_inputs import MASKS, T, gradients, sizes_of, tensors

TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_equals_reference(name: str, dtype: torch.dtype) -> None:
    sizes = sizes_of(name)
    made = tensors(**sizes, kv_heads=sizes["heads"] // 2, dim=64, dtype=dtype)
    given = type(made)(*(x.cuda() for x in made)).learning()
    bound = MASKS[name].on(T, **sizes)
    results = []
    for impl in ("triton", "reference"):
        out = mw.attention(*given, bound, enable_gqa=True, impl=impl)
        results.append((out, *gradients(out, given)))
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_gradients_of_biases_and_sinks_equal_reference() -> None:
    made = tensors(dim=64, dtype=torch.float32)
    given = type(made)(*(x.cuda() for x in made)).learning()
    shapes = ((2,), (32, 2), (2, T, T), (2,))
    slopes, table, cells, sinks = (torch.randn(x, device="cuda").requires_grad_() for x in shapes)
    bias = mw.bias.alibi(slopes) + mw.bias.t5(table) + mw.bias.tensor(cells)
    results = []
    for impl in ("triton", "reference"):
        out = mw.attention(*given, MASKS["sinks"], bias=bias, sinks=sinks, softcap=3.0, impl=impl)
        results.append((out, *gradients(out, (*given, slopes, table, cells, sinks))))
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)


def test_verification_passes() -> None:
    found = gpu_verify.verify("cuda")
    assert all(check.passed for check in found.checks), str(found)
