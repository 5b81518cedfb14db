"""Masked softmax, masked products and the merge by logsumexp, against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.engine.softmax import masked_matmul, masked_scores, masked_softmax, merge

NAN, INF = math.nan, math.inf


def softmax_by_loops(scores: Any, visible: Any) -> tuple[Any, Any]:
    weights, lse = np.zeros(scores.shape), np.full(len(scores), -INF)
    for i, row in enumerate(scores):
        seen = [j for j in range(len(row)) if visible[i, j]]
        m = max((row[j] for j in seen), default=-INF)
        if any(math.isnan(row[j]) for j in seen):
            lse[i] = weights[i, seen] = NAN
        elif m == INF:
            lse[i], weights[i, seen] = INF, NAN
        elif m > -INF:
            lse[i] = m + math.log(sum(math.exp(row[j] - m) for j in seen))
            weights[i, seen] = [math.exp(row[j] - lse[i]) for j in seen]
    return weights, lse


@settings(max_examples=100)
@given(rows=st.integers(0, 4), keys=st.integers(0, 5), seed=st.integers(0, 2**31))
def test_masked_softmax(rows: int, keys: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.normal(size=(rows, keys)) * 3
    special = random.choice([NAN, INF, -INF], size=scores.shape)
    scores = np.where(random.random(scores.shape) < 0.15, special, scores)
    visible = random.random(scores.shape) < 0.6
    weights, lse = softmax_by_loops(scores, visible)
    finite = np.isfinite(lse) | (lse == -INF)
    for convert in (np.asarray, torch.from_numpy):
        found, found_lse = masked_softmax(convert(scores), convert(visible))
        np.testing.assert_allclose(np.asarray(found_lse), lse)
        np.testing.assert_allclose(np.asarray(found)[finite], weights[finite], atol=1e-15)
        assert np.isnan(np.asarray(found)[~finite]).any(axis=-1).all()


@settings(max_examples=100)
@given(
    sizes=st.tuples(*[st.integers(0, 4)] * 3),
    seed=st.integers(0, 2**31),
    share=st.sampled_from([0.0, 0.2]),
)
def test_masked_products(sizes: tuple[int, int, int], seed: int, share: float) -> None:
    rows, keys, dim = sizes
    random = np.random.default_rng(seed)

    def fresh(*shape: int) -> Any:
        special = random.choice([NAN, INF, -INF], size=shape)
        return np.where(random.random(shape) < share, special, random.normal(size=shape))

    a, b, x, y = fresh(rows, keys), fresh(keys, dim), fresh(rows, dim), fresh(keys, dim)
    visible = random.random((rows, keys)) < 0.5
    product, scores = np.zeros((rows, dim)), np.zeros((rows, keys))
    with np.errstate(invalid="ignore"):
        for i, j in zip(*np.nonzero(visible), strict=True):
            product[i] += a[i, j] * b[j]
            scores[i, j] = (x[i] * y[j]).sum()
    a, b, x, y, visible = (torch.from_numpy(z) for z in (a, b, x, y, visible))
    np.testing.assert_allclose(masked_matmul(a, b, visible), product, atol=1e-12)
    np.testing.assert_allclose(masked_scores(x, y, visible), scores, atol=1e-12)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
def test_masked_products_are_differentiable_twice() -> None:
    torch.manual_seed(0)
    a, b, x, y = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 4), (4, 2), (3, 2), (4, 2))
    )
    visible = torch.rand(3, 4) < 0.6
    for function, operands in ((masked_matmul, (a, b)), (masked_scores, (x, y))):

        def run(*z: torch.Tensor, function: Any = function) -> Any:
            return function(*z, visible)

        assert torch.autograd.gradcheck(run, operands, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(run, operands)


@pytest.mark.parametrize("split", [0, 1, 3, 6])
def test_merge_equals_one_softmax(split: int) -> None:
    torch.manual_seed(0)
    scores, v = torch.randn(2, 5, 6, dtype=torch.float64), torch.randn(2, 6, 3, dtype=torch.float64)
    visible = torch.rand(2, 5, 6) < 0.5
    visible[0, 0] = False

    def attend(keys: slice) -> Any:
        weights, lse = masked_softmax(scores[..., keys], visible[..., keys])
        return weights @ v[:, keys], lse

    out, lse = merge(attend(slice(0, split)), attend(slice(split, 6)))
    right, right_lse = attend(slice(0, 6))
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(lse, right_lse)
