"""Conventions of arrays: what keeps, what hides, and what is neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maskwright import ArgumentError
from maskwright.recognition.encoding import interpretations

CAUSAL = np.tri(3, dtype=np.bool_)


@pytest.mark.parametrize(
    ("array", "form"),
    [(CAUSAL, "bool"), (CAUSAL.astype(np.uint8), "integer"), (CAUSAL.astype(np.float16), "float")],
)
def test_two_values_that_choose_have_two_readings(array: Any, form: str) -> None:
    keep, drop = interpretations(array, "it")
    assert np.array_equal(keep.visible, CAUSAL)
    assert np.array_equal(drop.visible, ~CAUSAL)
    assert (keep.convention.form, keep.convention.keeps, keep.convention.hides) == (form, 1, 0)
    assert (drop.convention.form, drop.convention.keeps, drop.convention.hides) == (form, 0, 1)
    assert keep.convention.shape == (3, 3)
    assert keep.convention.dtype == str(array.dtype)


@pytest.mark.parametrize("fill", [-np.inf, -1e9, -1e4, -1000, np.finfo(np.float32).min])
def test_what_is_added_to_scores_has_one(fill: float) -> None:
    (only,) = interpretations(np.where(CAUSAL, 0.0, fill), "it")
    assert np.array_equal(only.visible, CAUSAL)
    assert only.convention.form == "additive"
    assert only.convention.hides == fill


def test_of_several_fills_the_nearest_is_named() -> None:
    (only,) = interpretations([0.0, -1e9, -2e9], "it")
    assert only.convention.hides == -1e9
    assert only.visible.tolist() == [True, False, False]


def test_whole_numbers_may_be_added_too() -> None:
    (only,) = interpretations([0, -10000, 0], "it")
    assert only.convention.form == "additive"
    assert only.visible.tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32])
def test_no_values_at_all(dtype: Any) -> None:
    assert all(
        reading.visible.shape == (0, 2)
        for reading in interpretations(np.zeros((0, 2), dtype), "it")
    )


@pytest.mark.parametrize(
    ("array", "words"),
    [
        ([[0.0, -5.0]], "it holds -5 at (0, 1), which neither keeps nor hides"),
        ([[0.0, np.nan]], "it holds nan at (0, 1)"),
        ([[0.0, np.inf]], "it holds inf at (0, 1)"),
        ([3, 1], "it holds 3 at (0,)"),
        ([1.0, -1e9], "it holds -1e+09 at (1,)"),
        (np.array([1j]), "it has dtype complex128"),
        (["yes"], "it has dtype <U3"),
        (None, "it is None"),
    ],
)
def test_other_values_are_refused(array: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        interpretations(array, "it")
    assert words in str(error.value)


def test_the_text_of_a_convention() -> None:
    assert str(interpretations(CAUSAL, "it")[1].convention) == "bool, False keeps, (3, 3)"
    numbers = interpretations([1, 0], "it")[0].convention
    assert str(numbers) == "integer, 1 keeps, 0 hides, (2,), int64"
    added = interpretations([0.0, -np.inf], "it")[0].convention
    assert repr(added) == "additive, 0 keeps, -inf hides, (2,), float64"


def test_tensors_of_any_kind() -> None:
    torch = pytest.importorskip("torch")
    (only,) = interpretations(
        torch.tensor([0.0, -1e30], dtype=torch.bfloat16, requires_grad=True), "it"
    )
    assert only.convention.dtype == "bfloat16"
    assert only.visible.tolist() == [True, False]
