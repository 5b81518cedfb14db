from __future__ import annotations

from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.models.sampling import SamplingParams, sample

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()


def draw(**params: Any) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return [int(sample(LOGITS, SamplingParams(**params), generator)) for _ in range(300)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0, 1, 2, 3}),
        ({"temperature": 0}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"top_k": 99, "top_p": 1.0}, {0, 1, 2, 3}),
    ],
)
def test_the_tokens_that_are_sampled(params: dict[str, Any], expected: set[int]) -> None:
    assert set(draw(**params)) == expected


def test_low_temperature_prefers_the_most_likely_token() -> None:
    assert draw(temperature=0.2).count(0) > 255


@pytest.mark.parametrize("params", [{"temperature": -1}, {"top_k": 0}, {"top_p": 1.5}])
def test_values_out_of_range_raise(params: dict[str, Any]) -> None:
    with pytest.raises(mw.ArgumentError, match=next(iter(params))):
        SamplingParams(**params)
