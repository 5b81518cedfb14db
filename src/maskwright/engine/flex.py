"""The FlexAttention route: one compiled function for all masks of like shape."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from maskwright.errors import Unsupported
from maskwright.targets.lowering import lower

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.attention.flex_attention import BlockMask

    from maskwright.core.bound import BoundMask


def flex(
    bound: BoundMask,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    enable_gqa: bool,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and logsumexp if asked for; rows that see nothing give zeros and -inf."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if q.device.type == "cpu" and (return_lse or learns):
        raise Unsupported(
            "attention: FlexAttention on the CPU has neither gradients nor a logsumexp. "
            'Pass impl="strips", or detach q, k and v.',
            target="flex",
        )
    wanted = AuxRequest(lse=True) if return_lse else None
    found = _compiled()(
        q,
        k,
        v,
        block_mask=block_mask(bound, q.device),
        scale=scale,
        enable_gqa=enable_gqa,
        return_aux=wanted,
    )
    return (found[0], found[1].lse) if return_lse else (found, None)


def block_mask(bound: BoundMask, device: torch.device) -> BlockMask:
    """The mask as FlexAttention has it, on this device; made once."""
    kept: dict[torch.device, BlockMask] = bound.__dict__.setdefault("_block_masks", {})
    if device not in kept:
        kept[device] = lower(bound, "torch.flex", device=device)
    return kept[device]


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
