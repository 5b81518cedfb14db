"""Attention over ranks equals attention in one process, and moves the bytes of its layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from benchmarks import patterns
from tests._helpers import parallel_attention
from tests._helpers.attention_inputs import MASKS, T
from tests._helpers.parallel_attention import Case, Result
from tests._helpers.process_pool import JobError
from tests._helpers.sampling import ALL, subset_of_cases
from tests._helpers.strategies import masks

if TYPE_CHECKING:
    from tests._helpers.process_pool import Pool

RANKS = (1, 2, 3, 4)
TOLERANCE = {"out": 2, "dq": 3, "dk": 3, "dv": 3}  # times the error of SDPA
BLOCK_PATTERNS = ("bigbird", "random-blocks")  # whose blocks must fill the sequence


def run(pool: Pool, case: Case, ranks: int, with_lse: bool = True) -> Result:
    """The result over ranks, which exchange the bytes of the layout."""
    results = pool.run(parallel_attention.context_parallel, ranks, case, with_lse)
    layout, size = case.layout(ranks), case.key_bytes
    item = getattr(torch, case.dtype).itemsize
    grad_size = size * max(4, item) // item  # half precision has float32 gradients
    for rank, (_, forward, backward) in enumerate(results):
        if case.exchange == "ring":
            rows, following = layout.rows, int(np.roll(layout.rows, -1)[rank])
            sent, received = size * (case.tokens - following), size * (case.tokens - rows[rank])
            assert forward == (sent, received)
            if ranks > 1:  # keys circulate again, and their gradients follow them
                sent += grad_size * (case.tokens - rows[rank])
                received += grad_size * (case.tokens - rows[rank - 1])
            assert backward == (sent, received)
        else:
            assert forward == (layout.bytes_out[rank], layout.bytes_in[rank])
            assert backward == (grad_size * layout.keys_in[rank], grad_size * layout.keys_out[rank])
    return parallel_attention.gathered([result[0] for result in results], layout)


def check_equal(pool: Pool, case: Case, *ranks: int) -> None:
    """In float64 the result is that of one process."""
    alone = parallel_attention.one_process(case)
    for count in ranks:
        for name, mine, theirs in zip(Result._fields, run(pool, case, count), alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-11, err_msg=name)


def check_close(pool: Pool, case: Case, *ranks: int) -> None:
    """The error is at most a small multiple of that of SDPA in the same dtype."""
    exact = parallel_attention.expected(case)
    sdpa = parallel_attention.expected(case, by_sdpa=True)
    for count in ranks:
        mine = run(pool, case, count, with_lse=False)
        for name, times in TOLERANCE.items():
            right = getattr(exact, name)
            error, usual = (np.abs(getattr(x, name) - right).max(initial=0) for x in (mine, sdpa))
            rounding = 2e-6 * max(1.0, np.abs(right).max(initial=0))  # parts are summed in float32
            assert error <= times * usual + rounding, (name, count, error, usual)
        visible = np.isfinite(exact.lse)
        assert (np.isfinite(mine.lse) == visible).all()
        np.testing.assert_allclose(mine.lse[visible], exact.lse[visible], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_all_masks(pool: Pool, name: str) -> None:
    batch, heads = MASKS[name].on(T).shape[:2]
    heads = max(2, heads)
    check_equal(pool, Case(name, T, batch, heads, heads, 4, 6, strategy="chunked"), *RANKS)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for n, name in enumerate(patterns.PATTERNS)
        for dtype in subset_of_cases(["float32", "bfloat16"], 2, first=n % 2)
    ],
)
def test_all_patterns_of_the_benchmarks(pool: Pool, name: str, dtype: str) -> None:
    tokens = 64 if name in BLOCK_PATTERNS else 49
    frame = patterns.Frame(tokens, tokens, batch=3 if name == "ragged" else 1, heads=4)
    mask = patterns.PATTERNS[name](frame)[0]
    check_close(pool, Case(mask, tokens, frame.batch, 4, 2, 8, 8, dtype), *RANKS)


@pytest.mark.parametrize("name", ["everything", "causal", "padding", "by head", "scattered"])
def test_ring(pool: Pool, name: str) -> None:
    batch = MASKS[name].on(T).shape[0]
    check_equal(pool, Case(name, T, batch, 4, 2, 4, 6, exchange="ring"), *RANKS)


@pytest.mark.parametrize(("mask", "is_ring"), [(mw.everything(), True), (mw.window(back=3), False)])
def test_auto_selects_the_ring_if_all_ranks_need_all_keys(
    pool: Pool, mask: mw.Mask, is_ring: bool
) -> None:
    case = Case(mask, 26, exchange="auto")
    layout = case.layout(4)
    for rank, (_, _, sent) in enumerate(pool.run(parallel_attention.context_parallel, 4, case)):
        # In a ring keys circulate again before their gradients.
        assert (sent[0] > layout.bytes_in[rank]) == is_ring


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any mask on any number of tokens, also fewer than ranks."""
    tokens, batch = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (4, 2)]))
    mask = draw(masks(mw.Frame(tokens, tokens, batch, heads, 0), depth=4, code=False))
    strategies = ["auto", "contiguous", "zigzag", "rebalanced", "chunked"]
    return Case(
        *(mask, tokens, batch, heads, kv_heads, 4, draw(st.sampled_from([4, 3]))),
        dtype=draw(st.sampled_from(["float32", "float32", "bfloat16", "float64"])),
        strategy=draw(st.sampled_from(strategies)),
        exchange=draw(st.sampled_from(["all_to_all", "all_to_all", "ring"])),
    )


