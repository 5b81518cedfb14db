"""Walkthroughs: numbers, texts, plain data and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.walkthrough import MAX_TOKENS, generation, scaling


def test_a_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    one, same, other = (mw.walkthrough("a b", seed=seed).as_dict() for seed in (1, 1, 2))
    assert one == same
    assert one["steps"] != other["steps"]


def test_plain_data_is_json_even_with_infinite_numbers() -> None:
    data = mw.walkthrough("a b", mw.causal()).as_dict()
    masked = next(step for step in data["steps"] if step["name"] == "masked")
    assert masked["values"][0][1] == "-inf"
    assert masked["hidden"] == [[False, True], [False, False]]
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))


def test_every_step_has_texts_in_both_languages() -> None:
    for step in mw.walkthrough("a").steps:
        for text in (step.title, step.says):
            assert set(text) == {"en", "zh"}
            assert not text["en"].startswith("walkthrough.")
            assert any("\u4e00" <= letter <= "\u9fff" for letter in text["zh"])


def test_scaling_can_be_left_out() -> None:
    given = {"x": np.eye(2), "wq": np.full((2, 4), 1.0), "wk": np.full((2, 4), 1.0)}
    with_it, without = (
        mw.walkthrough("a b", scaled=s, wv=np.eye(2), **given) for s in (True, False)
    )
    assert with_it["scaled"].values.tolist() == [[2.0, 2.0]] * 2
    assert "scaled" not in [step.name for step in without.steps]
    assert without["scores"].values.tolist() == [[4.0, 4.0]] * 2


def test_a_batch_row_and_a_head_can_be_chosen() -> None:
    mask = mw.padding(lengths=[1, 2]) & mw.by_head([mw.causal(), mw.everything()])
    hidden = {
        (b, h): int(mw.walkthrough("x y", mask, batch=b, head=h)["masked"].hidden.sum())
        for b in range(2)
        for h in range(2)
    }
    assert hidden == {(0, 0): 2, (0, 1): 2, (1, 0): 1, (1, 1): 0}


def test_no_token_and_one_token() -> None:
    assert mw.walkthrough([])["output"].shape == (0, 2)
    assert mw.walkthrough(["a"], mw.causal())["weights"].values.tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tokens": ["t"] * (MAX_TOKENS + 1)}, "at most 64, got 65"),
        ({"scores": [[1]]}, r"scores.*got \(1, 1\)"),
        ({"scores": "abc"}, "scores.*got str"),
        ({"x": [[1, 2]]}, r"x: .*got \(1, 2\)"),
        ({"wk": [[1, 2]]}, r"wk.*got \(1, 2\)"),
        ({"width": 0}, "width"),
        ({"head_size": 10**9}, "head_size.*1000000000"),
        ({"mask": mw.causal().on(3)}, "mask.*2 queries.*got 3 × 3"),
        ({"mask": "causal()"}, "mask.*got str"),
        ({"batch": 1}, "batch 1 is out of range"),
        ({"tokens": 3}, "tokens.*got int"),
        ({"fill": "low"}, "fill.*got str"),
    ],
)
def test_invalid_arguments_are_named(given: dict[str, object], match: str) -> None:
    with pytest.raises(mw.MaskError, match=match):
        mw.walkthrough(**{"tokens": "a b", **given})


def test_generation_needs_values_and_scaling_a_size() -> None:
    with pytest.raises(mw.ArgumentError, match=r"generation.*scores"):
        generation("a b", scores=[[0, 0], [0, 0]])
    with pytest.raises(mw.ArgumentError, match="1024, got 2000"):
        scaling([2000])


def test_an_unknown_step_is_named() -> None:
    with pytest.raises(KeyError, match=r"x, q.*softmax"):
        mw.walkthrough("a")["softmax"]


def test_printing_shows_all_steps() -> None:
    text = str(mw.walkthrough("我 喜欢", mw.causal()))
    for title in ("Token embeddings", "Masked scores", "Output", "(T, C) = (2, 3)", "喜欢"):
        assert title in text
