"""The calculation from tokens to outputs, with every number on the way."""

from __future__ import annotations

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


def test_b6_projection_shapes() -> None:
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


def test_b6_scores_and_row_softmax() -> None:
    found = walk(scaled=False)
    q, k, v = (found[name].values for name in "qkv")
    for i in range(4):
        for j in range(4):
            assert found["scores"].values[i, j] == pytest.approx(float(q[i] @ k[j]))
    assert found["weights"].values.sum(axis=1) == pytest.approx(np.ones(4))
    assert found["weights"].values.sum(axis=0) != pytest.approx(np.ones(4))
    assert found["output"].values == pytest.approx(found["weights"].values @ v)


def test_b6_agrees_with_torch_and_reference() -> None:
    found = walk(mw.causal())
    q, k, v = (torch.from_numpy(found[name].values)[None, None] for name in "qkv")
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert found["output"].values == pytest.approx(theirs[0, 0].numpy())
    ours = reference(q, k, v, mw.causal().on(4))
    assert found["weights"].values == pytest.approx(ours.weights[0, 0].numpy())


def test_b7_masked_query_row() -> None:
    """A finite fill makes the row ¼ everywhere; -inf makes it zeros here, NaN in a naive softmax."""
    finite = walk(mw.padding(lengths=[3]), rows_too=True, fill=-1e9)
    assert finite["weights"].values[3].tolist() == [0.25] * 4
    assert finite["output"].values[3] == pytest.approx(finite["v"].values.mean(axis=0))

    endless = walk(mw.padding(lengths=[3]), rows_too=True)
    assert endless["weights"].values[3].tolist() == [0.0] * 4
    with np.errstate(invalid="ignore"):
        row = endless["masked"].values[3]
        assert np.isnan(np.exp(row - row.max())).all()


def test_b8_no_mask_padding_and_causal() -> None:
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


def test_e2_scaling_table() -> None:
    """The dot product of two random vectors has the variance of their length."""
    rows = scaling([4, 16, 64, 256])
    for row in rows:
        assert row.variance == pytest.approx(row.head_size, rel=0.15)
        assert row.scaled_variance == pytest.approx(1.0, rel=0.15)
    sharp = [row.sharpness for row in rows]
    assert sharp == sorted(sharp)
    assert sharp[-1] > 0.9
    assert max(row.scaled_sharpness for row in rows) < 0.35


def test_e3_walkthrough_shapes() -> None:
    found = mw.walkthrough(["t"] * 5, mw.causal(), width=6, head_size=4)
    assert [(step.axes, step.shape) for step in found.steps] == [
        (("T", "C"), (5, 6)),
        *[(("T", "hs"), (5, 4))] * 3,
        *[(("T", "T"), (5, 5))] * 4,
        (("T", "hs"), (5, 4)),
    ]


def test_e3_generation_equals_one_pass() -> None:
    for mask in (mw.causal(), mw.window(back=1)):
        assert all(row.equal for row in generation("how are you today", mask))
    assert not generation("how are you today", mw.window(back=1, ahead=1))[1].equal
