"""Steps of attention, generation and scaling."""

from __future__ import annotations

import numpy as np

from maskwright.explore.schema import PAD
from tests._helpers.explore_requests import WORDS, on, post, post_error


def test_steps_of_given_scores() -> None:
    scores = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
    found = post("steps", subject=on("causal()", size=3), values={"scores": scores})["steps"]
    assert [step["name"] for step in found] == ["scores", "masked", "weights"]
    assert found[1]["values"][0] == [0.8, "-inf", "-inf"]
    assert found[1]["hidden"][0] == [False, True, True]
    np.testing.assert_allclose(found[2]["values"][2], [0.2186, 0.4864, 0.2950], atol=5e-5)
    assert found[2]["rows"] == ["0", "1", "2"]


def test_steps_of_tokens() -> None:
    found = post("steps", subject=on("causal()", tokens=WORDS), batch=1, values={"seed": 3})[
        "steps"
    ]
    assert [step["name"].lower() for step in found] == [
        "x", "q", "k", "v", "scores", "scaled", "masked", "weights", "output",
    ]  # fmt: skip
    assert found[0]["rows"] == WORDS[1]
    for step in found:
        assert set(step["title"]) == set(step["says"]) == {"en", "zh"}
        assert np.shape(step["values"]) == tuple(step["shape"])


def test_steps_with_a_finite_mask_value_and_masked_rows() -> None:
    scores = [[1, 2, 4, 3]] * 4
    plain = post("steps", subject=on("~keys([2])", size=4), values={"scores": scores}, fill=-1e9)
    np.testing.assert_allclose(
        plain["steps"][2]["values"][0], [0.0900, 0.2447, 0, 0.6652], atol=5e-5
    )
    masked = post("steps", subject=on("everything()", tokens=[["a", "b", "c", PAD]]), rows_too=True)
    assert masked["steps"][-2]["values"][3] == [0.0] * 4


def test_steps_are_limited_and_square() -> None:
    assert "33 tokens" in post_error("steps", 413, subject=on("causal()", size=33))["message"]
    post_error("steps", 422, subject=on("causal()", size=3, keys=4))
    post_error("steps", 422, subject=on("causal()", size=3), values={"scores": [[1.0]]})
    post_error("generate", 422, subject=on("causal()", size=1), values={"scores": [[1.0]]})


def test_generation_equals_one_pass_with_a_causal_mask_only() -> None:
    for text, equal in (("causal()", [True] * 3), ("everything()", [False, False, True])):
        rows = post("generate", subject=on(text, tokens=[["a", "b", "c"]]))["rows"]
        assert [row["equal"] for row in rows] == equal
        assert [row["token"] for row in rows] == ["a", "b", "c"]
        assert set(rows[0]) == {"position", "token", "weights", "output", "alone", "equal"}
