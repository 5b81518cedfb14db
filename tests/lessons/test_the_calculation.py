"""The calculation from tokens to outputs, with every number on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.draw.walkthrough import generation, scaling, weights_scene
from maskwright.engine.reference import reference

TOKENS = "a b c D"
X = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.0, -1.0]])
W = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def walk(mask: mw.Mask | None = None, **given: object) -> mw.Walkthrough:
    return mw.walkthrough(TOKENS, mask, x=X, wq=W, wk=W[::-1], wv=2 * W, **given)


def test_b6_four_tokens_of_three_numbers_become_queries_of_two() -> None:
    """X is 4 × 3, the weights are 3 × 2, and every row of Q is of one token only."""
    found = walk(scaled=False)
    shapes = {step.name: step.shape for step in found.steps}
    assert shapes == {
        "x": (4, 3),
        **dict.fromkeys("qkv", (4, 2)),
        **dict.fromkeys(("scores", "masked", "weights"), (4, 4)),
        "output": (4, 2),
    }
    for at, row in enumerate(X):
        assert found["q"].values[at].tolist() == (row @ W).tolist()

    other = mw.walkthrough(TOKENS, x=X[[0, 1, 3, 2]], wq=W, wk=W, wv=W)
    assert other["q"].values[2].tolist() == found["q"].values[3].tolist()  # the order is X's


def test_b6_scores_are_products_of_a_query_and_a_key_and_softmax_goes_by_row() -> None:
    found = walk(scaled=False)
    q, k, v = (found[name].values for name in "qkv")
    for i in range(4):
        for j in range(4):
            assert found["scores"].values[i, j] == pytest.approx(float(q[i] @ k[j]))
    assert found["weights"].values.sum(axis=1) == pytest.approx(np.ones(4))
    assert found["weights"].values.sum(axis=0) != pytest.approx(np.ones(4))
    assert found["output"].values == pytest.approx(found["weights"].values @ v)


def test_b6_the_numbers_are_those_of_torch_and_of_the_reference() -> None:
    found = walk(mw.causal())
    q, k, v = (torch.from_numpy(found[name].values)[None, None] for name in "qkv")
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert found["output"].values == pytest.approx(theirs[0, 0].numpy())
    ours = reference(q, k, v, mw.causal().on(4))
    assert found["weights"].values == pytest.approx(ours.weights[0, 0].numpy())


def test_b7_padding_hides_the_column_of_d_and_keeps_its_row() -> None:
    found = walk(mw.padding(lengths=[3]))
    weights = found["weights"].values
    assert not weights[:, 3].any()
    assert weights.sum(axis=1) == pytest.approx(np.ones(4))  # the row of D, too


def test_b7_hiding_the_row_as_well_leaves_nothing_of_d() -> None:
    """A finite fill makes the row ¼ everywhere; -inf makes it zeros here, NaN in a naive softmax."""
    finite = walk(mw.padding(lengths=[3]), rows_too=True, fill=-1e9)
    assert finite["weights"].values[3].tolist() == [0.25] * 4
    assert finite["output"].values[3] == pytest.approx(finite["v"].values.mean(axis=0))

    endless = walk(mw.padding(lengths=[3]), rows_too=True)
    assert endless["weights"].values[3].tolist() == [0.0] * 4
    with np.errstate(invalid="ignore"):
        row = endless["masked"].values[3]
        assert np.isnan(np.exp(row - row.max())).all()


def test_b8_no_mask_padding_and_look_ahead_side_by_side() -> None:
    masks = {"no mask": None, "padding": mw.padding(lengths=[3]), "look-ahead": mw.causal()}
    walks = {name: walk(mask) for name, mask in masks.items()}
    seen = {name: found["weights"].values > 0 for name, found in walks.items()}
    assert seen["no mask"].all()
    assert seen["padding"].tolist() == [[True] * 3 + [False]] * 4
    assert seen["look-ahead"].tolist() == np.tri(4, dtype=bool).tolist()
    assert walks["look-ahead"]["weights"].values[0].tolist() == [1, 0, 0, 0]
    # The last token has the context of all: its row is the one without a mask.
    last = [walks[name]["weights"].values[3] for name in ("no mask", "look-ahead")]
    assert last[0].tolist() == last[1].tolist()

    scene = weights_scene(walks)
    assert [grid.title for grid in scene.grids] == list(masks)
    assert [int((grid.kinds == 0).sum()) for grid in scene.grids] == [0, 4, 6]


def test_c4_a_fill_of_0_hides_nothing() -> None:
    """Softmax of [1, 2, hidden, 3]: with -1e9 the third has no weight, with 0 it has some."""
    scores = np.tile([1.0, 2.0, 5.0, 3.0], (4, 1))
    mask = mw.padding(keep=[[1, 1, 0, 1]])
    hidden = mw.walkthrough(TOKENS, mask, scores=scores, fill=-1e9)["weights"].values[0]
    assert hidden == pytest.approx([0.0900, 0.2447, 0.0, 0.6652], abs=5e-5)
    leaks = mw.walkthrough(TOKENS, mask, scores=scores, fill=0.0)["weights"].values[0]
    assert leaks[2] == pytest.approx(1 / (math.e + math.e**2 + 1 + math.e**3))


def test_e2_scores_spread_with_the_head_size_unless_they_are_scaled() -> None:
    """The dot product of two random vectors has the variance of their length."""
    rows = scaling([4, 16, 64, 256])
    for row in rows:
        assert row.variance == pytest.approx(row.head_size, rel=0.15)
        assert row.scaled_variance == pytest.approx(1.0, rel=0.15)
    sharp = [row.sharpness for row in rows]
    assert sharp == sorted(sharp)
    assert sharp[-1] > 0.9
    assert max(row.scaled_sharpness for row in rows) < 0.35


def test_e3_the_shapes_of_one_head() -> None:
    found = mw.walkthrough(["t"] * 5, mw.causal(), width=6, head_size=4)
    assert [(step.axes, step.shape) for step in found.steps] == [
        (("T", "C"), (5, 6)),
        *[(("T", "hs"), (5, 4))] * 3,
        *[(("T", "T"), (5, 5))] * 4,
        (("T", "hs"), (5, 4)),
    ]


def test_e3_each_row_of_the_one_pass_is_what_generation_computes() -> None:
    for mask in (mw.causal(), mw.window(back=1)):
        assert all(row.equal for row in generation("how are you today", mask))
    assert not generation("how are you today", mw.window(back=1, ahead=1))[1].equal
