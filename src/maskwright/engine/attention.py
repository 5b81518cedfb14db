"""`attention`: exact attention under any mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.engine.inputs import bind, check_numbers, check_tensors

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.mask import Mask


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None = None,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    q_start: int | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> Any:
    """Exact attention of q (B, H, T, D) over k (B, Hk, S, D) and v (B, Hk, S, Dv) under a mask."""
    import torch

    check_tensors(q, k, v, enable_gqa)
    check_numbers(scale, dropout_p)
    bound = bind(mask, (*q.shape[:3], k.shape[2]), q_start)
    from maskwright.engine.reference import reference

    out, lse, _ = reference(q, k, v, bound, scale)
    out = out.to(q.dtype)
    return (out, lse.to(torch.float32)) if return_lse else out
