"""Padding masks: a column for every filler token, and why its row is left alone."""

from __future__ import annotations

import numpy as np
import torch

import maskwright as mw
from tests._helpers.naive_softmax import Array, add, select, softmax

PADDING = mw.padding(lengths=[3])  # the last of four tokens is filler
BOTH = (PADDING & PADDING.T).on(4)  # its row is hidden, too
WORDS = [["hello", "world", "!"], ["I", "love", "AI", "research"], ["yes"]]


def four_tokens() -> tuple[Array, Array]:
    """Scores (4, 4) and values (4, 2) of the tokens a b c D, from X (4, 3) and weights (3, 2)."""
    x = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.5, 0.5, 0.0], [1.5, 0.0, 1.0]])
    to_query = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    to_key = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, -0.5]])
    to_value = np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    return (x @ to_query) @ (x @ to_key).T, x @ to_value


def test_b1_padding_broadcasts_to_heads_and_queries() -> None:
    """Two sequences of 3 and 4 tokens in 5 places: (B, T) → (B, 1, T) → (B, H, T, T).

    Every query of a sequence gets the same row, so the small shapes hold all there is to know.
    """
    mask = mw.padding(lengths=[3, 4])
    one_row = mask.on(1, kv_len=5).dense()  # (B, 1, 1, T)
    assert one_row[:, 0, 0].astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]
    assert one_row[:, 0].astype(int).tolist() == [[[1, 1, 1, 0, 0]], [[1, 1, 1, 1, 0]]]

    bound = mask.on(5, heads=2)
    assert bound.shape == (2, 1, 5, 5)  # heads do not differ
    wide = np.broadcast_to(bound.dense(), (2, 2, 5, 5)).astype(int)
    for head in range(2):
        assert wide[0, head].tolist() == [[1, 1, 1, 0, 0]] * 5
        assert wide[1, head].tolist() == [[1, 1, 1, 1, 0]] * 5
    assert np.array_equal(np.broadcast_to(one_row, (2, 2, 5, 5)), wide)


def test_b7_padding_masks_columns_not_rows() -> None:
    """In `a b c D`, with D a filler, nobody may look at D; D itself may look at a, b and c.

    So D's value reaches no output, not even its own, while row D still holds real weights.
    """
    scores, values = four_tokens()
    bound = PADDING.on(4)
    keep = bound.dense()[0, 0]
    assert keep.astype(int).tolist() == [[1, 1, 1, 0]] * 4
    assert not bound.empty_rows().any()

    weights = softmax(select(scores, keep, -np.inf))
    assert weights[:, 3].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert np.ptp(weights[3, :3]) > 0.1  # not uniform: D's own scores decide

    other = values.copy()
    other[3] = 1000
    assert not np.allclose(softmax(scores) @ other, softmax(scores) @ values)
    assert np.array_equal(weights @ other, weights @ values)


def test_b7_masked_row_with_finite_fill_is_uniform() -> None:
    """With row and column D hidden, a row of equal fills becomes four weights of 1/4.

    The output of D is then the mean of all values, of D's too, and says nothing about D.
    """
    scores, values = four_tokens()
    keep = BOTH.dense()[0, 0]
    assert keep.astype(int).tolist() == [[1, 1, 1, 0]] * 3 + [[0, 0, 0, 0]]
    assert BOTH.empty_rows().tolist() == [[[False, False, False, True]]]

    weights = softmax(select(scores, keep, -1e9))
    assert weights[3].tolist() == [0.25, 0.25, 0.25, 0.25]
    np.testing.assert_allclose((weights @ values)[3], values.mean(axis=0))
    real = softmax(select(scores, PADDING.on(4).dense()[0, 0], -1e9))
    assert np.array_equal(weights[:3], real[:3])


def test_b7_masked_row_with_infinite_fill_is_nan() -> None:
    """With -inf the same row is 0 / 0: NaN in exactly the rows that are reported as empty."""
    scores, values = four_tokens()
    filled = select(scores, BOTH.dense()[0, 0], -np.inf)
    with np.errstate(invalid="ignore"):
        weights = softmax(filled)
    assert np.array_equal(np.isnan(weights).all(axis=1), BOTH.empty_rows()[0, 0])
    assert np.isnan(weights[3] @ values).all()
    assert torch.softmax(torch.from_numpy(filled), dim=-1)[3].isnan().all()


def test_b7_added_fill_depends_on_precision() -> None:
    """Adding -1e9 to a whole row gives 1/4 in float32, where it is too coarse for the scores.

    In float64 the scores survive the sum, and the row comes out as if nothing were hidden at all:
    the filler too has its full weight.
    """
    scores = four_tokens()[0]
    keep = BOTH.dense()[0, 0]
    assert softmax(add(scores.astype(np.float32), keep, -1e9))[3].tolist() == [0.25] * 4
    revived = softmax(add(scores, keep, -1e9))[3]
    np.testing.assert_allclose(revived, softmax(scores)[3], atol=1e-6)
    assert revived[3] > 0.2
    assert np.ptp(revived) > 0.3


def test_c1_pad_words() -> None:
    """Sentences of 3, 4 and 1 words are filled up to 4, and the mask remembers which are real."""
    batch = mw.pad(WORDS, pad_id="<pad>")
    assert batch.ids.tolist() == [
        ["hello", "world", "!", "<pad>"],
        ["I", "love", "AI", "research"],
        ["yes", "<pad>", "<pad>", "<pad>"],
    ]
    kept = batch.mask.on(1, kv_len=4).dense()[:, 0, 0]  # (B, T)
    assert kept.astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert np.array_equal(kept, batch.ids != "<pad>")
    assert batch.mask == mw.padding(lengths=[3, 4, 1])


def test_c1_pad_ids() -> None:
    """With a number for every word and 0 for the filler, the mask is read from the ids alone."""
    batch = mw.pad([[5, 7, 1], [3, 4, 2, 6], [8]], pad_id=0)
    assert batch.ids.tolist() == [[5, 7, 1, 0], [3, 4, 2, 6], [8, 0, 0, 0]]
    kept = batch.mask.on(1, kv_len=4).dense()[:, 0, 0]
    assert np.array_equal(kept, batch.ids != 0)
    assert batch.mask.on(4).equals(mw.padding(ids=batch.ids, pad_id=0))
    assert batch.mask.on(4).equals(mw.pad(WORDS, pad_id="<pad>").mask)


def test_d2_true_is_masked_convention() -> None:
    """Some code marks the filler with True and turns True into -inf. Here True means "may see".

    So its mask comes in by `padding(keep=~hide)`; without the `~`, the real tokens are hidden.
    """
    hide = torch.tensor([[False, False, False, True, True], [False, False, False, False, True]])
    scores = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 2, 5, 5)))
    bias = torch.zeros(2, 1, 1, 5, dtype=torch.float64)
    bias = bias.masked_fill(hide[:, None, None, :], float("-inf"))
    theirs = torch.softmax(scores + bias, dim=-1).numpy()

    mask = mw.padding(keep=~hide)
    assert mask.on(5).equals(mw.padding(lengths=[3, 4]))
    ours = softmax(select(scores.numpy(), mask.on(5).dense(), -np.inf))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)

    inverted = softmax(select(scores.numpy(), mw.padding(keep=hide).on(5).dense(), -np.inf))
    assert not inverted[0, :, :, :3].any()
