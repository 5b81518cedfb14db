"""Sizes of 0 and 1 on every axis, and tensors of every memory layout."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.engine.reference import reference
from tests._helpers.attention_inputs import MASKS, gradients, tensors

SIZES = {"batch": 2, "heads": 2, "q_len": 5, "kv_len": 6, "dim": 3, "value_dim": 4}
KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check(given: Any, mask: Any) -> None:
    found, lse = mw.attention(*given, mask, return_lse=True)
    bound = mask.on(given.q.shape[2], given.k.shape[2], *given.q.shape[:2])
    right = reference(*given, bound)
    torch.testing.assert_close((found, lse), (right.out, right.lse), atol=1e-12, rtol=1e-12)
    grads, expected = gradients(found, given), gradients(right.out, given)
    torch.testing.assert_close(grads, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("axis", SIZES)
def test_axes_of_size_0_and_1(axis: str, size: int, dropout_p: float) -> None:
    given = tensors(**{**SIZES, axis: size}).learning()
    for mask in (mw.everything(), mw.causal(), mw.window(back=1), mw.nothing()):
        if dropout_p:
            out = mw.attention(*given, mask, dropout_p=dropout_p)
            assert out.isfinite().all()
            assert all(g.isfinite().all() for g in gradients(out, given))
        else:
            check(given, mask)


@pytest.mark.parametrize("axes", [("dim", "value_dim"), ("q_len", "kv_len"), tuple(SIZES)])
def test_several_axes_of_size_0_and_1(axes: tuple[str, ...]) -> None:
    for sizes in product((0, 1), repeat=len(axes)):
        given = tensors(**{**SIZES, **dict(zip(axes, sizes, strict=True))}).learning()
        check(given, mw.causal())


def test_without_numbers_to_compare_all_keys_weigh_same() -> None:
    given = tensors(q_len=3, dim=0, value_dim=0)
    out, lse = mw.attention(*given, mw.causal(), return_lse=True)
    assert out.shape == (1, 2, 3, 0)
    torch.testing.assert_close(lse[0, 0].exp(), torch.tensor([1.0, 2, 3], dtype=lse.dtype))


@pytest.mark.parametrize("dtype", KINDS)
def test_logsumexp_has_digits_to_merge_by(dtype: torch.dtype) -> None:
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
def test_memory_layout_does_not_matter(name: str, layout: str) -> None:
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


def test_inputs_are_unchanged() -> None:
    given = tensors(batch=2)
    given.k[0, :, 20:] = torch.nan
    before = [x.clone() for x in given]
    learning = given.learning()
    mw.attention(*learning, MASKS["padding"], return_lse=True)[1].sum().backward()
    for x, y in zip(learning, before, strict=True):
        torch.testing.assert_close(x.detach(), y, rtol=0, atol=0, equal_nan=True)
