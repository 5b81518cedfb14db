"""Checkpoints of a training over ranks, by torch.distributed.checkpoint: each rank writes its part.

A checkpoint can be read by another number of ranks, or by one process without any, and with weights
sharded otherwise. A new one takes the place of the one before only when it is whole.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from maskwright.errors import ArgumentError
from maskwright.parallel.silence import silence_named

if TYPE_CHECKING:
    from collections.abc import Mapping


def save(
    folder: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    group: Any = None,
    *,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint, all ranks of the group together; `texts` are files to lie beside it.

    One process, which torchrun would start several of:

    >>> import tempfile, torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/last", model, optimizer, step=7)
    ...     load(f"{folder}/last", model, optimizer)
    7
    >>> dist.destroy_process_group()
    """
    whole = Path(folder)
    fresh, old = (whole.with_name(f"{whole.name}.{end}") for end in ("new", "old"))
    first = dist.get_rank(group) == 0
    if first:
        shutil.rmtree(fresh, ignore_errors=True)
    with silence_named(group):
        dist.barrier(group)
        _write(fresh, _state(model, optimizer, step), group)
        dist.barrier(group)
    if first:
        for name, text in (texts or {}).items():
            (fresh / name).write_text(text, encoding="utf-8")
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
    """Put model and optimizer where they were, all ranks together; the step is returned.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2)
    >>> load("nowhere", model, torch.optim.SGD(model.parameters()))
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: There is no checkpoint nowhere. Train first, or name another.
    """
    whole = Path(folder)
    old = whole.with_name(f"{whole.name}.old")
    found = whole if whole.is_dir() or not old.is_dir() else old  # a swap was cut short
    if not found.is_dir():
        raise ArgumentError(f"There is no checkpoint {whole}. Train first, or name another.")
    held = _state(model, optimizer, 0)
    if dist.is_initialized():
        with silence_named(group):
            checkpoint.load(held, checkpoint_id=found, process_group=group)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # that is meant
            checkpoint.load(held, checkpoint_id=found, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
    )
    return int(held["step"])


def _write(folder: Path, state: dict[str, Any], group: Any) -> None:
    try:
        checkpoint.save(state, checkpoint_id=folder, process_group=group)
    except checkpoint.api.CheckpointException as error:  # the same on all ranks
        rank, (reason, _) = next(iter(error.failures.items()))
        raise ArgumentError(
            f"The checkpoint {folder} can't be written by rank {rank}: {reason}. "
            "Make room and resume: the last good one is still there."
        ) from error


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}
