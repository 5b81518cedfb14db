"""Weights over ranks: whole on each, by torch's DDP, or a part on each, by its FSDP2.

DDP averages gradients over ranks. FSDP2 does so too, and gathers a block's weights when they are
needed. Both are put around the loss of a batch, so that a task may use its model as it likes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from maskwright.apps.weights import Weights
from maskwright.models.blocks import Block
from maskwright.parallel.silence import silence_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maskwright.apps.ranks import Ranks


class Losses(nn.Module):
    """A model and the loss that uses it, as one module."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        return self.loss(batch)


class Copies(Weights):
    """Every rank has all weights."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], torch.Tensor], ranks: Ranks) -> None:
        super().__init__(model, loss)
        self._cp = ranks.cp
        self._module = self._over_ranks(Losses(model, loss), ranks)

    def _over_ranks(self, losses: Losses, ranks: Ranks) -> nn.Module:  # noqa: ARG002
        return DistributedDataParallel(losses)

    def loss(self, batch: Any) -> torch.Tensor:
        """The loss of a batch that is for this rank."""
        with silence_named(None):
            loss: torch.Tensor = self._module(batch)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Add its gradients to those of the step.

        Gradients are averaged over all ranks, of which those that share a sequence have parts of
        one gradient: these are to be added up.
        """
        with silence_named(None):
            (loss * self._cp).backward()

    @contextlib.contextmanager
    def adding_up(self, last: bool) -> Iterator[None]:
        """Inside is one of a step's batches; ranks average once, after the last of them."""
        with contextlib.nullcontext() if last else self._module.no_sync():
            yield


class Parts(Copies):
    """Every rank has a part of each weight, and for a moment all weights of a block."""

    def _over_ranks(self, losses: Losses, ranks: Ranks) -> nn.Module:
        world = DeviceMesh.from_group(dist.group.WORLD, ranks.mesh.device_type)
        for block in [part for part in losses.modules() if isinstance(part, Block)]:
            fully_shard(block, mesh=world)
        fully_shard(losses, mesh=world, reshard_after_forward=False)
        return losses

    @contextlib.contextmanager
    def adding_up(self, last: bool) -> Iterator[None]:  # noqa: ARG002
        """Inside is one of a step's batches; a rank keeps gradients of its own part only."""
        yield

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every rank has all weights, and may use the model without the others."""
        held = [part for part in self._module.modules() if isinstance(part, FSDPModule)]
        for part in held:
            part.set_reshard_after_forward(False, recurse=False)
            with silence_named(None):
                part.unshard()
        try:
            yield
        finally:
            for part in held:
                part.set_reshard_after_forward(part is not self._module, recurse=False)
                part.reshard()

    def copied(self) -> dict[str, torch.Tensor]:
        """All weights, on the main rank."""
        wish = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with silence_named(None):
            whole: dict[str, torch.Tensor] = get_model_state_dict(self.model, options=wish)
        return whole

    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take what the main rank gives."""
        wish = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        with silence_named(None):
            set_model_state_dict(self.model, dict(weights), options=wish)
