"""The cache of a bound mask: computed once, by whichever thread asks first, and never copied."""

from __future__ import annotations

import copy
import pickle
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import maskwright as mw
from maskwright.core import evaluate, operators


def test_value_is_computed_once() -> None:
    bound, calls = mw.causal().on(4), []
    for _ in range(3):
        assert bound.cached("answer", lambda: calls.append(1) or len(calls)) == 1
    assert bound.cached("nothing", lambda: calls.append(2)) is None  # None is a value, too
    assert bound.cached("nothing", lambda: 1 / 0) is None
    assert calls == [1, 2]
    assert bound.has_cached("answer")
    assert not bound.has_cached("question")


def test_one_value_may_be_computed_from_another() -> None:
    bound = mw.causal().on(4)

    def outer() -> int:
        return bound.cached("inner", lambda: bound.spans.cells()) + 1

    assert bound.cached("outer", outer) == 11
    assert bound.cached("inner", lambda: 0) == 10


def test_failures_are_not_cached() -> None:
    bound = mw.causal().on(4)
    with pytest.raises(ZeroDivisionError):
        bound.cached("value", lambda: 1 // 0)
    assert bound.cached("value", lambda: 7) == 7


def test_threads_share_one_computation_per_key() -> None:
    bound, calls, start = (mw.causal() & mw.padding(lengths=[3, 4])).on(4), Counter(), Barrier(16)

    def make(key: int) -> object:
        calls[key] += 1
        time.sleep(0.001)
        return object()

    def use(_: int) -> list[object]:
        start.wait()
        return [bound.cached(key % 20, lambda key=key: make(key % 20)) for key in range(200)]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(use, range(16)))
    assert calls == Counter(range(20))
    assert all(
        one is other for values in found for one, other in zip(values, found[0], strict=True)
    )


@pytest.mark.parametrize(
    "same", [copy.copy, copy.deepcopy, lambda bound: pickle.loads(pickle.dumps(bound))]
)
def test_copies_have_empty_cache(same: object) -> None:
    bound = mw.causal().on(6).rows(1, 4)
    spans = bound.spans
    bound.cached("unpicklable", lambda: lambda: None)
    other = same(bound)  # type: ignore[operator]
    assert other == bound
    assert not other.has_cached("unpicklable")
    assert not other.has_cached("spans")
    assert other.spans == spans
    assert other.frame == bound.frame
    assert other.shape == bound.shape


def test_part_takes_spans_that_are_known() -> None:
    whole = (mw.causal() & mw.chunks(3)).on(8)
    assert not whole.rows(2, 5).has_cached("spans")
    whole.spans  # noqa: B018 - computed
    part = whole.rows(2, 5, kv_len=6)
    assert part.has_cached("spans")
    assert np.array_equal(part.dense(), whole.dense()[:, :, 2:5, :6])


def test_rows_that_are_evaluated_in_pieces_keep_all_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_INTERVALS", 1)
    monkeypatch.setattr(evaluate, "MIN_KEYS", 1)
    monkeypatch.setattr(operators, "MAX_CHEAP_INTERVALS", 0)
    bound = (~(mw.nothing() & mw.by_head([mw.stride(2), mw.stride(3)]))).on(3)
    assert bound.spans.shape == (1, 2, 3)
    assert bound.count() == bound.dense().sum() == 18
