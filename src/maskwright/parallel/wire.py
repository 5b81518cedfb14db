"""What goes over torch.distributed: bytes between all ranks, counted, and a check that all agree.

What may enter here: collectives. Nothing here knows what a mask is.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from maskwright.errors import ArgumentError, MaskError
from maskwright.parallel.silence import silence_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALIKE = 32  # bytes of a digest
REFUSED = bytes(ALIKE)  # what a rank says that can't take what it was given


@dataclass
class Traffic:
    """Bytes of keys, values and their gradients that this rank has sent to and got from others."""

    sent: int = 0
    received: int = 0


_counters: list[Traffic] = []


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count what this rank moves while inside.

    >>> with counted() as traffic:
    ...     pass
    >>> traffic
    Traffic(sent=0, received=0)
    """
    traffic = Traffic()
    _counters.append(traffic)
    try:
        yield traffic
    finally:
        _counters[:] = [one for one in _counters if one is not traffic]


@dataclass
class Swap:
    """Rows on their way: `wait` gives what came in."""

    work: Any
    into: torch.Tensor
    outgoing: torch.Tensor  # must live as long as it is read
    group: Any

    def wait(self) -> torch.Tensor:
        """What came in, rank after rank."""
        if self.work is not None:
            with silence_named(self.group):
                self.work.wait()
        return self.into


def swap(
    rows: torch.Tensor, out_counts: Sequence[int], in_counts: Sequence[int], group: Any
) -> Swap:
    """Start to send rows, rank after rank, `out_counts` of them to each, and to get as told."""
    rows = rows.contiguous()
    size = rows[:1].numel() * rows.element_size() if rows.shape[0] else 0
    size = size or rows.element_size() * int(torch.Size(rows.shape[1:]).numel())
    into = rows.new_empty((sum(in_counts), *rows.shape[1:]))
    for traffic in _counters:
        me = dist.get_rank(group)
        traffic.sent += size * (sum(out_counts) - out_counts[me])
        traffic.received += size * (sum(in_counts) - in_counts[me])
    if not size:
        return Swap(None, into, rows, group)
    # As bytes: not every backend knows every dtype.
    with silence_named(group):
        work = dist.all_to_all_single(
            into.reshape(-1).view(torch.uint8),
            rows.reshape(-1).view(torch.uint8),
            [n * size for n in in_counts],
            [n * size for n in out_counts],
            group=group,
            async_op=True,
        )
    return Swap(work, into, rows, group)


def agree(digest: bytes, problem: MaskError | None, group: Any, device: torch.device) -> None:
    """Refuse, on all ranks, where one has another digest than the rest, or a problem."""
    said = REFUSED if problem is not None else digest
    mine = torch.frombuffer(bytearray(said), dtype=torch.uint8).to(device)
    all_said = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with silence_named(group):
        dist.all_gather(all_said, mine, group=group)
    if problem is not None:
        raise problem
    digests = [bytes(one.tolist()) for one in all_said]
    if REFUSED in digests:
        raise ArgumentError(
            f"Rank {digests.index(REFUSED)} refuses what it was given. See its own message."
        )
    if len(set(digests)) > 1:
        usual = max(set(digests), key=lambda one: (digests.count(one), -digests.index(one)))
        odd = [rank for rank, one in enumerate(digests) if one != usual]
        raise ArgumentError(
            f"Rank {odd[0]} has another mask, layout, shape or dtype than most. "
            "Give all ranks the same mask and equal layouts."
        )


def group_of(mesh: Any) -> Any:
    """The process group of a mesh of one dimension, or the group itself."""
    if hasattr(mesh, "get_group"):
        if mesh.ndim != 1:
            raise ArgumentError(
                f"The mesh has {mesh.ndim} dimensions. Give one of them, as mesh[name]."
            )
        return mesh.get_group()
    return mesh
