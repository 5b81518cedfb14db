"""The kernel beside float64, under every kind of mask, on every instruction set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import maskwright as mw
from tests.engine.given import MASKS, T, sizes_of, tensors
from tests.engine.native.given import compare, isa, needs_kernel

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

FLOAT = {"dtype": torch.float32}


@pytest.mark.parametrize("name", MASKS)
def test_every_kind_of_mask(name: str) -> None:
    given = tensors(**sizes_of(name), dim=16, dtype=torch.float32)
    compare(MASKS[name].on(T, **sizes_of(name)), *given)


@pytest.mark.parametrize("dim", [1, 3, 16, 32, 48, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("value_dim", [None, 5, 72])
def test_every_head_dim(dim: int, value_dim: int | None) -> None:
    given = tensors(dim=dim, value_dim=value_dim, **FLOAT)
    compare(mw.window(back=9).on(T, heads=2), *given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["causal", "holes", "by head", "by batch"])
@pytest.mark.parametrize("q_len", [1, T])
def test_half_precision(dtype: torch.dtype, name: str, q_len: int) -> None:
    given = tensors(**sizes_of(name), q_len=q_len, kv_len=T, dim=32, dtype=dtype)
    compare(MASKS[name].on(q_len, T, **sizes_of(name)), *given)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", ["causal", "by head"])
@pytest.mark.parametrize("q_len", [1, 2, T])
def test_heads_that_share_keys(kv_heads: int, name: str, q_len: int) -> None:
    given = tensors(heads=4, kv_heads=kv_heads, q_len=q_len, kv_len=T, dim=24, **FLOAT)
    compare(MASKS[name].on(q_len, T, heads=4), *given)


SIZES = [(0, 5), (5, 0), (1, 1), (1, 700), (5, 2100), (7, 17), (13, 400), (400, 13), (777, 777)]


@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize(
    "mask",
    [mw.causal(), mw.everything(), mw.window(back=300) | mw.keys([0]), mw.stride(3)],
    ids=repr,
)
def test_every_size(q_len: int, kv_len: int, mask: mw.Mask) -> None:
    if kv_len == 0 and not mask.on(q_len, 1).shape:
        return
    keys = mask if kv_len else mw.everything()
    given = tensors(q_len=q_len, kv_len=kv_len, dim=8, **FLOAT)
    compare(keys.on(q_len, kv_len, heads=2), *given, gradients=bool(q_len and kv_len))


@pytest.mark.parametrize("phase", [0, 2])
@pytest.mark.parametrize("q_len", [5, T])
def test_keys_that_lie_evenly_apart(phase: int, q_len: int) -> None:
    mask = mw.window(back=30) & mw.stride(3, phase=phase)
    compare(mask.on(q_len, T, heads=2), *tensors(q_len=q_len, kv_len=T, dim=16, **FLOAT))


@pytest.mark.parametrize("step", [1, 2])
def test_strides(step: int) -> None:
    q, k, v = (
        torch.randn(2, T, 3, 32 * step)[..., ::step].transpose(1, 2) for _ in range(3)
    )  # fmt: skip
    compare(mw.causal().on(T, batch=2, heads=3), q, k, v)
    compare(mw.causal().on(T, batch=2, heads=3), q, *(x[:, :1].expand(2, 3, T, 32) for x in (k, v)))


@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0])
def test_every_scale(scale: float) -> None:
    q, k, v = tensors(dim=8, **FLOAT)
    mine, theirs = (
        mw.attention(q, k, v, mw.window(back=7), scale=scale, impl=impl)
        for impl in ("native", "reference")
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("q_len", [1, T])
def test_the_only_key_has_a_weight_of_exactly_one(q_len: int, dtype: torch.dtype) -> None:
    """In the backward pass too: scores are summed alike, and nothing is rounded in between."""
    q, k, v = tensors(q_len=q_len, kv_len=q_len, dim=64, dtype=dtype).learning()
    out = mw.attention(q, k, v, mw.window(back=0), scale=3.0, impl="native")
    grad = torch.randn(out.shape).to(dtype)
    assert torch.equal(out, v)
    assert torch.equal(torch.autograd.grad(out, v, grad)[0], grad)


@pytest.mark.parametrize("q_len", [1, T])
def test_keys_that_nobody_sees_may_hold_anything(q_len: int) -> None:
    mask = mw.causal() - mw.keys([0, 3, 20, 47])
    given = tensors(q_len=q_len, kv_len=T, dim=16, **FLOAT).learning()
    spoilt = given._replace(**{
        name: x.detach().index_fill(2, torch.tensor([0, 3, 20, 47]), math.nan).requires_grad_()
        for name, x in (("k", given.k), ("v", given.v))
    })  # fmt: skip
    found = [results(mask, x) for x in (given, spoilt)]
    assert all(torch.equal(clean, same) for clean, same in zip(*found, strict=True))


def results(mask: mw.Mask, given: Any) -> list[torch.Tensor]:
    out, lse = mw.attention(*given, mask, impl="native", return_lse=True)
    seen = lse.masked_fill(lse == -math.inf, 0.0)
    return [out, lse, *torch.autograd.grad(out.square().sum() + seen.sum(), given)]


def test_what_is_no_number_stays_so() -> None:
    q, k, v = tensors(dim=16, **FLOAT)
    k[0, 0, 5, 3] = math.nan
    out = mw.attention(q, k, v, mw.causal(), impl="native")
    assert out[0, 0, 5:].isnan().all()
    assert out[0, 1].isfinite().all()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = (x * 100 for x in tensors(dim=16, **FLOAT))
    out, lse = mw.attention(q, k, v, mw.causal(), impl="native", return_lse=True)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    exact = mw.attention(q, k, v, mw.causal(), impl="reference")
    torch.testing.assert_close(out, exact, rtol=1e-3, atol=1e-2)


def test_the_logsumexp_has_a_gradient() -> None:
    given = tensors(dim=16, **FLOAT).learning()
    pulled = []
    for impl in ("native", "reference"):
        _, lse = mw.attention(*given, mw.window(back=5), impl=impl, return_lse=True)
        pulled.append(torch.autograd.grad(lse.square().sum(), given, materialize_grads=True))
    for mine, exact in zip(*pulled, strict=True):
        torch.testing.assert_close(mine, exact.float(), rtol=1e-4, atol=1e-5)
