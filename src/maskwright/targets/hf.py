"""hf: keyword arguments of a transformers model: attention_mask, and position_ids where needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import walk
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int, read_choice
from maskwright.targets.code import mask_code
from maskwright.targets.facts import (
    EMPTY_ROWS,
    EmptyRows,
    band,
    everything,
    first_true,
    rows,
    seen_keys,
    triangle,
)
from maskwright.targets.target import LeavesEmpty, Target
from maskwright.targets.torch_tensors import additive, check_options, tensor

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

TARGET = Target(
    name="hf",
    gives="attention_mask, and position_ids where positions need them",
    says="every mask, to models that take a 4-D mask as it is and hide no more than they are told",
    polarity="1 keeps (2-D); 0 keeps, the dtype's least number hides (4-D)",
    shape="(B, S) where the model makes the rest itself, else (B, H or 1, T, S)",
    alignment="lower right, as with a cache",
    empty_rows="uniform or zero, by the model's attention; taken only where nobody sees the token",
    reads="keep",
    adds_floats=True,
    needs="torch",
    instead=("torch.flex", "torch.sdpa"),
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
) -> dict[str, Any]:
    """A 2-D mask of real tokens where a model of this kind makes the rest itself; else 4-D.

    A "decoder" hides the future by itself, an "encoder" does not. Where a model tells packed
    documents by positions that begin anew, as Llama and its like do if they are given no cache,
    `packed="positions"` spares the mask. Positions count from `first_position`: RoBERTa and its
    like begin at 2.
    """
    kind = read_choice(model, "lower: model", ("decoder", "encoder"))
    way = read_choice(packed, "lower: packed", ("mask", "positions"))
    first = parse_int(first_position, "lower: first_position", minimum=0)
    check_options(device, dtype)
    _check_empty_rows(bound, empty_rows)
    spans = bound.spans
    if spans.shape[1] == 1 and bound.frame.q_len <= bound.frame.kv_len:
        shown = seen_keys(bound)
        own = _own_mask(bound, kind)
        if spans == own & _of_keys(bound, shown):
            lowered = {"attention_mask": tensor(_for_batch(shown, bound).astype(np.int64), device)}
            return {**lowered, **_positions_of_tokens(bound, first, device)}
        starts = _document_starts(bound)
        if kind == "decoder" and way == "positions" and starts is not None:
            place = np.arange(bound.frame.q_len) - starts + first
            positions = tensor(_for_batch(place, bound), device)
            return {"attention_mask": None, "position_ids": positions, "use_cache": False}
    dense = bound.dense()
    wide = np.broadcast_to(dense, (bound.frame.batch, *dense.shape[1:]))
    lowered = {"attention_mask": additive(wide, dtype, "min", device)}
    return {**lowered, **_positions_of_tokens(bound, first, device)}


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:
    """The lines that call a model by hand."""
    lines, names = ["import torch", ""], ["input_ids"]
    mask, positions = given["attention_mask"], given.get("position_ids")
    if mask is not None and mask.ndim == 2:
        lines.append(f"attention_mask = torch.tensor({mask.tolist()})  # 1 keeps, 0 is padding")
    elif mask is not None:
        lines = mask_code(bound, "torch")
        lines.append(f"attention_mask = torch.zeros({tuple(mask.shape)}, dtype={mask.dtype})")
        hide = f"masked_fill(~mask, torch.finfo({mask.dtype}).min)"
        lines.append(f"attention_mask = attention_mask.{hide}  # added: 0 keeps")
    names.append("attention_mask=attention_mask" if mask is not None else "attention_mask=None")
    if positions is not None:
        lines.append(f"position_ids = torch.tensor({positions.tolist()})")
        names.append("position_ids=position_ids")
    if "use_cache" in given:
        lines.append(
            "# where positions begin anew, the model begins a document; a cache would hide that"
        )
        names.append("use_cache=False")
    return [*lines, f"output = model({', '.join(names)})"]


def _check_empty_rows(bound: BoundMask, wish: EmptyRows) -> None:
    """A row that sees nothing is harmless only where nobody sees its token either."""
    read_choice(wish, "lower: empty_rows", EMPTY_ROWS)
    if wish == "native":
        return
    empty, start = bound.spans.empty_rows(), bound.frame.q_start
    if wish == "zero":
        unseen = bound.unseen_keys()
        at = np.arange(empty.shape[2]) + start
        inside = (at >= 0) & (at < unseen.shape[2])
        harmless = np.zeros(empty.shape, np.bool_)
        by_nobody: BoolArray = np.all(unseen, axis=1, keepdims=True)
        harmless[..., inside] = by_nobody[..., at[inside]]
        empty = empty & ~harmless
    row = first_true(empty)
    if row is not None:
        raise LeavesEmpty(*row)


def _own_mask(bound: BoundMask, kind: str) -> Spans:
    """What the model hides without being told: for a decoder the future, counted from the end."""
    if kind == "encoder":
        return everything(bound)
    return triangle(bound, bound.frame.kv_len - bound.frame.q_len)


def _of_keys(bound: BoundMask, shown: BoolArray) -> Spans:
    """Every row sees the keys that are shown."""
    one = Spans.from_cells(shown[:, None, None, :], shown.shape[1])  # (B, 1, 1)
    index = np.repeat(np.arange(len(shown))[:, None, None], bound.shape[2], axis=2)
    return one.take(index)


def _document_starts(bound: BoundMask) -> IntArray | None:
    """(B or 1, T): the first key of each row, if rows see their document up to themselves."""
    spans, (q_len, kv_len) = bound.spans, bound.shape[2:]
    if q_len != kv_len or bool((np.diff(spans.offsets) != 1).any()):
        return None
    low = spans.starts.reshape(spans.shape)[:, 0]
    row = np.arange(q_len)
    # A document's first row sees itself only; the others begin where the row before begins.
    again = np.concatenate([low[:, :1], low[:, :-1]], axis=1)
    if not bool(((low == row) | (low == again)).all()):
        return None
    return low if spans == band(bound, low[:, None], rows(bound) + 1) else None


def _positions_of_tokens(bound: BoundMask, first: int, device: object) -> dict[str, Any]:
    """Positions within documents, or among real tokens, if the mask has such a term.

    None where they would count on from the first token anyway, or a query is no such token.
    """
    for part in walk(bound.mask):
        place = None
        if isinstance(part, Documents):
            place = _in_documents(part, bound._home.tokens)
        elif isinstance(part, Padding) and part.keep is not None:
            keep = part.keep.data
            if bool((keep[:, 1:] & ~keep[:, :-1]).any()):  # not all of it on the right
                place = np.maximum(np.cumsum(keep, axis=1) - 1, 0)
        start, stop = bound.frame.q_start, bound.frame.q_stop
        if place is not None and 0 <= start <= stop <= place.shape[1]:
            queries = _for_batch(place[:, start:stop] + first, bound)
            return {"position_ids": tensor(queries, device)}
    return {}


def _in_documents(part: Documents, tokens: int) -> IntArray:
    """(batch, tokens): how many tokens of its document come before each token."""
    runs = part._runs
    place = np.zeros((part._batch, tokens), np.int64)
    for b in range(part._batch):
        seen: dict[int, int] = {}
        for run in range(int(runs.offsets[b]), int(runs.offsets[b + 1])):
            size = int(runs.stop[run] - runs.start[run])
            before = seen.get(int(runs.document[run]), 0)
            place[b, runs.start[run] : runs.stop[run]] = before + np.arange(size)
            seen[int(runs.document[run])] = before + size
    return place


def _for_batch(array: Any, bound: BoundMask) -> Any:
    return np.broadcast_to(array, (bound.frame.batch, array.shape[1]))
