"""Dropout: a weight is dropped, or multiplied by 1 / (1 - p), as drawn from torch's seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

import maskwright as mw
from maskwright.engine.reference import reference
from tests._helpers.attention_inputs import BACKENDS, HAS_KERNEL, MASKS, T, sizes_of, tensors


def weights_of(
    bound: mw.BoundMask, dropout_p: float, dtype: torch.dtype, seed: int, impl: str = "auto"
) -> Any:
    """The weights after dropout, which are the output for values that are unit vectors."""
    batch, heads = max(bound.shape[0], 1), max(bound.shape[1], 2)
    q, k, _ = tensors(batch=batch, heads=heads, dtype=dtype)
    each = torch.eye(T, dtype=dtype).expand(batch, heads, T, T)
    torch.manual_seed(seed)
    found = mw.attention(q, k, each, bound, dropout_p=dropout_p, impl=impl)
    return found, reference(q, k, each, bound).weights.to(dtype)


@pytest.mark.parametrize(("impl", "dtype"), BACKENDS)
@pytest.mark.parametrize("name", MASKS)
def test_weight_is_dropped_or_scaled(name: str, impl: str, dtype: torch.dtype) -> None:
    found, weights = weights_of(MASKS[name].on(T, **sizes_of(name)), 0.25, dtype, 3, impl)
    kept = found != 0
    torch.testing.assert_close(found, torch.where(kept, weights / 0.75, 0.0))
    seen = weights > 0
    if seen.sum() > 1000:
        assert abs(float((seen & ~kept).sum() / seen.sum()) - 0.25) < 0.06


def test_weights_are_dropped_one_by_one() -> None:
    """No two heads, sequences or blocks of rows have the same dropout mask."""
    bound = (mw.chunks(8)).on(T, batch=2, heads=2)
    q, k, _ = tensors(batch=2)
    torch.manual_seed(0)
    each = torch.eye(T, dtype=q.dtype).expand(2, 2, T, T)
    kept = mw.attention(q, k, each, bound, dropout_p=0.5) != 0
    rows = torch.stack([kept[..., i * 8 : i * 8 + 8, i * 8 : i * 8 + 8] for i in range(6)])
    blocks = rows.flatten(0, 2).flatten(1)
    assert len({tuple(block.tolist()) for block in blocks}) == len(blocks)


@pytest.mark.parametrize(("impl", "dtype"), BACKENDS)
def test_seed_decides(impl: str, dtype: torch.dtype) -> None:
    given = tensors(dtype=dtype)

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        out: torch.Tensor = mw.attention(*given, MASKS["window"].on(T), dropout_p=0.5, impl=impl)
        return out

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    torch.manual_seed(1)
    first, second = (mw.attention(*given, mw.causal(), dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first, second)


def test_without_dropout_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    mw.attention(*tensors(), mw.causal(), dropout_p=0.0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("impl", "dtype"), [*BACKENDS, ("sdpa", torch.float32)])
def test_probability_of_one_leaves_no_weight(impl: str, dtype: torch.dtype) -> None:
    qkv = tensors(dtype=dtype).learning()
    lse_too = impl != "sdpa"
    result = mw.attention(*qkv, mw.causal(), dropout_p=1.0, impl=impl, return_lse=lse_too)
    out, *lse = result if lse_too else (result,)
    assert not out.any()
    for grad in torch.autograd.grad(out, qkv, torch.randn_like(out), retain_graph=True):
        assert not grad.any()
    if lse_too:
        _, expected = mw.attention(*qkv, mw.causal(), impl=impl, return_lse=True)
        assert torch.equal(lse[0], expected)
        grads = (torch.autograd.grad(x.sum(), (qkv.q, qkv.k)) for x in (lse[0], expected))
        assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_probability_of_one_in_graphs_transforms_and_numpy() -> None:
    qkv = tensors(dtype=torch.float32).learning()
    torch._dynamo.reset()
    attend = torch.compile(mw.attention, fullgraph=True, backend="aot_eager")
    out = attend(*qkv, mw.causal(), dropout_p=1.0)
    assert not out.any()
    assert not any(grad.any() for grad in torch.autograd.grad(out.sum(), qkv))
    plain = [x.detach() for x in qkv]
    grad = torch.func.grad(lambda q: mw.attention(q, *plain[1:], dropout_p=1.0).sum())(plain[0])
    assert not grad.any()
    if HAS_KERNEL:
        assert not mw.attention(*(x.numpy() for x in plain), dropout_p=1.0).any()
    x = torch.randn(2, 3, 4, 8)
    assert not F.scaled_dot_product_attention(x, x, x, mw.causal(), dropout_p=1.0).any()
