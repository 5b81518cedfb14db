"""Attention over some of the keys, and how two such parts become one; for torch tensors.

What may enter here: what one process computes. Nothing here knows of others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from maskwright.engine import execute
from maskwright.engine.execute import HALVES, Terms
from maskwright.parallel import blockwise

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask


def part(
    bound: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, terms: Terms
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp over some of the keys, halves in float32: they are yet to be joined."""
    given = _precise(q), _precise(k), _precise(v)
    if q.device.type == "cpu":
        return execute.forward(bound, *given, terms)
    return blockwise.forward(bound, *given, terms.scale)


class Known(NamedTuple):
    """What the backward pass knows of this rank's rows, over all keys."""

    q: torch.Tensor
    grad: torch.Tensor
    grad_lse: torch.Tensor | None
    out: torch.Tensor
    lse: torch.Tensor
    terms: Terms


def part_back(
    bound: BoundMask, k: torch.Tensor, v: torch.Tensor, known: Known
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients over some of the keys: with the whole's output and logsumexp they just add up."""
    q, grad, grad_lse, out, lse, terms = known
    given = (_precise(grad), grad_lse, _precise(q), _precise(k), _precise(v), out, lse)
    if q.device.type == "cpu":
        return execute.backward(bound, *given, terms, alone=False)
    return blockwise.backward(bound, *given, terms.scale)


def merged(
    first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys as attention over both."""
    lse = torch.logaddexp(first[1], second[1])
    whole = lse.masked_fill(lse == -math.inf, 0.0)  # a row that sees nothing has no weights
    out = sum(part * (own - whole).exp().unsqueeze(-1) for part, own in (first, second))
    assert isinstance(out, torch.Tensor)
    return out, lse


def unpacked(rows: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, (B, Hk, keys, D), of rows that hold both."""
    both, dim = rows.permute(1, 2, 0, 3), k.shape[-1]
    return both[..., :dim], both[..., dim:]


def _precise(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in HALVES else x
