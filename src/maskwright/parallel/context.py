"""`context_parallel_attention`: attention under any mask, with the sequence sharded over ranks.

Each rank holds some rows of q, k and v. It sends to the other ranks the keys and values that their
queries attend to. Meanwhile it computes attention over its own keys, then over the keys that it
received, and merges both by their logsumexp. The gradients of received keys return to their ranks.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from maskwright._optional_deps import require

with require("maskwright.parallel.context"):
    import torch
    import torch.distributed as dist
    from torch.autograd.function import once_differentiable

from maskwright.core.bound import BoundMask
from maskwright.core.validate import read_choice
from maskwright.engine.params import AttentionOptions, Saved
from maskwright.engine.softmax import merge
from maskwright.engine.validate import bind, check_options, check_storage, check_tensors
from maskwright.errors import ArgumentError, FrameError, MaskError
from maskwright.parallel.balance import balance
from maskwright.parallel.exchange import digest_of, exchange_of
from maskwright.parallel.partial import RankCall, pack_kv, select_partial_attention, unpack_kv
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
    impl: str = "auto",
    return_lse: bool = False,
) -> Any:
    """Attention of this rank's queries over the whole sequence, under a mask of it.

    All ranks must call it together. Ranks whose masks differ raise an error before anything is
    exchanged.

    Args:
        q: Queries of this rank (batch, heads, rows, head_dim): the rows that
            `layout.positions(rank)` lists, in that order.
        k: Keys of the same rows (batch, kv_heads, rows, head_dim).
        v: Values of the same rows (batch, kv_heads, rows, v_head_dim).
        mask: The mask of the whole sequence. It must be bound if `layout` is None.
        mesh: A DeviceMesh of one dimension, or a process group.
        layout: The shards of the sequence, `balance(mask, ranks)` by default.
        scale: Factor of the scores, 1 / sqrt(head_dim) by default.
        enable_gqa: Allow fewer KV heads than query heads.
        exchange: "ranges" sends each rank the keys that its queries attend to, at once. "ring"
            passes all keys around, so that a rank holds three shards of keys at most. "auto"
            selects the ring if nearly every rank needs nearly all keys.
        impl: The backend of each rank: "native", "blocks", or "auto" to select one.
        return_lse: Return the logsumexp of the scores of each row, too.

    Returns:
        The output (batch, heads, rows, v_head_dim) in the dtype of q. With `return_lse` a tuple
        with the logsumexp (batch, heads, rows). Both are differentiable once.

    Raises:
        ArgumentError: An argument is invalid, on this rank or on another one.
        FrameError: The mask or the layout does not match the sizes of q and k.
        Unsupported: The backend named by `impl` does not support the call.

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
    digest, call, is_ring = b"", None, False
    try:
        check_tensors(q, k, v, enable_gqa)
        check_storage(q, k, v)
        options = AttentionOptions(scale, enable_gqa=enable_gqa, impl=impl, return_lse=return_lse)
        check_options(options)
        bound, shards = _whole(mask, layout, q, ranks)
        _check_rows(q, k, shards, rank)
        kind = read_choice(exchange, "context_parallel_attention: exchange", EXCHANGES)
        attention = select_partial_attention(bound, (q, k, v), options)
        plan = exchange_of(bound, shards, rank)
        is_ring = kind == "ring" or (kind == "auto" and plan.rings)
        call = RankCall(plan, group, attention)
        sizes = (*q.shape[:2], k.shape[1], q.shape[3], v.shape[3])
        digest = _with(
            digest_of(bound, shards), (*sizes, str(q.dtype), attention.params.scale, is_ring)
        )
    except MaskError as error:
        problem = error  # reported to all ranks, which would wait for this one otherwise
    agree(digest, problem, group, q.device)
    out, lse = (Ring if is_ring else Ranges).apply(q, k, v, call)
    return (out, lse) if return_lse else out


class Ranges(torch.autograd.Function):
    """Attention of a rank's queries: output and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: RankCall
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output in the dtype of q, and the logsumexp."""
        plan, group = call.exchange, call.group
        sent = torch.from_numpy(plan.sent)
        packed = pack_kv(k, v)
        transfer = None
        if not plan.quiet:
            transfer = swap(packed[sent], plan.out_counts, plan.in_counts, group)
        own = call.attention.forward(plan.own, q, k, v)
        received = packed[:0] if transfer is None else transfer.wait()
        received = received[torch.from_numpy(plan.sorting)]
        keys, values = unpack_kv(received, k.shape[-1])
        out, lse = merge(own, call.attention.forward(plan.foreign, q, keys, values))
        ctx.call = call
        ctx.save_for_backward(q, k, v, received, out, lse)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v; those of received keys are computed and sent back first."""
        q, k, v, received, out, lse = ctx.saved_tensors
        plan, group, attention = ctx.call.exchange, ctx.call.group, ctx.call.attention
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        saved = Saved(q, *unpack_kv(received, k.shape[-1]), out, lse)
        foreign_dq, dk, dv = attention.backward(plan.foreign, saved, grad_out, grad_lse)
        transfer = None
        if not plan.quiet:
            grads = pack_kv(dk, dv)[torch.from_numpy(plan.unsorting)]
            transfer = swap(grads, plan.in_counts, plan.out_counts, group)
        saved = saved._replace(k=k, v=v)
        dq, dk, dv = attention.backward(plan.own, saved, grad_out, grad_lse)
        if transfer is not None:
            returned, sent = transfer.wait(), torch.from_numpy(plan.sent).to(dk.device)
            for grad, more in zip((dk, dv), unpack_kv(returned, k.shape[-1]), strict=True):
                grad.index_add_(2, sent, more)
        return (foreign_dq + dq).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


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
