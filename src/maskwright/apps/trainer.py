"""The training loop of all applications: AdamW, warmup and cosine decay, clipping, checkpoints.

All random numbers of a step are drawn from the seed and the step's number, so a run that is
interrupted and resumed has the same losses as one that is not.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad_norm_

from maskwright.apps import TaskOptions
from maskwright.apps.checkpoint import (
    TrainingState,
    checkpoint_exists,
    folder_lock,
    load_model,
    load_optimizer,
    load_state,
    load_weights,
    optimizer_tensors,
    remove_checkpoint,
    save_checkpoint,
)
from maskwright.apps.distributed import SingleProcess, restarted
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maskwright.apps import Task


@dataclass(frozen=True)
class TrainingConfig:
    """Hyperparameters of a training run.

    >>> from maskwright.apps.trainer import TrainingConfig
    >>> config = TrainingConfig(max_steps=100, warmup_steps=10, learning_rate=1.0)
    >>> [round(config.learning_rate_at(step), 3) for step in (0, 9, 10, 99)]
    [0.1, 1.0, 1.0, 0.1]
    """

    max_steps: int = 1000
    learning_rate: float = 1e-3
    min_lr_ratio: float = 0.1  # learning rate at the end / learning_rate
    warmup_steps: int = 50
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    gradient_accumulation_steps: int = 1
    eval_interval: int = 100
    save_interval: int = 50
    patience: int | None = None  # early stopping: evaluations without an improvement
    seed: int = 0
    device: str = "auto"
    compile: bool = False
    bf16: bool = False

    def learning_rate_at(self, step: int) -> float:
        """The learning rate by step: linear warmup, then cosine decay."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.max_steps - 1 - self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1, progress)))
        return self.learning_rate * (self.min_lr_ratio + (1 - self.min_lr_ratio) * cosine)


@dataclass(frozen=True)
class TrainingResult:
    """What `train` returns.

    >>> from maskwright.apps.checkpoint import TrainingState
    >>> from maskwright.apps.trainer import TrainingResult
    >>> state = TrainingState("language", {})
    >>> TrainingResult(state, seconds=2.0, tokens=500, stopped="max_steps").tokens_per_second
    250.0
    """

    state: TrainingState
    seconds: float
    tokens: int
    stopped: str  # "max_steps", "patience" or "interrupted"

    @property
    def tokens_per_second(self) -> float:
        """Training throughput."""
        return self.tokens / self.seconds if self.seconds else 0.0


def train(
    task: Task,
    config: TrainingConfig,
    folder: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    strategy: SingleProcess | None = None,
    on_step: Callable[[int, float, float], None] | None = None,
    on_evaluate: Callable[[TrainingState], None] | None = None,
) -> TrainingResult:
    """Trains the model of a task and leaves the best weights, by held-out loss, in it.

    Ctrl-C ends the run after the current step and saves it.

    Args:
        task: The model, its data and its loss.
        config: Hyperparameters.
        folder: Where checkpoints are written: `best` and, to resume from, `last`.
        resume: Whether to continue from `folder/last`.
        overwrite: Whether to replace the run in `folder`.
        strategy: What `distributed.start` returns; all ranks call `train`.
        on_step: Called with step, loss and tokens/s after each step, on the main rank.
        on_evaluate: Called after every evaluation, on the main rank.

    Returns:
        The final state, the time and the number of tokens.

    Raises:
        ArgumentError: If the folder has a run and neither `resume` nor `overwrite` is set, another
            process trains in it, the checkpoint does not fit, or the loss is not finite.

    >>> import torch
    >>> from maskwright.apps import Task
    >>> from maskwright.apps.trainer import TrainingConfig, train
    >>> class Line(Task):
    ...     name = "line"
    ...     def __init__(self):
    ...         self.model = torch.nn.Linear(1, 1)
    ...     def config(self):
    ...         return {}
    ...     def batch(self, step, micro_step):
    ...         return torch.ones(4, 1)
    ...     def loss(self, batch):
    ...         return (self.model(batch) - 2).square().mean()
    ...     def num_tokens(self, batch):
    ...         return batch.numel()
    ...     def evaluate(self):
    ...         return float(self.loss(torch.ones(1, 1)))
    >>> result = train(Line(), TrainingConfig(max_steps=20, eval_interval=10, device="cpu"))
    >>> result.stopped, result.tokens, result.state.step
    ('max_steps', 80, 20)
    """
    strategy = strategy or SingleProcess()
    with contextlib.ExitStack() as stack:
        if folder is not None:
            resume = resume or (restarted() and checkpoint_exists(folder / "last"))
            strategy.on_main(lambda: stack.enter_context(folder_lock(folder)))
            strategy.on_main(lambda: _check_folder(folder, resume, overwrite))
        run = _Run(task, config, folder, strategy, resume)
        interrupted = stack.enter_context(_sigint_flag(strategy))
        return run.loop(on_step, on_evaluate, interrupted)


