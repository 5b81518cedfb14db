"""Arguments of attention, read as torch names them: which is the mask, and how it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from maskwright.tracing.nodes import Step


def sdpa_given(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - torch's signature
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> tuple[Any, ...]:
    """Of scaled_dot_product_attention: q, k, v, the mask, is_causal, the scale."""
    return query, key, value, attn_mask, is_causal, scale


def native_given(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,  # noqa: ARG001 - torch's signature
    qkv_bias: Any,  # noqa: ARG001
    proj_weight: Any,  # noqa: ARG001
    proj_bias: Any,  # noqa: ARG001
    mask: Any = None,
    need_weights: bool = True,  # noqa: ARG001
    average_attn_weights: bool = True,  # noqa: ARG001
    mask_type: int | None = None,
) -> tuple[Any, ...]:
    """Of the fast path of nn.MultiheadAttention: q, k, v, both sizes, the mask and its kind."""
    return query, key, value, embed_dim, num_head, mask, mask_type


def encoder_given(
    src: Any,
    embed_dim: int,
    num_heads: int,
    *rest: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> tuple[Any, ...]:
    """Of the fast path of nn.TransformerEncoderLayer: its input, both sizes, the mask and its kind."""
    mask = rest[15] if len(rest) > 15 else mask
    mask_type = rest[16] if len(rest) > 16 else mask_type
    return src, embed_dim, num_heads, mask, mask_type


def convention_of(mask: Any, says: str) -> str:
    """How a mask argument is read; `says` is what True does."""
    if hasattr(mask, "_materialize"):
        return type(mask).__name__
    if getattr(mask, "dtype", None) == torch.bool:
        return f"bool, True {says}"
    return "added" if isinstance(mask, torch.Tensor) else "a mask"


def masks_of(steps: list[Step]) -> dict[str, Any]:
    """The masks by name, first those that hide something."""

    def hides(step: Step) -> bool:
        dropped = step.drops()
        return dropped is not None and bool(dropped.any())

    masks: dict[str, Any] = {}
    for step in sorted(steps, key=hides, reverse=True):
        name, more = step.name, 2
        while name in masks:
            name, more = f"{step.name} {more}", more + 1
        masks[name] = step.mask
    return masks
