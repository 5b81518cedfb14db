"""keras: keyword arguments of keras.layers.MultiHeadAttention, or keras.ops.dot_product_attention.

The layer takes no bias. With one, the arguments are those of the function.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.targets.base import Target
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows, is_full
from maskwright.targets.scores import additive_array

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="keras",
    returns="attention_mask",
    supports="every mask without fully masked rows",
    polarity="True keeps",
    shape="(B or 1, T, S), with heads (B or 1, H, T, S)",
    alignment="the frame's; use_causal_mask, which some code paths ignore, is not used",
    empty_rows="zero or uniform, by backend and code path; refused",
    encoding="keep",
    axes="bqk",
    requires="keras",
    alternatives=("torch.sdpa", "torch.flex"),
    scores={"bias": "the argument bias of keras.ops.dot_product_attention, -inf for masked cells"},
    score_call="output = keras.ops.dot_product_attention(q, k, v, **lowered)  # (B, T, H, D)",
)


def lower(
    bound: BoundMask, *, empty_rows: EmptyRows = "zero", scores: Scores = NO_SCORES
) -> dict[str, Any]:
    """An explicit mask on the active backend, or None where nothing is masked."""
    from keras import ops

    check_empty_rows(bound, empty_rows, returns_zero=False)
    if scores.bias is not None:
        bias = additive_array(scores, bound, -math.inf, np.dtype(np.float32))
        return {"bias": ops.convert_to_tensor(bias)}
    if is_full(bound):
        return {"attention_mask": None}
    visible = bound.dense()
    return {
        "attention_mask": ops.convert_to_tensor(visible if visible.shape[1] > 1 else visible[:, 0])
    }


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it: `attention` is the layer, x its input."""
    other = "x" if bound.frame.q_len == bound.frame.kv_len else "memory"
    if lowered["attention_mask"] is None:
        return [f"output = attention(x, {other})  # every query attends to every key"]
    part = "mask" if lowered["attention_mask"].ndim == 4 else "mask[:, 0]"
    return [
        *mask_code(bound, "np"),
        f"output = attention(x, {other}, attention_mask={part})  # True keeps",
    ]
