"""Attention over some of the keys in plain tensor operations, some rows at a time.

For devices that the engine's own kernels are not for: these give the logsumexp, and go backwards
with one that was found over other keys too. A part of the mask is dense for a moment, never all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask

MOST_SCORES: Final = 2**24  # at a time


def forward(
    bound: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp; a row that sees nothing has zeros and -inf.

    >>> import torch, maskwright as mw
    >>> q = k = torch.zeros(1, 1, 2, 1)
    >>> v = torch.tensor([1.0, 2.0]).reshape(1, 1, 2, 1)
    >>> forward(mw.causal().on(2), q, k, v, scale=1.0)[0].flatten().tolist()
    [1.0, 1.5]
    """
    out = q.new_zeros((*q.shape[:3], v.shape[-1]))
    lse = q.new_full(q.shape[:3], -math.inf)
    for block in _blocks(bound, q, k, v):
        scores = block.scores(scale)
        found = scores.logsumexp(-1)
        lse[:, :, block.rows] = found
        out[:, :, block.rows] = _weights(scores, found) @ block.v
    return out, lse


def backward(
    bound: BoundMask,
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, with an output and a logsumexp that are over more keys than these."""
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for block in _blocks(bound, q, k, v):
        rows = block.rows
        weights = _weights(block.scores(scale), lse[:, :, rows])
        change = grad[:, :, rows] @ block.v.mT
        change -= (grad[:, :, rows] * out[:, :, rows]).sum(-1, keepdim=True)
        if grad_lse is not None:
            change += grad_lse[:, :, rows].unsqueeze(-1)
        change = change * weights * scale
        dq[:, :, rows] = change @ block.k
        dk += _by_key_head(change.mT @ block.q, k)
        dv += _by_key_head(weights.mT @ grad[:, :, rows], v)
    return dq, dk, dv


class Block(NamedTuple):
    """Some rows, with all keys; keys that none of the rows sees are 0, whatever they hold."""

    rows: slice
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seen: torch.Tensor

    def scores(self, scale: float) -> torch.Tensor:
        """-inf where a key is hidden."""
        return (self.q @ self.k.mT * scale).masked_fill(~self.seen, -math.inf)


def _blocks(bound: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Iterator[Block]:
    batch, heads, count, _ = q.shape
    if not k.shape[2]:
        return
    step = max(1, MOST_SCORES // max(1, batch * heads * k.shape[2]))
    keys, values = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        seen = torch.from_numpy(bound.rows(rows.start, rows.stop).dense()).to(q.device)
        unseen = ~seen.any(2).unsqueeze(-1)
        own, theirs = (x.masked_fill(unseen, 0.0) for x in (keys, values))
        yield Block(rows, q[:, :, rows], own, theirs, seen)


def _weights(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    whole = lse.masked_fill(lse == -math.inf, 0.0)  # a row that sees nothing has no weights
    return (scores - whole.unsqueeze(-1)).exp()


def _by_key_head(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad.unflatten(1, (x.shape[1], -1)).sum(2)
