"""Combined masks: the AND of sets, in every shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskwright as mw
from tests._helpers.naive_softmax import select, softmax

IDS = [[1, 2, 3, 0], [4, 5, 0, 0]]
LOWEST = float(np.finfo(np.float32).min)


def by_hand(ids: torch.Tensor) -> torch.Tensor:
    """The product of a padding row (B, 1, T) and a lower triangle (1, T, T)."""
    padding = (ids != 0).float()
    causal = torch.tril(torch.ones(ids.shape[1], ids.shape[1]))
    return padding.unsqueeze(1) * causal.unsqueeze(0)


def test_c2_causal_and_padding_combined() -> None:
    """A key is seen if it is no filler AND not in the future.

    A padded query is sometimes said to be hidden wholly. It is not, and should not be: row 3 of
    the first sequence sees its three real tokens, and only the filler's column is gone.
    """
    bound = (mw.causal() & mw.padding(ids=IDS, pad_id=0)).on(4)
    assert bound.dense()[:, 0].astype(int).tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]],
    ]
    assert not bound.empty_rows().any()
    assert bound.unseen_keys()[:, 0].astype(int).tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert np.array_equal(bound.dense()[:, 0], by_hand(torch.tensor(IDS)).numpy() == 1)


def test_c2_why_names_the_masking_term() -> None:
    """For every hidden cell one can ask which of the two masks hides it."""
    bound = (mw.causal() & mw.padding(ids=IDS, pad_id=0)).on(4)
    assert "causal() masks it" in str(bound.why(0, 2))  # the future, and a real token
    assert "padding(...) would allow it" in str(bound.why(0, 2))
    assert "padding(...) masks it" in str(bound.why(3, 3))  # no future, but a filler
    assert "causal() would allow it" in str(bound.why(3, 3))
    assert "attends to" in str(bound.why(3, 2))


def test_c3_bert_mask_has_one_row() -> None:
    """An encoder hides filler only, so (B, 1, 1, T) holds the whole mask."""
    ids = torch.tensor(IDS)
    theirs = (ids != 0).float().unsqueeze(1).unsqueeze(2)
    ours = mw.recipes.bert(IDS).on(1, kv_len=4)
    assert ours.shape == tuple(theirs.shape) == (2, 1, 1, 4)
    assert np.array_equal(ours.dense(), theirs.numpy() == 1)
    whole = mw.recipes.bert(IDS).on(4).dense()
    assert np.array_equal(np.broadcast_to(ours.dense(), whole.shape), whole)


def test_c3_gpt_mask_is_square() -> None:
    """A decoder's rows differ, so it needs (B, T, T); a heads axis of 1 makes it broadcast."""
    theirs = by_hand(torch.tensor(IDS))
    ours = mw.recipes.gpt(IDS).on(4).dense()
    assert ours.shape == (2, 1, 4, 4)
    assert ours.squeeze(1).shape == tuple(theirs.shape) == (2, 4, 4)
    assert np.array_equal(ours.squeeze(1), theirs.numpy() == 1)


@pytest.mark.parametrize("source", [[[7, 8, 9, 6, 0], [5, 0, 0, 0, 0]], [[7, 8, 0], [5, 0, 0]]])
def test_c3_translation_has_three_masks(source: list[list[int]]) -> None:
    """Source (B, S), target (B, T, T) and cross (B, T, S), for sources longer and shorter.

    Cross-attention hides the filler of the source, because that is where its keys come from.
    """
    src, tgt = torch.tensor(source), torch.tensor(IDS)
    length = src.shape[1]
    src_mask = (src != 0).float()
    cross_mask = src_mask.unsqueeze(1).expand(-1, 4, -1)

    masks = mw.recipes.translation(source=source, target=IDS)
    encoder = masks.encoder.on(1, kv_len=length).dense()[:, 0, 0]
    decoder = masks.decoder.on(4).dense()[:, 0]
    cross = masks.cross.on(4, kv_len=length).dense()[:, 0]
    assert encoder.shape == (2, length)
    assert decoder.shape == (2, 4, 4)
    assert cross.shape == (2, 4, length)
    assert np.array_equal(encoder, src_mask.numpy() == 1)
    assert np.array_equal(decoder, by_hand(tgt).numpy() == 1)
    assert np.array_equal(cross, cross_mask.numpy() == 1)


