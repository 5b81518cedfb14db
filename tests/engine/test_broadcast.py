"""q, k and v whose batch, heads or leading dimensions broadcast, as in SDPA."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

import maskwright as mw
from tests._helpers.attention_inputs import BACKENDS

B, H, T, S, D = 3, 4, 5, 6, 8
MASK = mw.causal() & mw.padding(lengths=[2, 4, 6])
IMPLS = [*BACKENDS, ("reference", torch.float64), ("sdpa", torch.float32)]
LEADS = [(B, H), (1, H), (B, 1), (1, 1), (H,), (1,), ()]


def randoms(dtype: torch.dtype, *leads: tuple[int, ...]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [
        torch.randn(*lead, length, D, generator=random).to(dtype).requires_grad_()
        for lead, length in zip(leads, (T, S, S), strict=True)
    ]


def expanded(tensors: list[torch.Tensor], heads: int = H, kv_heads: int = H) -> list[torch.Tensor]:
    q, k, v = tensors
    return [x.expand(B, n, -1, -1) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))]


def assert_equal_results(
    tensors: list[torch.Tensor], out: torch.Tensor, expected: torch.Tensor, **tolerance: Any
) -> None:
    torch.testing.assert_close(out, expected, **tolerance)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    grads = (torch.autograd.grad(x, tensors, grad) for x in (out, expected))
    for ours, right in zip(*grads, strict=True):
        torch.testing.assert_close(ours, right, **tolerance)


@pytest.mark.parametrize(("impl", "dtype"), IMPLS)
def test_sizes_of_one_and_missing_dimensions(impl: str, dtype: torch.dtype) -> None:
    for leads in itertools.product(LEADS, repeat=3):
        if (B, H) not in leads:
            continue
        tensors = randoms(dtype, *leads)
        out = mw.attention(*tensors, MASK, impl=impl)
        assert_equal_results(tensors, out, mw.attention(*expanded(tensors), MASK, impl=impl))


@pytest.mark.parametrize("leads", [((1, H), (B, H), (B, H)), ((B, H), (1, H), (1, H))])
def test_result_is_that_of_sdpa(leads: Any) -> None:
    tensors = randoms(torch.float64, *leads)
    out = mw.attention(*tensors, mw.causal(), q_start=0)
    assert_equal_results(tensors, out, F.scaled_dot_product_attention(*tensors, is_causal=True))
    assert out.shape == (B, H, T, D)


@pytest.mark.parametrize("impl", [impl for impl, dtype in BACKENDS if dtype == torch.float32])
def test_groups_of_heads_broadcast_over_batch(impl: str) -> None:
    for leads in (
        ((1, H), (B, 2), (B, 2)),
        ((B, H), (1, 2), (2,)),
        ((H,), (B, 2), (2,)),
        ((H,), (B, 1), (2,)),
        ((B, H), (B, 2), (1, 1)),
    ):
        tensors = randoms(torch.float32, *leads)
        out = mw.attention(*tensors, MASK, enable_gqa=True, impl=impl)
        whole = expanded(tensors, H, 2)
        assert_equal_results(tensors, out, mw.attention(*whole, MASK, enable_gqa=True, impl=impl))


def test_all_options_and_logsumexp() -> None:
    tensors = randoms(torch.float32, (1, H), (B, H), (B, H))
    options: dict[str, Any] = {"bias": mw.bias.alibi(H), "softcap": 5.0, "return_lse": True}
    out, lse = mw.attention(*tensors, MASK, sinks=torch.zeros(H), **options)
    expected = mw.attention(*expanded(tensors), MASK, sinks=torch.zeros(H), **options)
    assert torch.equal(out, expected[0])
    assert torch.equal(lse, expected[1])


def test_explanation() -> None:
    tensors = randoms(torch.float32, (1, H), (B, H), (H,))
    expected = mw.explain_backend(*expanded(tensors), MASK)
    assert mw.explain_backend(*tensors, MASK) == expected
    shapes = [tuple(x.shape) for x in tensors[:2]]
    assert mw.explain_backend(*shapes, mask=MASK, requires_grad=True) == expected


def test_compiled() -> None:
    tensors = randoms(torch.float32, (H,), (B, H), (1, H))
    torch._dynamo.reset()
    attend = torch.compile(mw.attention, fullgraph=True, backend="aot_eager")
    assert_equal_results(tensors, attend(*tensors, MASK), mw.attention(*tensors, MASK))


def test_vmap() -> None:
    q, k, v = (x.detach() for x in randoms(torch.float32, (2, 1, H), (2, B, H), (2, B, H)))
    out = torch.vmap(lambda q, k, v: mw.attention(q, k, v, mw.causal()))(q, k, v)
    expected = [mw.attention(*x, mw.causal()) for x in zip(q, k, v, strict=True)]
    torch.testing.assert_close(out, torch.stack(expected))


def test_repeated_keys_are_not_copied() -> None:
    """Keys of a batch of 1 take the memory of one sequence."""
    q, k = torch.randn(64, 1, 1, 8), torch.randn(1, 1, 4096, 8)
    with torch.profiler.profile(profile_memory=True) as profile:
        mw.attention(q, k, k, mw.everything())
    allocated = sum(event.self_cpu_memory_usage for event in profile.key_averages())
    assert allocated < k.nbytes * 8


@pytest.mark.parametrize(
    ("leads", "problem"),
    [
        (((2, H), (B, H), (B, H)), "batch sizes differ"),
        (((B, H), (B, 2), (B, 2)), "different numbers of heads.*enable_gqa"),
        (((B, H), (B, H), (2, H)), "batch sizes differ"),
        (((B,), (B,), (B,)), r"q has shape \(3, 5, 8\).*batch, heads"),
        (((2, B, H), (B, H), (B, H)), r"q has shape \(2, 3, 4, 5, 8\)"),
        (((0, H), (B, H), (B, H)), "batch sizes differ"),
    ],
)
def test_other_sizes_are_refused(leads: Any, problem: str) -> None:
    with pytest.raises(mw.ArgumentError, match=problem):
        mw.attention(*randoms(torch.float32, *leads))
