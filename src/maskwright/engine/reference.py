"""Dense attention in float64, step by step as in a textbook: slow, plain, and the reference.

It is differentiable any number of times, and imports no fast path.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from maskwright.bias.scores import sink_factor
from maskwright.core.validate import read_choice
from maskwright.engine.layout import laid_out
from maskwright.engine.softmax import masked_matmul, masked_scores, masked_softmax
from maskwright.engine.support import Support
from maskwright.errors import FrameError

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.engine.call import Call

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
    *,
    softcap: float | None = None,
    bias: Any = None,
    sinks: Any = None,
) -> Reference:
    """Attention under a bound mask, computed densely in float64.

    The order of operations is scale, soft cap, bias, mask, softmax with the sink of each head.

    Args:
        q: Queries (B, H, T, D).
        k: Keys (B, Hk, S, D), where Hk divides H.
        v: Values (B, Hk, S, Dv).
        bound: The mask, bound to T queries and S keys.
        scale: Factor of the scores, 1 / sqrt(D) by default.
        empty_rows: A fully masked row returns zeros ("zero"), raises ("error"), or returns the
            mean of all values ("uniform"), as a finite fill value such as -1e9 does.
        softcap: Scores become softcap * tanh(scores / softcap), or None.
        bias: A bias, or a tensor that broadcasts to (B, H, T, S), added after the soft cap.
        sinks: One logit per head, (H,), which joins the denominator of the softmax.

    Returns:
        Output, logsumexp and weights in float64. A masked cell has no influence on them or their
        gradients, whatever it holds. The logsumexp is over the visible keys, without the sink.

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
    added = _dense_bias(bias, bound, q)

    def scores_of(visible: torch.Tensor) -> torch.Tensor:
        scores = masked_scores(q, k, visible) * factor
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        return scores + added

    scores = scores_of(visible)
    # A row whose visible scores are all -inf is treated as a fully masked row.
    infinite = (scores.masked_fill(~visible, -math.inf) == -math.inf).all(-1, keepdim=True)
    visible = visible & ~infinite
    scores = scores_of(visible)
    if empty_rows == "uniform":
        visible = visible | empty
        scores = scores.masked_fill(empty, 0.0)
    weights, lse = masked_softmax(scores, visible)
    if sinks is not None:
        weights = weights * sink_factor(lse, sinks.to(torch.float64)).unsqueeze(-1)
    return Reference(masked_matmul(weights, v, visible), lse, weights)


def _dense_bias(bias: Any, bound: BoundMask, q: torch.Tensor) -> Any:
    """The bias as a float64 tensor that broadcasts to the scores; 0.0 if there is none."""
    import torch

    if bias is None:
        return 0.0
    if hasattr(bias, "dense"):
        bias = bias.dense(replace(bound.frame, batch=q.shape[0], heads=q.shape[1]))
    if isinstance(bias, np.ndarray):
        bias = torch.from_numpy(bias)
    return bias.to(q.device, torch.float64)


SUPPORT = Support(dropout=False, backward=False)


def forward(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in the dtype and memory layout of q, and the logsumexp in float64."""
    import torch

    scores, q = call.scores, call.q
    result = reference(
        *(q, call.k, call.v, call.mask, call.scale),
        softcap=scores.softcap,
        bias=scores.dense(call.bias_positions(), q, torch.float64) if scores.terms else None,
        sinks=scores.sinks,
    )
    return laid_out(result.out.to(q.dtype), q), result.lse
