"""Training in several processes that torchrun has started: batches and sequences shared out.

With `dp` ranks each takes every dp-th of the batches that make a step, so that a step is the one
that a single process takes with as many times `--accumulate`. With `cp` ranks each takes a share of
every sequence.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from maskwright.apps.packing import Packed
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT
from maskwright.parallel.balance import balance
from maskwright.parallel.share import Share
from maskwright.parallel.silence import silence_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class Ranks:
    """The processes of a training; without a mesh there is but one.

    >>> from maskwright.apps.ranks import Ranks
    >>> list(Ranks().parts(3)), Ranks().main
    ([0, 1, 2], True)
    """

    dp: int = 1
    cp: int = 1
    mesh: Any = None
    fsdp: bool = False  # are weights shared out too?

    @property
    def main(self) -> bool:
        """Is this the one that prints?"""
        return self.mesh is None or dist.get_rank() == 0

    @property
    def restarted(self) -> bool:
        """Has torchrun started this training again after a fault?"""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

    def parts(self, accumulate: int) -> range:
        """Which of a step's batches are for this rank."""
        first = 0 if self.mesh is None else self.mesh.get_local_rank("dp")
        return range(first, accumulate * self.dp, self.dp)

    def add_up(self, *numbers: float) -> list[float]:
        """Add up numbers over the ranks that have batches of their own."""
        if self.mesh is None:
            return list(numbers)
        told = torch.tensor(numbers, dtype=torch.float64)
        with silence_named(None):
            dist.all_reduce(told, group=self.mesh.get_group("dp"))
        return [float(number) for number in told]

    def agreed(self, number: float) -> float:
        """The main rank's number, on all: they must not decide differently by the last digit."""
        if self.mesh is None:
            return number
        told = torch.tensor(number, dtype=torch.float64)
        with silence_named(None):
            dist.broadcast(told, 0)
        return float(told)

    @contextmanager
    def sharing(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside, a GPT that is given whole sequences computes a share, and gives whole logits."""
        if self.cp == 1:
            yield
            return
        gpt = model.gpt if isinstance(model, Packed) else model
        if not isinstance(gpt, GPT):
            raise ArgumentError(
                f"--cp {self.cp} shares out the sequences of a GPT, and this app's model is a "
                f"{type(gpt).__name__}. Leave --cp out, and use --dp."
            )
        if gpt.config.dropout:
            raise ArgumentError(
                f"--cp {self.cp} has no dropout in attention, and this app's model has "
                f"{gpt.config.dropout}. Leave --cp out, and use --dp."
            )
        shared = functools.partial(_shared, gpt, gpt.forward, self.mesh["cp"])
        gpt.__dict__["forward"] = shared  # found before the class's own
        try:
            yield
        finally:
            del gpt.__dict__["forward"]


def start(dp: int, cp: int, *, fsdp: bool = False, device: str = "cpu") -> Ranks:
    """Join the processes that torchrun has started; with 1 and 1 there is nothing to join.

    Ranks talk by gloo on the CPU; where they train on graphics cards, each has its own, and they
    talk by NCCL.

    >>> from maskwright.apps.ranks import start
    >>> start(1, 1)
    Ranks(dp=1, cp=1, mesh=None, fsdp=False)
    """
    count, given = dp * cp, int(os.environ.get("WORLD_SIZE", "1"))
    if given != count:
        raise ArgumentError(
            f"--dp {dp} and --cp {cp} take {count} processes but there are {given}. Start them by: "
            f"torchrun --nproc-per-node {count} -m maskwright train ..."
        )
    if count == 1:
        if fsdp:
            raise ArgumentError(
                "--fsdp shares weights out over processes, and there is but one. "
                "Give --dp or --cp too, or leave --fsdp out."
            )
        return Ranks()
    graphics = torch.cuda.is_available() and device.partition(":")[0] in ("auto", "cuda")
    if graphics:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        _join("cpu:gloo,cuda:nccl" if graphics else "gloo")
    kind = "cuda" if graphics else "cpu"
    mesh = dist.init_device_mesh(kind, (dp, cp), mesh_dim_names=("dp", "cp"))
    return Ranks(dp, cp, mesh, fsdp)


def stop(ranks: Ranks) -> None:
    """Let go of the others."""
    if ranks.mesh is not None:
        dist.destroy_process_group()


def _join(backend: str) -> None:
    """Find the others by the store that torchrun keeps.

    It outlives a restart, and would give the addresses of the ranks before; so every attempt has
    its own names in it.
    """
    store, rank, ranks = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    own = dist.PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=ranks)


def _shared(
    gpt: GPT,
    forward: Any,
    mesh: Any,
    ids: torch.Tensor,
    padding: Mask | None = None,
    *,
    positions: torch.Tensor | None = None,
    caches: Any = None,
) -> torch.Tensor:
    """What `GPT.forward` gives, each rank having computed its share."""
    if caches is not None:
        whole: torch.Tensor = forward(ids, padding, positions=positions, caches=caches)
        return whole
    batch, tokens = ids.shape
    mask = gpt.mask if padding is None else gpt.mask & padding
    bound = mask.on(tokens, batch=batch, heads=gpt.config.heads)
    share = Share(balance(bound, mesh.size()), mesh)
    if positions is None:
        positions = torch.arange(tokens, device=ids.device).expand(batch, -1)
    with share.attention(bound):
        logits = forward(share.take(ids), positions=share.take(positions))
    return share.join(logits)
