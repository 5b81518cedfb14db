"""Attention over processes equals attention in one, and moves exactly what was planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from benchmarks.core import document_lengths
from maskwright import Frame
from tests.engine.given import MASKS, T
from tests.parallel import jobs
from tests.parallel.jobs import Case, Found
from tests.parallel.pool import JobError
from tests.strategies import masks

if TYPE_CHECKING:
    from tests.parallel.pool import Pool

CLOSE = {"float64": 1e-11, "float32": 3e-5}


def run(pool: Pool, case: Case, ranks: int) -> Found:
    """By so many ranks; and what was moved is what the plan says."""
    answers = pool.run(jobs.part, ranks, case)
    layout = case.layout(ranks)
    precise = max(4, getattr(torch, case.dtype).itemsize)  # halves come back in float32
    grown = precise // getattr(torch, case.dtype).itemsize
    for rank, (_, there, back) in enumerate(answers):
        if case.exchange == "ring":
            size, rows = case.key_bytes, layout.rows
            sent, got = size * layout.ring_out[rank], size * layout.ring_in[rank]
            assert there == (sent, got)
            if ranks > 1:  # keys go round once more, and their gradients behind them
                sent += size * grown * (case.tokens - rows[rank])
                got += size * grown * (case.tokens - rows[rank - 1])
            assert back == (sent, got)
            continue
        assert there == (layout.bytes_out[rank], layout.bytes_in[rank])
        assert back == (layout.bytes_in[rank] * grown, layout.bytes_out[rank] * grown)
    return jobs.joined([answer[0] for answer in answers], layout)


def check(pool: Pool, case: Case, ranks: int) -> None:
    for name, mine, theirs in zip(
        Found._fields, run(pool, case, ranks), jobs.whole(case), strict=True
    ):
        limit = CLOSE[case.dtype]
        np.testing.assert_allclose(mine, theirs, rtol=limit, atol=limit, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MASKS)
def test_every_kind_of_mask(pool: Pool, name: str, ranks: int) -> None:
    batch, heads = MASKS[name].on(T).shape[:2]
    heads = max(2, heads)
    for dtype, how in (("float64", "chunked"), ("float32", "auto")):
        check(pool, Case(name, T, batch, heads, heads, 4, 6, dtype, how), ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["everything", "causal", "padding", "by head", "scattered"])
def test_the_ring(pool: Pool, name: str, ranks: int) -> None:
    batch = MASKS[name].on(T).shape[0]
    check(pool, Case(name, T, batch, 4, 2, 4, 6, exchange="ring"), ranks)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any mask, on any number of tokens, also fewer than ranks."""
    tokens, batch = draw(st.integers(0, 40)), draw(st.integers(1, 3))
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 2)]))
    mask = draw(masks(Frame(tokens, tokens, batch, heads, 0), depth=4, code=False))
    how = draw(st.sampled_from(["auto", "contiguous", "zig-zag", "even", "levelled", "chunked"]))
    return Case(mask, tokens, batch, heads, kv_heads, 4, draw(st.sampled_from([4, 3])), how=how)


@given(case=cases(), ranks=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_any_mask(pool: Pool, case: Case, ranks: int) -> None:
    check(pool, case, ranks)


@pytest.mark.parametrize("name", ["causal", "window", "sinks", "padding", "nothing"])
def test_bfloat16_is_as_near_to_the_truth_as_in_one_process(pool: Pool, name: str) -> None:
    batch = MASKS[name].on(T).shape[0]
    case = Case(name, T, batch, 4, 2, 16, 16, "bfloat16")
    truth = jobs.whole(case, dtype=torch.float64)
    for label, mine, theirs, right in zip(
        Found._fields, run(pool, case, 3), jobs.whole(case), truth, strict=True
    ):
        seen = np.isfinite(right)
        assert (np.isfinite(mine) == seen).all()
        far, usual = (np.abs(x[seen] - right[seen]).max(initial=0) for x in (mine, theirs))
        assert far <= 1.5 * usual + 1e-6, label


@pytest.mark.parametrize("name", ["window", "documents"])
def test_near_masks_move_little_of_what_a_ring_does(pool: Pool, name: str) -> None:
    mask = {
        "window": mw.window(back=31),
        "documents": mw.recipes.packed(lengths=[document_lengths(16_384, 32)]),
    }[name]
    case = Case(mask, 16_384, heads=1, kv_heads=1)
    answers = pool.run(jobs.part, 4, case)
    moved = sum(there[1] for _, there, _ in answers)
    assert 0 < moved <= 0.15 * case.key_bytes * 3 * 16_384


def test_masks_that_differ_are_refused_on_every_rank(pool: Pool) -> None:
    one, other = Case(mw.causal(), 12, how="contiguous"), Case(mw.window(2), 12, how="contiguous")
    with pytest.raises(JobError) as error:
        pool.run_each(jobs.part, [(one,), (one,), (other,)])
    for said in error.value.said:
        assert said is not None
        assert said.startswith("ArgumentError: Rank 2 has another mask")
    check(pool, one, 3)  # nobody is left behind


def test_one_rank_that_is_given_nonsense_stops_all(pool: Pool) -> None:
    good = Case(mw.causal(), 12, how="contiguous")
    with pytest.raises(JobError) as error:
        pool.run_each(jobs.part, [(good,), (good._replace(kv_heads=3),)])
    first, second = error.value.said
    assert first is not None
    assert second is not None
    assert first.startswith("ArgumentError: Rank 1 refuses")
    assert "heads" in second.splitlines()[0]
    check(pool, good, 2)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["causal", "by head", "padding", "scattered"])
def test_by_heads(pool: Pool, name: str, ranks: int) -> None:
    batch = MASKS[name].on(T).shape[0]
    case = Case(name, T, batch, 4, 2, 4, 6)
    parts = pool.run(jobs.part_by_heads, ranks, case)
    _equal(jobs.joined(parts, case.layout(ranks)), jobs.whole(case, lse_counts=False))


@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("name", ["causal", "by head", "padding"])
def test_on_a_grid(pool: Pool, name: str, shape: tuple[int, int]) -> None:
    batch = MASKS[name].on(T).shape[0]
    case = Case(name, T, batch, 4, 2, 4, 6)
    parts = pool.run(jobs.part_on_a_grid, 4, case, *shape)
    layout = jobs.split_layout(case.layout(shape[0]), shape[1])
    _equal(jobs.joined(parts, layout), jobs.whole(case, lse_counts=False))


def _equal(mine: Found, theirs: Found) -> None:
    """All but the logsumexp, which is not given."""
    for name in ("out", "dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), 1e-11, 1e-11)
