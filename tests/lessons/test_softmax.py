"""From a mask to weights: what is added to the scores, and what is not enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

import maskwright as mw
from tests._helpers.naive_softmax import add, select, softmax


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "mask",
    [mw.padding(lengths=[3, 4]), mw.causal(), mw.causal() & mw.padding(lengths=[3, 4])],
    ids=repr,
)
def test_b3_added_and_selected_weights_agree(mask: mw.Mask, dtype: type) -> None:
    """`scores + (1 - mask) * -1e9` and a boolean select agree bit for bit, except in fully masked rows.

    The scores at the hidden cells differ, but exp makes 0 of both.
    """
    keep = mask.on(5, batch=2).dense()
    assert not mask.on(5).empty_rows().any()
    scores = np.random.default_rng(4).normal(size=(2, 2, 5, 5)).astype(dtype)
    added, selected = add(scores, keep, -1e9), select(scores, keep, -np.inf)
    assert not np.array_equal(added, selected)
    assert np.array_equal(softmax(added), softmax(selected))
    assert np.array_equal(softmax(added) > 0, np.broadcast_to(keep, scores.shape))


def test_b3_adding_overflows_in_half_precision() -> None:
    """-1e9 does not fit float16. Rounded, it is -inf, and 0 * -inf is NaN in the cells to keep.

    A select multiplies nothing, so it has no such trap.
    """
    keep = mw.causal().on(3).dense()[0, 0]
    scores = np.array([[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]], np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        added = add(scores, keep, -1e9)
    assert np.array_equal(np.isnan(added), keep)

    weights = softmax(select(scores, keep, -np.inf))
    assert weights.dtype == np.float16
    assert np.array_equal(weights > 0, keep)


def test_c4_fill_value_must_be_large_and_negative() -> None:
    """Softmax of [1, 2, -1e9, 3] gives the third key nothing.

    A score of 0 would not hide it: exp(0) is 1, and the key keeps 3 % of the weight.
    """
    scores = np.array([[1.0, 2.0, 0.5, 3.0]])
    keep = (~mw.keys([2])).on(1, kv_len=4).dense()[0, 0]
    hidden = select(scores, keep, -1e9)
    assert hidden.tolist() == [[1.0, 2.0, -1e9, 3.0]]
    weights = softmax(hidden)[0]
    np.testing.assert_allclose(weights, [0.0900, 0.2447, 0, 0.6652], atol=5e-5)
    assert weights[2] == 0

    np.testing.assert_allclose(softmax(select(scores, keep, 0.0))[0, 2], 0.0321, atol=5e-5)
    in_torch = torch.from_numpy(scores).masked_fill(~torch.from_numpy(keep), -1e9)
    np.testing.assert_allclose(F.softmax(in_torch, dim=-1).numpy()[0], weights, rtol=1e-12)


def test_d1_additive_mask() -> None:
    """softmax(QKᵀ/√d + M)V, with M = 0 where a key may be seen and -inf where not.

    That is the softmax over only the keys of each row's interval, which is how the row can be
    computed without M; and it is what PyTorch does with either form of the mask.
    """
    q, k, v = np.random.default_rng(5).normal(size=(3, 4, 2))
    bound = mw.causal().on(4)
    keep = bound.dense()[0, 0]
    m = select(np.zeros((4, 4)), keep, -np.inf)
    inf = np.inf
    assert m.tolist() == [[0, -inf, -inf, -inf], [0, 0, -inf, -inf], [0, 0, 0, -inf], [0, 0, 0, 0]]
    output = softmax(q @ k.T / np.sqrt(2) + m) @ v

    for row in range(4):
        [(start, stop)] = bound.spans.row(row)
        alone = softmax(q[row] @ k[start:stop].T / np.sqrt(2)) @ v[start:stop]
        np.testing.assert_allclose(output[row], alone, rtol=1e-12)

    tensors = [torch.from_numpy(part)[None, None] for part in (q, k, v)]
    for form in (torch.from_numpy(keep), torch.from_numpy(m)):
        theirs = F.scaled_dot_product_attention(*tensors, attn_mask=form)
        np.testing.assert_allclose(theirs[0, 0].numpy(), output, rtol=1e-9)


def test_d1_adding_one_masks_nothing() -> None:
    """A padding matrix is sometimes shown as zeros with one 1, in the last cell, to be added.

    Adding 1 to a score hides nothing: that cell's weight even grows, and all other rows still see
    the filler. A padding mask is a whole column of -inf.
    """
    q, k = np.random.default_rng(6).normal(size=(2, 4, 2))
    scores = q @ k.T / np.sqrt(2)
    one = np.zeros((4, 4))
    one[3, 3] = 1
    before, after = softmax(scores), softmax(scores + one)
    assert (after > 0).all()
    assert after[3, 3] > before[3, 3]
    assert np.array_equal(after[:3], before[:3])

    # with -inf in that one cell, only the filler is hidden from itself
    cell = softmax(select(scores, one == 0, -np.inf))
    assert cell[3, 3] == 0
    assert np.array_equal(cell[:3, 3], before[:3, 3])

    padding = mw.padding(lengths=[3]).on(4)
    m = select(np.zeros((4, 4)), padding.dense()[0, 0], -np.inf)
    assert m.tolist() == [[0, 0, 0, -np.inf]] * 4
    column = softmax(scores + m)
    assert column[:, 3].tolist() == [0, 0, 0, 0]
    assert (column[:, :3] > before[:, :3]).all()
    assert not padding.equals(mw.dense(one == 0))
