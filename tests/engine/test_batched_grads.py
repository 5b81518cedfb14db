"""Gradients in batches, by PyTorch's older vmap: `is_grads_batched`, `jacobian(vectorize=True)`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

import maskwright as mw
from tests._helpers.attention_inputs import BACKEND_NAMES, Tensors, tensors

BACKENDS = [*BACKEND_NAMES, "reference", "sdpa"]
MASKS = [
    mw.causal(),
    mw.causal() & mw.padding(lengths=[2, 5]),
    mw.by_head([mw.causal(), mw.window(back=1)]),
]


def five_rows(impl: str) -> Tensors:
    dtype = torch.float32 if impl == "native" else torch.float64
    return tensors(batch=2, q_len=5, dtype=dtype)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("impl", BACKENDS)
def test_vectorized_jacobian(impl: str, mask: mw.Mask) -> None:
    given = tuple(five_rows(impl))

    def run(*x: Any) -> Any:
        return mw.attention(*x, mask, impl=impl)

    torch.testing.assert_close(jacobian(run, given, vectorize=True), jacobian(run, given))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
def test_vectorized_jacobian_of_tangents() -> None:
    given = tuple(five_rows("reference"))

    def run(*x: Any) -> Any:
        return mw.attention(*x, mw.causal(), impl="reference")

    found = jacobian(run, given, vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(found, jacobian(run, given))


@pytest.mark.parametrize("results", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("impl", [*BACKEND_NAMES, "reference"])
def test_batched_gradients_of_all_inputs(impl: str, results: tuple[int, ...]) -> None:
    given = five_rows(impl).learning()
    dtype = given.q.dtype
    bias = torch.randn(2, 1, 5, 5, dtype=dtype, requires_grad=True)
    sinks = torch.randn(2, dtype=dtype, requires_grad=True)
    both = mw.attention(
        *(*given, mw.causal()), bias=bias, sinks=sinks, softcap=3.0, impl=impl, return_lse=True
    )
    outs = [both[n] for n in results]
    grads = [torch.randn(3, *x.shape, dtype=x.dtype) for x in outs]
    inputs = (*given, bias, sinks)
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    found = torch.autograd.grad(outs, inputs, grads, is_grads_batched=True, **options)
    each = [torch.autograd.grad(outs, inputs, [g[n] for g in grads], **options) for n in range(3)]
    for batched, *plain in zip(found, *each, strict=True):
        if batched is None:
            assert plain == [None] * 3
        else:
            torch.testing.assert_close(batched, torch.stack(plain))


@pytest.mark.parametrize("impl", ["blocks", "reference", "sdpa"])
def test_gradcheck_of_batches(impl: str) -> None:
    given = five_rows(impl).learning()
    run = lambda *x: mw.attention(*x, mw.causal(), impl=impl)  # noqa: E731
    assert torch.autograd.gradcheck(run, tuple(given), check_batched_grad=True)


def test_second_derivatives_of_batches() -> None:
    given = tuple(five_rows("reference"))
    run = lambda *x: mw.attention(*x, mw.causal(), impl="reference").sin().sum()  # noqa: E731
    torch.testing.assert_close(hessian(run, given, vectorize=True), hessian(run, given))
    assert torch.autograd.gradgradcheck(
        lambda *x: mw.attention(*x, mw.causal(), impl="reference"),
        tuple(Tensors(*given).learning()),
        check_batched_grad=True,
    )


@pytest.mark.parametrize("impl", BACKEND_NAMES)
def test_second_derivatives_of_batches_are_refused(impl: str) -> None:
    given = five_rows(impl).learning()
    out = mw.attention(*given, mw.causal(), impl=impl)
    grads = torch.ones(2, *out.shape, dtype=out.dtype)
    found = torch.autograd.grad(out, given, grads, is_grads_batched=True, create_graph=True)
    with pytest.raises(mw.Unsupported, match='impl="reference"'):
        torch.autograd.grad(found[0].sum(), given)
