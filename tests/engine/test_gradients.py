"""Gradients equal finite differences, and are bit-identical from run to run.

The gradients of the C kernel are compared with float64 in tests/engine/backends/test_native.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from tests._helpers.attention_inputs import HAS_KERNEL, MASKS, T, sizes_of, tensors
from tests._helpers.strategies import bind, cases

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 20


@settings(max_examples=80)
@given(
    case=cases(),
    shared=st.booleans(),
    dims=st.sampled_from([(3, 3), (2, 5), (4, 1)]),
    dropout_p=st.sampled_from([0.0, 0.0, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_gradients_are_finite_differences(
    case: Any, shared: bool, dims: tuple[int, int], dropout_p: float, seed: int
) -> None:
    frame = case[1]
    given = tensors(
        batch=frame.batch,
        heads=frame.heads,
        q_len=frame.q_len,
        kv_len=frame.kv_len,
        kv_heads=1 if shared else None,
        dim=dims[0],
        value_dim=dims[1],
        seed=seed,
    ).learning()
    bound = bind(*case)

    def attend(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(seed)
        options: Any = {"enable_gqa": True, "return_lse": True, "dropout_p": dropout_p}
        out, lse = mw.attention(*given, bound, **options)
        return out, lse.masked_fill(lse.isinf(), 0.0)  # the difference of two -inf is NaN

    assert torch.autograd.gradcheck(attend, tuple(given), fast_mode=True)


@pytest.mark.parametrize("wanted", [("q",), ("k",), ("v",), ("q", "v")])
def test_only_requested_ones_gets_gradient(wanted: tuple[str, ...]) -> None:
    given = tensors()
    for name in wanted:
        getattr(given, name).requires_grad_()
    mw.attention(*given, mw.causal()).square().sum().backward()
    everything = given.learning()
    mw.attention(*everything, mw.causal()).square().sum().backward()
    for name in ("q", "k", "v"):
        found, right = getattr(given, name).grad, getattr(everything, name).grad
        assert (found is None) == (name not in wanted)
        assert found is None or torch.equal(found, right)


@pytest.mark.parametrize("mask", [mw.causal(), mw.window(back=3)])
def test_logsumexp_alone_has_gradient(mask: mw.Mask) -> None:
    given = tensors().learning()
    _, lse = mw.attention(*given, mask, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse.sum(), given, materialize_grads=True)
    # Its derivative by the scores is the weights, so by q it is the weighted mean of the keys.
    mean = mw.attention(given.q, given.k, given.k, mask)
    torch.testing.assert_close(dq, mean.detach() / 2)
    assert dk.any()
    assert not dv.any()


def test_second_derivative_is_rejected_and_never_taken_for_zero() -> None:
    given = tensors(q_len=3).learning()

    def loss(q: torch.Tensor) -> torch.Tensor:
        return mw.attention(q, given.k, given.v, mw.causal()).square().sum()

    (dq,) = torch.autograd.grad(loss(given.q), given.q, create_graph=True)
    with pytest.raises(mw.Unsupported, match=r'differentiable once\. Pass impl="reference"'):
        dq.sum().backward()
    with pytest.raises(mw.Unsupported, match="differentiable once"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q).sum())(given.q.detach())


def test_reference_has_second_derivative() -> None:
    given = tensors(q_len=3, dim=2).learning()

    def attend(*given: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = mw.attention(*given, mw.causal(), impl="reference")
        return out

    assert torch.autograd.gradgradcheck(attend, tuple(given))


@pytest.fixture(params=[False, True], ids=["as usual", "deterministic"])
def deterministic(request: pytest.FixtureRequest) -> Iterator[None]:
    # Torch then fills what is allocated but not written with NaN, too.
    torch.use_deterministic_algorithms(request.param)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads, 2))
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("impl", ["native", "blocks"] if HAS_KERNEL else ["blocks"])
@pytest.mark.parametrize("name", ["causal", "window", "sinks", "dilated", "scattered", "by head"])
def test_every_run_gives_same_bits(name: str, impl: str) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, dtype=torch.float32).learning()
    found = []
    for _ in range(RUNS):
        bound = MASKS[name].on(T, **sizes)
        out, lse = mw.attention(*given, bound, enable_gqa=True, return_lse=True, impl=impl)
        grads = torch.autograd.grad(out.square().sum(), given)
        found.append((out.detach(), lse.detach(), *grads))
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others, strict=True))
    assert all(x.isfinite().all() for x in found[0][2:])