@pytest.mark.parametrize("_part", range(2))
def test_random_masks(pool: Pool, _part: int) -> None:
    @given(case=cases(), ranks=st.sampled_from(RANKS))
    @settings(max_examples=100 if ALL else 50, deadline=None)
    def check(case: Case, ranks: int) -> None:
        (check_equal if case.dtype == "float64" else check_close)(pool, case, ranks)

    check()


@pytest.mark.parametrize("ranks", [1, 4])
def test_no_tokens(pool: Pool, ranks: int) -> None:
    check_equal(pool, Case(mw.causal(), 0), ranks)


def test_masks_that_differ_are_refused_on_all_ranks(pool: Pool) -> None:
    one, other = (Case(mask, 12, strategy="contiguous") for mask in (mw.causal(), mw.window(2)))
    with pytest.raises(JobError) as error:
        pool.run_each(parallel_attention.context_parallel, [(one,), (one,), (other,)])
    for message in error.value.first_lines():
        assert message.startswith("ArgumentError: Rank 2 ")
    check_equal(pool, one, 3)  # no rank is left behind


@pytest.mark.parametrize("job", ["context_parallel", "ulysses"])
@pytest.mark.parametrize(
    ("flags", "options", "name"),
    [
        (("qkv", "qkv", ""), {}, "requires_grad"),
        (("qkv", "-", "qkv"), {}, "requires_grad or grad mode"),
        (("", "", "v"), {}, "requires_grad"),
        (("q", "q", "q"), {"scale": 0.7}, "scale"),
        (("q", "q", "q"), {"softcap": 2.0}, "softcap"),
        (("q", "q", "q"), {"bias": mw.bias.alibi([1.0, 0.5])}, "bias"),
        (("q", "q", "q"), {"sinks": torch.zeros(2, dtype=torch.float64)}, "sinks"),
    ],
    ids=str,
)
def test_arguments_that_differ_are_named_on_all_ranks(
    pool: Pool, job: str, flags: tuple[str, ...], options: dict[str, Any], name: str
) -> None:
    """One rank without a backward pass would leave the others waiting in theirs."""
    case = Case(mw.causal(), 12, strategy="contiguous")
    each = [(job, case, flag, options if rank == 1 else {}) for rank, flag in enumerate(flags)]
    with pytest.raises(JobError) as error:
        pool.run_each(parallel_attention.gradient_modes, each)
    lines = error.value.first_lines()
    assert len(lines) == 3
    for message in lines:
        assert message.startswith("ArgumentError: Rank ")
        assert f"has another {name}" in message
    check_equal(pool, case, 3)  # no rank is left behind


@pytest.mark.parametrize("job", ["context_parallel", "ulysses"])
@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_equal_numbers_of_other_types(pool: Pool, name: str, job: str) -> None:
    case = Case(mw.causal(), 12, strategy="contiguous")
    numbers = (2, np.float64(2), torch.tensor(2.0))
    each = [(job, case, "q", {name: number}) for number in numbers]
    pool.run_each(parallel_attention.gradient_modes, each)


