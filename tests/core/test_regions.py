"""Closed-form counts, compared with enumeration and at sizes that only a formula can count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.core import regions
from maskwright.core.regions import Region

N = 2**31 - 1  # tokens


@st.composite
def rectangles(draw: st.DrawFn) -> np.ndarray:
    ends = [sorted((draw(st.integers(-5, 30)), draw(st.integers(-5, 30)))) for _ in range(2)]
    return np.array([[*ends[0], *ends[1]]])


@st.composite
def random_regions(draw: st.DrawFn) -> Region:
    step = draw(st.integers(1, 7))
    return Region(
        draw(st.integers(-12, 12)),
        draw(st.integers(-12, 20)),
        step,
        draw(st.integers(0, step - 1)),
        draw(st.sampled_from([0, 0, 1, 2, 5])),
        draw(st.none() | rectangles()),
    )


def contains(region: Region, q: int, k: int) -> bool:
    inside = region.rectangles is None or any(
        a <= q < b and c <= k < d for a, b, c, d in region.rectangles.tolist()
    )
    return (
        inside
        and region.low <= q - k <= region.high
        and (q - k) % region.step == region.phase
        and (not region.chunk or q // region.chunk == k // region.chunk)
    )


@given(random_regions(), st.integers(0, 24), st.integers(0, 24), st.integers(-6, 12))
def test_count_is_number_of_cells(region: Region, q_len: int, kv_len: int, start: int) -> None:
    cells = [(q, k) for q in range(start, start + q_len) for k in range(kv_len)]
    want = sum(contains(region, q, k) for q, k in cells)
    assert regions.count(region, q_len, kv_len, start) == want


@given(random_regions(), random_regions())
def test_intersection_is_that_of_cells(one: Region, other: Region) -> None:
    found = regions.intersection([regions.single(one), regions.single(other)])
    if found is None:
        assert one.chunk % max(other.chunk, 1) or other.chunk % max(one.chunk, 1)
        return
    cells = [(q, k) for q in range(20) for k in range(20)]
    want = sum(contains(one, q, k) and contains(other, q, k) for q, k in cells)
    assert sum(sign * regions.count(region, 20, 20) for sign, region in found) == want


CLOSED = {
    "everything": (mw.everything(), N * N),
    "causal": (mw.causal(), N * (N + 1) // 2),
    "window": (mw.window(back=9), 10 * N - 45),
    "stride": (mw.stride(2), (N // 2 + 1) ** 2 + (N // 2) ** 2),
    "not stride": (~mw.stride(2), 2 * (N // 2) * (N // 2 + 1)),
    "causal stride": (mw.causal() & mw.stride(N - 1), N + 1),
    "two strides": (mw.stride(2) & mw.stride(3, 1) & mw.window(back=3, ahead=3), N - 2),
    "huge stride": (mw.stride(2**61, 1), N - 1),
    "huge strides": (mw.stride(2**61 - 1) & mw.stride(2**61), N),
    "chunks": (mw.chunks(2), 2 * N - 1),
    "one chunk": (mw.chunks(2**61), N * N),
    "causal chunks": (mw.causal() & mw.chunks(3), N // 3 * 6 + 1),
    "prefix": (mw.causal() | mw.prefix(2), N * (N + 1) // 2 + 1),
    "keys": (mw.keys(range(10)) & mw.causal(), 10 * N - 45),
    "queries": (mw.queries([0, N - 1]) & ~mw.causal(), N - 1),
    "padding": (mw.padding(lengths=[1, 3]) & mw.causal(), N + 3 * N - 3),
    "documents": (mw.documents(lengths=[[N - 2, 2]]), (N - 2) ** 2 + 4),
    "heads": (mw.by_head([mw.causal(), mw.stride(N)]), N * (N + 1) // 2 + N),
    "transposed": (mw.prefix(2).T | mw.causal(), N * (N + 1) // 2 + 2 * N - 3),
    "padding of both": (mw.padding(lengths=[N - 1]) & mw.padding(lengths=[N - 1]).T, (N - 1) ** 2),
    "chunks of documents": (mw.documents(lengths=[[5] * 1000]) & mw.chunks(2), 9000),
    "no member": (mw.stride(2**61, 2**40), 0),
}


@pytest.mark.parametrize("name", CLOSED)
def test_count_of_two_billion_tokens(name: str) -> None:
    mask, count = CLOSED[name]
    bound = mask.on(N)
    assert bound.count() == count
    assert math.isclose(bound.density, count / bound.frame.cells)
