"""torch.sdpa: keyword arguments of F.scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.targets.code import mask_code
from maskwright.targets.facts import (
    EmptyRows,
    check_empty_rows,
    is_upper_left_causal,
    sees_everything,
)
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import additive, check_options, tensor

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.sdpa",
    gives="attn_mask and is_causal",
    says="every mask",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S), or no tensor",
    alignment="the frame's; is_causal is upper left, and used only where that is equal",
    empty_rows="zero",
    reads="keep",
    adds_floats=True,
    needs="torch",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
) -> dict[str, Any]:
    """No mask or `is_causal` where that is exactly equal; else a bool mask, or floats of `dtype`."""
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, gives_zero=True)
    if sees_everything(bound):
        return {"attn_mask": None, "is_causal": False}
    if is_upper_left_causal(bound):
        return {"attn_mask": None, "is_causal": True}
    allowed = bound.dense()
    mask = tensor(allowed, device) if dtype is None else additive(allowed, dtype, None, device)
    return {"attn_mask": mask, "is_causal": False}


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:
    """The lines that call it by hand, with q, k, v of (batch, heads, length, head_dim)."""
    call = "output = F.scaled_dot_product_attention(q, k, v"
    start = ["import torch.nn.functional as F", ""]
    if given["is_causal"]:
        return [*start, f"{call}, is_causal=True)  # query i sees keys 0 … i, from the upper left"]
    if given["attn_mask"] is None:
        return [*start, f"{call})  # every query sees every key"]
    made = mask_code(bound, "torch")
    lines = [made[0], *start, *made[2:]]
    kind = given["attn_mask"].dtype
    if not kind.is_floating_point:
        return [*lines, f"{call}, attn_mask=mask)  # True keeps"]
    zeros = f"torch.zeros(mask.shape, dtype={kind})"
    bias = f'bias = {zeros}.masked_fill(~mask, float("-inf"))  # added: 0 keeps, -inf hides'
    return [*lines, bias, f"{call}, attn_mask=bias)"]
