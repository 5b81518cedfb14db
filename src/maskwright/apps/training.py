"""One small trainer for every app: AdamW, warm-up and cosine, clipping, checkpoints, and resuming.

Everything random at a step is drawn from the seed and the number of that step. So a training that
was cut short goes on as if nothing had happened, with the same losses.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from maskwright.apps.checkpoints import Progress, load_optimizer, load_progress, load_weights, save
from maskwright.apps.ranks import Ranks
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn

    from maskwright.core.mask import Mask


class Task(Protocol):
    """What an app brings: a model, a loss on a batch of a given step, and a score to get better at."""

    name: str
    model: nn.Module
    mask: Mask | None  # None where every batch brings its own

    def config(self) -> dict[str, Any]:
        """All that it takes to make the task again."""
        ...

    def batch(self, step: int, part: int) -> Any:
        """The data of a step; `part` counts the batches that are accumulated."""
        ...

    def loss(self, batch: Any) -> torch.Tensor:
        """What training makes small."""
        ...

    def tokens(self, batch: Any) -> int:
        """How many tokens a batch has, to tell the speed."""
        ...

    def evaluate(self) -> float:
        """The loss on what was held out."""
        ...


@dataclass(frozen=True)
class Course:
    """How to train.

    >>> from maskwright.apps.training import Course
    >>> [round(Course(steps=100, warmup=10, rate=1.0).rate_at(step), 3) for step in (0, 9, 10, 99)]
    [0.1, 1.0, 1.0, 0.1]
    """

    steps: int = 1000
    rate: float = 1e-3
    least_rate: float = 0.1  # of the rate, at the end
    warmup: int = 50
    decay: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    evaluate_every: int = 100
    patience: int | None = None  # evaluations without a better one, after which it stops
    seed: int = 0
    device: str = "auto"
    compile: bool = False
    bfloat16: bool = False

    def rate_at(self, step: int) -> float:
        """Rises over the warm-up, then falls along a cosine."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - 1 - self.warmup)
        share = self.least_rate + (1 - self.least_rate) * 0.5 * (
            1 + math.cos(math.pi * min(1, done))
        )
        return self.rate * share


@dataclass(frozen=True)
class Outcome:
    """What a training came to."""

    progress: Progress
    seconds: float
    tokens: int
    stopped: str  # "done", "no better", or "interrupted"

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


def train(
    task: Task,
    course: Course,
    folder: Path | None = None,
    *,
    resume: bool = False,
    each: Callable[[Progress], None] | None = None,
    ranks: Ranks | None = None,
) -> Outcome:
    """Train a task; `each` is called after every evaluation. Ctrl-C saves, and ends it.

    With `ranks`, all processes call it alike, and the main one alone writes and tells.

    The best weights, by what was held out, are in the model in the end, and in `folder`/best.
    """
    ranks = Ranks() if ranks is None else ranks
    if ranks.restarted and folder is not None and (folder / "last").is_dir():
        resume = True
    kept = folder  # what to read from
    if not ranks.main:
        folder, each = None, None
    device = chosen_device(course.device)
    task.model.to(device)
    optimizer = _optimizer(task.model, course, device)
    progress = Progress(task.name, task.config())
    if resume:
        progress = _resumed(task, optimizer, kept)
    run: Callable[[Any], torch.Tensor] = torch.compile(task.loss) if course.compile else task.loss
    best = _best_so_far(task.model, kept if resume else None)
    started, tokens, stopped = time.perf_counter(), 0, "done"
    with _bar(course.steps, progress.step, ranks.main) as show, ranks.sharing(task.model):
        try:
            while progress.step < course.steps:
                loss, count = _step(task, run, optimizer, course, progress.step, device, ranks)
                if not math.isfinite(loss):
                    raise ArgumentError(
                        f"The loss is {loss} at step {progress.step}. Give a smaller --rate."
                    )
                tokens += count
                progress.losses.append(loss)
                progress.step += 1
                show(progress.step, loss, tokens / (time.perf_counter() - started))
                if progress.step % course.evaluate_every == 0 or progress.step == course.steps:
                    if _evaluate(task, progress):
                        best = _copied(task.model)
                        if folder is not None:
                            save(folder / "best", task.model, progress)
                    if folder is not None:
                        save(folder / "last", task.model, progress, optimizer)
                    if each is not None:
                        each(progress)
                    if course.patience is not None and progress.waited >= course.patience:
                        stopped = "no better"
                        break
        except KeyboardInterrupt:
            stopped = "interrupted"
            if folder is not None:
                save(folder / "last", task.model, progress, optimizer)
    if stopped != "interrupted":
        task.model.load_state_dict(best)
    return Outcome(progress, time.perf_counter() - started, tokens, stopped)


