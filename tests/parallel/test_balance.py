"""Who gets which rows: each row once, work as the cells say, needs as the dense truth says."""

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
from maskwright.parallel.balance import WAYS, balance
from tests.strategies import FEW, masks
from tests.thinned import thinned

if TYPE_CHECKING:
    from maskwright.parallel.shards import Shards

SHORTER = ("bigbird", "random-blocks", "image")  # of which a million tokens take too long to plan


@st.composite
def squares(draw: st.DrawFn) -> mw.BoundMask:
    """Any mask on as many queries as keys."""
    size, batch, heads = draw(st.integers(0, 40)), draw(FEW), draw(FEW)
    frame = Frame(size, size, batch, heads, 0)
    return draw(masks(frame, depth=4)).on(size, size, batch, heads, 0)


def whole(bound: mw.BoundMask) -> np.ndarray:
    """All cells, for every batch row and head."""
    frame = bound.frame
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    return np.broadcast_to(bound.dense(), shape)


def check(shards: Shards, cells: np.ndarray) -> None:
    """Against plain loops over the dense mask."""
    rows = [shards.positions(rank) for rank in range(shards.ranks)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(cells.shape[2]))
    assert shards.order.tolist() == np.concatenate(rows).tolist()
    for rank, own in enumerate(rows):
        assert own.tolist() == sorted(own.tolist())
        assert shards.rows[rank] == own.size
        assert shards.work[rank] == cells[:, :, own].sum()
        seen = cells[:, :, own].any((0, 1, 2))
        for other, theirs in enumerate(rows):
            assert shards.matrix[rank, other] == seen[theirs].sum()
            assert theirs[shards.wanted(rank, other)].tolist() == theirs[seen[theirs]].tolist()
        foreign = np.setdiff1d(np.flatnonzero(seen), own).size
        assert shards.keys_in[rank] == foreign
    assert shards.keys_out.sum() == shards.keys_in.sum()


@given(bound=squares(), ranks=st.integers(1, 9), how=st.sampled_from(["auto", *WAYS]))
@settings(max_examples=150, deadline=None)
def test_every_way_tells_the_truth(bound: mw.BoundMask, ranks: int, how: str) -> None:
    check(balance(bound, ranks, how=how), whole(bound))


@given(
    size=st.integers(0, 40),
    tall=st.integers(2, 9),
    ranks=st.integers(1, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_rows_that_are_alike_are_read_once(size: int, tall: int, ranks: int, seed: int) -> None:
    count = -(-size // tall)
    lit = np.random.default_rng(seed).random((2, 1, count, count)) < 0.4
    bound = mw.blocks(lit, tall).on(size, batch=2, heads=2)
    check(balance(bound, ranks), whole(bound))


@given(data=st.data(), size=st.integers(0, 40), ranks=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_one_row_tells_all_where_only_distance_counts(
    data: st.DataObject, size: int, ranks: int
) -> None:
    reach = st.one_of(st.none(), st.integers(0, 50))
    mask = mw.window(back=data.draw(reach), ahead=data.draw(reach))
    step = data.draw(st.integers(2, 6))
    stride = mw.stride(step, phase=data.draw(st.integers(0, step - 1)))
    both = data.draw(st.sampled_from([mask & stride, mask | stride, mask - stride, stride - mask]))
    bound = both.on(size, batch=2)
    check(balance(bound, ranks), whole(bound))


@pytest.mark.parametrize(("name", "ranks"), thinned([*product(MASKS, (8, 64, 256))], 2))
def test_a_million_tokens_are_balanced(name: str, ranks: int) -> None:
    tokens = 2**16 if name in SHORTER else 2**20
    bound = MASKS[name](tokens).on(tokens)
    shards = balance(bound, ranks)
    assert shards.balance <= 1.05
    assert shards.evenness <= (2.0 if name == "bigbird" else 1.15)
    if name not in (*SHORTER, "dilated"):  # of which to count all rows takes long
        assert int(shards.work.sum()) == bound.count()


def test_equal_stretches_of_a_causal_mask_are_not() -> None:
    assert balance(mw.causal().on(2**20), 8, how="contiguous").balance > 1.8


@pytest.mark.parametrize("name", ["window", "documents"])
def test_masks_that_see_near_keys_move_little(name: str) -> None:
    assert balance(MASKS[name](2**20).on(2**20), 8).ring_share <= 0.15


def test_four_million_tokens_and_a_thousand_ranks() -> None:
    shards = balance(mw.causal().on(2**22), 1024, key_bytes=4096)
    assert shards.balance <= 1.05
    assert shards.rows.sum() == 2**22
    assert "1024 ranks" in str(shards)
    assert "bytes in" in str(shards)


def test_more_ranks_than_rows() -> None:
    shards = balance(mw.causal().on(3), 5)
    assert shards.rows.tolist().count(0) == 2
    check(shards, whole(mw.causal().on(3)))


def test_the_order_of_equal_work_stays_together() -> None:
    owner = balance(mw.window(back=3).on(2**14), 4, how="chunked").assignment.owner
    assert owner.size <= 16


def test_bytes_are_keys_times_their_size() -> None:
    shards = balance(mw.causal().on(16), 2, how="contiguous", key_bytes=10)
    assert shards.bytes_in.tolist() == [0, 80]
    assert shards.bytes_out.tolist() == [80, 0]


@pytest.mark.parametrize(
    ("give", "says"),
    [
        (lambda: balance(mw.causal(), 2), "Bind it first"),  # type: ignore[arg-type]
        (lambda: balance(mw.causal().on(4, kv_len=8), 2), "as many queries as keys"),
        (lambda: balance(mw.causal().on(4), 0), "less than 1"),
        (lambda: balance(mw.causal().on(4), 2, how="best"), "how"),
    ],
)
def test_what_does_not_fit_is_refused(give, says: str) -> None:
    with pytest.raises(mw.MaskError, match=says):
        give()
