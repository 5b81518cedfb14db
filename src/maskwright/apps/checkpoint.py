"""Checkpoints of a training run: tensors in safetensors, everything else in JSON, no pickle.

A checkpoint is a folder with `model.safetensors`, `state.json` and, to resume from,
`optimizer.safetensors`. A new one is written next to the old one, flushed to the disk and then
renamed; if the process is killed or the power fails in between, the old one still exists, under its
own name or as `NAME.old`. Single-process and distributed runs write the same format, so either can
resume the other.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from maskwright import __version__
from maskwright._atomic_write import (
    complete_folder,
    create_folder,
    replace_folder,
    write_atomic,
)
from maskwright.errors import ArgumentError, MaskError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from maskwright.apps.distributed import SingleProcess

FORMAT: Final = "maskwright-checkpoint-1"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
LOCK, OWNER = "train.lock", "train.pid"


@dataclass
class TrainingState:
    """The progress of a training run, as `state.json` stores it."""

    task: str
    config: dict[str, Any]
    step: int = 0
    best_loss: float = math.inf  # the lowest held-out loss so far
    evals_since_best: int = 0
    losses: list[float] = field(default_factory=list)  # one per step
    evaluations: list[tuple[int, float]] = field(default_factory=list)  # (step, held-out loss)
    format: str = FORMAT
    version: str = __version__

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format!r:.60}, expected {FORMAT!r}")
        if not isinstance(self.config, dict):
            raise ValueError("config is not an object")
        if not isinstance(self.losses, list) or not all(map(_is_finite, self.losses)):
            raise ValueError("losses is not a list of finite numbers")
        self.evaluations = [(step, loss) for step, loss in self.evaluations]
        if not all(type(step) is int and _is_finite(loss) for step, loss in self.evaluations):
            raise ValueError("an evaluation is not a step and a finite loss")

    def check_progress(self) -> None:
        """Raises ValueError where the entries of a stored state contradict each other."""
        if type(self.step) is not int or self.step != len(self.losses):
            raise ValueError(f"it has {len(self.losses)} losses after {self.step} steps")
        steps = [0, *(step for step, _ in self.evaluations)]
        if steps != sorted(set(steps)) or steps[-1] > self.step:
            raise ValueError("the steps of its evaluations are not in order")
        losses = [loss for _, loss in self.evaluations]
        best = min(losses, default=math.inf)
        expected = best, len(losses) - 1 - losses.index(best) if losses else 0
        if (self.best_loss, self.evals_since_best) != expected:
            raise ValueError(f"best_loss and evals_since_best are not {expected}")


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    weights: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Writes a checkpoint, then replaces the previous one.

    Args:
        folder: The checkpoint's folder.
        state: The progress of the run.
        weights: The model's state dict.
        optimizer: What `optimizer_tensors` returns. Default: none, the checkpoint cannot be resumed.

    Raises:
        ArgumentError: If it cannot be written. The previous checkpoint is kept.
    """
    try:
        with replace_folder(folder) as fresh:
            save_file({name: x.contiguous().cpu() for name, x in weights.items()}, fresh / MODEL)
            if optimizer is not None:
                save_file(dict(optimizer), fresh / OPTIMIZER)
            write_atomic(fresh / STATE, json.dumps(asdict(state)))
    except (OSError, SafetensorError) as error:
        raise ArgumentError(
            f"The checkpoint {folder} cannot be written: {_reason(error)}. Free some space and pass "
            "--resume: the previous checkpoint is kept."
        ) from error


def checkpoint_exists(folder: Path) -> bool:
    """Whether there is a checkpoint, under its own name or as `NAME.old`."""
    return complete_folder(folder) is not None


def remove_checkpoint(folder: Path) -> None:
    """Deletes a checkpoint, if there is one.

    Raises:
        ArgumentError: If it cannot be deleted.
    """
    try:
        while (path := complete_folder(folder)) is not None:
            shutil.rmtree(path)
    except OSError as error:
        raise ArgumentError(
            f"The checkpoint {folder} cannot be deleted: {_reason(error)}. Pass another folder."
        ) from error


