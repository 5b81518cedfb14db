"""Layouts: each row on one rank, and cost and required keys as in the dense mask."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from benchmarks.ranks import MASKS
from maskwright import Frame
from maskwright.parallel.layout import STRATEGIES, balance
from tests._helpers.sampling import subset_of_cases
from tests._helpers.strategies import FEW, masks

if TYPE_CHECKING:
    from maskwright.parallel.layout import ShardLayout

SHORTER = ("bigbird", "random-blocks", "image")  # of which a million tokens take too long


@st.composite
def squares(draw: st.DrawFn) -> mw.BoundMask:
    """Any mask on as many queries as keys."""
    size, batch, heads = draw(st.integers(0, 40)), draw(FEW), draw(FEW)
    frame = Frame(size, size, batch, heads, 0)
    return draw(masks(frame, depth=4)).on(size, size, batch, heads, 0)


def check(layout: ShardLayout, bound: mw.BoundMask) -> None:
    """Compare with plain loops over the dense mask."""
    frame = bound.frame
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    cells = np.broadcast_to(bound.dense(), shape)
    rows = [layout.positions(rank) for rank in range(layout.ranks)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(frame.q_len))
    assert layout.order.tolist() == np.concatenate(rows).tolist()
    for rank, own in enumerate(rows):
        assert own.tolist() == sorted(own.tolist())
        assert layout.rows[rank] == own.size
        assert layout.cost[rank] == cells[:, :, own].sum()
        visible = cells[:, :, own].any((0, 1, 2))
        for other, theirs in enumerate(rows):
            assert layout.matrix[rank, other] == visible[theirs].sum()
            sent = theirs[layout.keys_to_send(other, rank)]
            assert sent.tolist() == theirs[visible[theirs]].tolist()
        assert layout.keys_in[rank] == np.setdiff1d(np.flatnonzero(visible), own).size
    assert layout.keys_out.sum() == layout.keys_in.sum()


@given(bound=squares(), ranks=st.integers(1, 9), strategy=st.sampled_from(["auto", *STRATEGIES]))
@settings(max_examples=150, deadline=None)
def test_all_strategies(bound: mw.BoundMask, ranks: int, strategy: str) -> None:
    check(balance(bound, ranks, strategy=strategy), bound)


@given(
    size=st.integers(0, 40),
    block=st.integers(2, 9),
    ranks=st.integers(1, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_block_masks(size: int, block: int, ranks: int, seed: int) -> None:
    count = -(-size // block)
    visible = np.random.default_rng(seed).random((2, 1, count, count)) < 0.4
    bound = mw.blocks(visible, block).on(size, batch=2, heads=2)
    check(balance(bound, ranks), bound)


@given(data=st.data(), size=st.integers(0, 40), ranks=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_toeplitz_masks(data: st.DataObject, size: int, ranks: int) -> None:
    reach = st.one_of(st.none(), st.integers(0, 50))
    window = mw.window(back=data.draw(reach), ahead=data.draw(reach))
    step = data.draw(st.integers(2, 6))
    stride = mw.stride(step, phase=data.draw(st.integers(0, step - 1)))
    kinds = [window & stride, window | stride, window - stride, stride - window]
    bound = data.draw(st.sampled_from(kinds)).on(size, batch=2)
    check(balance(bound, ranks), bound)


@pytest.mark.parametrize(("name", "ranks"), subset_of_cases([*product(MASKS, (8, 64, 256))], 4))
def test_a_million_tokens_are_balanced(name: str, ranks: int) -> None:
    tokens = 2**16 if name in SHORTER else 2**20
    bound = MASKS[name](tokens).on(tokens)
    layout = balance(bound, ranks)
    assert layout.cost_imbalance <= 1.05
    assert layout.row_imbalance <= (2.0 if name == "bigbird" else 1.15)
    if name not in (*SHORTER, "dilated"):  # of which counting all cells takes long
        assert int(layout.cost.sum()) == bound.count()


def test_equal_stretches_of_a_causal_mask_are_not_balanced() -> None:
    assert balance(mw.causal().on(2**20), 8, strategy="contiguous").cost_imbalance > 1.8


@pytest.mark.parametrize(
    ("name", "limit"), [("window", 0.001), ("documents", 0.003), ("longformer", 0.07)]
)
def test_local_masks_need_little_communication(name: str, limit: float) -> None:
    assert balance(MASKS[name](2**20).on(2**20), 64).comm_fraction <= limit


def test_four_million_tokens_and_a_thousand_ranks() -> None:
    layout = balance(mw.causal().on(2**22), 1024, key_bytes=4096)
    assert layout.cost_imbalance <= 1.05
    assert layout.rows.sum() == 2**22
    assert "1,024 ranks" in str(layout)
    assert "bytes in" in str(layout)


def test_more_ranks_than_rows() -> None:
    layout = balance(mw.causal().on(3), 5)
    assert layout.rows.tolist().count(0) == 2
    check(layout, mw.causal().on(3))


def test_chunks_of_equal_cost_stay_together() -> None:
    layout = balance(mw.window(back=3).on(2**14), 4, strategy="chunked")
    assert layout.assignment.owner.size <= 16


def test_bytes_are_keys_times_their_size() -> None:
    layout = balance(mw.causal().on(16), 2, strategy="contiguous", key_bytes=10)
    assert layout.bytes_in.tolist() == [0, 80]
    assert layout.bytes_out.tolist() == [80, 0]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: balance(mw.causal(), 2), "mask.on"),  # type: ignore[arg-type]
        (lambda: balance(mw.causal().on(4, kv_len=8), 2), "8 keys"),
        (lambda: balance(mw.causal().on(4), 0), "ranks"),
        (lambda: balance(mw.causal().on(4), 2, strategy="best"), "strategy"),
        (lambda: balance(mw.causal().on(4), 2).for_mask(mw.causal().on(5)), "5 keys, expected 4"),
    ],
)
def test_invalid_arguments(make, named: str) -> None:
    with pytest.raises(mw.MaskError, match=named):
        make()
