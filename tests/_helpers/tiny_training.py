"""A tiny task for distributed training, and the jobs that ranks run with it.

torchrun starts this module as a program: `tiny_training FOLDER ARGUMENT ...`.
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
from maskwright.apps import Task, language
from maskwright.apps.distributed import restarted, start
from maskwright.apps.trainer import TrainingConfig, step_generator, train
from maskwright.models.gpt import GPT, GPTConfig

BATCHES = 2  # per optimizer step, over all ranks
CONFIG = TrainingConfig(
    max_steps=20,
    learning_rate=1e-2,
    warmup_steps=2,
    eval_interval=4,
    save_interval=100,
    device="cpu",
    gradient_accumulation_steps=BATCHES,
)


class Tiny(Task):
    """Predicts the next of random tokens."""

    name = "tiny"

    def __init__(self, cut: int | None = None, deadly: bool = False) -> None:
        self.mask: Any = mw.window(back=9)
        self.cut, self.deadly = cut, deadly
        torch.manual_seed(0)
        self.model = GPT(GPTConfig(17, block_size=30, n_embd=16, n_head=2, n_layer=2), self.mask)

    def config(self) -> dict[str, Any]:
        return {"tokens": 30}

    def batch(self, step: int, micro_step: int) -> torch.Tensor:
        if step == self.cut:
            raise KeyboardInterrupt
        if self.deadly and step == 6 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randint(17, (2, 31), generator=step_generator(0, step, micro_step))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def num_tokens(self, batch: torch.Tensor) -> int:
        return batch.numel()

    def evaluate(self) -> float:
        return float(self.loss(torch.randint(17, (2, 31), generator=step_generator(1, 0))))


def run_training(
    dp: int,
    cp: int,
    fsdp: bool = False,
    folder: Path | None = None,
    cut: int | None = None,
    resume: bool = False,
) -> tuple[list[float], list[tuple[int, float]], list[int]]:
    """Losses and evaluations of a run on this rank, and the steps of its callbacks."""
    strategy = start(dp, cp, fsdp=fsdp)
    config, evaluated = replace(CONFIG, gradient_accumulation_steps=BATCHES // dp), []
    done = train(
        *(Tiny(cut), config, folder),
        strategy=strategy,
        resume=resume,
        on_evaluate=lambda state: evaluated.append(state.step),
    ).state
    strategy.close()
    return done.losses, done.evaluations, evaluated


def run_command(words: list[str]) -> str:
    """The output of the command line, with a small model."""
    sizes, training = language.PRESETS["gpt"]
    language.PRESETS["gpt"] = replace(sizes, n_embd=32, n_layer=2), training
    sys.argv, code = ["maskwright", *words], None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    assert not code, printed.getvalue()
    return printed.getvalue()


def train_with_lost_rank(folder: str) -> None:
    """A run whose rank 1 is killed at step 6 of the first attempt; the process group stays open."""
    config = replace(CONFIG, gradient_accumulation_steps=1, eval_interval=2)
    train(Tiny(deadly=not restarted()), config, Path(folder), strategy=start(2, 1))


def recover_then_run_command(folder: str, *words: str) -> str:
    """A run that loses a rank and is restarted; then the output of the command."""
    torch.set_num_threads(1)
    train_with_lost_rank(folder)
    return run_command([*words])


if __name__ == "__main__":
    sys.stdout.write(recover_then_run_command(*sys.argv[1:]))
