"""Dense attention in float64, step by step as in a textbook: slow, plain, and the reference.

It is differentiable any number of times, and imports no fast path.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from maskwright.core.validate import read_choice
from maskwright.engine.softmax import masked_matmul, masked_scores, masked_softmax
from maskwright.errors import FrameError

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionParams

EMPTY_ROWS = ("zero", "error", "uniform")


class Reference(NamedTuple):
    """The output (B, H, T, Dv), the logsumexp (B, H, T) and the softmax weights (B, H, T, S)."""

    out: torch.Tensor
    lse: torch.Tensor
    weights: torch.Tensor


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bound: BoundMask,
    scale: float | None = None,
    empty_rows: Literal["zero", "error", "uniform"] = "zero",
) -> Reference:
    """Attention under a bound mask, computed densely in float64.

    Args:
        q: Queries (B, H, T, D).
        k: Keys (B, Hk, S, D), where Hk divides H.
        v: Values (B, Hk, S, Dv).
        bound: The mask, bound to T queries and S keys.
        scale: Factor of the scores, 1 / sqrt(D) by default.
        empty_rows: A fully masked row returns zeros ("zero"), raises ("error"), or returns the
            mean of all values ("uniform"), as a finite fill value such as -1e9 does.

    Returns:
        Output, logsumexp and weights in float64. A masked cell has no influence on them or their
        gradients, whatever it holds.

    Raises:
        FrameError: `empty_rows` is "error" and a row is fully masked.

    >>> import torch, maskwright as mw
    >>> from maskwright.engine.reference import reference
    >>> values = torch.tensor([[[[1.0], [3.0]]]])
    >>> zeros = torch.zeros(1, 1, 2, 1)
    >>> reference(zeros, zeros, values, mw.causal().on(2)).out.flatten().tolist()
    [1.0, 2.0]
    """
    import torch

    read_choice(empty_rows, "reference: empty_rows", EMPTY_ROWS)
    q, k, v = (x.to(torch.float64) for x in (q, k, v))
    if k.shape[1] and q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    visible = torch.from_numpy(bound.dense()).to(q.device)
    visible = visible.expand(*q.shape[:3], k.shape[2])
    empty = ~visible.any(-1, keepdim=True)
    if empty_rows == "error" and bool(empty.any()):
        batch, head, row, _ = (int(i) for i in empty.nonzero()[0])
        raise FrameError(
            f"reference: row {row} of batch {batch}, head {head} is fully masked. "
            'Unmask a key for it, or pass empty_rows="zero".'
        )
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    scores = masked_scores(q, k, visible) * factor
    # A row whose visible scores are all -inf is treated as a fully masked row.
    infinite = (scores.masked_fill(~visible, -math.inf) == -math.inf).all(-1, keepdim=True)
    visible = visible & ~infinite
    scores = masked_scores(q, k, visible) * factor
    if empty_rows == "uniform":  # the scores of these rows are 0
        visible = visible | empty
    weights, lse = masked_softmax(scores, visible)
    return Reference(masked_matmul(weights, v, visible), lse, weights)


def unsupported(params: AttentionParams) -> str | None:
    """The reason why the reference, as a backend, cannot compute this call, or None."""
    return f"has no dropout, and dropout_p is {params.dropout_p}" if params.dropout_p else None


def forward(
    params: AttentionParams, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in the dtype of q, and the logsumexp in float64."""
    found = reference(q, k, v, params.mask, params.scale)
    return found.out.to(q.dtype), found.lse
