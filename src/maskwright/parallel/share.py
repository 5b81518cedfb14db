"""`Share`: one rank's share of a sequence, and what a training loop on torch.distributed does with it.

    share = Share(balance(mask.on(tokens), ranks), mesh)
    with share.attention(mask):
        logits = model(share.take(ids), positions=share.positions)
    share.mean(losses_of(logits, share.take(labels))).backward()
    share.sum_gradients(model)

Attention itself is in `context`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from maskwright._optional_deps import require

with require("maskwright.parallel.share"):
    import torch
    import torch.distributed as dist

from maskwright.core.bound import BoundMask
from maskwright.engine.api import override_attention
from maskwright.errors import FrameError, Unsupported
from maskwright.parallel.context import context_parallel_attention
from maskwright.parallel.silence import silence_named
from maskwright.parallel.wire import group_of, swap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask
    from maskwright.engine.params import AttentionOptions
    from maskwright.parallel.shards import Shards


class Share:
    """The rows of a layout that this rank has; `mesh` is of one dimension, or a process group.

    One process, which torchrun would start several of:

    >>> import torch, torch.distributed as dist, maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> share, ids = Share(balance(mw.causal().on(4), 1)), torch.tensor([[5, 6, 7, 8]])
    >>> share.take(ids).tolist(), share.join(share.take(ids)).tolist()
    ([[5, 6, 7, 8]], [[5, 6, 7, 8]])
    >>> share.mean(torch.tensor([1.0, 2.0]), weights=torch.tensor([1, 0])).item()
    1.0
    >>> share.sum_gradients(torch.nn.Linear(2, 2))
    >>> x = torch.randn(1, 1, 4, 2)
    >>> with share.attention():
    ...     mw.attention(x, x, x, mw.causal()).shape
    torch.Size([1, 1, 4, 2])
    >>> dist.destroy_process_group()
    """

    def __init__(self, layout: Shards, mesh: Any = None) -> None:
        self.layout, self.group = layout, group_of(mesh)
        self.rank, ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        if layout.ranks != ranks:
            raise FrameError(
                f"Share: the layout is for {layout.ranks} ranks but the group has {ranks}. "
                f"Make one for {ranks}: balance(mask, {ranks})."
            )
        self.positions = torch.from_numpy(layout.positions(self.rank))

    def take(self, whole: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """This rank's part of ids, labels or anything else that all ranks have whole."""
        if whole.shape[dim] != self.layout.tokens:
            raise FrameError(
                f"Share.take: axis {dim} has {whole.shape[dim]} places but the layout "
                f"{self.layout.tokens} tokens. Give the whole sequence, and its axis as dim."
            )
        return whole.index_select(dim, self.positions.to(whole.device))

    def join(self, part: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """The whole, in the order of positions, on every rank.

        Its gradient is of this rank's part alone, as with `mean`.
        """
        if part.shape[dim] != self.positions.numel():
            raise FrameError(
                f"Share.join: axis {dim} has {part.shape[dim]} places but this rank's share has "
                f"{self.positions.numel()}. Give what was computed of the share, and its axis as dim."
            )
        whole: torch.Tensor = Joined.apply(part.movedim(dim, 0), self)
        return whole.movedim(0, dim)

    def mean(self, losses: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """The mean over all ranks' tokens, the same on each; weights of 0 leave tokens out.

        Its gradient is of this rank's tokens alone: over all ranks gradients add up to the whole.
        """
        given = torch.ones_like(losses) if weights is None else weights.to(losses.dtype)
        own = (losses * given).sum()
        sums = torch.stack((own.detach(), given.sum())).to(torch.float64)
        with silence_named(self.group):
            dist.all_reduce(sums, group=self.group)
        whole, count = sums[0], sums[1].clamp(min=1e-300)
        part = own / count.to(own.dtype)
        return part + ((whole / count).to(own.dtype) - part.detach())

    def sum_gradients(self, model: torch.nn.Module) -> None:
        """Add up every parameter's gradient over the ranks."""
        for parameter in model.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:  # a rank without rows has to take part too
                    parameter.grad = torch.zeros_like(parameter)
                with silence_named(self.group):
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
            _check_supported(options)
            if whole_mask is not None:
                mask = whole_mask
            elif isinstance(mask, BoundMask):
                _check_q_start(mask.frame.q_start)
                mask = mask.mask
            return context_parallel_attention(
                *(q, k, v, mask, self.group),
                layout=self.layout,
                scale=options.scale,
                enable_gqa=options.enable_gqa,
                impl=options.impl,
                return_lse=options.return_lse,
            )

        with override_attention(override):
            yield


def _check_supported(options: AttentionOptions) -> None:
    if options.dropout_p:
        raise Unsupported(
            f"context_parallel_attention has no dropout, and dropout_p is {options.dropout_p}. "
            "Build the model with a dropout of 0.",
            target="context_parallel_attention",
        )
    _check_q_start(options.q_start)


def _check_q_start(q_start: int | None) -> None:
    """The layout has the positions of this rank's queries; 0 is that of the whole sequence."""
    if q_start:
        raise Unsupported(
            f"context_parallel_attention: q_start is {q_start}, but queries and keys have the "
            "positions of the layout. Leave q_start out.",
            target="context_parallel_attention",
        )


class Joined(torch.autograd.Function):
    """All ranks' rows on every rank, in the order of positions."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, share: Share) -> torch.Tensor:
        """Send mine to everybody."""
        ctx.share, layout = share, share.layout
        copies = rows.repeat(layout.ranks, *[1] * (rows.dim() - 1))
        counts = [rows.shape[0]] * layout.ranks, layout.rows.tolist()
        came = swap(copies, *counts, share.group).wait()
        whole = torch.empty_like(came)
        whole[torch.from_numpy(layout.order)] = came
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """What comes back to my rows."""
        return grad[ctx.share.positions], None
