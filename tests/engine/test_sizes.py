"""Sizes of 0 and 1 on every axis, every dtype, wide heads, and tensors that lie anyhow in memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.engine.reference import reference
from tests.engine.given import MASKS, gradients, tensors

SIZES = {"batch": 2, "heads": 2, "q_len": 5, "kv_len": 6, "dim": 3, "value_dim": 4}
KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def check(given: Any, mask: Any, allowed: float, **options: Any) -> None:
    found, lse = mw.attention(*given, mask, return_lse=True, **options)
    bound = mask.on(given.q.shape[2], given.k.shape[2], *given.q.shape[:2])
    right = reference(*given, bound)
    torch.testing.assert_close(found.double(), right.out, atol=allowed, rtol=allowed)
    torch.testing.assert_close(lse.double(), right.lse, atol=allowed, rtol=allowed)
    assert found.dtype == given.q.dtype
    for one, other, x in zip(
        gradients(found, given), gradients(right.out, given), given, strict=True
    ):
        assert one.shape == x.shape
        torch.testing.assert_close(one.double(), other.double(), atol=allowed, rtol=allowed)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("axis", SIZES)
def test_no_axis_is_too_small(axis: str, size: int, dropout_p: float) -> None:
    given = tensors(**{**SIZES, axis: size}).learning()
    for mask in (mw.everything(), mw.causal(), mw.window(back=1), mw.nothing()):
        if dropout_p:
            out = mw.attention(*given, mask, dropout_p=dropout_p)
            assert out.isfinite().all()
            assert all(g.isfinite().all() for g in gradients(out, given))
        else:
            check(given, mask, 1e-12)


@pytest.mark.parametrize("axes", [("dim", "value_dim"), ("q_len", "kv_len"), tuple(SIZES)])
def test_nor_are_several(axes: tuple[str, ...]) -> None:
    for sizes in product((0, 1), repeat=len(axes)):
        given = tensors(**{**SIZES, **dict(zip(axes, sizes, strict=True))}).learning()
        check(given, mw.causal(), 1e-12)


def test_without_numbers_to_compare_all_keys_weigh_the_same() -> None:
    given = tensors(q_len=3, dim=0, value_dim=0)
    out, lse = mw.attention(*given, mw.causal(), return_lse=True)
    assert out.shape == (1, 2, 3, 0)
    torch.testing.assert_close(lse[0, 0].exp(), torch.tensor([1.0, 2, 3], dtype=lse.dtype))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("dim", [1, 64, 256])
def test_every_dtype_and_width(dtype: torch.dtype, dim: int) -> None:
    for name in ("causal", "window", "holes", "documents"):
        check(tensors(dim=dim, dtype=dtype).learning(), MASKS[name], ROUNDING[dtype])


@pytest.mark.parametrize("dtype", KINDS)
def test_the_logsumexp_has_digits_to_merge_by(dtype: torch.dtype) -> None:
    _, lse = mw.attention(*tensors(dtype=dtype), mw.causal(), return_lse=True)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers, lying otherwise."""
    if layout == "heads last":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "last axis first":
        return x.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    if layout == "with gaps":
        return torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
    if layout == "part of a larger one":
        return torch.nn.functional.pad(x, (1, 2, 3, 4, 1, 0))[:, 1:, 3:-4, 1:-2]
    return x[:1, :1].expand_as(x)  # repeated


@pytest.mark.parametrize(
    "layout", ["heads last", "last axis first", "with gaps", "part of a larger one", "repeated"]
)
@pytest.mark.parametrize("name", ["causal", "window", "sinks", "dilated", "padding"])
def test_memory_layout_is_of_no_consequence(name: str, layout: str) -> None:
    given = tensors(batch=2, heads=2)
    moved = [laid_out(x, layout) for x in given]
    plain = [x.contiguous().requires_grad_() for x in moved]
    moved = [x.detach().requires_grad_() for x in moved]
    one, other = mw.attention(*moved, MASKS[name]), mw.attention(*plain, MASKS[name])
    torch.testing.assert_close(one, other)
    grad = laid_out(torch.randn(one.shape, dtype=one.dtype), layout)
    torch.testing.assert_close(
        torch.autograd.grad(one, moved, grad), torch.autograd.grad(other, plain, grad.contiguous())
    )


def test_inputs_are_left_as_they_are() -> None:
    given = tensors(batch=2)
    given.k[0, :, 20:] = torch.nan
    before = [x.clone() for x in given]
    learning = given.learning()
    mw.attention(*learning, MASKS["padding"], return_lse=True)[1].sum().backward()
    for x, y in zip(learning, before, strict=True):
        torch.testing.assert_close(x.detach(), y, rtol=0, atol=0, equal_nan=True)
