"""Strategies for training in one process or in several: `SingleProcess`, `DDP` and `FSDP`.

With data parallelism (`dp`) each rank takes every dp-th micro-batch, so an optimizer step equals that
of a single process with dp times the gradient accumulation steps. With context parallelism
(`cp`) each rank computes a part of every sequence. torchrun starts the processes.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from maskwright.errors import ArgumentError
from maskwright.parallel.comm import report_peer_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maskwright.core.expr import Mask


class SingleProcess:
    """Trains in this process. `DDP` and `FSDP` override what differs; all ranks call the same methods.

    >>> from maskwright.apps.distributed import SingleProcess
    >>> list(SingleProcess().micro_batches(3)), SingleProcess().is_main
    ([0, 1, 2], True)
    """

    dp, cp, is_main = 1, 1, True
    is_distributed = is_sharded = False

    def wrap(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        """Sets the model to train and the function that returns the loss of a batch."""
        self.model, self._loss = model, loss

    def loss(self, batch: Any) -> torch.Tensor:
        """The loss of a micro-batch of this rank."""
        return self._loss(batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulates the gradients."""
        loss.backward()

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:  # noqa: ARG002
        """A context for one micro-batch."""
        return contextlib.nullcontext()

    def unsharded(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which every rank has all weights and may run the model by itself."""
        return contextlib.nullcontext()

    def context_parallel(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:  # noqa: ARG002
        """A context in which each rank computes its part of the sequences."""
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A copy of all weights. Under FSDP only the main rank gets them."""
        return {name: x.detach().clone() for name, x in self.model.state_dict().items()}

    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Loads what `state_dict` returned."""
        self.model.load_state_dict(weights)

    def micro_batches(self, gradient_accumulation_steps: int) -> range:
        """Indices of the micro-batches of a step that this rank computes."""
        return range(gradient_accumulation_steps)

    def sum(self, *values: float) -> list[float]:
        """Sums values over the data parallel ranks."""
        return list(values)

    def broadcast(self, value: float) -> float:
        """The main rank's value, on all ranks."""
        return value

    def on_main(self, action: Callable[[], Any]) -> None:
        """Runs an action on the main rank. An ArgumentError there is raised on all ranks."""
        action()

    def close(self) -> None:
        """Leaves the process group."""


class LossModule(nn.Module):
    """A model and its loss as one module, so that DDP and FSDP see every use of the model."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        return self.loss(batch)


class DDP(SingleProcess):
    """All weights on all ranks; gradients are averaged over ranks (DistributedDataParallel)."""

    is_distributed = True

    def __init__(self, dp: int, cp: int, mesh: Any) -> None:
        self.dp, self.cp, self.mesh = dp, cp, mesh
        self.is_main = dist.get_rank() == 0

    def wrap(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        """Wraps model and loss into DistributedDataParallel."""
        super().wrap(model, loss)
        self._module: Any = nn.parallel.DistributedDataParallel(LossModule(model, loss))

    def loss(self, batch: Any) -> torch.Tensor:
        """The loss of a micro-batch of this rank."""
        with report_peer_failure():
            loss: torch.Tensor = self._module(batch)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulates the gradients.

        They are averaged over all ranks, but the ranks that share a sequence have parts of one
        gradient, which must be summed: hence the factor cp.
        """
        with report_peer_failure():
            (loss * self.cp).backward()

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """A context for one micro-batch; gradients are averaged after the last one."""
        return contextlib.nullcontext() if last else self._module.no_sync()

    def context_parallel(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """A context in which a GPT takes whole sequences, computes a part, returns whole logits."""
        if self.cp == 1:
            return contextlib.nullcontext()
        check_context_parallel(model, self.cp)
        return _sharded_forward(model, self.mesh["cp"])

    def micro_batches(self, gradient_accumulation_steps: int) -> range:
        """Indices of the micro-batches of a step that this rank computes."""
        first = self.mesh.get_local_rank("dp")
        return range(first, gradient_accumulation_steps * self.dp, self.dp)

    def sum(self, *values: float) -> list[float]:
        """Sums values over the data parallel ranks."""
        total = torch.tensor(values, dtype=torch.float64)
        with report_peer_failure():
            dist.all_reduce(total, group=self.mesh.get_group("dp"))
        return [float(value) for value in total]

    def broadcast(self, value: float) -> float:
        """The main rank's value, on all ranks, so that they take the same decisions."""
        sent = torch.tensor(value, dtype=torch.float64)
        with report_peer_failure():
            dist.broadcast(sent, 0)
        return float(sent)

    def on_main(self, action: Callable[[], Any]) -> None:
        """Runs an action on the main rank. An ArgumentError there is raised on all ranks."""
        failure: ArgumentError | None = None
        if self.is_main:
            try:
                action()
            except ArgumentError as error:
                failure = error
        if self.broadcast(float(failure is not None)):
            raise failure or ArgumentError("Rank 0 failed; its message has the reason.")

    def close(self) -> None:
        """Leaves the process group."""
        dist.destroy_process_group()


class FSDP(DDP):
    """A shard of every weight on each rank; a block's weights are gathered when needed (FSDP2)."""

    is_sharded = True

    def wrap(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        """Shards the weights of every block, then the rest."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        from maskwright.models.transformer import Block

        SingleProcess.wrap(self, model, loss)
        self._module = LossModule(model, loss)
        world = DeviceMesh.from_group(dist.group.WORLD, self.mesh.device_type)
        for block in [x for x in self._module.modules() if isinstance(x, Block)]:
            fully_shard(block, mesh=world)
        fully_shard(self._module, mesh=world, reshard_after_forward=False)

    def accumulate(self, last: bool) -> contextlib.AbstractContextManager[Any]:  # noqa: ARG002
        """A context for one micro-batch; each rank keeps the gradients of its shard."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def unsharded(self) -> Iterator[None]:
        """A context in which every rank has all weights and may run the model by itself."""
        from torch.distributed.fsdp import FSDPModule

        modules = [x for x in self._module.modules() if isinstance(x, FSDPModule)]
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            with report_peer_failure():
                module.unshard()
        try:
            yield
        finally:
            for module in modules:
                module.set_reshard_after_forward(module is not self._module, recurse=False)
                module.reshard()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights, on the main rank."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with report_peer_failure():
            weights: dict[str, torch.Tensor] = get_model_state_dict(self.model, options=options)
        return weights

    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Shards the main rank's weights."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        with report_peer_failure():
            set_model_state_dict(self.model, dict(weights), options=options)


def start(dp: int, cp: int, *, fsdp: bool = False, device: str = "cpu") -> SingleProcess:
    """Joins the processes that torchrun has started and returns the strategy.

    Ranks communicate by gloo on the CPU, and by NCCL on GPUs, one for each rank.

    Args:
        dp: Data parallel ranks.
        cp: Context parallel ranks.
        fsdp: Whether weights are sharded over all ranks.
        device: The device to train on.

    Raises:
        ArgumentError: If there are not dp × cp processes.

    >>> from maskwright.apps.distributed import start
    >>> type(start(1, 1)).__name__
    'SingleProcess'
    """
    ranks, started = dp * cp, int(os.environ.get("WORLD_SIZE", "1"))
    if started != ranks:
        raise ArgumentError(
            f"--dp {dp} and --cp {cp} need {ranks} processes, got {started}. Run: "
            f"torchrun --nproc-per-node {ranks} -m maskwright train ..."
        )
    if ranks == 1:
        if fsdp:
            raise ArgumentError(
                "--fsdp shards weights over several processes, got one. Pass --dp or --cp too, or "
                "leave --fsdp out."
            )
        return SingleProcess()
    on_gpu = torch.cuda.is_available() and device.partition(":")[0] in ("auto", "cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        _join("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    mesh = dist.init_device_mesh("cuda" if on_gpu else "cpu", (dp, cp), mesh_dim_names=("dp", "cp"))
    return (FSDP if fsdp else DDP)(dp, cp, mesh)


def restarted() -> bool:
    """Whether torchrun has restarted this job after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_context_parallel(model: nn.Module, cp: int) -> None:
    """Raises ArgumentError if the sequences of a model cannot be split over ranks."""
    from maskwright.models.gpt import GPT

    if not isinstance(model, GPT):
        raise ArgumentError(
            f"--cp {cp} needs a GPT, and the model of this app is a {type(model).__name__}. Use --dp."
        )
    if model.config.dropout:
        raise ArgumentError(
            f"--cp {cp} does not support dropout in attention, and the model of this app has "
            f"dropout={model.config.dropout}. Use --dp."
        )


def _join(backend: str) -> None:
    """Joins the process group through torchrun's store.

    The store survives a restart and would return the addresses of the previous ranks, so every
    attempt has its own prefix.
    """
    from torch.distributed.rendezvous import rendezvous

    store, rank, ranks = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=ranks)


@contextlib.contextmanager
def _sharded_forward(gpt: Any, cp_mesh: Any) -> Iterator[None]:
    """A context in which `GPT.forward` computes this rank's tokens and returns all logits."""
    from maskwright.parallel.layout import balance
    from maskwright.parallel.train_loop import CPShard

    whole_forward = gpt.forward

    def forward(
        ids: torch.Tensor,
        padding: Mask | None = None,
        *,
        positions: Any = None,
        kv_caches: Any = None,
    ) -> Any:
        if kv_caches is not None:  # decoding, which every rank does by itself
            return whole_forward(ids, padding, positions=positions, kv_caches=kv_caches)
        batch, tokens = ids.shape
        mask = gpt.mask if padding is None else gpt.mask & padding
        bound = mask.on(tokens, batch=batch, heads=gpt.config.n_head)
        if positions is None:
            positions = torch.arange(tokens, device=ids.device).expand(batch, -1)
        shard = CPShard(balance(bound, cp_mesh.size()), cp_mesh)
        with shard.attention(bound):
            logits = whole_forward(shard.take(ids), positions=shard.take(positions))
        return shard.all_gather(logits)

    gpt.forward = forward
    try:
        yield
    finally:
        del gpt.forward
