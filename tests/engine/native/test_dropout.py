"""Dropout in the kernel against dense attention with the same dropout mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.dropout import dropout_keep
from tests._helpers.attention_inputs import T
from tests._helpers.native_kernel import (
    assert_close,
    call_of,
    inputs,
    isa,
    needs_kernel,
    reference,
    run_native,
)

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

SEED = 0x1234_5678_9ABC_DEF0


@pytest.mark.parametrize("q_len", [1, 2, 9, 300])
@pytest.mark.parametrize("kv_len", [1, 63, 300, 2100])
def test_kernel_drops_weights_of_numpy_reference(q_len: int, kv_len: int) -> None:
    """With equal scores and one-hot values, the output is the dropout mask itself."""
    heads = 3
    x = inputs(batch=2, heads=heads, q_len=q_len, kv_len=kv_len, dim=4, v_dim=256)
    zero = x._replace(q=torch.zeros_like(x.q))
    keep = dropout_keep(SEED, 0.25, 2, heads, np.arange(q_len), np.arange(kv_len))
    for first in range(0, kv_len, 256):
        width = min(256, kv_len - first)
        v = torch.zeros_like(x.v)
        v[:, :, torch.arange(first, first + width), torch.arange(width)] = 1.0
        call = call_of(mw.everything(), x, dropout_p=0.25, seed=SEED)
        out, lse = native.forward(call.with_tensors((zero.q, zero.k, v)))
        found = out[..., :width].numpy() > 0
        assert np.array_equal(found, keep[..., first : first + width])
        torch.testing.assert_close(lse, torch.full_like(lse, np.log(kv_len)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("q_len", [2, 500])
def test_threads_and_gradients(q_len: int, dtype: torch.dtype) -> None:
    x = inputs(heads=4, kv_heads=2, q_len=q_len, kv_len=900, dim=64, dtype=dtype)
    call = call_of(mw.window(back=400), x, dropout_p=0.4, seed=SEED)
    results = [run_native(call, x, threads) for threads in (1, 2, 4, 8)]
    for other in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], other, strict=True))
    assert_close(results[0], reference(call, x), dtype, 900)


def test_decode_drops_same_weights_as_longer_call() -> None:
    x = inputs(q_len=T, dim=32)
    whole = call_of(mw.everything(), x, dropout_p=0.5, seed=3)
    first_rows = x._replace(q=x.q[:, :, :2])
    part = call_of(mw.everything(), first_rows, dropout_p=0.5, seed=3)
    out, _ = native.forward(whole)
    decoded, _ = native.forward(part)
    torch.testing.assert_close(decoded, out[:, :, :2])


def test_seed_changes_mask_and_logsumexp_does_not_depend_on_it() -> None:
    x = inputs()
    results = [
        run_native(call_of(mw.causal(), x, dropout_p=0.5, seed=seed), x)
        for seed in (1, 1 << 32, 1 << 63, 1)
    ]
    assert torch.equal(results[0].out, results[3].out)
    assert not torch.equal(results[0].out, results[1].out)
    assert not torch.equal(results[0].out, results[2].out)
    assert all(torch.equal(results[0].lse, other.lse) for other in results)
