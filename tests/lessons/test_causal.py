"""Causal masks: which triangle, and what it does to the weights."""

from __future__ import annotations

import numpy as np
import torch

import maskwright as mw
from maskwright.models.gpt import GPT, GPTConfig
from tests._helpers.naive_softmax import select, softmax

SCORES = np.array([[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]])
WEIGHTS = np.array([[1, 0, 0], [0.4256, 0.5744, 0], [0.2186, 0.4864, 0.2950]])


def test_a1_weights_of_three_tokens() -> None:
    """Three tokens: hide the future, then let softmax share out what is left.

    A commonly printed last row, [0.24, 0.54, 0.22], is wrong: softmax of [0.3, 1.1, 0.6] is
    [0.2186, 0.4864, 0.2950]. It can be seen without a calculator, because softmax keeps the order
    of the scores, and 0.6 > 0.3.
    """
    keep = mw.causal().on(3).dense()[0, 0]
    assert keep.astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]

    filled = select(SCORES, keep, -1e9)
    assert filled.tolist() == [[0.8, -1e9, -1e9], [0.4, 0.7, -1e9], [0.3, 1.1, 0.6]]

    weights = softmax(filled)
    np.testing.assert_allclose(weights, WEIGHTS, atol=5e-5)
    in_torch = torch.from_numpy(SCORES).masked_fill(torch.ones(3, 3).tril() == 0, -1e9)
    np.testing.assert_allclose(torch.softmax(in_torch, dim=-1).numpy(), weights, rtol=1e-12)
    assert not weights[~keep].any()
    assert weights[2, 2] > weights[2, 0]
    assert abs(weights[2] - [0.24, 0.54, 0.22]).max() > 0.07


def test_a1_future_scores_do_not_matter() -> None:
    """Whatever the scores above the diagonal are, the weights stay as they were."""
    keep = mw.causal().on(3).dense()[0, 0]
    other = SCORES + np.triu(np.full((3, 3), 7.0), k=1)
    assert not np.allclose(softmax(other), softmax(SCORES))
    assert np.array_equal(softmax(select(other, keep, -1e9)), softmax(select(SCORES, keep, -1e9)))


def test_a2_tril_is_causal_and_triu_is_not() -> None:
    """Of two masks that keep, the causal one is the lower triangle; the upper one sees the future.

    To tell them apart, look at row 0: the first token has no past, so it may see only itself.
    """
    ones = torch.ones(3, 3)
    past, future = mw.causal().on(3), mw.causal().T.on(3)
    assert np.array_equal(past.dense()[0, 0], ones.tril().numpy() == 1)
    assert np.array_equal(future.dense()[0, 0], ones.triu().numpy() == 1)

    assert past.spans.row(0) == [(0, 1)]
    assert future.spans.row(0) == [(0, 3)]
    assert past.dense()[0, 0, 0].tolist() == [True, False, False]
    assert future.equals(mw.window(back=0, ahead=None))


def test_a2_strict_upper_triangle_is_masked() -> None:
    """`triu(diagonal=1)` is right too, as the list of cells to fill rather than to keep.

    With the diagonal left in it (`triu()`), every token is hidden from itself, and the first one
    is left with nothing: NaN.
    """
    scores, ones = torch.from_numpy(SCORES), torch.ones(3, 3)
    drop = ones.triu(diagonal=1) == 1
    assert np.array_equal((~mw.causal()).on(3).dense()[0, 0], drop.numpy())
    weights = torch.softmax(scores.masked_fill(drop, float("-inf")), dim=-1)
    np.testing.assert_allclose(weights.numpy(), WEIGHTS, atol=5e-5)

    too_much = ones.triu() == 1
    weights = torch.softmax(scores.masked_fill(too_much, float("-inf")), dim=-1)
    assert weights.isnan().any(dim=-1).tolist() == [True, False, False]
    strict = (~mw.causal().T).on(3)
    assert np.array_equal(strict.dense()[0, 0], ~too_much.numpy())
    assert strict.empty_rows().tolist() == [[[True, False, False]]]


def test_a2_recognize_finds_polarity() -> None:
    """Both arrays are the causal mask: one holds what to keep, the other what to drop.

    With the diagonal in the wrong one of the two, it is another mask, whichever way it is read.
    """
    ones = torch.ones(3, 3).bool()
    keeps, drops = mw.recognize(ones.tril()), mw.recognize(ones.triu(diagonal=1))
    assert keeps.mask == drops.mask == mw.causal()
    assert [bool(found.convention.keeps) for found in (keeps, drops)] == [True, False]

    for polarity in ("keep", "drop"):
        slip = mw.recognize(ones.triu(), polarity=polarity)
        assert not slip.mask.on(3).equals(mw.causal())
    assert mw.lint(ones.triu(), to="keep", causal=True).codes == ("queries-and-keys-swapped",)
    assert mw.lint(ones.triu(), to="drop", causal=True).codes == (
        "own-position-hidden",
        "empty-row",
    )


def test_a3_no_position_depends_on_a_later_one() -> None:
    """Measured on a model of three layers, not read from its mask."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(40, block_size=10, n_embd=16, n_head=2, n_layer=3))
    ids = torch.randint(40, (1, 10))
    assert np.array_equal(mw.influence(model, ids).moved[0], np.tri(10, dtype=bool))
    mw.audit(model, ids, expects="causal").assert_ok()
