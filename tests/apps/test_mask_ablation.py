"""Two training runs of one app, and what is reported about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maskwright.apps import TaskOptions
from maskwright.apps.language import Language
from maskwright.apps.mask_ablation import MIN_STEPS, MaskAblation, compare_masks
from maskwright.apps.trainer import TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, small: None) -> MaskAblation:
    text = tmp_path_factory.mktemp("text") / "notes.txt"
    text.write_text("The cat sat on the mat. The dog ran after it.\n" * 60)
    options = TaskOptions(version="v3", text=text, batch_size=4)
    config = TrainingConfig(4, learning_rate=3e-3, eval_interval=4, device="cpu")
    return compare_masks(Language, options, "everything()", config)


def with_losses(found: MaskAblation, *losses: Sequence[float]) -> MaskAblation:
    results = (
        replace(result, state=replace(result.state, losses=list(values)))
        for result, values in zip(found.results, losses, strict=True)
    )
    return replace(found, results=tuple(results))


def test_both_masks_are_trained_alike_and_compared(found: MaskAblation) -> None:
    assert found.names == ("causal()", "everything()")
    own, other = (result.state.losses for result in found.results)
    assert len(own) == len(other) == 4
    assert own != other
    assert str(found).count(found.metric) == 2
    data = found.as_dict()["everything()"]
    assert data["losses"] == other
    assert data["score"]["value"] == found.scores[1]


def test_the_conclusion_needs_enough_steps(found: MaskAblation) -> None:
    assert "4 steps are too few" in str(found)
    low, high = [1.0] * MIN_STEPS, [2.5] * MIN_STEPS
    assert "2.5 times higher" in str(with_losses(found, low, high))
    assert "2.5 times lower" in str(with_losses(found, high, low))


@pytest.mark.parametrize(("file_format", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_curves_are_plotted(found: MaskAblation, file_format: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    plot = found.plot(file_format)
    assert plot.startswith(begins)
    assert file_format == "png" or all(name.encode() in plot for name in found.names)
