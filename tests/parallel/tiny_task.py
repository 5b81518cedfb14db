"""A task that trains within a second, for trainings over ranks.

As a program it is what torchrun starts: `tiny_task FOLDER` trains, and in the first attempt one rank
is killed at step 6.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import maskwright as mw
from maskwright.apps.ranks import Ranks, start, stop
from maskwright.apps.training import Course, seeded, train
from maskwright.models.gpt import GPT, GPTConfig

COURSE = Course(
    steps=12, rate=1e-2, warmup=2, evaluate_every=4, device="cpu", patience=None, accumulate=2
)


class Tiny:
    """Random tokens, of which the next is to be told."""

    name = "tiny"

    def __init__(self, deadly: bool = False) -> None:
        self.mask: Any = mw.window(back=9)
        self.deadly = deadly
        torch.manual_seed(0)
        self.model = GPT(GPTConfig(17, context=30, width=16, heads=2, layers=2), self.mask)

    def config(self) -> dict[str, Any]:
        return {"tokens": 30}

    def batch(self, step: int, part: int) -> torch.Tensor:
        if self.deadly and step == 6 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randint(17, (2, 31), generator=seeded(0, step, part))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def tokens(self, batch: torch.Tensor) -> int:
        return batch.numel()

    def evaluate(self) -> float:
        return float(self.loss(torch.randint(17, (2, 31), generator=seeded(1, 0))))


def on_a_mesh(_: Any, dp: int, cp: int) -> tuple[list[float], list[tuple[int, float]]]:
    """The losses of a training on all ranks of a pool; a step is of two batches."""
    mesh = dist.init_device_mesh("cpu", (dp, cp), mesh_dim_names=("dp", "cp"))
    from dataclasses import replace

    course = replace(COURSE, accumulate=2 // dp)
    done = train(Tiny(), course, ranks=Ranks(dp, cp, mesh)).progress
    return done.losses, done.evaluations


def main(folder: str) -> None:
    torch.set_num_threads(1)
    ranks = start(2, 1)
    train(
        Tiny(deadly=not ranks.restarted),
        Course(steps=12, rate=1e-2, warmup=2, evaluate_every=2, device="cpu"),
        Path(folder),
        ranks=ranks,
    )
    stop(ranks)


if __name__ == "__main__":
    main(sys.argv[1])
