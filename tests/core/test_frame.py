"""Conventions: where queries sit, what broadcasts, and that nothing breaks at 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.errors import FrameError


def ints(bound: mw.BoundMask) -> list[list[int]]:
    return bound.dense()[0, 0].astype(int).tolist()


def test_last_query_sits_at_last_key() -> None:
    assert ints(mw.causal().on(2, 4)) == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_q_start_0_is_torchs_is_causal() -> None:
    """One-hot values make attention's output the weights: where they are not 0, it may see."""
    for q_len, kv_len in [(2, 4), (4, 2), (3, 3)]:
        q, k, v = torch.zeros(q_len, 8), torch.zeros(kv_len, 8), torch.eye(kv_len)
        weights = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True
        )
        theirs = (weights[0] > 0).numpy()
        assert np.array_equal(mw.causal().on(q_len, kv_len, q_start=0).dense()[0, 0], theirs)


def test_queries_before_first_key_are_fully_masked() -> None:
    assert ints(mw.causal().on(4, 2)) == [[0, 0], [0, 0], [1, 0], [1, 1]]


def test_window_counts_keys_with_query() -> None:
    assert ints(mw.window(back=1, ahead=1).on(3)) == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert mw.window(back=4095).on(8192).spans.row(8191) == [(4096, 8192)]


def test_padding_hides_keys_and_keeps_rows() -> None:
    assert ints(mw.padding(lengths=[2]).on(3)) == [[1, 1, 0]] * 3


def test_batch_and_heads_come_from_data() -> None:
    mask = mw.padding(lengths=[1, 2]) & mw.by_head([mw.causal(), mw.everything(), mw.causal()])
    bound = mask.on(2)
    assert (bound.frame.batch, bound.frame.heads) == (2, 3)
    assert bound.shape == (2, 3, 2, 2)


def test_constant_axes_are_stored_once() -> None:
    bound = mw.causal().on(4, batch=8, heads=2)
    assert bound.dense().shape == (1, 1, 4, 4)
    assert bound.count() == 8 * 2 * 10


def test_data_of_one_sequence_serves_all() -> None:
    bound = (mw.documents(ids=[[0, 0, 1]]) & mw.padding(lengths=[2, 3])).on(3)
    assert bound.shape[0] == 2


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 0), (0, 3), (3, 0), (1, 1), (1, 0)])
def test_sizes_of_0_and_1(q_len: int, kv_len: int) -> None:
    bound = (mw.causal() | mw.prefix(1)).on(q_len, kv_len)
    assert bound.dense().shape == (1, 1, q_len, kv_len)
    assert bound.count() == int(bound.dense().sum())
    assert bound.tiles(2, 2).kinds().shape == (1, 1, (q_len + 1) // 2, (kv_len + 1) // 2)
    assert bound.empty_rows().shape == (1, 1, q_len)
    assert bound.unseen_keys().shape == (1, 1, kv_len)
    assert str(bound)


def test_empty_batch() -> None:
    bound = mw.padding(lengths=[]).on(3)
    assert bound.frame.batch == 0
    assert bound.dense().shape == (0, 1, 3, 3)
    assert bound.count() == 0
    assert bound.density == 0.0
    assert mw.padding(ids=np.zeros((0, 3), int), pad_id=0) == mw.padding(lengths=[])
    assert mw.causal().on(3, batch=0).equals(~mw.causal())


TARGET = np.array([[True, True, False], [True, True, True]])  # of two sequences


@pytest.mark.parametrize(
    "target",
    [
        mw.padding(lengths=[2, 3]).T,
        mw.padding(keep=TARGET).T,
        mw.padding(ids=TARGET.astype(int), pad_id=0).T,
        mw.keys(TARGET).T,
        mw.queries(TARGET),
        ~mw.padding(lengths=[2, 3]).T,
        mw.causal() | mw.padding(lengths=[2, 3]).T,
        mw.by_head([mw.causal(), mw.padding(lengths=[2, 3]).T]),
        (mw.padding(lengths=[2, 3]) & mw.window(back=1)).T,
    ],
    ids=str,
)
@pytest.mark.parametrize("kv_len", [2, 5])
def test_data_of_queries_needs_alignment_in_cross_attention(target: mw.Mask, kv_len: int) -> None:
    mask = mw.padding(lengths=[kv_len, kv_len - 1]) & target
    with pytest.raises(FrameError, match=r"data for queries 0 … 2, .* pass q_start=0 for cross"):
        mask.on(3, kv_len)
    q, kv = torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, kv_len, 4)
    for impl in ("auto", "reference"):
        with pytest.raises(FrameError, match="pass q_start=0 for cross"):
            mw.attention(q, kv, kv, mask, impl=impl)
        mw.attention(q, kv, kv, mask, impl=impl, q_start=0)
    with pytest.raises(FrameError, match="pass q_start=0 for cross"):
        mw.lower(mask, "torch.bool", q_len=3, kv_len=kv_len)
    rows = (
        mw.padding(lengths=[kv_len, kv_len - 1])
        & mw.dense(TARGET[:, None, :, None].repeat(kv_len, 3))
    ).on(3, kv_len)
    if target in (mw.padding(lengths=[2, 3]).T, mw.queries(TARGET)):
        assert np.array_equal(mask.on(3, kv_len, q_start=0).dense(), rows.dense())


@pytest.mark.parametrize("q_start", [None, 0])
def test_width_of_an_array_is_not_data_of_queries(q_start: int | None) -> None:
    cells = np.tri(5, 7, dtype=bool)
    for mask in (mw.dense(cells).T, (mw.dense(cells) & mw.everything()).T):
        assert np.array_equal(mask.on(7, 5, q_start=q_start).dense()[0, 0], cells.T)
    packed = mw.documents(lengths=[[3, 2]])
    assert packed.T.on(5, 7, q_start=q_start).equals(packed.on(5, 7, q_start=q_start))


@pytest.mark.parametrize(
    ("shape", "fix"),
    [((5, 7), "Pass q_len=5, kv_len=7."), ((1, 7), "Pass kv_len=7."), ((5, 1), "Pass q_len=5.")],
)
def test_sizes_of_an_array_that_broadcasts(shape: tuple[int, int], fix: str) -> None:
    with pytest.raises(FrameError) as error:
        mw.dense(np.ones(shape, bool)).on(6, 6)
    assert str(error.value).endswith(fix)


@pytest.mark.parametrize("q_len", range(1, 6))
def test_data_of_all_tokens_fits_a_cache(q_len: int) -> None:
    """Queries that are the last of all tokens are aligned with the last keys."""
    mask = mw.causal() & mw.padding(lengths=[6, 4]) & mw.padding(lengths=[6, 4]).T
    whole = mask.on(6).dense()
    assert np.array_equal(mask.on(q_len, 6).dense(), whole[:, :, 6 - q_len :])
    short = mw.padding(lengths=[1]).T
    assert np.array_equal(short.on(1, 6, q_start=5).dense(), np.zeros((1, 1, 1, 6)))
