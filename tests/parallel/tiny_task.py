"""A task that trains within a second, for trainings over ranks, and what the ranks do with it.

As a program it is what torchrun starts: `tiny_task FOLDER WORD ...`, which is `lost_and_commanded`.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import maskwright as mw
from maskwright.__main__ import main
from maskwright.apps import language
from maskwright.apps.ranks import start, stop
from maskwright.apps.training import Course, seeded, train
from maskwright.models.gpt import GPT, GPTConfig

BATCHES = 2  # make a step, whoever computes them
COURSE = Course(
    steps=20, rate=1e-2, warmup=2, evaluate_every=4, device="cpu", patience=None, accumulate=BATCHES
)


class Tiny:
    """Random tokens, of which the next is to be told."""

    name = "tiny"

    def __init__(self, cut: int | None = None, deadly: bool = False) -> None:
        self.mask: Any = mw.window(back=9)
        self.cut, self.deadly = cut, deadly
        torch.manual_seed(0)
        self.model = GPT(GPTConfig(17, context=30, width=16, heads=2, layers=2), self.mask)

    def config(self) -> dict[str, Any]:
        return {"tokens": 30}

    def batch(self, step: int, part: int) -> torch.Tensor:
        if step == self.cut:
            raise KeyboardInterrupt
        if self.deadly and step == 6 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randint(17, (2, 31), generator=seeded(0, step, part))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def tokens(self, batch: torch.Tensor) -> int:
        return batch.numel()

    def evaluate(self) -> float:
        return float(self.loss(torch.randint(17, (2, 31), generator=seeded(1, 0))))


def trained(
    dp: int,
    cp: int,
    fsdp: bool = False,
    folder: Path | None = None,
    cut: int | None = None,
    resume: bool = False,
) -> tuple[list[float], list[tuple[int, float]], list[int]]:
    """The losses and evaluations of a training, by all ranks; and at which steps each told of it."""
    ranks = start(dp, cp, fsdp=fsdp)
    course, told = replace(COURSE, accumulate=BATCHES // dp), []
    done = train(
        *(Tiny(cut), course, folder),
        ranks=ranks,
        resume=resume,
        each=lambda progress: told.append(progress.step),
    ).progress
    stop(ranks)
    return done.losses, done.evaluations, told


def commanded(words: list[str]) -> str:
    """What the command line prints; its model is small, as what it learns is no matter here."""
    small = replace(language.SIZES["gpt"], width=32, layers=2)
    language.SIZES["gpt"] = small
    sys.argv, code = ["maskwright", *words], None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    assert not code, printed.getvalue()
    return printed.getvalue()


def killed_once(folder: str) -> None:
    """The ranks stay joined: in the same processes they can't be joined again."""
    ranks = start(2, 1)
    course = replace(COURSE, accumulate=1, evaluate_every=2)
    train(Tiny(deadly=not ranks.restarted), course, Path(folder), ranks=ranks)


def lost_and_commanded(folder: str, *words: str) -> str:
    """A training in whose first attempt a rank is killed at step 6; then what the command prints."""
    torch.set_num_threads(1)
    killed_once(folder)
    return commanded([*words])


if __name__ == "__main__":
    sys.stdout.write(lost_and_commanded(*sys.argv[1:]))
