"""The native backend: what it supports, and how it takes tensors and arrays."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.native import bindings
from maskwright.engine.params import AttentionParams, AttentionShape, Saved
from tests.engine.native.helpers import inputs, needs_kernel, params_of, run_native

SHAPE = AttentionShape(1, 2, 2, 4, 4, 8, 8)


def params(**changes: Any) -> AttentionParams:
    shape = SHAPE._replace(**{k: changes.pop(k) for k in list(changes) if k in SHAPE._fields})
    return AttentionParams(mw.causal().on(4), shape, 1.0, **changes)


@needs_kernel
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dim", [1, 256])
def test_supported(dtype: str, dim: int) -> None:
    assert native.unsupported(params(dtype=dtype, head_dim=dim, dropout_p=0.5)) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"device": "cuda"}, "cuda"),
        ({"head_dim": 257}, "257"),
        ({"v_head_dim": 0}, "0"),
    ],
)
def test_unsupported_calls_have_a_reason(changes: dict[str, Any], named: str) -> None:
    reason = native.unsupported(params(**changes))
    assert reason is not None
    assert named in reason


def test_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "loaded", lambda: bindings.Kernel(None, "it was not built"))
    reason = native.unsupported(params())
    assert reason is not None
    assert "it was not built" in reason


@needs_kernel
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("mask", [mw.window(back=7), mw.stride(3), mw.nothing()], ids=repr)
@pytest.mark.parametrize("q_len", [1, 20])
def test_arrays_and_tensors_give_the_same_bits(
    dropout_p: float, dtype: torch.dtype, mask: mw.Mask, q_len: int
) -> None:
    x = inputs(batch=2, heads=4, kv_heads=2, q_len=q_len, kv_len=30, dtype=dtype)
    p = params_of(mask, x, dropout_p=dropout_p, seed=11)
    expected = native.forward(p, *x[:3])
    plain = [t.numpy() for t in x[:3]]
    strided = [np.repeat(t, 2, axis=-1)[..., ::2] for t in plain]
    swapped = [t.astype(t.dtype.newbyteorder()) for t in plain]
    for arrays in (plain, strided, swapped):
        found = native.forward_numpy(p, *arrays)
        for mine, theirs in zip(found, expected, strict=True):
            assert np.array_equal(mine, theirs.numpy())
            assert mine.dtype.isnative


@needs_kernel
def test_arrays_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, maskwright as mw\n"
        "from maskwright.engine.backends import native\n"
        "from maskwright.engine.params import AttentionParams, AttentionShape\n"
        "x = np.ones((1, 1, 3, 2), np.float32)\n"
        "shape = AttentionShape(1, 1, 1, 3, 3, 2, 2)\n"
        "out, _ = native.forward_numpy(AttentionParams(mw.causal().on(3), shape, 1.0), x, x, x)\n"
        "print(out.sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "6.0", done.stderr


@needs_kernel
def test_the_default_device_does_not_matter() -> None:
    x = inputs()
    p = params_of(mw.causal(), x)
    expected = run_native(p, x)
    with torch.device("meta"):
        found = run_native(p, x)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert all(t.device.type == "cpu" for t in found)


@needs_kernel
def test_the_output_is_contiguous_over_heads() -> None:
    x = inputs(batch=2)
    out, lse = native.forward(params_of(mw.causal(), x), *x[:3])
    assert out.transpose(1, 2).is_contiguous()
    assert lse.is_contiguous()
    assert lse.dtype == torch.float32


@needs_kernel
@pytest.mark.parametrize("sizes", [{"q_len": 0}, {"kv_len": 0}, {"batch": 0}])
def test_empty_tensors(sizes: dict[str, int]) -> None:
    x = inputs(**{"q_len": 3, "kv_len": 4, **sizes})
    p = params_of(mw.everything().on(3, 4), x)
    found = run_native(p, x)
    assert all(not t.any() for t in (found.out, *found[2:]))
    assert (found.lse == -torch.inf).all()
    arrays = native.forward_numpy(p, *(t.numpy() for t in x[:3]))
    assert all(np.array_equal(a, t.numpy()) for a, t in zip(arrays, found[:2], strict=True))


@needs_kernel
def test_lazily_negated_tensors() -> None:
    x = inputs(dim=8)
    p = params_of(mw.causal(), x)

    def negated(t: torch.Tensor) -> torch.Tensor:
        lazy = torch._neg_view(-t)
        assert lazy.is_neg()
        return lazy

    expected = run_native(p, x)
    out, lse = native.forward(p, *(negated(t) for t in x[:3]))
    saved = Saved(*(negated(t) for t in x[:3]), out, lse)
    grads = native.backward(p, saved, negated(x.dout), negated(x.dlse))
    for mine, true in zip((out, lse, *grads), expected, strict=True):
        assert torch.equal(mine, true)


@needs_kernel
def test_gradients_have_the_dtype_and_shape_of_the_inputs() -> None:
    x = inputs(heads=4, kv_heads=2, v_dim=5, dtype=torch.bfloat16)
    found = run_native(params_of(mw.causal(), x), x)
    for grad, t in zip(found[2:], x[:3], strict=True):
        assert grad.shape == t.shape
        assert grad.dtype == t.dtype
