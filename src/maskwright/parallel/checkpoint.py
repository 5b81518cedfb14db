"""Checkpoints of a training over ranks, by torch.distributed.checkpoint: each rank writes its part.

A checkpoint can be read by another number of ranks, and with weights sharded otherwise. A new one
takes the place of the one before only when it is whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from maskwright.errors import ArgumentError
from maskwright.parallel.silence import silence_named


def save(
    folder: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    group: Any = None,
) -> None:
    """Write a checkpoint, all ranks of the group together."""
    whole = Path(folder)
    fresh, old = (whole.with_name(f"{whole.name}.{end}") for end in ("new", "old"))
    first = dist.get_rank(group) == 0
    if first:
        shutil.rmtree(fresh, ignore_errors=True)
    with silence_named(group):
        dist.barrier(group)
        checkpoint.save(_state(model, optimizer, step), checkpoint_id=fresh, process_group=group)
        dist.barrier(group)
    if first:
        shutil.rmtree(old, ignore_errors=True)
        if whole.exists():
            whole.rename(old)
        fresh.rename(whole)
        shutil.rmtree(old, ignore_errors=True)
    with silence_named(group):
        dist.barrier(group)


def load(
    folder: str | Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: Any = None
) -> int:
    """Put model and optimizer where they were, all ranks together; the step is returned."""
    whole = Path(folder)
    old = whole.with_name(f"{whole.name}.old")
    found = whole if whole.is_dir() or not old.is_dir() else old  # a swap was cut short
    if not found.is_dir():
        raise ArgumentError(f"There is no checkpoint {whole}. Train first, or name another.")
    held = _state(model, optimizer, 0)
    with silence_named(group):
        checkpoint.load(held, checkpoint_id=found, process_group=group)
    set_state_dict(
        model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
    )
    return int(held["step"])


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}
