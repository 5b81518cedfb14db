"""`CPShard`: one rank's shard of a sequence, for a training loop on torch.distributed.

shard = CPShard(balance(mask.on(tokens), ranks), mesh)
with shard.attention(mask):
    logits = model(shard.take(ids), positions=shard.positions)
shard.mean(losses_of(logits, shard.take(labels))).backward()
shard.all_reduce_gradients(model)
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from maskwright._optional_deps import require

with require("maskwright.parallel.train_loop"):
    import torch
    import torch.distributed as dist

from maskwright.core.bound import BoundMask
from maskwright.engine.api import override_attention
from maskwright.errors import FrameError, Unsupported
from maskwright.parallel.comm import all_to_all_rows, get_group, report_peer_failure
from maskwright.parallel.context_parallel import attend, check_layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask
    from maskwright.engine.call import AttentionOptions
    from maskwright.parallel.layout import ShardLayout


class CPShard:
    """This rank's shard of a sequence, in context parallel training.

    Args:
        layout: The shards of the sequence.
        mesh: A DeviceMesh of one dimension, or a process group, by default that of all ranks.

    One process, which torchrun would start several of:

    >>> import torch, torch.distributed as dist, maskwright as mw
    >>> from maskwright.parallel.layout import balance
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> shard, ids = CPShard(balance(mw.causal().on(4), 1)), torch.tensor([[5, 6, 7, 8]])
    >>> shard.take(ids).tolist(), shard.all_gather(shard.take(ids)).tolist()
    ([[5, 6, 7, 8]], [[5, 6, 7, 8]])
    >>> shard.mean(torch.tensor([1.0, 2.0]), weights=torch.tensor([1, 0])).item()
    1.0
    >>> shard.all_reduce_gradients(torch.nn.Linear(2, 2))
    >>> x = torch.randn(1, 1, 4, 2)
    >>> with shard.attention():
    ...     mw.attention(x, x, x, mw.causal()).shape
    torch.Size([1, 1, 4, 2])
    >>> dist.destroy_process_group()
    """

    def __init__(self, layout: ShardLayout, mesh: Any = None) -> None:
        self.layout, self.group = layout, get_group(mesh)
        self.rank = dist.get_rank(self.group)
        check_layout(layout, dist.get_world_size(self.group))
        self.positions = torch.from_numpy(layout.positions(self.rank))

    def take(self, whole: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """This rank's part of a tensor that all ranks have, such as ids or labels."""
        if whole.shape[dim] != self.layout.tokens:
            raise FrameError(
                f"CPShard.take: axis {dim} has length {whole.shape[dim]}, expected "
                f"{self.layout.tokens} (the tokens of the layout). Pass the whole sequence, and its "
                "axis as dim."
            )
        return whole.index_select(dim, self.positions.to(whole.device))

    def all_gather(self, part: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """The whole sequence on each rank, in the order of positions.

        Its gradient is that of this rank's part only, as with `mean`.
        """
        if part.shape[dim] != self.positions.numel():
            raise FrameError(
                f"CPShard.all_gather: axis {dim} has length {part.shape[dim]}, expected "
                f"{self.positions.numel()} (the rows of this rank). Pass what was computed of this "
                "shard, and its axis as dim."
            )
        rows, layout = part.movedim(dim, 0), self.layout
        with torch.no_grad():
            copies = rows.repeat(layout.ranks, *[1] * (rows.dim() - 1))
            counts = [rows.shape[0]] * layout.ranks, layout.rows.tolist()
            received = all_to_all_rows(copies, *counts, self.group).wait()
            whole = torch.empty_like(received)
            whole[torch.from_numpy(layout.order)] = received
        # The same values once more, with their gradient.
        whole = whole.index_copy(0, self.positions.to(rows.device), rows)
        return whole.movedim(0, dim)

    def mean(self, losses: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """The mean over the tokens of all ranks, equal on each; tokens of weight 0 do not count.

        Its gradient is that of this rank's tokens only: the gradients of all ranks add up to that of
        the mean.
        """
        weights = torch.ones_like(losses) if weights is None else weights.to(losses.dtype)
        local_sum = (losses * weights).sum()
        sums = torch.stack((local_sum.detach(), weights.sum())).to(torch.float64)
        with report_peer_failure():
            dist.all_reduce(sums, group=self.group)
        total, count = sums[0], sums[1].clamp(min=1e-300)
        part = local_sum / count.to(local_sum.dtype)
        return part + ((total / count).to(local_sum.dtype) - part.detach())

    def all_reduce_gradients(self, model: torch.nn.Module) -> None:
        """Sum the gradient of each parameter over the ranks."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # a rank without rows must take part, too
                    parameter.grad = torch.zeros_like(parameter)
                with report_peer_failure():
                    dist.all_reduce(parameter.grad, group=self.group)

    @contextmanager
    def attention(self, mask: Mask | BoundMask | None = None) -> Iterator[None]:
        """Within the context, `maskwright.attention` is `context_parallel_attention`.

        Models run unmodified on this rank's tokens. The context applies to the current thread: on
        GPUs, activation checkpointing recomputes the forward pass in another thread, without it.

        Args:
            mask: The mask of the whole sequence, in place of the one that the model passes. By
                default the model's own mask expression is bound to the whole sequence.
        """
        whole_mask = mask

        def override(
            q: Any, k: Any, v: Any, mask: Mask | BoundMask | None, options: AttentionOptions
        ) -> Any:
            q_start = options.q_start
            if whole_mask is not None:
                mask = whole_mask
            elif isinstance(mask, BoundMask):
                q_start, mask = q_start or mask.frame.q_start, mask.mask
            # Queries and keys have the positions of the layout; a q_start of 0 is that of all rows.
            for name, value in (("dropout_p", options.dropout_p), ("q_start", q_start)):
                if value:
                    raise Unsupported(
                        f"context_parallel_attention does not support {name}={value}. Remove it.",
                        target="context_parallel_attention",
                    )
            whole = options._replace(q_start=None)
            return attend((q, k, v), mask, self.group, self.layout, whole)

        with override_attention(override):
            yield
