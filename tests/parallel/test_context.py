"""Attention over processes equals attention in one, and moves exactly what was planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from benchmarks import patterns
from benchmarks.core import document_lengths
from tests.engine.given import MASKS, T
from tests.parallel import jobs
from tests.parallel.jobs import Case, Found
from tests.parallel.pool import JobError
from tests.strategies import masks

if TYPE_CHECKING:
    from tests.parallel.pool import Pool

RANKS = (1, 2, 3, 4)
TIMES = {"out": 2, "dq": 3, "dk": 3, "dv": 3}  # SDPA's own error
IN_BLOCKS = ("bigbird", "random-blocks")  # whose blocks must fill the sequence


def run(pool: Pool, case: Case, ranks: int, lse_counts: bool = True) -> Found:
    """By so many ranks; and what was moved is what the plan says."""
    answers = pool.run(jobs.part, ranks, case, lse_counts)
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


def check_equal(pool: Pool, case: Case, *ranks: int) -> None:
    """In float64 nothing is hidden by rounding: it is what one process gives."""
    alone = jobs.whole(case)
    for count in ranks:
        for name, mine, theirs in zip(Found._fields, run(pool, case, count), alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11, err_msg=name)


def check_near(pool: Pool, case: Case, *ranks: int) -> None:
    """As near to the truth as the engine must be, beside SDPA in the same dtype."""
    right, peer = jobs.judged(case), jobs.judged(case, by_sdpa=True)
    for count in ranks:
        mine = run(pool, case, count, lse_counts=False)
        for name, times in TIMES.items():
            exact = getattr(right, name)
            far, usual = (np.abs(getattr(x, name) - exact).max(initial=0) for x in (mine, peer))
            rounding = 2e-6 * max(1.0, np.abs(exact).max(initial=0))  # parts are summed in float32
            assert far <= times * usual + rounding, (name, count, far, usual)
        seen = np.isfinite(right.lse)
        assert (np.isfinite(mine.lse) == seen).all()
        np.testing.assert_allclose(mine.lse[seen], right.lse[seen], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_every_kind_of_mask(pool: Pool, name: str) -> None:
    batch, heads = MASKS[name].on(T).shape[:2]
    heads = max(2, heads)
    check_equal(pool, Case(name, T, batch, heads, heads, 4, 6, how="chunked"), *RANKS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_every_pattern_of_the_suite(pool: Pool, name: str, dtype: str) -> None:
    tokens = 64 if name in IN_BLOCKS else 49
    frame = patterns.Frame(tokens, tokens, batch=3 if name == "ragged" else 1, heads=4)
    mask = patterns.PATTERNS[name](frame)[0]
    check_near(pool, Case(mask, tokens, frame.batch, 4, 2, 8, 8, dtype), *RANKS)


@pytest.mark.parametrize("name", ["everything", "causal", "padding", "by head", "scattered"])
def test_the_ring(pool: Pool, name: str) -> None:
    batch = MASKS[name].on(T).shape[0]
    check_equal(pool, Case(name, T, batch, 4, 2, 4, 6, exchange="ring"), *RANKS)


def test_the_ring_is_taken_where_everybody_needs_everything(pool: Pool) -> None:
    for mask, rings in ((mw.everything(), True), (mw.window(back=3), False)):
        case = Case(mask, 26, exchange="auto")
        layout = case.layout(4)
        for rank, (_, _, back) in enumerate(pool.run(jobs.part, 4, case)):
            # On a ring keys go round once more, before their gradients.
            assert (back[0] > layout.bytes_in[rank]) == rings


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any mask, on any number of tokens, also fewer than ranks."""
    tokens, batch = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 2)]))
    mask = draw(masks(mw.Frame(tokens, tokens, batch, heads, 0), depth=4, code=False))
    return Case(
        *(mask, tokens, batch, heads, kv_heads, 4, draw(st.sampled_from([4, 3]))),
        dtype=draw(st.sampled_from(["float32", "float32", "bfloat16", "float64"])),
        how=draw(st.sampled_from(["auto", "contiguous", "zig-zag", "even", "levelled", "chunked"])),
        exchange=draw(st.sampled_from(["ranges", "ranges", "ring"])),
    )


@pytest.mark.parametrize("_share", range(2))
def test_any_mask(pool: Pool, _share: int) -> None:
    @given(case=cases(), ranks=st.sampled_from(RANKS))
    @settings(max_examples=100, deadline=None)
    def check(case: Case, ranks: int) -> None:
        (check_equal if case.dtype == "float64" else check_near)(pool, case, ranks)

    check()


@pytest.mark.parametrize("ranks", [1, 4])
def test_no_token_at_all(pool: Pool, ranks: int) -> None:
    check_equal(pool, Case(mw.causal(), 0), ranks)


@pytest.mark.parametrize("name", ["window", "documents"])
def test_near_masks_move_little_of_what_a_ring_does(pool: Pool, name: str) -> None:
    tokens = 16_384
    mask = {
        "window": mw.recipes.sliding(256),
        "documents": mw.recipes.packed(lengths=[document_lengths(tokens, tokens // 512)]),
    }[name]
    case = Case(mask, tokens, heads=1, kv_heads=1, dtype="float32")
    run(pool, case, 4)  # moves what the layout says, to the byte
    moved = int(case.layout(4).bytes_in.sum())
    assert 0 < moved <= 0.15 * case.key_bytes * 3 * tokens


def test_masks_that_differ_are_refused_on_every_rank(pool: Pool) -> None:
    one, other = Case(mw.causal(), 12, how="contiguous"), Case(mw.window(2), 12, how="contiguous")
    with pytest.raises(JobError) as error:
        pool.run_each(jobs.part, [(one,), (one,), (other,)])
    for said in error.value.said:
        assert said is not None
        assert said.startswith("ArgumentError: Rank 2 has another mask")
    check_equal(pool, one, 3)  # nobody is left behind


def test_one_rank_that_is_given_nonsense_stops_all(pool: Pool) -> None:
    good = Case(mw.causal(), 12, how="contiguous")
    with pytest.raises(JobError) as error:
        pool.run_each(jobs.part, [(good,), (good._replace(kv_heads=3),)])
    first, second = error.value.said
    assert first is not None
    assert second is not None
    assert first.startswith("ArgumentError: Rank 1 refuses")
    assert "heads" in second.splitlines()[0]
    check_equal(pool, good, 2)


@pytest.mark.parametrize("name", ["causal", "by head", "padding", "scattered"])
def test_by_heads(pool: Pool, name: str) -> None:
    batch = MASKS[name].on(T).shape[0]
    case = Case(name, T, batch, 4, 2, 4, 6)
    alone = jobs.whole(case, lse_counts=False)
    for ranks in RANKS:
        parts = pool.run(jobs.part_by_heads, ranks, case)
        _equal(jobs.joined(parts, case.layout(ranks)), alone)


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
