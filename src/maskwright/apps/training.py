"""One small trainer for every app: AdamW, warm-up and cosine, clipping, checkpoints, and resuming.

Everything random at a step is drawn from the seed and the number of that step. So a training that
was cut short goes on as if nothing had happened, with the same losses.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from maskwright.apps.checkpoints import Progress, is_there, read_weights, save_weights
from maskwright.apps.ranks import Ranks
from maskwright.apps.resuming import load_last, progress_of, save_last
from maskwright.apps.weights import Weights
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn

    from maskwright.core.expr import Mask


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
    """What a training came to.

    >>> from maskwright.apps.checkpoints import Progress
    >>> from maskwright.apps.training import Outcome
    >>> Outcome(Progress("language", {}), seconds=2.0, tokens=500, stopped="done").speed
    250.0
    """

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

    With `ranks`, all processes call it alike, and the main one alone tells. What is needed to go
    on is in `folder`/last, written by all of them together.

    The best weights, by what was held out, are in the model in the end, and in `folder`/best.

    >>> import torch
    >>> from maskwright.apps.training import Course, train
    >>> class Line:  # a Task: a line through 2
    ...     name, mask, model = "line", None, torch.nn.Linear(1, 1)
    ...     config = dict
    ...     def batch(self, step, part):
    ...         return torch.ones(4, 1)
    ...     def loss(self, batch):
    ...         return (self.model(batch) - 2).square().mean()
    ...     def tokens(self, batch):
    ...         return batch.numel()
    ...     def evaluate(self):
    ...         return float(self.loss(torch.ones(1, 1)))
    >>> outcome = train(Line(), Course(steps=20, evaluate_every=10, device="cpu"))
    >>> outcome.stopped, outcome.tokens, outcome.progress.step
    ('done', 80, 20)
    """
    ranks = Ranks() if ranks is None else ranks
    last = None if folder is None else folder / "last"
    if ranks.restarted and last is not None and is_there(last):
        resume = True
    device = chosen_device(course.device)
    task.model.to(device)
    progress = Progress(task.name, task.config())
    if resume:
        progress = progress_of(last, task)
    run: Callable[[Any], torch.Tensor] = torch.compile(task.loss) if course.compile else task.loss
    weights = weights_of(task.model, run, ranks)
    optimizer = _optimizer(task.model, course, device)
    if resume and last is not None:
        load_last(last, weights, optimizer)
    had_best = resume and folder is not None and is_there(folder / "best")
    best = read_weights(folder / "best") if folder and had_best else weights.copied()
    started, tokens, stopped = time.perf_counter(), 0, "done"
    with _bar(course.steps, progress.step, ranks.main) as show:
        try:
            while progress.step < course.steps:
                loss, count = _step(task, weights, optimizer, course, progress.step, device, ranks)
                if not math.isfinite(loss):
                    raise ArgumentError(
                        f"The loss is {loss} at step {progress.step}. Give a smaller --rate."
                    )
                tokens += count
                progress.losses.append(loss)
                progress.step += 1
                show(progress.step, loss, tokens / (time.perf_counter() - started))
                if progress.step % course.evaluate_every == 0 or progress.step == course.steps:
                    if _evaluate(task, weights, progress, ranks):
                        best = weights.copied()
                        if folder is not None and ranks.main:
                            save_weights(folder / "best", best, progress)
                    if last is not None:
                        save_last(last, weights, optimizer, progress, ranks)
                    with weights.whole():
                        if each is not None and ranks.main:
                            each(progress)
                    if course.patience is not None and progress.waited >= course.patience:
                        stopped = "no better"
                        break
        except KeyboardInterrupt:
            stopped = "interrupted"
            if last is not None and ranks.mesh is None:  # ranks are not stopped at one point
                save_last(last, weights, optimizer, progress, ranks)
    if stopped != "interrupted":
        weights.put(best)
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
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    course: Course,
    step: int,
    device: torch.device,
    ranks: Ranks,
) -> tuple[float, int]:
    """One step of the optimizer: its loss, and how many tokens it saw."""
    task.model.train()
    parts = ranks.parts(course.accumulate)
    torch.manual_seed(course.seed * 1_000_003 + step + (parts.start << 40))  # for dropout
    for group in optimizer.param_groups:
        group["lr"] = course.rate_at(step)
    optimizer.zero_grad(set_to_none=True)
    total, tokens = 0.0, 0
    for part in parts:
        batch = task.batch(step, part)
        with weights.adding_up(part == parts[-1]), ranks.sharing(task.model):
            with torch.autocast(device.type, torch.bfloat16, enabled=course.bfloat16):
                loss = weights.loss(batch) / course.accumulate
            weights.backward(loss)
        total += float(loss.detach()) / ranks.dp
        tokens += task.tokens(batch)
    total, count = ranks.add_up(total, tokens)
    torch.nn.utils.clip_grad_norm_(task.model.parameters(), course.clip)
    optimizer.step()
    return total, int(count)


def _evaluate(task: Task, weights: Weights, progress: Progress, ranks: Ranks) -> bool:
    """Measure on what was held out; was it the best so far?"""
    task.model.eval()
    with torch.no_grad(), weights.whole(), ranks.sharing(task.model):
        found = ranks.agreed(task.evaluate())
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


def weights_of(model: nn.Module, loss: Callable[[Any], torch.Tensor], ranks: Ranks) -> Weights:
    """The weights of a model, held as the ranks are to hold them.

    >>> from torch import nn
    >>> from maskwright.apps.ranks import Ranks
    >>> from maskwright.apps.training import weights_of
    >>> model = nn.Linear(2, 1)
    >>> sorted(weights_of(model, model, Ranks()).copied())
    ['bias', 'weight']
    """
    if ranks.mesh is None:
        return Weights(model, loss)
    from maskwright.apps.weights_over_ranks import Copies, Parts  # a second of imports

    return (Parts if ranks.fsdp else Copies)(model, loss, ranks)
