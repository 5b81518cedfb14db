"""`context_parallel_attention`: attention under any mask, the sequence shared out over ranks.

Each rank has some rows of q, k and v. It sends others the keys and values that their rows see, and
computes its rows over its own keys meanwhile; then over the keys that came in; and joins the two by
their logsumexp. Gradients of foreign keys go back the way that the keys came.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from maskwright.core.extras import needed_by

with needed_by("maskwright.parallel.context"):
    import torch
    import torch.distributed as dist

from maskwright.core.arrays import read_choice
from maskwright.core.bound import BoundMask
from maskwright.engine.execute import Terms
from maskwright.engine.validate import bind, check_numbers, check_tensors
from maskwright.engine.op import usual_scale
from maskwright.errors import ArgumentError, FrameError, MaskError
from maskwright.parallel.balance import balance
from maskwright.parallel.exchange import Task, digest_of, exchange_of
from maskwright.parallel.parts import Known, merged, part, part_back, unpacked
from maskwright.parallel.ring import Ring
from maskwright.parallel.wire import agree, group_of, swap

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.parallel.shards import Shards

EXCHANGES: Final = ("auto", "ranges", "ring")


def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    mesh: Any,
    *,
    layout: Shards | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    exchange: str = "auto",
    return_lse: bool = False,
) -> Any:
    """This rank's rows of attention under a mask of the whole sequence.

    `mask` is bound to the whole sequence, or `layout` says how long that is. A rank's q, k and v
    hold the rows that `layout.positions(rank)` names, in that order; without a layout it is
    `balance(mask, ranks)`. `mesh` is a DeviceMesh of one dimension, or a process group.

    By `exchange="ranges"` each rank is sent just the keys that its rows see, all at once; by "ring"
    all keys go round, so that a rank holds no more than its neighbour's besides its own. "auto"
    takes the ring where nearly everybody needs nearly everything.

    All ranks must call it together. Differing masks are refused on every rank before anything is
    sent. Both results are differentiable.

    >>> import torch, maskwright as mw
    >>> q = torch.zeros(1, 1, 4, 2)
    >>> context_parallel_attention(q, q, q, mw.causal().on(4), mesh=None)
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: context_parallel_attention: there is no process group. \
Start the processes by torchrun and call torch.distributed.init_process_group().
    """
    group = _joined(mesh)
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    problem: MaskError | None = None
    digest, task, rings = b"", None, False
    try:
        check_tensors(q, k, v, enable_gqa)
        check_numbers(scale, 0.0)
        bound, shards = _whole(mask, layout, q, ranks)
        _check_rows(q, k, shards, rank)
        factor = usual_scale(q.shape[-1]) if scale is None else float(scale)
        way = read_choice(exchange, "context_parallel_attention: exchange", EXCHANGES)
        plan = exchange_of(bound, shards, rank)
        rings = way == "ring" or (way == "auto" and plan.rings)
        task = Task(plan, group, Terms(factor))
        shape = (*q.shape[:2], k.shape[1], q.shape[3], v.shape[3], str(q.dtype), factor, rings)
        digest = _with(digest_of(bound, shards), shape)
    except MaskError as error:
        problem = error  # told to all, who would wait for this rank else
    agree(digest, problem, group, q.device)
    out, lse = (Ring if rings else Ranges).apply(q, k, v, task)
    return (out, lse) if return_lse else out


class Ranges(torch.autograd.Function):
    """A rank's rows: output in q's dtype and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, task: Task
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute them."""
        plan, group = task.exchange, task.group
        sent = torch.from_numpy(plan.sent)
        packed = torch.cat((k, v), -1).permute(2, 0, 1, 3)  # (keys, B, Hk, D + Dv)
        coming = None
        if not plan.quiet:
            coming = swap(packed[sent], plan.out_counts, plan.in_counts, group)
        first = part(plan.own, q, k, v, task.terms)
        came = packed[:0] if coming is None else coming.wait()
        kept = came[torch.from_numpy(plan.sorting)]
        second = part(plan.foreign, q, *unpacked(kept, k), task.terms)
        out, lse = merged(first, second)
        ctx.task = task
        ctx.save_for_backward(q, k, v, kept, out, lse)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v; those of foreign keys are sent back first."""
        q, k, v, kept, out, lse = ctx.saved_tensors
        plan, group = ctx.task.exchange, ctx.task.group
        grad = torch.zeros_like(out) if grad is None else grad
        given = Known(q, grad, grad_lse, out, lse, ctx.task.terms)
        dq, dk, dv = part_back(plan.foreign, *unpacked(kept, k), given)
        going = None
        if not plan.quiet:
            back = torch.cat((dk, dv), -1).permute(2, 0, 1, 3)
            back = back[torch.from_numpy(plan.unsorting)]
            going = swap(back, plan.in_counts, plan.out_counts, group)
        more, dk, dv = part_back(plan.own, k, v, given)
        dq = dq + more
        if going is not None:
            theirs, sent = going.wait(), torch.from_numpy(plan.sent).to(dk.device)
            for own, came in zip((dk, dv), unpacked(theirs, k), strict=True):
                own.index_add_(2, sent, came)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def _joined(mesh: Any) -> Any:
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "context_parallel_attention: there is no process group. Start the processes by "
            "torchrun and call torch.distributed.init_process_group()."
        )
    return group_of(mesh)


def _whole(
    mask: Mask | BoundMask | None, layout: Shards | None, q: torch.Tensor, ranks: int
) -> tuple[BoundMask, Shards]:
    """The mask of the whole sequence, and how its rows are shared out."""
    if layout is None:
        if not isinstance(mask, BoundMask):
            raise ArgumentError(
                "context_parallel_attention: nothing says how long the whole sequence is. "
                "Pass a bound mask, mask.on(tokens), or a layout."
            )
        layout = mask.cached(("layout", ranks), lambda: balance(mask, ranks))
    if layout.ranks != ranks:
        raise ArgumentError(
            f"context_parallel_attention: the layout is for {layout.ranks} ranks but the group "
            f"has {ranks}. Make one for {ranks}: balance(mask, {ranks})."
        )
    tokens = layout.tokens
    return bind(mask, (q.shape[0], q.shape[1], tokens, tokens), None), layout


def _check_rows(q: torch.Tensor, k: torch.Tensor, layout: Shards, rank: int) -> None:
    rows = int(layout.rows[rank])
    if q.shape[2] != rows or k.shape[2] != rows:
        raise FrameError(
            f"context_parallel_attention: rank {rank} has {q.shape[2]} queries and {k.shape[2]} "
            f"keys but the layout gives it {rows}. Shard the sequence by this layout."
        )


def _with(digest: bytes, more: object) -> bytes:
    return hashlib.sha256(digest + repr(more).encode()).digest()
