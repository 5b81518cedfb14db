"""Attention over torch.distributed by heads: each rank computes some heads over more of the rows.

`heads_parallel_attention` gives a rank all rows of its heads (known as Ulysses).
`grid_parallel_attention` does so within the rows of a mesh of two dimensions, and shares the
sequence out over its columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright._optional_deps import require

with require("maskwright.parallel.heads"):
    import torch
    import torch.distributed as dist

from maskwright.engine.api import attention
from maskwright.engine.validate import bind, check_tensors
from maskwright.errors import ArgumentError, FrameError
from maskwright.parallel.assign import Assignment
from maskwright.parallel.context import context_parallel_attention
from maskwright.parallel.cutout import cut_out
from maskwright.parallel.exchange import digest_of
from maskwright.parallel.shards import Shards
from maskwright.parallel.wire import agree, group_of, swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask


def heads_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    mesh: Any,
    *,
    layout: Shards,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """This rank's rows of attention; each rank computes some of the heads, over all rows.

    Tensors are shared out by `layout` as for `context_parallel_attention`. Where there are fewer
    key heads than ranks, some ranks have nothing to compute.

    One process, which torchrun would start several of:

    >>> import torch, torch.distributed as dist, maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, mask = torch.randn(1, 2, 4, 8), mw.causal().on(4)
    >>> out = heads_parallel_attention(x, x, x, mask, dist.group.WORLD, layout=balance(mask, 1))
    >>> torch.equal(out, mw.attention(x, x, x, mask))
    True
    >>> dist.destroy_process_group()
    """
    group = group_of(mesh)
    check_tensors(q, k, v, enable_gqa)
    tokens = layout.tokens
    bound = bind(mask, (q.shape[0], q.shape[1], tokens, tokens), None)
    order = torch.from_numpy(layout.order)
    back = torch.empty_like(order)
    back[order] = torch.arange(tokens)

    def inner(heads: slice, *turned: torch.Tensor) -> torch.Tensor:
        part = _of_heads(bound, heads)
        q, k, v = (x[:, :, back] for x in turned)
        out: torch.Tensor = attention(q, k, v, part, scale=scale, enable_gqa=enable_gqa)
        return out[:, :, order]

    agree(digest_of(bound, layout), None, group, q.device)
    return _by_heads(q, k, v, layout.rows.tolist(), group, inner)


def grid_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    mesh: Any,
    *,
    layout: Shards,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """This rank's rows of attention on a mesh of (sequence, heads).

    `layout` shares the sequence out over the mesh's first dimension. A rank holds its part of
    what `split_layout(layout, heads)` gives to the ranks in the mesh's order.

    One process, which torchrun would start several of:

    >>> import torch, torch.distributed as dist, maskwright as mw
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> from maskwright.parallel.balance import balance
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, mask = torch.randn(1, 2, 4, 8), mw.causal().on(4)
    >>> mesh = init_device_mesh("cpu", (1, 1))
    >>> out = grid_parallel_attention(x, x, x, mask, mesh, layout=balance(mask, 1))
    >>> torch.allclose(out, mw.attention(x, x, x, mask), atol=1e-6)
    True
    >>> dist.destroy_process_group()
    """
    if mesh.ndim != 2:
        raise ArgumentError(
            f"grid_parallel_attention: the mesh has {mesh.ndim} dimensions. Give one of two: over "
            "the sequence, and over the heads."
        )
    along, across = mesh.get_group(0), mesh.get_group(1)
    check_tensors(q, k, v, enable_gqa)
    tokens = layout.tokens
    bound = bind(mask, (q.shape[0], q.shape[1], tokens, tokens), None)
    width = dist.get_world_size(across)
    fine = split_layout(layout, width)
    mine = dist.get_rank(along)

    def inner(heads: slice, *turned: torch.Tensor) -> torch.Tensor:
        q, k, v = turned
        out: torch.Tensor = context_parallel_attention(
            *(q, k, v),
            _of_heads(bound, heads),
            along,
            layout=layout,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out

    agree(digest_of(bound, layout), None, across, q.device)
    sizes = fine.rows[mine * width : (mine + 1) * width].tolist()
    return _by_heads(q, k, v, sizes, across, inner)


def split_layout(layout: Shards, parts: int) -> Shards:
    """Each rank's rows given to `parts` ranks, equally many each, one after the other.

    >>> import maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> fine = split_layout(balance(mw.causal().on(8), 2, how="zig-zag"), 2)
    >>> [fine.positions(rank).tolist() for rank in range(4)]
    [[0, 1], [6, 7], [2, 3], [4, 5]]
    """
    owner = np.empty(layout.tokens, np.int64)
    for rank in range(layout.ranks):
        rows = layout.positions(rank)
        owner[rows] = rank * parts + np.arange(rows.size) * parts // max(1, rows.size)
    cuts = np.flatnonzero(np.diff(owner, prepend=-1, append=-1))
    return Shards(
        f"{layout.how}, split in {parts}",
        layout.ranks * parts,
        Assignment(cuts, owner[cuts[:-1]]),
        np.zeros(layout.ranks * parts, np.int64),
        layout.needs,
        layout.key_bytes,
    )


def _of_heads(bound: BoundMask, heads: slice) -> BoundMask:
    """The mask of some heads."""
    if bound.shape[1] == 1:
        return bound
    every = np.arange(bound.frame.kv_len)
    key = ("heads", heads.start, heads.stop)
    return bound.cached(key, lambda: cut_out(bound, every, every, heads))


def _by_heads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rows: list[int],
    group: Any,
    inner: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Turn shares of rows into shares of heads, attend by `inner`, and turn back."""
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    if q.shape[2] != rows[rank] or k.shape[2] != rows[rank]:
        raise FrameError(
            f"Rank {rank} has {q.shape[2]} queries and {k.shape[2]} keys but the layout gives it "
            f"{rows[rank]}. Shard the sequence by this layout."
        )
    key_cuts = [n * k.shape[1] // ranks for n in range(ranks + 1)]
    times = q.shape[1] // k.shape[1]
    query_cuts = [times * cut for cut in key_cuts]
    turned = [
        _to_heads(x, cuts, rows, group)
        for x, cuts in ((q, query_cuts), (k, key_cuts), (v, key_cuts))
    ]
    heads = slice(query_cuts[rank], query_cuts[rank + 1])
    if heads.start < heads.stop:
        return _to_rows(inner(heads, *turned), query_cuts, rows, group)
    # Nothing to compute, but gradients come back over all three: all ranks must take part.
    return _to_rows(turned[2] + sum(x.sum() for x in turned), query_cuts, rows, group)


def _to_heads(x: torch.Tensor, cuts: list[int], rows: list[int], group: Any) -> torch.Tensor:
    """(B, H, my rows, D) → (B, my heads, all rows, D), rank after rank."""
    rank, sizes = dist.get_rank(group), np.diff(cuts).tolist()
    batch, _, own, dim = x.shape
    flat = x.permute(1, 2, 0, 3).reshape(-1, batch, dim)
    came = Turn.apply(
        flat, [n * own for n in sizes], [sizes[rank] * count for count in rows], group
    )
    parts = came.split([sizes[rank] * count for count in rows])
    shaped = [
        part.reshape(sizes[rank], count, batch, dim)
        for part, count in zip(parts, rows, strict=True)
    ]
    whole = torch.cat(shaped, 1)
    return whole.permute(2, 0, 1, 3)


def _to_rows(x: torch.Tensor, cuts: list[int], rows: list[int], group: Any) -> torch.Tensor:
    """(B, my heads, all rows, D) → (B, H, my rows, D)."""
    rank, sizes = dist.get_rank(group), np.diff(cuts).tolist()
    batch, _, _, dim = x.shape
    parts = x.permute(1, 2, 0, 3).split(rows, 1)
    flat = torch.cat([part.reshape(-1, batch, dim) for part in parts])
    came = Turn.apply(
        flat, [sizes[rank] * count for count in rows], [n * rows[rank] for n in sizes], group
    )
    return came.reshape(cuts[-1], rows[rank], batch, dim).permute(2, 0, 1, 3)


class Turn(torch.autograd.Function):
    """Rows between all ranks of a group; their gradients go back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, out_counts: list[int], in_counts: list[int], group: Any
    ) -> torch.Tensor:
        """Send and get."""
        ctx.way = out_counts, in_counts, group
        return swap(rows, out_counts, in_counts, group).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Send back."""
        out_counts, in_counts, group = ctx.way
        return swap(grad, in_counts, out_counts, group).wait(), None, None, None
