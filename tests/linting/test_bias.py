"""Lint of biases: values that hide positions, sizes, and arguments of masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskwright as mw


@pytest.mark.parametrize(
    "bias",
    [
        mw.bias.tensor([[0.0, -1e4]]),
        mw.bias.per_key([-1e9, 0.0]),
        mw.bias.relative([[-1e9, 0.0, 0.0]]),
        mw.bias.t5(np.full((4, 1), -5e4)),
        mw.bias.grid([[-1e6]], 1, 1),
        -mw.bias.per_key([1e4, 0.0]),
        2.0 * (mw.bias.alibi(2) + 0.5 * mw.bias.per_key(torch.tensor([-1e5]))),
    ],
)
def test_values_that_mask_are_reported(bias: mw.bias.Bias) -> None:
    report = mw.lint(bias)
    assert report.codes == ("bias-hides",)
    assert report[0].severity.value == "warning"
    assert report[0].text("zh") != report[0].text("en")


@pytest.mark.parametrize(
    "bias",
    [
        mw.bias.alibi(8),
        mw.bias.alibi([10.0]).on(10_000).bias,  # -1e5 at the longest distance, by decay
        mw.bias.per_key([-9_999.0, 1e9]),
        mw.bias.tensor(np.zeros((0,))),
    ],
)
def test_other_values_are_not(bias: mw.bias.Bias) -> None:
    assert mw.lint(bias).ok


def test_each_term_is_reported_at_its_lowest_cell() -> None:
    values = np.zeros((2, 1, 3, 3))
    values[1, 0, 2, 1] = -2e4
    values[0, 0, 0, 0] = -1e4
    report = mw.lint(mw.bias.tensor(values) + mw.bias.per_key([0.0, -1e9, 0.0]))
    assert report.codes == ("bias-hides", "bias-hides")
    assert report[0].cell == (1, 0, 2, 1)
    assert report[1].cell is None


def test_sizes_are_checked() -> None:
    assert mw.lint(mw.bias.per_key([0.0, 1.0]), q_len=3).codes == ("does-not-fit",)
    assert mw.lint(mw.bias.per_key([0.0, 1.0]), q_len=3, kv_len=2).ok
    assert mw.lint(mw.bias.alibi(2).on(4)).ok


@pytest.mark.parametrize("stated", [{"causal": True}, {"padding": [2]}, {"to": "keep"}])
def test_properties_of_masks_are_refused(stated: dict[str, object]) -> None:
    with pytest.raises(mw.ArgumentError):
        mw.lint(mw.bias.alibi(2), **stated)  # type: ignore[arg-type]