@pytest.mark.parametrize("flags", [("q", "k", "v"), ("", "-", "")], ids=str)
def test_ranks_with_gradients_of_other_inputs(pool: Pool, flags: tuple[str, ...]) -> None:
    """Each rank has a backward pass, or none has one."""
    case = Case(mw.causal(), 12, strategy="contiguous")
    each = [("context_parallel", case, flag, {}) for flag in flags]
    pool.run_each(parallel_attention.gradient_modes, each)


@pytest.mark.parametrize("job", ["context_parallel", "ulysses"])
def test_invalid_arguments_on_one_rank_stop_all(pool: Pool, job: str) -> None:
    good = Case(mw.causal(), 12, strategy="contiguous")
    more = ((2,),) if job == "ulysses" else ()
    each = [(good, *more), (good._replace(kv_heads=3), *more)]
    with pytest.raises(JobError) as error:
        pool.run_each(getattr(parallel_attention, job), each)
    first, second = error.value.first_lines()
    assert first.startswith("ArgumentError: ")
    assert "rank 1" in first
    assert "heads" in second
    check_equal(pool, good, 2)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (4,), (2, 2), (1, 4), (4, 1)], ids=str)
@pytest.mark.parametrize("name", ["causal", "by head", "padding", "scattered"])
def test_ulysses(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    case = Case(name, T, MASKS[name].on(T).shape[0], 4, 2, 4, 6)
    parts = pool.run(parallel_attention.ulysses, int(np.prod(shape)), case, shape)
    layout = case.layout(shape[0])
    found = parallel_attention.gathered(parts, layout.split(shape[1]) if shape[1:] else layout)
    right = parallel_attention.one_process(case, with_lse=False)
    for field in ("out", "dq", "dk", "dv"):
        np.testing.assert_allclose(getattr(found, field), getattr(right, field), 1e-11, 1e-11)


@pytest.mark.parametrize("exchange", ["all_to_all", "ring"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kinds", ["", "d", "g", "t", "kr", "dgtk"])
def test_softcap_bias_and_sinks(pool: Pool, kinds: str, dtype: str, exchange: str) -> None:
    """Sinks count once, and the gradients of shared values add up over the ranks."""
    case = Case("holes", T, 2, 4, 2, 4, 6, dtype, "chunked", exchange)
    rows, shared = parallel_attention.one_process_scores(case, kinds)
    tolerance = 1e-11 if dtype == "float64" else 3e-5
    for ranks in (1, 3):
        layout = case.layout(ranks)
        found = pool.run(parallel_attention.context_parallel_scores, ranks, case, kinds)
        back = np.argsort(layout.order)
        for n, right in enumerate(rows):
            mine = np.concatenate([own[n] for own, _ in found], 2)[:, :, back]
            np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)
        for n, right in enumerate(shared):
            mine = sum(each[n] for _, each in found)
            np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(3,), (2, 2)], ids=str)
@pytest.mark.parametrize("kinds", ["", "d", "t", "dgtkr"])
def test_softcap_bias_and_sinks_by_ulysses(pool: Pool, kinds: str, shape: tuple[int, ...]) -> None:
    """Each rank has the values of its heads; with 2 KV heads on 3 ranks, one rank has none."""
    case = Case("by head", T, MASKS["by head"].on(T).shape[0], 4, 2, 4, 6, strategy="chunked")
    rows, shared = parallel_attention.one_process_scores(case, kinds, with_lse=False)
    layout = case.layout(shape[0])
    order = (layout.split(shape[1]) if shape[1:] else layout).order
    ranks = int(np.prod(shape))
    found = pool.run(parallel_attention.ulysses_scores, ranks, case, shape, kinds)
    for n, right in enumerate([rows[0], *rows[2:]]):
        mine = np.concatenate([own[n] for own, _ in found], 2)[:, :, np.argsort(order)]
        np.testing.assert_allclose(mine, right, rtol=1e-11, atol=1e-11)
    for n, right in enumerate(shared):
        mine = sum(each[n] for _, each in found)
        np.testing.assert_allclose(mine, right, rtol=1e-11, atol=1e-11)


def test_biases_that_differ_are_refused_on_all_ranks(pool: Pool) -> None:
    case = Case("causal", T, 1, 4, 4, strategy="contiguous")
    with pytest.raises(JobError) as error:
        pool.run_each(
            parallel_attention.ulysses_scores, [(case, (2,), kinds) for kinds in ("d", "t")]
        )
    for message in error.value.first_lines():
        assert message.startswith("ArgumentError: Rank ")