class _Run:
    """One call of `train`: the state that the loop, evaluation and saving share."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        folder: Path | None,
        strategy: SingleProcess,
        resume: bool,
    ) -> None:
        self.task, self.config, self.folder, self.strategy = task, config, folder, strategy
        self.device = select_device(config.device)
        task.model.to(self.device)
        self.state = TrainingState(task.name, task.config())
        if resume:
            self.state = _resumable_state(folder, task)
        strategy.wrap(task.model, torch.compile(task.loss) if config.compile else task.loss)
        self.optimizer = make_optimizer(task.model, config, self.device)
        if resume and folder is not None:
            load_model(folder / "last", strategy)
            load_optimizer(folder / "last", self.optimizer)
        self.best = strategy.state_dict()
        if folder is not None and not resume:
            strategy.on_main(lambda: remove_checkpoint(folder / "best"))  # of a replaced run
            self.save()  # so that a run can be resumed from its first step on
        elif folder is not None and checkpoint_exists(folder / "best"):
            self.best = load_weights(folder / "best")

    def loop(
        self,
        on_step: Callable[[int, float, float], None] | None,
        on_evaluate: Callable[[TrainingState], None] | None,
        interrupted: threading.Event,
    ) -> TrainingResult:
        """Trains up to `max_steps`."""
        config, state, strategy = self.config, self.state, self.strategy
        started, tokens, stopped = time.perf_counter(), 0, "max_steps"
        try:
            while state.step < config.max_steps:
                loss, count = self.step()
                if not math.isfinite(loss):
                    raise ArgumentError(
                        f"The loss is {loss} at step {state.step}. Pass a lower --learning-rate."
                    )
                tokens += count
                state.losses.append(loss)
                state.step += 1
                if on_step is not None and strategy.is_main:
                    on_step(state.step, loss, tokens / (time.perf_counter() - started))
                evaluating = (
                    state.step % config.eval_interval == 0 or state.step == config.max_steps
                )
                if evaluating:
                    self.evaluate()
                if evaluating or state.step % config.save_interval == 0 or interrupted.is_set():
                    self.save()
                if evaluating and on_evaluate is not None:
                    with strategy.unsharded():
                        if strategy.is_main:
                            on_evaluate(state)
                if interrupted.is_set():
                    stopped = "interrupted"
                    break
                if evaluating and state.evals_since_best >= (config.patience or math.inf):
                    stopped = "patience"
                    break
        except KeyboardInterrupt:  # possibly within a step, so it is not saved
            stopped = "interrupted"
        if stopped != "interrupted":
            strategy.load_state_dict(self.best)
        return TrainingResult(state, time.perf_counter() - started, tokens, stopped)

    def step(self) -> tuple[float, int]:
        """One optimizer step: forward and backward of all micro-batches. Returns loss, tokens."""
        task, config, strategy, step = self.task, self.config, self.strategy, self.state.step
        task.model.train()
        micro_batches = strategy.micro_batches(config.gradient_accumulation_steps)
        torch.manual_seed(config.seed * 1_000_003 + step + (micro_batches.start << 40))  # dropout
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        self.optimizer.zero_grad(set_to_none=True)
        total, tokens = 0.0, 0
        for micro_step in micro_batches:
            batch = task.batch(step, micro_step)
            last = micro_step == micro_batches[-1]
            with strategy.accumulate(last), strategy.context_parallel(task.model):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=config.bf16):
                    loss = strategy.loss(batch) / config.gradient_accumulation_steps
                strategy.backward(loss)
            total += float(loss.detach()) / strategy.dp
            tokens += task.num_tokens(batch)
        total, count = strategy.sum(total, tokens)
        clip_grad_norm_(task.model.parameters(), config.grad_clip)
        self.optimizer.step()
        return total, int(count)

    def evaluate(self) -> None:
        """Measures the held-out loss; keeps and saves the weights if it is the lowest so far."""
        task, state, strategy = self.task, self.state, self.strategy
        task.model.eval()
        with torch.no_grad(), strategy.unsharded(), strategy.context_parallel(task.model):
            loss = strategy.broadcast(task.evaluate())
        if not math.isfinite(loss):
            raise ArgumentError(
                f"The held-out loss is {loss} at step {state.step}. Pass a lower --learning-rate."
            )
        state.evaluations.append((state.step, loss))
        if loss < state.best_loss:
            state.best_loss, state.evals_since_best = loss, 0
            self.best = strategy.state_dict()
            if self.folder is not None:
                best = self.folder / "best"
                strategy.on_main(lambda: save_checkpoint(best, state, self.best))
        else:
            state.evals_since_best += 1

    def save(self) -> None:
        """Writes `last`; all ranks take part."""
        if self.folder is None:
            return
        last, weights = self.folder / "last", self.strategy.state_dict()
        optimizer = optimizer_tensors(self.optimizer)
        self.strategy.on_main(lambda: save_checkpoint(last, self.state, weights, optimizer))


def make_optimizer(
    model: torch.nn.Module, config: TrainingConfig, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only, not on biases and norms."""
    parameters = [x for x in model.parameters() if x.requires_grad]
    groups = [
        {"params": [x for x in parameters if x.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [x for x in parameters if x.dim() <= 1], "weight_decay": 0.0},
    ]
    fused = device.type == "cuda"
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=fused)


