"""PyTorch's scaled_dot_product_attention: without a mask tensor where possible, else with one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from maskwright.engine.support import Support

if TYPE_CHECKING:
    import torch

    from maskwright.engine.call import Call

SUPPORT = Support(lse=False, softcap=False, sinks=False, backward=False)


def forward(call: Call) -> tuple[torch.Tensor, None]:
    """The output; differentiable by PyTorch. A bias becomes a float mask of all cells."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from maskwright.targets.lower import lower

    q, k = call.q, call.k
    drops_all = call.dropout_p == 1  # which PyTorch's kernels on GPUs refuse
    out = scaled_dot_product_attention(
        *(q, k, call.v),
        **(
            {"attn_mask": _float_mask(call)}
            if call.scores.terms
            else lower(call.mask, "torch.sdpa", device=q.device)
        ),
        dropout_p=0.0 if drops_all else call.dropout_p,
        scale=call.scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # a tensor under torch.jit.trace
    )
    if drops_all:
        out = out.masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0.0)
    return out, None


def _float_mask(call: Call) -> Any:
    """Bias where a cell is visible, -inf elsewhere, (batch or 1, heads or 1, q_len, kv_len)."""
    import torch

    q = call.q
    dtype = torch.promote_types(q.dtype, torch.float32)
    bias = call.scores.dense(call.bias_positions(), q, dtype)
    if q.device.type != "cpu":  # where SDPA does not take a float32 mask of half precision
        limits = torch.finfo(q.dtype)
        bias = bias.clamp(limits.min, limits.max).to(q.dtype)
    visible = torch.from_numpy(call.mask.dense()).to(q.device)
    return torch.where(visible, bias, -math.inf)