def test_d3_sum_of_infinite_masks_is_and() -> None:
    """0 + 0 = 0 and all else is -inf, so a sum of 0 / -inf masks keeps what both keep."""
    causal, padding = mw.causal(), mw.padding(ids=IDS, pad_id=0)
    zero = np.zeros((2, 1, 4, 4))
    total = select(zero, causal.on(4).dense(), -np.inf) + select(
        zero, padding.on(4).dense(), -np.inf
    )
    assert set(np.unique(total)) == {-np.inf, 0.0}
    both = (causal & padding).on(4)
    assert np.array_equal(total == 0, both.dense())
    assert both.equals(padding & causal)
    assert both.count() == 9 + 7


def test_d3_sum_of_finite_fills_overflows() -> None:
    """The lowest float32 twice is -inf, so cells hidden twice differ from cells hidden once.

    With left padding the first row is fully masked. One fill makes that row uniform; the sum of two
    gives the cells that are hidden once 1/3 each, the future among them. In rows that do see
    something, both ways agree, which is why it goes unnoticed.
    """
    causal, padding = mw.causal(), mw.padding(keep=[[0, 0, 1, 1]])
    both = (causal & padding).on(4)
    assert both.empty_rows()[0, 0].tolist() == [True, True, False, False]
    zero = np.zeros((4, 4), np.float32)
    fills = [select(zero, mask.on(4).dense()[0, 0], LOWEST) for mask in (causal, padding)]
    with np.errstate(over="ignore"):
        total = fills[0] + fills[1]
    assert total.dtype == np.float32
    assert total[0].tolist() == [LOWEST, -np.inf, LOWEST, LOWEST]
    assert np.array_equal((torch.from_numpy(fills[0]) + torch.from_numpy(fills[1])).numpy(), total)

    once = select(zero, both.dense()[0, 0], LOWEST)
    assert np.isfinite(once).all()
    np.testing.assert_allclose(softmax(total)[0], [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)
    assert softmax(once)[0].tolist() == [0.25] * 4
    assert np.array_equal(softmax(total)[2:], softmax(once)[2:])


def test_d3_sum_of_finite_fills_gives_nan() -> None:
    """A row that two masks hide wholly sums to -inf everywhere, and softmax makes NaN of it.

    Here an empty sequence fills up a batch, and filler is hidden as key and as query. One fill,
    selected from the combined set, stays finite; which rows are empty is known either way.
    """
    padding = mw.padding(lengths=[3, 0])
    both = (padding & padding.T).on(4)
    scores = np.random.default_rng(3).normal(size=(2, 4, 4)).astype(np.float32)
    zero = np.zeros_like(scores)
    fills = [select(zero, mask.on(4).dense()[:, 0], LOWEST) for mask in (padding, padding.T)]
    with np.errstate(over="ignore", invalid="ignore"):
        summed = softmax(scores + (fills[0] + fills[1]))
    assert not np.isnan(summed[0]).any()
    assert np.isnan(summed[1]).all()
    tensors = [torch.from_numpy(fill) for fill in fills]
    in_torch = torch.softmax(torch.from_numpy(scores) + (tensors[0] + tensors[1]), dim=-1)
    assert np.array_equal(in_torch.isnan().numpy(), np.isnan(summed))

    selected = softmax(select(scores, both.dense()[:, 0], LOWEST))
    assert np.isfinite(selected).all()
    empty = both.empty_rows()[:, 0]
    assert empty.astype(int).tolist() == [[0, 0, 0, 1], [1, 1, 1, 1]]
    assert (selected[empty] == 0.25).all()
