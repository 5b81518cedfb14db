"""Checkpoints: weights in safetensors, the rest in JSON, written whole or not at all.

A checkpoint is a folder. A new one is written beside it and then takes its place; if that is cut
short, the old one is still there, under its own name or as `….old`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from maskwright._version import __version__
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
INDEX = ".metadata"  # the file by which torch.distributed.checkpoint knows its own


@dataclass
class Progress:
    """How far a training has come: what JSON holds of it."""

    app: str
    config: dict[str, Any]
    step: int = 0
    best: float = float("inf")
    waited: int = 0  # evaluations since the best one
    losses: list[float] = field(default_factory=list)  # of every step
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    version: str = __version__


def save(
    folder: Path,
    model: torch.nn.Module,
    progress: Progress,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Write a checkpoint, and then put it in the place of the one before."""
    save_weights(folder, model.state_dict(), progress, optimizer)


def save_weights(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    progress: Progress,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """The same, of weights that are in no model."""
    fresh, old = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        held = {name: x.detach().contiguous().cpu() for name, x in weights.items()}
        save_file(held, fresh / MODEL)
        if optimizer is not None:
            save_file(_flat(optimizer), fresh / OPTIMIZER)
        (fresh / STATE).write_text(as_text(progress), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ArgumentError(
            f"The checkpoint {folder} can't be written: {_reason(error)}. "
            "Make room and resume: the last good one is still there."
        ) from error


def as_text(progress: Progress) -> str:
    """What a checkpoint says of itself."""
    return json.dumps(asdict(progress))


def load_progress(folder: Path, app: str) -> Progress:
    """What a checkpoint says of itself; it must be of that app."""
    path = _whole(folder)
    try:
        held = json.loads((path / STATE).read_text(encoding="utf-8"))
        progress = Progress(**held)
        progress.evaluations = [(step, loss) for step, loss in progress.evaluations]
    except (OSError, ValueError, TypeError) as error:
        raise ArgumentError(
            f"{folder} holds no whole checkpoint: {_reason(error)}. Train again, or name another."
        ) from error
    if progress.app != app:
        raise ArgumentError(
            f"{folder} is a checkpoint of {progress.app}, not of {app}. Name one of {app}."
        )
    return progress


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Put a checkpoint's weights into a model of the same make."""
    try:
        model.load_state_dict(read_weights(folder))
    except RuntimeError as error:
        raise _unfit(folder, error) from error


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """A checkpoint's weights."""
    try:
        return load_file(_whole(folder) / MODEL)
    except (OSError, SafetensorError) as error:
        raise _unfit(folder, error) from error


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Put the optimizer where it was; each rank keeps its part of what is shared out."""
    try:
        held = load_file(_whole(folder) / OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise ArgumentError(
            f"{folder} can't be resumed: {_reason(error)}. Train again, without --resume."
        ) from error
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in held.items():
        number, _, part = name.partition(".")
        state.setdefault(int(number), {})[part] = _like(weights[int(number)], value)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def is_there(folder: Path) -> bool:
    """Is there a checkpoint, under its own name or as the one before it?"""
    return folder.is_dir() or folder.with_name(folder.name + ".old").is_dir()


def is_by_ranks(folder: Path) -> bool:
    """Was it written by several processes together?"""
    return (_whole(folder) / INDEX).is_file()


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{number}.{part}": value.detach().contiguous().cpu()
        for number, parts in optimizer.state_dict()["state"].items()
        for part, value in parts.items()
        if isinstance(value, torch.Tensor)
    }


def _like(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value, shared out over ranks as its weight is."""
    if type(weight) is torch.nn.Parameter or value.shape != weight.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(weight, DTensor)
    # Every rank has read all of it, so nothing needs to be sent.
    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)


def _unfit(folder: Path, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"The weights in {folder} do not fit: {_reason(error)}. Train again, or name another."
    )


def _whole(folder: Path) -> Path:
    """The folder, or the one before it, where a swap was cut short."""
    if not is_there(folder):
        raise ArgumentError(f"There is no checkpoint {folder}. Train first, or name another.")
    return folder if folder.is_dir() else folder.with_name(folder.name + ".old")


def _reason(error: Exception) -> str:
    told = getattr(error, "strerror", None) or str(error)
    return str(told).strip().splitlines()[0][:160] if str(told).strip() else type(error).__name__