def select_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU if there is one.

    >>> from maskwright.apps.trainer import select_device
    >>> select_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(f"--device {name} is not available. Pass cpu, cuda or auto.") from error


def step_generator(seed: int, step: int, micro_step: int = 0) -> torch.Generator:
    """The random generator of a micro-batch, the same whenever it is drawn."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) * 64 + micro_step)


def _check_folder(folder: Path, resume: bool, overwrite: bool) -> None:
    if not resume and not overwrite and checkpoint_exists(folder / "last"):
        raise ArgumentError(
            f"{folder} has a training run. Pass --resume to continue it, --overwrite to replace it, "
            "or another --output-dir."
        )


def _resumable_state(folder: Path | None, task: Task) -> TrainingState:
    if folder is None:
        raise ArgumentError("resume=True needs a folder. Pass that of the training run.")
    state = load_state(folder / "last", task.name)
    config = json.loads(json.dumps(task.config()))
    differences = [
        _difference(name, state.config.get(name), config.get(name))
        for name in {**config, **state.config}
        if state.config.get(name) != config.get(name)
    ]
    if differences:
        raise ArgumentError(
            f"{folder} was trained with other options: {'; '.join(differences)}. Pass the same ones, "
            "or train again without --resume."
        )
    return state


def _difference(name: str, trained: Any, passed: Any) -> str:
    """An entry of a task's configuration that differs: an option, or what data determines."""
    if name not in {option.name for option in fields(TaskOptions)}:
        return f"{name} differs"
    option = f"--{name.replace('_', '-')}"
    return f"{option} was {_shown(trained)}, is {_shown(passed)}"


def _shown(value: Any) -> str:
    return "not set" if value is None else f"{value!s:.60}"


@contextlib.contextmanager
def _sigint_flag(strategy: SingleProcess) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one raises KeyboardInterrupt.

    Ranks would not stop at the same step, so in a distributed run Ctrl-C raises at once.
    """
    flag = threading.Event()
    if strategy.is_distributed or threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def handler(number: int, frame: Any) -> None:
        if flag.is_set():
            signal.default_int_handler(number, frame)
        flag.set()

    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)