def load_state(folder: Path, task: str) -> TrainingState:
    """Reads `state.json`.

    Raises:
        ArgumentError: If there is no checkpoint, it is invalid, or it belongs to another task.
    """
    with _complete(folder) as path:
        state = TrainingState(**json.loads((path / STATE).read_text(encoding="utf-8")))
        state.check_progress()
    if state.task != task:
        raise ArgumentError(
            f"{folder} is a checkpoint of {state.task!r:.40}, not of {task}. Pass another folder."
        )
    return state


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Reads the model's state dict.

    Raises:
        ArgumentError: If the file is missing or damaged, or a weight is NaN or infinite.
    """
    with _complete(folder) as path:
        return _load_tensors(path / MODEL)


def load_model(folder: Path, model: torch.nn.Module | SingleProcess) -> None:
    """Loads the weights of a checkpoint into a model, or into the one that a strategy trains.

    Raises:
        ArgumentError: If the weights are damaged or do not fit.
    """
    with _complete(folder) as path:
        model.load_state_dict(_load_tensors(path / MODEL))


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state as named tensors on the CPU. Under FSDP all ranks must call it."""
    return {
        f"{index}.{name}": _full(value).detach().contiguous().cpu()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Loads the optimizer's state; under FSDP each rank keeps its shard.

    Raises:
        ArgumentError: If the file is missing or damaged, or does not fit the optimizer.
    """
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    with _complete(folder) as path:
        for key, value in _load_tensors(path / OPTIMIZER).items():
            index, _, name = key.partition(".")
            if not index.isdecimal() or int(index) >= len(parameters):
                raise ValueError(f"{OPTIMIZER} has an unknown entry {key!r:.40}")
            parameter = parameters[int(index)]
            if value.dim() and value.shape != parameter.shape:
                raise ValueError(f"{key} has shape {[*value.shape]}, not {[*parameter.shape]}")
            state.setdefault(int(index), {})[name] = _shard_like(parameter, value)
        names = {frozenset(values) for values in state.values()}
        if state and (len(state) != len(parameters) or len(names) > 1):
            raise ValueError(f"{OPTIMIZER} does not cover all parameters")
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds the lock of a run's folder. The lock of a process that has died is free.

    Raises:
        ArgumentError: If another process holds it; the message has its pid.
    """
    lock, owner = filelock.FileLock(folder / LOCK), folder / OWNER
    try:
        create_folder(folder)
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        pid = owner.read_text(errors="replace").strip()[:20] if owner.is_file() else "unknown"
        raise ArgumentError(
            f"{folder} is in use by another training run (pid {pid}). Wait for it to end, or pass "
            "another --output-dir."
        ) from error
    except OSError as error:
        raise ArgumentError(
            f"{folder} cannot be written: {_reason(error)}. Pass another --output-dir."
        ) from error
    with lock:
        write_atomic(owner, f"{os.getpid()}\n")
        try:
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()


@contextlib.contextmanager
def _complete(folder: Path) -> Iterator[Path]:
    """Yields the folder of a complete checkpoint. What is wrong in it becomes an ArgumentError."""
    path = complete_folder(folder)
    if path is None:
        raise ArgumentError(
            f"There is no checkpoint {folder}. Train first, or pass another folder."
        )
    try:
        yield path
    except MaskError:
        raise
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ArgumentError(
            f"{folder} is not a valid checkpoint: {_reason(error)}. Train again, or pass another "
            "folder."
        ) from error


def _load_tensors(path: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(path)
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{key} in {path.name} has NaN or infinite values")
    return tensors


def _full(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor of which FSDP keeps a shard on each rank."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _shard_like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The value, sharded over ranks as its parameter is."""
    if type(parameter) is torch.nn.Parameter or not value.dim():
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    # Every rank has read the whole value, so nothing needs to be sent.
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:200].rstrip(".") if lines else type(error).__name__
