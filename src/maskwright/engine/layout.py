"""The memory layout of the output: that of q, as for `scaled_dot_product_attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def empty_out(q: torch.Tensor, v_head_dim: int) -> torch.Tensor:
    """An output without values, (batch, heads, q_len, v_head_dim), in the memory layout of q.

    The order of the dimensions in memory is that of `torch.empty_like(q)`, if head_dim is the last
    of them; else the output is contiguous.
    """
    import torch

    like = torch.empty_like(q)
    if like.shape[3] == v_head_dim and _has_dense_rows(like):
        return like
    order = memory_order(like)
    return restored(q.new_empty((*(q.shape[n] for n in order), v_head_dim)), order)


def memory_order(q: torch.Tensor) -> tuple[int, ...]:
    """The dimensions batch (0), heads (1) and q_len (2) of the output, from the largest stride."""
    import torch

    like = torch.empty_like(q)
    if not _has_dense_rows(like):
        return 0, 1, 2
    return tuple(sorted(range(3), key=like.stride, reverse=True))


def _has_dense_rows(x: torch.Tensor) -> bool:
    return bool(x.stride(3) == 1 or x.shape[3] == 1)


def restored(out: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose dimensions are in memory order, as (batch, heads, q_len, v_head_dim)."""
    return out.permute(*(order.index(n) for n in range(3)), 3)


def laid_out(out: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The output in the memory layout of q: itself, or a copy. Differentiable."""
    order = memory_order(q)
    return restored(out.permute(*order, 3).contiguous(), order)
