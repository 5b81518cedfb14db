"""Two training runs of one app, and what is reported about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maskwright.apps import TaskOptions
from maskwright.apps.language import Language
from maskwright.apps.mask_ablation import MaskAblation, MaskRun, compare_masks
from maskwright.apps.trainer import TrainingConfig


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, small: None) -> MaskAblation:
    text = tmp_path_factory.mktemp("text") / "notes.txt"
    text.write_text("The cat sat on the mat. The dog ran after it.\n" * 60)
    options = TaskOptions(version="v3", text=text, batch_size=4)
    config = TrainingConfig(4, learning_rate=3e-3, eval_interval=4, device="cpu")
    return compare_masks(Language, options, "everything()", config)


def with_losses(run: MaskRun, losses: list[float], stopped: str = "max_steps") -> MaskRun:
    state = replace(run.result.state, losses=losses)
    return replace(run, result=replace(run.result, state=state, stopped=stopped))


def test_both_masks_are_trained_alike_and_compared(found: MaskAblation) -> None:
    own, other = found.own, found.other
    assert (own.mask, other.mask) == ("causal()", "everything()")
    assert len(own.losses) == len(other.losses) == 4
    assert own.losses != other.losses
    assert str(found).count(found.metric) == 2
    data = found.as_dict()["everything()"]
    assert data["losses"] == other.losses
    assert data["score"]["value"] == other.score


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (1.0, 2.5, "2.5 times higher"),
        (2.5, 1.0, "2.5 times lower"),
        (2.41, 2.38, "equal to 1.3%"),
        (0.0, 0.0, "equal to 0.0%"),
    ],
)
def test_the_losses_are_compared(
    found: MaskAblation, own: float, other: float, expected: str
) -> None:
    runs = with_losses(found.own, [own] * 30), with_losses(found.other, [other] * 30)
    assert expected in MaskAblation(*runs, found.metric, 30).conclusion()


def test_a_run_that_is_shorter_than_the_default_is_too_short_to_tell(found: MaskAblation) -> None:
    default = Language.training_config(TaskOptions(version="v3")).max_steps
    assert found.default_steps == default
    warning = found.warning()
    assert warning is not None
    assert f"4 of {default} steps" in warning
    assert warning in str(found)
    own = with_losses(found.own, [2.41] * default)
    for steps, loss, stopped, expected in (
        (150, 2.38, "max_steps", True),
        (150, 2.38, "interrupted", True),
        (150, 2.38, "patience", False),
        (150, 0.5, "max_steps", False),
        (default, 2.38, "max_steps", False),
    ):
        other = with_losses(found.other, [loss] * steps, stopped)
        ablation = replace(found, own=own, other=other)
        assert (ablation.warning() is not None) == expected


@pytest.mark.parametrize(("file_format", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_curves_are_plotted(found: MaskAblation, file_format: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    plot = found.plot(file_format)
    assert plot.startswith(begins)
    assert file_format == "png" or all(
        run.mask.encode() in plot for run in (found.own, found.other)
    )
