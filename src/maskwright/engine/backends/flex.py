"""Compiled FlexAttention with a BlockMask made from the spans."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionParams


def unsupported(params: AttentionParams) -> str | None:
    """The reason why FlexAttention cannot compute this call, or None."""
    if params.dropout_p:
        return f"has no dropout, and dropout_p is {params.dropout_p}"
    if params.device == "cpu" and params.requires_grad:
        return "has no backward pass on the CPU, and q, k or v requires a gradient"
    if params.device == "cpu" and params.return_lse:
        return "has no logsumexp on the CPU, and return_lse is True"
    return None


def forward(
    params: AttentionParams, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and the logsumexp if requested; differentiable by PyTorch where it supports that."""
    from torch.nn.attention.flex_attention import AuxRequest

    found = _compiled()(
        *(q, k, v),
        block_mask=block_mask(params.mask, q.device),
        scale=params.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True) if params.return_lse else None,
    )
    return (found[0], found[1].lse) if params.return_lse else (found, None)


def block_mask(bound: BoundMask, device: torch.device) -> Any:
    """The BlockMask of a bound mask on a device, made once."""
    from maskwright.targets.lower import lower

    return bound.cached(
        ("block_mask", str(device)), lambda: lower(bound, "torch.flex", device=device)
    )


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    """One compiled function for all masks of one shape."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
