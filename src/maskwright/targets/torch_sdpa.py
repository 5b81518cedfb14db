"""torch.sdpa: keyword arguments of F.scaled_dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.targets._torch import additive_mask, check_options, to_tensor
from maskwright.targets.base import Target
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows, is_full, is_upper_left_causal
from maskwright.targets.scores import dense_bias

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.sdpa",
    returns="attn_mask and is_causal",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S), or no tensor",
    alignment="the frame's; is_causal, aligned at the upper left, only where it is equal",
    empty_rows="zero",
    encoding="keep",
    accepts_additive=True,
    dtypes=("bool", "float"),
    requires="torch",
    scores={"bias": "in a float attn_mask"},
    score_call="output = F.scaled_dot_product_attention(q, k, v, **lowered)",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> dict[str, Any]:
    """No mask or `is_causal` where that is equal; else a bool mask, or an additive one of `dtype`.

    A bias makes the mask additive; its dtype must be that of q, float32 by default.
    """
    check_options(device, dtype)
    check_empty_rows(bound, empty_rows, returns_zero=True)
    if scores.bias is not None:
        bias = dense_bias(scores, bound)
        mask = additive_mask(bound.dense(), dtype, None, device, bias)
        return {"attn_mask": mask, "is_causal": False}
    if is_full(bound):
        return {"attn_mask": None, "is_causal": False}
    if is_upper_left_causal(bound):
        return {"attn_mask": None, "is_causal": True}
    visible = bound.dense()
    if dtype is None:
        return {"attn_mask": to_tensor(visible, device), "is_causal": False}
    return {"attn_mask": additive_mask(visible, dtype, None, device), "is_causal": False}


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it, with q, k, v of (batch, heads, length, head_dim)."""
    call = "output = F.scaled_dot_product_attention(q, k, v"
    start = ["import torch.nn.functional as F", ""]
    if lowered["is_causal"]:
        return [*start, f"{call}, is_causal=True)  # query i attends to keys 0 … i"]
    if lowered["attn_mask"] is None:
        return [*start, f"{call})  # every query attends to every key"]
    code = mask_code(bound, "torch")
    lines = [code[0], *start, *code[2:]]
    dtype = lowered["attn_mask"].dtype
    if not dtype.is_floating_point:
        return [*lines, f"{call}, attn_mask=mask)  # True keeps"]
    zeros = f"torch.zeros(mask.shape, dtype={dtype})"
    bias = f'bias = {zeros}.masked_fill(~mask, float("-inf"))  # added: 0 keeps, -inf masks'
    return [*lines, bias, f"{call}, attn_mask=bias)"]
