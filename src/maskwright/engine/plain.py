"""Runs a plan in plain tensor operations: for dropout, which the fused kernel does not have.

The logsumexp of every row is known beforehand, so each piece gives its share of the output by
itself. Which weights are dropped is drawn anew for every strip from one seed, the same in the
backward pass as in the forward one: nothing of the size of the scores is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from maskwright.engine.pieces import Piece
from maskwright.engine.strips import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.engine.plan import Plan
    from maskwright.engine.strips import Part


def forward(
    plan: Plan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    dropout_p: float,
    seed: int,
) -> torch.Tensor:
    """The output under dropout, of rows whose logsumexp is known."""
    out = torch.zeros_like(q)
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    for part, drawn in _drawn(plan, q, k, seed):
        weights = _weights(part, q, k, lse, scale)
        weights = weights * _kept(weights, dropout_p, drawn)
        part.queries(out).add_(weights @ _values(part, v, weights))
    return out


def backward(
    plan: Plan,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_lse: torch.Tensor | None,
    scale: float,
    dropout_p: float,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v under the dropout that the forward pass drew."""
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    for part, drawn in _drawn(plan, q, k, seed):
        weights = _weights(part, q, k, lse, scale)
        kept = _kept(weights, dropout_p, drawn)
        values, keys = _values(part, v, weights), _values(part, k, weights)
        own, rows = _rows(part, grad), _rows(part, q)
        part.add_to_keys(dv, _by_key_head(part, (weights * kept).mT @ own, v))
        change = (own @ values.mT) * kept
        change -= (own * part.queries(out)).sum(-1, keepdim=True)
        if grad_lse is not None:  # of all weights, the dropped ones too
            change += part.queries(grad_lse).unsqueeze(-1)
        scores = change.mul_(weights).mul_(scale)
        part.queries(dq).add_(scores @ keys)
        part.add_to_keys(dk, _by_key_head(part, scores.mT @ rows, k))
    return dq, dk, dv


def _drawn(
    plan: Plan, q: torch.Tensor, k: torch.Tensor, seed: int
) -> Iterator[tuple[Part, torch.Generator]]:
    """Every part, with random numbers of its own; no two strips of a part share a key."""
    number = 0
    for piece in plan.pieces:
        assert isinstance(piece, Piece), "a plan for plain operations has no bundles"
        for part in parts(plan, piece, q, k, apart=True):
            yield part, torch.Generator(q.device).manual_seed((seed + number) % 2**63)
            number += 1


def _rows(part: Part, x: torch.Tensor) -> torch.Tensor:
    rows = part.queries(x)
    return rows if part.empty is None else rows.masked_fill(part.empty, 0.0)


def _weights(
    part: Part, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, scale: float
) -> torch.Tensor:
    rows = _rows(part, q)
    scores = rows @ _repeated(part.keys(k), rows.shape[1]).mT
    scores = scores * scale
    if part.mask is not None:
        scores += part.mask
    if part.piece.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(1)
        scores = scores.masked_fill_(hidden, -torch.inf)
    return scores.sub_(part.queries(lse).unsqueeze(-1)).exp_()


def _values(part: Part, v: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return _repeated(part.keys(v), weights.shape[1])


def _kept(weights: torch.Tensor, dropout_p: float, drawn: torch.Generator) -> torch.Tensor:
    """0 where a weight is dropped, else what keeps the mean."""
    chance = torch.rand(weights.shape, dtype=weights.dtype, device=weights.device, generator=drawn)
    return (chance >= dropout_p).to(weights.dtype).div_(1 - dropout_p)


def _repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _by_key_head(part: Part, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    held = x[part.batch, part.kv_heads].shape[1]
    return grad if grad.shape[1] == held else grad.unflatten(1, (held, -1)).sum(2)