def chosen_device(wish: str) -> torch.device:
    """The device asked for; "auto" is the graphics card where there is one.

    >>> from maskwright.apps.training import chosen_device
    >>> chosen_device("cpu")
    device(type='cpu')
    """
    if wish == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=wish).device
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(f"--device {wish} is not there. Give cpu, cuda or auto.") from error


def seeded(course_seed: int, step: int, part: int = 0) -> torch.Generator:
    """Random numbers of one step, the same whenever it is taken."""
    return torch.Generator().manual_seed((course_seed * 1_000_003 + step) * 64 + part)


def _step(
    task: Task,
    run: Callable[[Any], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    course: Course,
    step: int,
    device: torch.device,
    ranks: Ranks,
) -> tuple[float, int]:
    """One step of the optimizer: its loss, and how many tokens it saw."""
    task.model.train()
    torch.manual_seed(course.seed * 1_000_003 + step)  # for dropout
    for group in optimizer.param_groups:
        group["lr"] = course.rate_at(step)
    optimizer.zero_grad(set_to_none=True)
    total, tokens = 0.0, 0
    for part in ranks.parts(course.accumulate):
        batch = task.batch(step, part)
        with torch.autocast(device.type, torch.bfloat16, enabled=course.bfloat16):
            loss = run(batch) / (course.accumulate * ranks.dp)
        loss.backward()
        total += float(loss.detach())
        tokens += task.tokens(batch)
    total, count = ranks.add_up(task.model, total, tokens)
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), course.clip)
    optimizer.step()
    return total, int(count)


def _evaluate(task: Task, progress: Progress) -> bool:
    """Measure on what was held out; was it the best so far?"""
    task.model.eval()
    with torch.no_grad():
        found = task.evaluate()
    progress.evaluations.append((progress.step, found))
    better = found < progress.best
    progress.best = min(found, progress.best)
    progress.waited = 0 if better else progress.waited + 1
    return better


def _optimizer(model: nn.Module, course: Course, device: torch.device) -> torch.optim.Optimizer:
    """AdamW; only what multiplies is pulled towards 0."""
    weights = [x for x in model.parameters() if x.requires_grad]
    groups = [
        {"params": [x for x in weights if x.dim() > 1], "weight_decay": course.decay},
        {"params": [x for x in weights if x.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=course.rate, betas=(0.9, 0.98), fused=device.type == "cuda")


def _resumed(task: Task, optimizer: torch.optim.Optimizer, folder: Path | None) -> Progress:
    if folder is None:
        raise ArgumentError("There is nothing to resume from. Name the folder of the training.")
    last = folder / "last"
    progress = load_progress(last, task.name)
    if progress.config != _plain(task.config()):
        raise ArgumentError(
            f"{last} was trained with other settings. Resume with the same ones, or train again."
        )
    load_weights(last, task.model)
    load_optimizer(last, optimizer)
    return replace(progress)


def _best_so_far(model: nn.Module, folder: Path | None) -> dict[str, torch.Tensor]:
    """The best weights of the training that is resumed, or those of the moment."""
    if folder is None or not (folder / "best").is_dir():
        return _copied(model)
    now = _copied(model)
    load_weights(folder / "best", model)
    best = _copied(model)
    model.load_state_dict(now)
    return best


def _copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def _plain(config: dict[str, Any]) -> Any:
    """As JSON gives it back."""
    import json

    return json.loads(json.dumps(config))


@contextlib.contextmanager
def _bar(steps: int, done: int, main: bool) -> Iterator[Callable[[int, float, float], None]]:
    """A progress bar with loss, speed and the time left; nothing where nobody looks."""
    if not main or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=steps, completed=done, loss=float("nan"), speed=0.0)
        yield lambda step, loss, speed: bar.update(line, completed=step, loss=loss, speed=speed)
