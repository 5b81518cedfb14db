"""The same mask as arguments of every framework."""

from __future__ import annotations

import numpy as np
import torch

import maskwright as mw
from tests._helpers.naive_softmax import add, softmax

PADDING, CAUSAL = mw.padding(lengths=[3, 4]), mw.causal()


def test_b1_padding_arguments() -> None:
    """Two sequences of 3 and 4 tokens in 5 places, with values as they are usually printed.

    Those who keep where True and those who drop there hold opposite numbers for the same mask.
    """
    keeps = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    given = mw.lower(PADDING, "hf", q_len=5, model="encoder")
    assert given["attention_mask"].tolist() == keeps  # (B, T), 1 keeps

    given = mw.lower(PADDING, "torch.mha", q_len=5)
    assert given["attn_mask"] is None
    assert (1 - given["key_padding_mask"].int()).tolist() == keeps  # (B, T), True masks

    wide = mw.lower(PADDING, "torch.bool", q_len=5, heads=2).expand(2, 2, 5, 5).int()
    assert wide[0].tolist() == [[keeps[0]] * 5] * 2
    assert wide[1].tolist() == [[keeps[1]] * 5] * 2


def test_b2_causal_arguments() -> None:
    """What keeps is the lower triangle; it is often called the upper one, which is what drops."""
    lower = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert mw.lower(CAUSAL, "numpy", q_len=5)[0, 0].astype(int).tolist() == lower
    wide = mw.lower(CAUSAL, "torch.bool", q_len=5).expand(2, 2, 5, 5).int()
    assert wide.tolist() == [[lower] * 2] * 2
    drops = mw.lower(CAUSAL, "torch.mha", q_len=5)["attn_mask"]
    assert torch.equal(drops, torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1))
    assert mw.lower(CAUSAL, "torch.sdpa", q_len=5) == {"attn_mask": None, "is_causal": True}


def test_b3_additive_and_boolean_masks_agree() -> None:
    """`scores + (1 - mask) * -1e9`, the additive form and the boolean mask select the same keys."""
    scores = np.random.default_rng(0).normal(size=(2, 2, 5, 5))
    mask = CAUSAL & PADDING
    keep = mw.lower(mask, "numpy", q_len=5)
    by_hand = softmax(add(scores, keep.astype(float), -1e9))
    for fill in ("-inf", "min", -1e9):
        bias = mw.lower(mask, "additive", q_len=5, dtype="float64", fill=fill)
        np.testing.assert_allclose(softmax(scores + bias), by_hand, rtol=1e-12)
    np.testing.assert_allclose(softmax(np.where(keep, scores, -np.inf)), by_hand, rtol=1e-12)


def test_b4_transformer_arguments() -> None:
    """Encoder: the source's padding. Decoder: causal and its padding. Cross: the source's again."""
    source, target = [[5, 6, 7, 0], [5, 6, 0, 0]], [[3, 4, 0], [3, 4, 5]]
    given = mw.lower(mw.recipes.translation(source, target), "torch.transformer")
    assert given["src_mask"] is None
    assert given["src_key_padding_mask"].int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert given["tgt_mask"].int().tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert given["tgt_key_padding_mask"].int().tolist() == [[0, 0, 1], [0, 0, 0]]
    assert given["memory_mask"] is None
    assert given["memory_key_padding_mask"].int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]


def test_d2_key_padding_mask_becomes_additive() -> None:
    """A bool padding mask with True on filler, as it is added to scores: True becomes -inf."""
    drops = mw.lower(PADDING, "torch.mha", q_len=5)["key_padding_mask"]
    bias = torch.zeros(drops.shape).masked_fill(drops, float("-inf"))
    assert torch.equal(bias, mw.lower(PADDING, "torch.additive", q_len=1, kv_len=5)[:, 0, 0])
    assert mw.recognize(drops, axes="bk", polarity="drop").mask == PADDING


def test_d3_lowering_selects_once() -> None:
    """Two finite fills overflow when they are summed; lowering the AND of both never sums.

    A cell that both masks hide gets the same number as a cell that one of them hides.
    """
    summed = sum(
        mw.lower(part, "torch.additive", q_len=5, fill="min") for part in (CAUSAL, PADDING)
    )
    assert torch.isinf(summed).any()
    once = mw.lower(CAUSAL & PADDING, "torch.additive", q_len=5, fill="min")
    assert set(once.unique().tolist()) == {0.0, torch.finfo(torch.float32).min}
