"""PyTorch's scaled_dot_product_attention: without a mask tensor where possible, else with one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.engine.scores import NO_SCORE_TENSORS, CellIndex

if TYPE_CHECKING:
    import torch

    from maskwright.engine.params import AttentionParams, ScoreTensors


def unsupported(params: AttentionParams) -> str | None:
    """The reason why SDPA cannot compute this call, or None."""
    if params.return_lse:
        return "has no logsumexp, and return_lse is True"
    if params.softcap is not None:
        return f"has no soft cap, and softcap is {params.softcap}"
    if params.has_sinks:
        return "has no sinks, and sinks is not None"
    return None


def forward(
    params: AttentionParams,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: ScoreTensors = NO_SCORE_TENSORS,
) -> tuple[torch.Tensor, None]:
    """The output; differentiable by PyTorch. A bias becomes a float mask of all cells."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from maskwright.targets.lower import lower

    drops_all = params.dropout_p == 1  # which PyTorch's kernels on GPUs refuse
    out = scaled_dot_product_attention(
        *(q, k, v),
        **(
            {"attn_mask": _float_mask(params, q, scores)}
            if params.terms
            else lower(params.mask, "torch.sdpa", device=q.device)
        ),
        dropout_p=0.0 if drops_all else params.dropout_p,
        scale=params.scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # a tensor under torch.jit.trace
    )
    if drops_all:
        out = out.masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0.0)
    return out, None


def _float_mask(params: AttentionParams, q: torch.Tensor, scores: ScoreTensors) -> Any:
    """Bias where a cell is visible, -inf elsewhere, (batch or 1, heads or 1, q_len, kv_len)."""
    import torch

    rows, keys = np.arange(params.shape.q_len), np.arange(params.shape.kv_len)
    dtype = torch.promote_types(q.dtype, torch.float32)
    bias = CellIndex(params, rows, keys, q.device).bias(scores.values, dtype)
    if q.device.type != "cpu":  # where SDPA does not take a float32 mask of half precision
        limits = torch.finfo(q.dtype)
        bias = bias.clamp(limits.min, limits.max).to(q.dtype)
    visible = torch.from_numpy(params.mask.dense()).to(q.device)
    return torch.where(visible, bias, -math.inf)
