"""What the processes of a pool do: a rank's part of attention, and what it moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from maskwright.engine.reference import reference
from maskwright.parallel.balance import balance
from maskwright.parallel.context import context_parallel_attention
from maskwright.parallel.heads import (
    grid_parallel_attention,
    heads_parallel_attention,
    split_layout,
)
from maskwright.parallel.wire import counted
from tests.engine.given import MASKS, tensors

if TYPE_CHECKING:
    from maskwright.parallel.shards import Shards


class Case(NamedTuple):
    """An attention to be computed in one process and in several."""

    mask: Any  # one of `MASKS` by name, or a mask
    tokens: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    dim: int = 4
    value_dim: int = 4
    dtype: str = "float64"
    how: str = "auto"
    exchange: str = "ranges"

    def bound(self) -> mw.BoundMask:
        mask = MASKS[self.mask] if isinstance(self.mask, str) else self.mask
        return mask.on(self.tokens, self.tokens, self.batch, self.heads, 0)

    def layout(self, ranks: int, bound: mw.BoundMask | None = None) -> Shards:
        return balance(
            self.bound() if bound is None else bound, ranks, how=self.how, key_bytes=self.key_bytes
        )

    @property
    def key_bytes(self) -> int:
        size = getattr(torch, self.dtype).itemsize
        return self.batch * self.kv_heads * (self.dim + self.value_dim) * size

    def tensors(self, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        """q, k, v and the gradients of the output and of the logsumexp."""
        made = tensors(
            batch=self.batch,
            heads=self.heads,
            q_len=self.tokens,
            dim=self.dim,
            value_dim=self.value_dim,
            kv_heads=self.kv_heads,
            dtype=getattr(torch, self.dtype),
        )
        seeded = torch.Generator().manual_seed(1)
        shape = (self.batch, self.heads, self.tokens)
        grad = torch.randn(*shape, self.value_dim, generator=seeded).to(made.q.dtype)
        grad_lse = torch.randn(*shape, generator=seeded)
        given = (*made, grad, grad_lse)
        return given if dtype is None else tuple(x.to(dtype) for x in given)


class Found(NamedTuple):
    """What came out, for all rows or for a rank's."""

    out: np.ndarray
    lse: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def found(out: torch.Tensor, lse: torch.Tensor, inputs: Any, grads: Any) -> Found:
    """Go backwards, and take everything."""
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    total = (out * grads[0]).sum() + (finite * grads[1].to(lse.dtype)).sum()
    given = torch.autograd.grad(total, inputs, materialize_grads=True)
    return Found(*(x.detach().double().numpy() for x in (out, lse, *given)))


def whole(case: Case, dtype: torch.dtype | None = None, lse_counts: bool = True) -> Found:
    """In one process."""
    q, k, v, *grads = case.tensors(dtype)
    grads[1] = grads[1] * lse_counts
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out, lse = mw.attention(*inputs, case.bound(), enable_gqa=True, return_lse=True)
    return found(out, lse, inputs, grads)


def judged(case: Case, by_sdpa: bool = False) -> Found:
    """The truth in float64; or what SDPA makes of a dense mask in the dtype of the case.

    Only the output has a gradient to give back.
    """
    q, k, v, *grads = case.tensors(None if by_sdpa else torch.float64)
    bound, grads[1] = case.bound(), grads[1] * 0.0
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out, lse, _ = reference(*inputs, bound)
    if by_sdpa:
        seen = torch.from_numpy(bound.dense())
        empty = ~seen.any(-1, keepdim=True)
        out = scaled_dot_product_attention(*inputs, attn_mask=seen | empty, enable_gqa=True)
        out = out.masked_fill(empty, 0.0)
    return found(out, lse, inputs, grads)


def part(
    group: Any, case: Case, lse_counts: bool = True
) -> tuple[Found, tuple[int, int], tuple[int, int]]:
    """A rank's rows, and what it sent and got on the way there and back."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    bound = case.bound()
    layout = case.layout(ranks, bound)
    rows = torch.from_numpy(layout.positions(rank))
    q, k, v, *grads = (x[:, :, rows] for x in case.tensors())
    grads[1] = grads[1] * lse_counts
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    with counted() as there:
        out, lse = context_parallel_attention(
            *inputs,
            bound,
            group,
            layout=layout,
            enable_gqa=True,
            exchange=case.exchange,
            return_lse=True,
        )
    with counted() as back:
        answer = found(out, lse, inputs, grads)
    return answer, (there.sent, there.received), (back.sent, back.received)


def part_by_heads(group: Any, case: Case) -> Found:
    """A rank's rows, computed by heads; there is no logsumexp."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    layout = case.layout(ranks)
    rows = torch.from_numpy(layout.positions(rank))
    q, k, v, *grads = (x[:, :, rows] for x in case.tensors())
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = heads_parallel_attention(*inputs, case.bound(), group, layout=layout, enable_gqa=True)
    return found(out, torch.zeros(out.shape[:3]), inputs, grads)


def part_on_a_grid(group: Any, case: Case, rows: int, columns: int) -> Found:
    """A rank's rows on a mesh of (sequence, heads)."""
    mesh = dist.init_device_mesh("cpu", (rows, columns))
    layout = case.layout(rows)
    own = torch.from_numpy(split_layout(layout, columns).positions(dist.get_rank(group)))
    q, k, v, *grads = (x[:, :, own] for x in case.tensors())
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = grid_parallel_attention(*inputs, case.bound(), mesh, layout=layout, enable_gqa=True)
    return found(out, torch.zeros(out.shape[:3]), inputs, grads)


def joined(parts: list[Found], layout: Shards) -> Found:
    """The ranks' rows in the order of positions."""
    back = np.argsort(layout.order)
    return Found(*(np.concatenate(each, 2)[:, :, back] for each in zip(*parts, strict=True)))
