"""hf: keyword arguments of a transformers model: attention_mask, and position_ids where needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.core.positions import token_positions
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int, read_choice
from maskwright.targets._torch import additive_mask, check_options, to_tensor
from maskwright.targets.base import EmptyRow, Target
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import (
    EMPTY_ROWS,
    EmptyRows,
    band,
    causal_spans,
    first_true,
    full_spans,
    row_index,
    visible_keys,
)
from maskwright.targets.scores import dense_bias

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

TARGET = Target(
    name="hf",
    returns="attention_mask, and position_ids where the expression determines them",
    supports="every mask, for models that use a 4-D mask as it is and add no mask of their own",
    polarity="1 keeps (2-D); 0 keeps, the dtype's minimum masks (4-D)",
    shape="(B, S) where the model builds the rest, else (B, H or 1, T, S)",
    alignment="lower right, as with a KV cache",
    empty_rows="uniform or zero, by attn_implementation; accepted where no query attends to it",
    encoding="keep",
    accepts_additive=True,
    requires="torch",
    alternatives=("torch.flex", "torch.sdpa"),
    scores={"bias": "in a 4-D attention_mask, (B, H or 1, T, S)"},
    score_call="output = model(input_ids, **lowered)",
)


def lower(
    bound: BoundMask,
    *,
    model: Literal["decoder", "encoder"] = "decoder",
    packed: Literal["mask", "positions"] = "mask",
    first_position: int = 0,
    device: object = None,
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> dict[str, Any]:
    """A 2-D padding mask where a model of this kind builds the rest itself; else a 4-D mask.

    A "decoder" adds the causal mask itself, an "encoder" does not. With `packed="positions"`
    packed documents need no mask: models such as Llama, called without a cache, infer them from
    positions that restart. Positions start at `first_position`: 2 for RoBERTa and its variants.

    `position_ids` are returned where the expression determines them, by the rules of
    `core.positions.token_positions`. Otherwise the model counts all tokens, and other positions
    must be passed by the caller.
    """
    kind = read_choice(model, "lower: model", ("decoder", "encoder"))
    packed_as = read_choice(packed, "lower: packed", ("mask", "positions"))
    first = parse_int(first_position, "lower: first_position", minimum=0)
    check_options(device, dtype)
    _check_empty_rows(bound, empty_rows)
    spans, positions = bound.spans, _position_ids(bound, first, device)
    if scores.bias is None and spans.shape[1] == 1 and bound.frame.q_len <= bound.frame.kv_len:
        keys = visible_keys(bound)
        if spans == _model_spans(bound, kind) & _padding_spans(bound, keys):
            padding = _per_sequence(keys, bound).astype(np.int64)
            return {"attention_mask": to_tensor(padding, device), **positions}
        if kind == "decoder" and packed_as == "positions" and _positions_suffice(bound):
            return {"attention_mask": None, **positions, "use_cache": False}
    dense = bound.dense()
    full = np.broadcast_to(dense, (bound.frame.batch, *dense.shape[1:]))
    mask = additive_mask(full, dtype, "min", device, dense_bias(scores, bound))
    return {"attention_mask": mask, **positions}


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call a model."""
    lines, names = ["import torch", ""], ["input_ids"]
    mask, positions = lowered["attention_mask"], lowered.get("position_ids")
    if mask is not None and mask.ndim == 2:
        lines.append(f"attention_mask = torch.tensor({mask.tolist()})  # 1 keeps, 0 is padding")
    elif mask is not None:
        lines = mask_code(bound, "torch")
        lines.append(f"attention_mask = torch.zeros({tuple(mask.shape)}, dtype={mask.dtype})")
        filled = f"masked_fill(~mask, torch.finfo({mask.dtype}).min)"
        lines.append(f"attention_mask = attention_mask.{filled}  # added: 0 keeps")
    names.append("attention_mask=attention_mask" if mask is not None else "attention_mask=None")
    if positions is not None:
        lines.append(f"position_ids = torch.tensor({positions.tolist()})")
        names.append("position_ids=position_ids")
    if "use_cache" in lowered:
        lines.append("# positions that restart separate documents, but only without a cache")
        names.append("use_cache=False")
    return [*lines, f"output = model({', '.join(names)})"]


def _check_empty_rows(bound: BoundMask, empty_rows: EmptyRows) -> None:
    """A fully masked row is harmless only where no query attends to its own token."""
    read_choice(empty_rows, "lower: empty_rows", EMPTY_ROWS)
    if empty_rows == "native":
        return
    empty, start = bound.spans.empty_rows(), bound.frame.q_start
    if empty_rows == "zero":
        unseen = bound.unseen_keys()
        at = np.arange(empty.shape[2]) + start
        inside = (at >= 0) & (at < unseen.shape[2])
        harmless = np.zeros(empty.shape, np.bool_)
        unseen_by_all_heads: BoolArray = np.all(unseen, axis=1, keepdims=True)
        harmless[..., inside] = unseen_by_all_heads[..., at[inside]]
        empty = empty & ~harmless
    row = first_true(empty)
    if row is not None:
        raise EmptyRow(*row)


def _model_spans(bound: BoundMask, kind: str) -> Spans:
    """The mask that the model adds itself: for a decoder causal, aligned at the last key."""
    if kind == "encoder":
        return full_spans(bound)
    return causal_spans(bound, bound.frame.kv_len - bound.frame.q_len)


def _padding_spans(bound: BoundMask, keys: BoolArray) -> Spans:
    """Spans in which every row attends to `keys`, (batch, keys)."""
    spans = Spans.from_cells(keys[:, None, None, :], keys.shape[1])  # (B, 1, 1)
    index = np.repeat(np.arange(len(keys))[:, None, None], bound.shape[2], axis=2)
    return spans.take(index)


def _positions_suffice(bound: BoundMask) -> bool:
    """Whether the mask is that of causal documents, and the positions restart in each of them."""
    starts, positions = _document_starts(bound), token_positions(bound)
    if starts is None or positions is None:
        return False
    return bool((positions == np.arange(bound.frame.q_len) - starts).all())


def _document_starts(bound: BoundMask) -> IntArray | None:
    """(B or 1, T): the first key of each row, if rows attend to their document causally."""
    spans, (q_len, kv_len) = bound.spans, bound.shape[2:]
    if q_len != kv_len or bool((np.diff(spans.offsets) != 1).any()):
        return None
    low = spans.starts.reshape(spans.shape)[:, 0]
    row = np.arange(q_len)
    # The first row of a document attends to itself only; the others start where the previous does.
    previous = np.concatenate([low[:, :1], low[:, :-1]], axis=1)
    if not bool(((low == row) | (low == previous)).all()):
        return None
    return low if spans == band(bound, low[:, None], row_index(bound) + 1) else None


def _position_ids(bound: BoundMask, first: int, device: object) -> dict[str, Any]:
    """position_ids, if the expression determines others than the model's own."""
    positions = token_positions(bound)
    if positions is None:
        return {}
    return {"position_ids": to_tensor(_per_sequence(positions + first, bound), device)}


def _per_sequence(array: Any, bound: BoundMask) -> Any:
    return np.broadcast_to(array, (bound.frame.batch, array.shape[1]))
