"""The same mask in every framework's own form: what to hand to which attention, and how."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw
from tests.lessons.arithmetic import add, softmax

PADDING, CAUSAL = mw.padding(lengths=[3, 4]), mw.causal()


def test_b1_padding_in_the_forms_that_frameworks_take() -> None:
    """Two sequences of 3 and 4 tokens in 5 places, with values as they are usually printed.

    Those who keep where True and those who drop there hold opposite numbers for the same mask.
    """
    keeps = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    given = mw.lower(PADDING, "hf", q_len=5, model="encoder")
    assert given["attention_mask"].tolist() == keeps  # (B, T), 1 keeps

    given = mw.lower(PADDING, "torch.mha", q_len=5)
    assert given["attn_mask"] is None
    assert (1 - given["key_padding_mask"].int()).tolist() == keeps  # (B, T), True drops

    wide = mw.lower(PADDING, "torch.bool", q_len=5, heads=2).expand(2, 2, 5, 5).int()
    assert wide[0].tolist() == [[keeps[0]] * 5] * 2
    assert wide[1].tolist() == [[keeps[1]] * 5] * 2


def test_b2_the_causal_mask_is_a_lower_triangle_wherever_it_goes() -> None:
    """What keeps is the lower triangle; it is often called the upper one, which is what drops."""
    lower = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert mw.lower(CAUSAL, "numpy", q_len=5)[0, 0].astype(int).tolist() == lower
    wide = mw.lower(CAUSAL, "torch.bool", q_len=5).expand(2, 2, 5, 5).int()
    assert wide.tolist() == [[lower] * 2] * 2
    drops = mw.lower(CAUSAL, "torch.mha", q_len=5)["attn_mask"]
    assert torch.equal(drops, torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1))
    assert mw.lower(CAUSAL, "torch.sdpa", q_len=5) == {"attn_mask": None, "is_causal": True}


def test_b3_added_or_chosen_the_weights_are_the_same() -> None:
    """`scores + (1 - mask) * -1e9`, the additive form, and the truth values select the same keys."""
    scores = np.random.default_rng(0).normal(size=(2, 2, 5, 5))
    mask = CAUSAL & PADDING
    keep = mw.lower(mask, "numpy", q_len=5)
    by_hand = softmax(add(scores, keep.astype(float), -1e9))
    for fill in ("-inf", "min", -1e9):
        bias = mw.lower(mask, "additive", q_len=5, dtype="float64", fill=fill)
        np.testing.assert_allclose(softmax(scores + bias), by_hand, rtol=1e-12)
    np.testing.assert_allclose(softmax(np.where(keep, scores, -np.inf)), by_hand, rtol=1e-12)


def transformer() -> nn.Transformer:
    torch.manual_seed(0)
    return nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True, dtype=torch.float64)


def test_b4_which_attention_takes_which_mask() -> None:
    """Encoder: the source's padding. Decoder: causal and its padding. Cross: the source's again."""
    source, target = [[5, 6, 7, 0], [5, 6, 0, 0]], [[3, 4, 0], [3, 4, 5]]
    given = mw.lower(mw.recipes.translation(source, target), "torch.transformer")
    assert given["src_mask"] is None
    assert given["src_key_padding_mask"].int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert given["tgt_mask"].int().tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert given["tgt_key_padding_mask"].int().tolist() == [[0, 0, 1], [0, 0, 0]]
    assert given["memory_mask"] is None
    assert given["memory_key_padding_mask"].int().tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]


def test_b4_with_the_three_masks_filler_and_future_have_no_say() -> None:
    """Real outputs do not move when filler changes, nor when later target tokens do."""
    model = transformer()
    source, target = [[5, 6, 7, 0], [5, 6, 0, 0]], [[3, 4, 0], [3, 4, 5]]
    given = mw.lower(mw.recipes.translation(source, target), "torch.transformer")
    src, tgt = (torch.randn(2, n, 8, dtype=torch.float64) for n in (4, 3))
    before = model(src, tgt, **given)

    filler = src.clone()
    filler[0, 3:], filler[1, 2:] = 9.0, 9.0
    torch.testing.assert_close(model(filler, tgt, **given), before)
    future = tgt.clone()
    future[:, 2] = 9.0
    torch.testing.assert_close(model(src, future, **given)[:, :2], before[:, :2])

    # Each of the three is needed: leave one out, and the outputs move.
    for name in ("src_key_padding_mask", "memory_key_padding_mask"):
        bare = {**given, name: None}
        assert not torch.allclose(model(filler, tgt, **bare), model(src, tgt, **bare))
    bare = {**given, "tgt_mask": None}
    assert not torch.allclose(model(src, future, **bare)[1, :2], model(src, tgt, **bare)[1, :2])


def test_c3_shapes_of_bert_gpt_and_translation() -> None:
    """(B, 1, 1, T) says all of an encoder's mask, (B, T, T) a decoder's, (B, T, S) the third."""
    ids = [[5, 6, 7, 0], [5, 6, 0, 0]]
    bert = mw.recipes.bert(ids)
    assert mw.lower(bert, "torch.bool", q_len=1, kv_len=4).shape == (2, 1, 1, 4)
    assert mw.lower(bert, "hf", model="encoder")["attention_mask"].shape == (2, 4)
    assert mw.lower(mw.recipes.gpt(ids), "torch.bool")[:, 0].shape == (2, 4, 4)
    cross = mw.recipes.translation(ids, [[1, 2, 3], [1, 2, 0]]).cross
    assert mw.lower(cross, "torch.bool", q_len=3, kv_len=4)[:, 0].shape == (2, 3, 4)


def test_c5_pytorch_and_by_hand_give_the_same_weights() -> None:
    """`masked_fill` on scores, SDPA, nn.MultiheadAttention and the sum by hand agree.

    TensorFlow's `tf.where` is compared with the same numbers in an environment of its own.
    """
    mask = CAUSAL & PADDING
    scores = torch.randn(2, 1, 5, 5, dtype=torch.float64)
    keep = mw.lower(mask, "torch.bool", q_len=5)
    filled = torch.softmax(scores.masked_fill(keep == 0, -1e9), dim=-1)
    by_hand = softmax(add(scores.numpy(), keep.numpy().astype(float), -1e9))
    np.testing.assert_allclose(filled.numpy(), by_hand, rtol=1e-12)

    q, k = (torch.randn(2, 1, 5, 4, dtype=torch.float64) for _ in range(2))
    eye = torch.eye(5, dtype=torch.float64).expand(2, 1, 5, 5)  # values that show the weights
    shown = F.scaled_dot_product_attention(q, k, eye, **mw.lower(mask, "torch.sdpa", q_len=5))
    scores = q @ k.transpose(-1, -2) / 2
    filled = torch.softmax(scores.masked_fill(keep == 0, -1e9), dim=-1)
    torch.testing.assert_close(shown, filled)

    layer = nn.MultiheadAttention(4, 1, batch_first=True, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(4, dtype=torch.float64).repeat(3, 1))
    _, weights = layer(q[:, 0], k[:, 0], k[:, 0], **mw.lower(mask, "torch.mha", q_len=5))
    torch.testing.assert_close(weights, filled[:, 0])


def test_d2_where_true_hides_it_becomes_minus_infinity() -> None:
    """A bool padding mask with True on filler, as it is added to scores: True becomes -inf."""
    drops = mw.lower(PADDING, "torch.mha", q_len=5)["key_padding_mask"]
    bias = torch.zeros(drops.shape).masked_fill(drops, float("-inf"))
    assert torch.equal(bias, mw.lower(PADDING, "torch.additive", q_len=1, kv_len=5)[:, 0, 0])
    assert mw.recognize(drops, axes="bk", polarity="drop").mask == PADDING


def test_d3_one_select_where_a_sum_of_two_would_overflow() -> None:
    """Two finite fills overflow when they are summed; lowering the AND of both never sums.

    A cell that both masks hide gets the same number as a cell that one of them hides.
    """
    summed = sum(
        mw.lower(part, "torch.additive", q_len=5, fill="min") for part in (CAUSAL, PADDING)
    )
    assert torch.isinf(summed).any()
    once = mw.lower(CAUSAL & PADDING, "torch.additive", q_len=5, fill="min")
    assert set(once.unique().tolist()) == {0.0, torch.finfo(torch.float32).min}
