"""The training loop, on a task that trains within a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.apps import Task
from maskwright.apps.checkpoint import checkpoint_exists, load_model, load_state
from maskwright.apps.trainer import TrainingConfig, step_generator, train

if TYPE_CHECKING:
    from pathlib import Path

    from maskwright.apps.checkpoint import TrainingState

SHORT = TrainingConfig(
    max_steps=12,
    learning_rate=0.05,
    warmup_steps=2,
    eval_interval=4,
    save_interval=100,
    device="cpu",
)


class Line(Task):
    """Learns y = 2x, with dropout, so that random numbers matter."""

    name = "line"

    def __init__(self, width: int = 4, scores: list[float] | None = None) -> None:
        torch.manual_seed(0)
        self.width, self.scores = width, scores
        self.model = nn.Sequential(nn.Linear(1, width), nn.Dropout(0.2), nn.Linear(width, 1))

    def config(self) -> dict[str, Any]:
        return {"width": self.width}

    def batch(self, step: int, micro_step: int) -> torch.Tensor:
        return torch.randn(8, 1, generator=step_generator(0, step, micro_step))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.model(batch) - 2 * batch).square().mean()

    def num_tokens(self, batch: torch.Tensor) -> int:
        return int(batch.numel())

    def evaluate(self) -> float:
        if self.scores is not None:
            return self.scores.pop(0)
        return float(self.loss(torch.linspace(-1, 1, 9)[:, None]).detach())


def stop_at(step: int) -> Any:
    def on_evaluate(state: TrainingState) -> None:
        if state.step == step:
            raise KeyboardInterrupt

    return on_evaluate


def test_the_loss_decreases_and_the_best_weights_are_kept() -> None:
    task = Line()
    before = task.evaluate()
    result = train(task, replace(SHORT, max_steps=60))
    task.model.eval()
    with torch.no_grad():
        assert task.evaluate() == pytest.approx(result.state.best_loss)
    assert result.state.best_loss < before / 2
    assert result.stopped == "max_steps"
    assert result.tokens == 60 * 8


def test_the_same_seed_gives_the_same_losses() -> None:
    one, same = (train(Line(), SHORT).state.losses for _ in range(2))
    assert one == same
    assert train(Line(), replace(SHORT, seed=1)).state.losses != one


def test_ctrl_c_saves_the_run_after_the_current_step(tmp_path: Path) -> None:
    whole = train(Line(), SHORT).state

    def on_step(step: int, *_: float) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = train(Line(), SHORT, tmp_path, on_step=on_step)
    assert (result.stopped, result.state.step) == ("interrupted", 3)
    assert load_state(tmp_path / "last", "line").step == 3
    resumed = train(Line(), SHORT, tmp_path, resume=True).state
    assert (resumed.losses, resumed.evaluations) == (whole.losses, whole.evaluations)


def test_checkpoints_are_written_before_the_first_evaluation(tmp_path: Path) -> None:
    steps = []

    def on_step(step: int, *_: float) -> None:
        steps.append(load_state(tmp_path / "last", "line").step)
        if step == 7:
            raise KeyboardInterrupt  # at once, so that nothing more is saved

    train(Line(), replace(SHORT, eval_interval=12, save_interval=3), tmp_path, on_step=on_step)
    assert steps == [0, 0, 0, 3, 3, 3, 6]


def test_the_best_weights_survive_an_interruption(tmp_path: Path) -> None:
    train(Line(scores=[1.0, 5.0]), SHORT, tmp_path, on_evaluate=stop_at(8))
    best, again = Line(), Line(scores=[5.0])
    load_model(tmp_path / "best", best.model)
    train(again, SHORT, tmp_path, resume=True)
    for mine, theirs in zip(again.model.parameters(), best.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_gradient_accumulation_is_one_step() -> None:
    result = train(Line(), replace(SHORT, gradient_accumulation_steps=3))
    assert result.tokens == 12 * 8 * 3
    assert result.state.step == 12


def test_early_stopping() -> None:
    config = replace(SHORT, max_steps=100, eval_interval=1, patience=3)
    result = train(Line(scores=[1.0, 2.0, 3.0, 4.0]), config)
    assert (result.stopped, result.state.step) == ("patience", 4)


def test_a_loss_that_is_not_finite_is_one_sentence() -> None:
    task = Line()
    task.loss = lambda batch: task.model(batch).sum() * float("nan")  # type: ignore[method-assign]
    with pytest.raises(mw.ArgumentError, match="--learning-rate"):
        train(task, SHORT)


def test_what_cannot_be_resumed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(mw.ArgumentError, match="no checkpoint"):
        train(Line(), SHORT, tmp_path, resume=True)
    with pytest.raises(mw.ArgumentError, match="needs a folder"):
        train(Line(), SHORT, resume=True)
    train(Line(), SHORT, tmp_path)
    with pytest.raises(mw.ArgumentError, match="other options: width differs"):
        train(Line(width=5), SHORT, tmp_path, resume=True)


def test_the_best_weights_of_a_replaced_run_are_deleted(tmp_path: Path) -> None:
    train(Line(), SHORT, tmp_path)
    assert checkpoint_exists(tmp_path / "best")
    train(Line(), replace(SHORT, max_steps=0), tmp_path, overwrite=True)
    assert checkpoint_exists(tmp_path / "last")
    assert not checkpoint_exists(tmp_path / "best")


def test_a_new_run_that_cannot_start_replaces_nothing(tmp_path: Path) -> None:
    train(Line(), SHORT, tmp_path)
    with pytest.raises(ValueError, match="learning rate"):
        train(Line(), replace(SHORT, learning_rate=-1.0), tmp_path, overwrite=True)
    assert checkpoint_exists(tmp_path / "best")
    assert checkpoint_exists(tmp_path / "last")


def test_a_held_out_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    class Diverged(Line):
        def evaluate(self) -> float:
            return float("nan")

    with pytest.raises(mw.ArgumentError, match=r"held-out loss is nan at step \d+.*learning-rate"):
        train(Diverged(), SHORT, tmp_path)
    assert load_state(tmp_path / "last", "line").evaluations == []


def test_a_run_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    train(Line(), SHORT, tmp_path)
    before = (tmp_path / "last" / "state.json").read_bytes()
    with pytest.raises(mw.ArgumentError) as error:
        train(Line(), replace(SHORT, seed=1), tmp_path)
    assert all(x in str(error.value) for x in (str(tmp_path), "--resume", "--overwrite"))
    assert (tmp_path / "last" / "state.json").read_bytes() == before
    train(Line(), replace(SHORT, seed=1), tmp_path, overwrite=True)
    assert (tmp_path / "last" / "state.json").read_bytes() != before


CHILD = """
import sys
from pathlib import Path
from tests.apps.test_trainer import SHORT, Line
from maskwright.apps.trainer import train
def on_evaluate(state):
    print(state.step, flush=True)
    if state.step == 8:
        sys.stdin.read()  # until it is killed
train(Line(), SHORT, Path(sys.argv[1]), on_evaluate=on_evaluate)
"""


def test_a_folder_is_locked_and_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    whole = train(Line(), SHORT).state.losses
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert [child.stdout.readline().strip() for _ in range(2)] == ["4", "8"]
        for flags in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(mw.ArgumentError, match=f"pid {child.pid}"):
                train(Line(), SHORT, tmp_path, **flags)
        child.kill()
    assert checkpoint_exists(tmp_path / "last")
    assert train(Line(), SHORT, tmp_path, resume=True).state.losses == whole  # the lock is free
