"""Checkpoints of a model and its optimizer over ranks: safetensors shards and one JSON file.

Each rank writes its shard by torch.distributed.checkpoint, in the safetensors format. Another number
of ranks, or one process without a process group, can load the checkpoint, with other shardings.
`checkpoint.json` has the format of the checkpoint and the caller's metadata. Nothing is pickled, and
no other file of the folder is read.
"""

from __future__ import annotations

import json
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maskwright._atomic_write import complete_folder, replace_folder, write_atomic
from maskwright._optional_deps import require
from maskwright.errors import ArgumentError

with require("maskwright.parallel.checkpoint"):
    import safetensors  # noqa: F401 - which torch imports later
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from maskwright.parallel.comm import report_peer_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

FORMAT: Final = "sharded-safetensors"
INDEX: Final = "checkpoint.json"
STAGING: Final = "staging"  # key of the new folder's path in a rank's plan
PLAIN: Final = (bool, int, float, str, tuple, type(None))  # what JSON has of a parameter group


def save(
    folder: str | Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    metadata: Mapping[str, Any],
    group: Any = None,
) -> None:
    """Write a checkpoint. All ranks of the group must call it together.

    Args:
        folder: A folder that all ranks share. An existing checkpoint is replaced when the new one
            is complete.
        model: The model, plain or sharded (DDP, FSDP2).
        optimizer: Its optimizer.
        metadata: What `load` returns, such as the step; JSON values.
        group: The process group, by default that of all ranks.

    Raises:
        ArgumentError: A rank cannot write its shard.
        RankError: A rank does not respond.

    One process, which torchrun would start several of:

    >>> import tempfile, torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/last", model, optimizer, {"step": 7})
    ...     load(f"{folder}/last", model, optimizer)
    {'step': 7}
    >>> dist.destroy_process_group()
    """
    _, tensors, param_groups = _state(model, optimizer)
    plain = [
        {name: x for name, x in param_group.items() if isinstance(x, PLAIN)}
        for param_group in param_groups
    ]
    index = {"format": FORMAT, "param_groups": plain, "metadata": dict(metadata)}
    try:
        with report_peer_failure(), ExitStack() as replacement:
            writer = _Writer(Path(folder), json.dumps(index), replacement)
            checkpoint.save(tensors, storage_writer=writer, process_group=group)
    except checkpoint.CheckpointException as error:  # on all ranks
        raise ArgumentError(
            f"The checkpoint {folder} cannot be written: {_reason(error)}. "
            "Free some disk space and resume: the last complete checkpoint is still there."
        ) from error


class _Writer(HuggingFaceStorageWriter):
    """Writes shards to a new folder; the first rank then adds the index and replaces the folder.

    Errors in these methods are raised on all ranks.
    """

    def __init__(self, folder: Path, index: str, replacement: ExitStack) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.folder, self.index, self.replacement = folder, index, replacement

    def prepare_local_plan(self, plan: Any) -> Any:
        """Leave the folder alone: the first rank creates a new one."""
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        """Create a folder; called on the first rank while the others wait for its plan."""
        self.path = self.replacement.enter_context(replace_folder(self.folder))
        plans = super().prepare_global_plan(plans)
        for plan in plans:
            plan.storage_data[STAGING] = str(self.path)
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write the shard of this rank to the folder that the first one created."""
        self.path = Path(plan.storage_data[STAGING])
        return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: Any) -> None:
        """Complete the checkpoint; called on the first rank when all have written."""
        super().finish(metadata, results)
        write_atomic(Path(self.path) / INDEX, self.index)
        self.replacement.close()


def load(
    folder: str | Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: Any = None
) -> dict[str, Any]:
    """Load a checkpoint into a model and its optimizer. All ranks must call it together.

    Args:
        folder: The folder of a checkpoint that `save` wrote, with any number of ranks.
        model: A model of the same shapes, plain or sharded.
        optimizer: An optimizer of the same kind.
        group: The process group, by default that of all ranks, if there is one.

    Returns:
        The metadata of the checkpoint.

    Raises:
        ArgumentError: There is no checkpoint, it is damaged, or it does not fit the model.
        RankError: A rank does not respond.

    >>> import torch
    >>> model = torch.nn.Linear(2, 2)
    >>> load("nowhere", model, torch.optim.SGD(model.parameters()))
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: There is no checkpoint nowhere. Train first, or name another.
    """
    path = complete_folder(Path(folder))
    if path is None:
        raise ArgumentError(f"There is no checkpoint {folder}. Train first, or name another.")
    stored_groups, metadata = _read_index(path)
    weights, tensors, param_groups = _state(model, optimizer)
    try:
        with report_peer_failure(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # in one process
            reader = HuggingFaceStorageReader(str(path))
            checkpoint.load(tensors, storage_reader=reader, process_group=group)
    except checkpoint.CheckpointException as error:
        raise ArgumentError(
            f"The checkpoint {path} does not fit the model: {_reason(error)}. "
            "Load it into a model of the same shapes, or name another."
        ) from error
    for current, stored in zip(param_groups, stored_groups, strict=False):
        current.update({name: stored[name] for name in stored.keys() & current.keys() - {"params"}})
    moments = {"state": tensors["optimizer"], "param_groups": param_groups}
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return metadata


def _state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The model's state dict, the tensors to store, and the optimizer's parameter groups.

    A tied parameter is stored once, under the first of its names; loading it changes all of them.
    """
    weights, moments = get_state_dict(model, optimizer)
    stored: dict[Any, str] = {}
    for name, x in weights.items():
        local = getattr(x, "_local_tensor", x)  # of a DTensor
        memory = (local.untyped_storage()._cdata, local.storage_offset(), local.shape)
        stored.setdefault(memory, name)
    unique = {name: weights[name] for name in stored.values()}
    return weights, {"model": unique, "optimizer": moments["state"]}, moments["param_groups"]


def _read_index(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The optimizer's parameter groups and the caller's metadata."""
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
        if index["format"] != FORMAT:
            raise ValueError(f"format is {index['format']!r}, expected {FORMAT!r}")
        return [dict(group) for group in index["param_groups"]], dict(index["metadata"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArgumentError(
            f"{path}: {INDEX} cannot be read ({_line(error)}). Train again, or name a checkpoint "
            "that maskwright.parallel.checkpoint wrote."
        ) from error


def _reason(error: Any) -> str:
    """The first failure that torch.distributed.checkpoint reports, with its rank."""
    rank, (failure, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {_line(failure)}"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
