"""What a training goes on from: its last state, written by one process or by several.

One process writes safetensors, and ranks together what torch.distributed.checkpoint writes. Either
is read by any number of processes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from maskwright.apps.checkpoints import (
    STATE,
    as_text,
    is_by_ranks,
    load_optimizer,
    load_progress,
    read_weights,
    save,
)
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from maskwright.apps.checkpoints import Progress
    from maskwright.apps.ranks import Ranks
    from maskwright.apps.training import Task
    from maskwright.apps.weights import Weights


def progress_of(folder: Path | None, task: Task) -> Progress:
    """How far the training came; it must have been of the same task."""
    if folder is None:
        raise ArgumentError("The folder to resume from is not named. Name that of the training.")
    progress = load_progress(folder, task.name)
    if progress.config != _plain(task.config()):
        raise ArgumentError(
            f"{folder} was trained with other settings. Resume with the same ones, or train again."
        )
    return progress


def save_last(
    folder: Path,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    ranks: Ranks,
) -> None:
    """Write all that it takes to go on; ranks do so together."""
    if ranks.mesh is None:
        save(folder, weights.model, progress, optimizer)
        return
    from maskwright.parallel import checkpoint

    texts = {STATE: as_text(progress)}
    checkpoint.save(folder, weights.model, optimizer, progress.step, texts=texts)


def load_last(folder: Path, weights: Weights, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and optimizer where they were, whoever has written them."""
    if is_by_ranks(folder):
        from maskwright.parallel import checkpoint

        checkpoint.load(folder, weights.model, optimizer)
    else:
        weights.put(read_weights(folder))
        load_optimizer(folder, optimizer)


def _plain(config: dict[str, Any]) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(config))
