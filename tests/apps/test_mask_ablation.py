"""Two training runs of one app, and what is reported about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maskwright.apps import TaskOptions
from maskwright.apps.language import Language
from maskwright.apps.mask_ablation import MIN_STEPS, MaskAblation, MaskRun, compare_masks
from maskwright.apps.trainer import TrainingConfig


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, small: None) -> MaskAblation:
    text = tmp_path_factory.mktemp("text") / "notes.txt"
    text.write_text("The cat sat on the mat. The dog ran after it.\n" * 60)
    options = TaskOptions(version="v3", text=text, batch_size=4)
    config = TrainingConfig(4, learning_rate=3e-3, eval_interval=4, device="cpu")
    return compare_masks(Language, options, "everything()", config)


def with_losses(run: MaskRun, loss: float) -> MaskRun:
    state = replace(run.result.state, losses=[loss] * MIN_STEPS)
    return replace(run, result=replace(run.result, state=state))


def test_both_masks_are_trained_alike_and_compared(found: MaskAblation) -> None:
    own, other = found.own, found.other
    assert (own.mask, other.mask) == ("causal()", "everything()")
    assert len(own.losses) == len(other.losses) == 4
    assert own.losses != other.losses
    assert str(found).count(found.metric) == 2
    data = found.as_dict()["everything()"]
    assert data["losses"] == other.losses
    assert data["score"]["value"] == other.score


def test_the_conclusion_needs_enough_steps(found: MaskAblation) -> None:
    assert "4 steps are too few" in str(found)
    for own, other, expected in ((1.0, 2.5, "2.5 times higher"), (2.5, 1.0, "2.5 times lower")):
        runs = with_losses(found.own, own), with_losses(found.other, other)
        assert expected in str(MaskAblation(*runs, found.metric))


@pytest.mark.parametrize(("file_format", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_curves_are_plotted(found: MaskAblation, file_format: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    plot = found.plot(file_format)
    assert plot.startswith(begins)
    assert file_format == "png" or all(
        run.mask.encode() in plot for run in (found.own, found.other)
    )
