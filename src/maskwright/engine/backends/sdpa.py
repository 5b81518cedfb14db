"""PyTorch's scaled_dot_product_attention: without a mask tensor where possible, else with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from maskwright.engine.params import AttentionParams


def unsupported(params: AttentionParams) -> str | None:
    """The reason why SDPA cannot compute this call, or None."""
    if params.return_lse:
        return "has no logsumexp, and return_lse is True"
    return None


def forward(
    params: AttentionParams, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, None]:
    """The output; differentiable by PyTorch."""
    from torch.nn.functional import scaled_dot_product_attention

    from maskwright.targets.lower import lower

    out = scaled_dot_product_attention(
        *(q, k, v),
        **lower(params.mask, "torch.sdpa", device=q.device),
        dropout_p=params.dropout_p,
        scale=params.scale,
        enable_gqa=bool(q.shape[1] != k.shape[1]),  # a tensor under torch.jit.trace
    )
    return out, None
