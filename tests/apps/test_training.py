"""The trainer, on a task so small that it is over in a moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.apps.checkpoints import load_weights
from maskwright.apps.training import Course, chosen_device, seeded, train

if TYPE_CHECKING:
    from pathlib import Path

    from maskwright.apps.checkpoints import Progress

SHORT = Course(steps=12, rate=0.05, warmup=2, evaluate_every=4, device="cpu")


class Line:
    """Learns y = 2x, with dropout, so that chance matters."""

    name = "line"
    mask = mw.causal()

    def __init__(self, width: int = 4) -> None:
        torch.manual_seed(0)
        self.width = width
        self.model: nn.Module = nn.Sequential(
            nn.Linear(1, width), nn.Dropout(0.2), nn.Linear(width, 1)
        )

    def config(self) -> dict[str, Any]:
        return {"width": self.width}

    def batch(self, step: int, part: int) -> torch.Tensor:
        return torch.randn(8, 1, generator=seeded(0, step, part))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.model(batch) - 2 * batch).square().mean()

    def tokens(self, batch: torch.Tensor) -> int:
        return int(batch.numel())

    def evaluate(self) -> float:
        return float(self.loss(torch.linspace(-1, 1, 9)[:, None]).detach())


def test_the_loss_falls_and_the_best_weights_are_kept() -> None:
    task = Line()
    before = task.evaluate()
    outcome = train(task, replace(SHORT, steps=60))
    task.model.eval()
    with torch.no_grad():
        assert task.evaluate() == pytest.approx(outcome.progress.best)
    assert outcome.progress.best < before / 2
    assert outcome.stopped == "done"
    assert outcome.tokens == 60 * 8


def test_a_seed_gives_the_same_losses() -> None:
    one, same = (train(Line(), SHORT).progress.losses for _ in range(2))
    assert one == same
    assert train(Line(), replace(SHORT, seed=1)).progress.losses != one


@pytest.mark.parametrize("cut", [4, 8])
def test_resuming_goes_on_as_if_nothing_had_happened(tmp_path: Path, cut: int) -> None:
    whole = train(Line(), SHORT).progress
    task = Line()

    def stop(progress: Progress) -> None:
        if progress.step == cut:
            raise KeyboardInterrupt

    assert train(task, SHORT, tmp_path, each=stop).stopped == "interrupted"
    resumed = train(Line(), SHORT, tmp_path, resume=True).progress
    assert resumed.losses == whole.losses
    assert resumed.evaluations == whole.evaluations


def test_the_best_weights_outlive_an_interruption(tmp_path: Path) -> None:
    scores = iter([1.0, 5.0, 5.0])
    task = Line()
    task.evaluate = lambda: next(scores)  # type: ignore[method-assign]

    def stop(progress: Progress) -> None:
        if progress.step == 8:
            raise KeyboardInterrupt

    train(task, SHORT, tmp_path, each=stop)
    best = Line()
    load_weights(tmp_path / "best", best.model)
    again = Line()
    again.evaluate = lambda: next(scores)  # type: ignore[method-assign]
    train(again, SHORT, tmp_path, resume=True)
    for mine, theirs in zip(again.model.parameters(), best.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_accumulated_batches_are_one_step() -> None:
    outcome = train(Line(), replace(SHORT, accumulate=3))
    assert outcome.tokens == 12 * 8 * 3
    assert outcome.progress.step == 12


def test_it_stops_when_nothing_gets_better() -> None:
    task = Line()
    worse = iter(range(1, 100))
    task.evaluate = lambda: float(next(worse))  # type: ignore[method-assign]
    outcome = train(task, replace(SHORT, steps=100, evaluate_every=1, patience=3))
    assert outcome.stopped == "no better"
    assert outcome.progress.step == 4


def test_a_loss_that_is_no_number_is_one_sentence() -> None:
    task = Line()
    task.loss = lambda batch: task.model(batch).sum() * float("nan")  # type: ignore[method-assign]
    with pytest.raises(mw.ArgumentError, match="Give a smaller --rate"):
        train(task, SHORT)


def test_what_can_not_be_resumed_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(mw.ArgumentError, match="There is no checkpoint"):
        train(Line(), SHORT, tmp_path, resume=True)
    with pytest.raises(mw.ArgumentError, match="to resume from is not named"):
        train(Line(), SHORT, resume=True)
    train(Line(), SHORT, tmp_path)
    with pytest.raises(mw.ArgumentError, match="other settings"):
        train(Line(width=5), SHORT, tmp_path, resume=True)


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(mw.ArgumentError, match="Give cpu, cuda or auto"):
        chosen_device("abacus")


KILLED = """
import sys
from pathlib import Path
from tests.apps.test_training import SHORT, Line
from dataclasses import replace
from maskwright.apps.training import train
def each(progress):
    print(progress.step, flush=True)
    if progress.step == 8:
        import time; time.sleep(60)
train(Line(), SHORT, Path(sys.argv[1]), each=each)
"""


def test_a_killed_training_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    whole = train(Line(), SHORT).progress.losses
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    until = time.monotonic() + 60
    while running.stdout.readline().strip() != "8":
        assert time.monotonic() < until
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert train(Line(), SHORT, tmp_path, resume=True).progress.losses == whole
