"""The native backend: what it supports, and how it takes tensors and arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.native import kernel as bindings
from maskwright.engine.support import find_problem
from tests._helpers.calls import call_of as make_call
from tests._helpers.native_kernel import call_of, inputs, needs_kernel, run_native


def test_without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "loaded", lambda: bindings.Kernel(None, "it was not built"))
    reason = find_problem(call_of(mw.causal(), inputs()), native.SUPPORT)
    assert reason is not None
    assert "it was not built" in reason


@needs_kernel
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("mask", [mw.window(back=7), mw.stride(3), mw.nothing()], ids=repr)
@pytest.mark.parametrize("q_len", [1, 20])
def test_arrays_and_tensors_give_same_bits(
    dropout_p: float, dtype: torch.dtype, mask: mw.Mask, q_len: int
) -> None:
    x = inputs(batch=2, heads=4, kv_heads=2, q_len=q_len, kv_len=30, dtype=dtype)
    options = {"dropout_p": dropout_p, "seed": 11}
    expected = native.forward(call_of(mask, x, **options))
    plain = [t.numpy() for t in x[:3]]
    of_arrays = make_call(plain, mask, **options)
    strided = [np.repeat(t, 2, axis=-1)[..., ::2] for t in plain]
    swapped = [t.astype(t.dtype.newbyteorder()) for t in plain]
    for arrays in (plain, strided, swapped):
        found = native.forward_numpy(of_arrays.with_tensors(arrays))
        for mine, theirs in zip(found, expected, strict=True):
            assert np.array_equal(mine, theirs.numpy())
            assert mine.dtype.isnative


@needs_kernel
def test_output_has_the_strides_of_q() -> None:
    x = inputs(batch=2)
    out, lse = native.forward(call_of(mw.causal(), x))
    assert out.stride() == x[0].stride()
    assert lse.is_contiguous()
    assert lse.dtype == torch.float32


@needs_kernel
@pytest.mark.parametrize("sizes", [{"q_len": 0}, {"kv_len": 0}, {"batch": 0}])
def test_empty_tensors(sizes: dict[str, int]) -> None:
    x = inputs(**{"q_len": 3, "kv_len": 4, **sizes})
    mask = mw.everything().on(*(t.shape[2] for t in x[:2]))
    found = run_native(call_of(mask, x), x)
    assert all(not t.any() for t in (found.out, *found[2:]))
    assert (found.lse == -torch.inf).all()
    arrays = native.forward_numpy(make_call([t.numpy() for t in x[:3]], mask))
    assert all(np.array_equal(a, t.numpy()) for a, t in zip(arrays, found[:2], strict=True))
