"""Attention as the textbook has it, dense and in float64: slow, plain, and the judge of the rest.

Nothing fast is imported here. Scores of every query with every key, a softmax over the keys that
the mask lets through, and the weighted mean of their values, each step a line.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from maskwright.core.arrays import read_choice
from maskwright.errors import FrameError

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask

EMPTY_ROWS = ("zero", "error", "uniform")


class Reference(NamedTuple):
    """The output (B, H, T, Dv), the logsumexp (B, H, T) and the weights (B, H, T, S)."""

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
    """Attention under a bound mask, differentiable, in float64 whatever the inputs are.

    A row that sees nothing gives zeros; with "error" it is refused, and with "uniform" it is the
    mean of all values, as a finite fill such as -1e9 makes it.

    >>> import torch, maskwright as mw
    >>> from maskwright.engine.reference import reference
    >>> values = torch.tensor([[[[1.0], [3.0]]]])
    >>> zeros = torch.zeros(1, 1, 2, 1)
    >>> reference(zeros, zeros, values, mw.causal().on(2)).out.flatten().tolist()
    [1.0, 2.0]
    """
    import torch

    read_choice(empty_rows, "reference: empty_rows", EMPTY_ROWS)
    seen = torch.from_numpy(bound.dense()).to(q.device)
    empty = ~seen.any(-1, keepdim=True)
    if empty_rows == "error" and bool(empty.any()):
        batch, head, row, _ = (int(i) for i in empty.nonzero()[0])
        raise FrameError(
            f"reference: row {row} of batch {batch}, head {head} sees nothing. "
            'Let it see a key, or pass empty_rows="zero".'
        )
    q, k, v = (x.to(torch.float64) for x in (q, k, v))
    shared = q.shape[1] // k.shape[1] if k.shape[1] else 1
    # What no query of a head sees may hold anything, even NaN: it is left out before any product.
    read = seen.any(-2).unsqueeze(-1)
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    if empty_rows == "uniform":
        seen = seen | empty
        k, read = k.masked_fill(~read, 0.0), read | empty.any(-2, keepdim=True)
    k, v = k.masked_fill(~read, 0.0), v.masked_fill(~read, 0.0)
    q = q.masked_fill(empty, 0.0)  # the same goes for the query of a row that sees nothing
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    scores = (q @ k.transpose(-2, -1)) * factor
    if empty_rows == "uniform":
        scores = scores.masked_fill(empty, 0.0)
    scores = scores.masked_fill(~seen, -math.inf)
    blank = ~seen.any(-1, keepdim=True)
    lse = scores.masked_fill(blank, 0.0).logsumexp(-1, keepdim=True).masked_fill(blank, -math.inf)
    weights = torch.exp(scores - lse.masked_fill(blank, 0.0))
    return Reference(weights @ v, lse.squeeze(-1), weights)
