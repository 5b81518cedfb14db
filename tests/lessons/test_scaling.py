"""Why scores are divided by the root of the head size: what happens to them, and to softmax, if not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

SIZES = (4, 16, 64, 256)


def random_scores(head_size: int) -> Tensor:
    """2,000 rows of 8 scores: a random query times 8 random keys, not scaled."""
    chance = torch.Generator().manual_seed(head_size)
    q = torch.randn(2000, 1, head_size, generator=chance, dtype=torch.float64)
    k = torch.randn(2000, 8, head_size, generator=chance, dtype=torch.float64)
    return (q * k).sum(-1)


def weights_of(head_size: int) -> tuple[Tensor, Tensor]:
    """What softmax makes of these scores as they are, and of the scaled ones."""
    scores = random_scores(head_size)
    return scores.softmax(-1), (scores / math.sqrt(head_size)).softmax(-1)


def test_e2_variance_of_scores_is_head_dim() -> None:
    """A sum of head_dim products of variance 1. Divided by the square root, it is 1 again."""
    for size in SIZES:
        scores = random_scores(size)
        assert float(scores.var()) == pytest.approx(size, rel=0.1)
        assert float((scores / math.sqrt(size)).var()) == pytest.approx(1, rel=0.1)


def test_e2_unscaled_softmax_saturates() -> None:
    """The largest of 8 weights: 1/8 would be even. Scaled, it stays near 0.36 at every size.

    Not scaled, it is 0.52 with head_dim 4, and 0.94 with 256.
    """
    for size, sharp in zip(SIZES, (0.52, 0.75, 0.88, 0.94), strict=True):
        weights, scaled = weights_of(size)
        assert float(weights.amax(-1).mean()) == pytest.approx(sharp, abs=0.02)
        assert float(scaled.amax(-1).mean()) == pytest.approx(0.36, abs=0.03)


def test_e2_saturated_softmax_has_small_gradients() -> None:
    """The slope of softmax is w (1 - w): how much a weight changes with its own score.

    Scaled, it is the same at every size. Not scaled, it shrinks, and at 256 a ninth of it
    is left: the "very small gradients" for which the division was brought in.
    """
    answers = [[float((w * (1 - w)).mean()) for w in weights_of(size)] for size in SIZES]
    sharp, soft = zip(*answers, strict=True)
    assert soft == pytest.approx([0.096] * 4, abs=0.005)
    assert list(sharp) == sorted(sharp, reverse=True)
    assert sharp[-1] < soft[-1] / 8
