"""What is kept of tensors, and when it is read again."""

from __future__ import annotations

import torch

from maskwright.integrations.tensor_cache import TensorCache


def count_calls(cache: TensorCache, x: torch.Tensor, *states: object) -> int:
    calls = 0

    def compute() -> int:
        nonlocal calls
        calls += 1
        return calls

    for state in states:
        assert cache.get(x, state, compute) == calls
    return calls


def test_computed_once_for_a_state() -> None:
    assert count_calls(TensorCache(), torch.zeros(2), (1, 2), (1, 2)) == 1
    assert count_calls(TensorCache(), torch.zeros(2), (1, 2), (1, 3), (1, 2)) == 3


def test_computed_again_after_a_write() -> None:
    cache, x = TensorCache(), torch.zeros(2)
    assert count_calls(cache, x, ()) == 1
    x.fill_(1)
    assert count_calls(cache, x, ()) == 1


def test_none_is_a_value() -> None:
    cache, x = TensorCache(), torch.zeros(2)
    assert cache.get(x, (), lambda: None) is None
    assert cache.get(x, (), lambda: 1) is None  # type: ignore[arg-type, return-value]


def test_tensor_is_not_kept_alive() -> None:
    cache = TensorCache()
    cache.get(torch.zeros(2), (), lambda: 1)
    assert len(cache._values) == 0
