"""keras: keyword arguments of keras.layers.MultiHeadAttention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.targets.code import mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows, sees_everything
from maskwright.targets.target import Target

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="keras",
    gives="attention_mask",
    says="every mask that leaves no row empty",
    polarity="True keeps",
    shape="(B or 1, T, S), with heads (B or 1, H, T, S)",
    alignment="the frame's; use_causal_mask, which some paths drop, is never used",
    empty_rows="zero or uniform, by backend and path, so refused",
    reads="keep",
    axes="bqk",
    needs="keras",
    instead=("torch.sdpa", "torch.flex"),
)


def lower(bound: BoundMask, *, empty_rows: EmptyRows = "zero") -> dict[str, Any]:
    """One explicit mask on the active backend, or none where every query sees every key."""
    from keras import ops

    check_empty_rows(bound, empty_rows, gives_zero=False)
    if sees_everything(bound):
        return {"attention_mask": None}
    allowed = bound.dense()
    return {
        "attention_mask": ops.convert_to_tensor(allowed if allowed.shape[1] > 1 else allowed[:, 0])
    }


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:
    """The lines that call it: `attention` is the layer, x its input."""
    other = "x" if bound.frame.q_len == bound.frame.kv_len else "memory"
    if given["attention_mask"] is None:
        return [f"output = attention(x, {other})  # every query sees every key"]
    part = "mask" if given["attention_mask"].ndim == 4 else "mask[:, 0]"
    return [
        *mask_code(bound, "np"),
        f"output = attention(x, {other}, attention_mask={part})  # True keeps",
    ]
