"""onnx: attributes and inputs of the ONNX operator Attention (opset 23 and newer).

The operator masks by `is_causal`, by `nonpad_kv_seqlen` (opset 24), by `left_window_size` and
`right_window_size` (opset 25) and by `attn_mask`. All of them are intersected. Query i has the
position i + offset, and the offset is the number of past keys, or nonpad_kv_seqlen - T where that
input is passed, else 0. A fully masked row returns zero. This is the definition of ONNX 1.23,
which corrected both the alignment with nonpad_kv_seqlen and the output of fully masked rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError
from maskwright.targets.base import Target, Unrepresentable, invalid_dtype, parse_dtype
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import (
    EmptyRows,
    band,
    causal_spans,
    check_bytes,
    check_empty_rows,
    is_full,
    row_index,
    single_intervals,
    spans_shared_by_heads,
)
from maskwright.targets.scores import additive_array

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray

TARGET = Target(
    name="onnx",
    returns="attributes and inputs of an Attention node",
    polarity="True keeps",
    shape="attn_mask (B or 1, H or 1, T, S), nonpad_kv_seqlen (B,), or attributes only",
    alignment="the frame's; is_causal and windows at past_len, or nonpad_kv_seqlen - T",
    empty_rows="zero",
    encoding="keep",
    accepts_additive=True,
    scores={"bias": "in a float attn_mask", "softcap": "the attribute softcap"},
    score_call="""\
from onnx import helper

inputs = ["Q", "K", "V", *lowered.inputs]
node = helper.make_node("Attention", inputs, ["Y"], **lowered.attributes)""",
)

Representation = Literal["auto", "is_causal", "nonpad_kv_seqlen", "window", "attn_mask"]
REPRESENTATIONS: Final = ("auto", "is_causal", "nonpad_kv_seqlen", "window", "attn_mask")
OPSETS: Final = {"nonpad_kv_seqlen": 24, "window": 25}  # the first opset of each; others 23
MIN_OPSET: Final = 23
FLOAT_DTYPES: Final = ("float16", "float32", "float64")  # and bfloat16, which numpy does not have


@dataclass(frozen=True)
class OnnxAttention:
    """The mask of an ONNX Attention node.

    Attributes:
        attributes: `is_causal`, `left_window_size`, `right_window_size` and `softcap`, where they are
            used.
        inputs: `attn_mask` and `nonpad_kv_seqlen`, where they are used.

    >>> import maskwright as mw
    >>> mw.lower(mw.causal(), "onnx", q_len=4)
    OnnxAttention(attributes={'is_causal': 1}, inputs={})
    """

    attributes: dict[str, int | float]
    inputs: dict[str, npt.NDArray[Any]]


def lower(
    bound: BoundMask,
    *,
    opset: int = 24,
    past_len: int = 0,
    representation: Representation = "auto",
    dtype: object = None,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> OnnxAttention:
    """The most compact representation that is equal to this mask.

    `past_len` keys are passed as `past_key`, the others as K. `representation` requires one:
    "is_causal" and "window" use attributes only, "nonpad_kv_seqlen" that input with or without
    attributes, "attn_mask" a dense mask. The dense mask is bool, or additive with a `dtype`, which
    must be that of Q. A bias makes it additive, of float32 by default.
    """
    chosen = read_choice(representation, "lower: representation", REPRESENTATIONS)
    version = parse_int(opset, "lower: opset", minimum=MIN_OPSET)
    past = parse_int(past_len, "lower: past_len", minimum=0)
    if past > bound.frame.kv_len:
        raise ArgumentError(
            f"lower: past_len={past} is more than kv_len={bound.frame.kv_len}. "
            "Pass the number of keys in past_key."
        )
    kind = None if dtype is None else parse_dtype(dtype)
    if kind is not None and kind.name not in FLOAT_DTYPES:
        raise invalid_dtype(kind.name, "'float32'")
    if version < OPSETS.get(chosen, MIN_OPSET):
        raise ArgumentError(
            f"lower: opset={version} has no {chosen}. Pass opset={OPSETS[chosen]} or newer."
        )
    check_empty_rows(bound, empty_rows, returns_zero=True)
    capped: dict[str, int | float] = {} if scores.softcap is None else {"softcap": scores.softcap}
    if scores.bias is not None:
        if chosen not in ("auto", "attn_mask"):
            raise ArgumentError(
                f"lower: representation={chosen!r} has no bias. Pass 'attn_mask', or omit it."
            )
        kind = kind or np.dtype(np.float32)
        mask = additive_array(scores, bound, -np.inf, kind)
        return OnnxAttention(capped, {"attn_mask": mask})
    if chosen != "attn_mask":
        attention = _compact(bound, chosen, version, past)
        if attention is not None:
            return OnnxAttention({**attention.attributes, **capped}, attention.inputs)
        if chosen != "auto":
            raise Unrepresentable(f"no value of {chosen} is equal to it")
    if kind is None:
        return OnnxAttention(capped, {"attn_mask": bound.dense()})
    check_bytes(bound.shape, kind.itemsize)
    return OnnxAttention(capped, {"attn_mask": additive_array(NO_SCORES, bound, -np.inf, kind)})


def usage(bound: BoundMask, lowered: OnnxAttention) -> list[str]:
    """Lines that make the node and its inputs."""
    mask, lengths = (lowered.inputs.get(name) for name in ("attn_mask", "nonpad_kv_seqlen"))
    lines = ["import numpy as np", ""] if mask is None else mask_code(bound, "np")
    names = ["Q", "K", "V"]
    if mask is not None:
        names.append("attn_mask")
        if mask.dtype == np.bool_:
            lines.append("attn_mask = np.array(mask)  # True keeps")
        else:
            value = f'np.where(mask, 0, float("-inf")).astype("{mask.dtype}")'
            lines.append(f"attn_mask = {value}  # added: 0 keeps, -inf masks")
    if lengths is not None:
        names += [*[""] * (6 - len(names)), "nonpad_kv_seqlen"]
        lines.append(f"nonpad_kv_seqlen = np.array({lengths.tolist()}, dtype=np.int64)")
    attributes = "".join(f", {name}={value}" for name, value in lowered.attributes.items())
    return [
        "from onnx import helper",
        *lines,
        f'node = helper.make_node("Attention", {names}, ["Y"]{attributes})',
    ]


def _compact(bound: BoundMask, chosen: str, opset: int, past_len: int) -> OnnxAttention | None:
    """A representation without a dense mask, the shortest first, or None."""
    allowed = (chosen,) if chosen != "auto" else REPRESENTATIONS
    if chosen == "auto" and is_full(bound):
        return OnnxAttention({}, {})
    # ONNX Runtime 1.31 ignores is_causal for a single query with past keys.
    ignored = chosen == "auto" and past_len and bound.frame.q_len == 1
    if "is_causal" in allowed and not ignored and bound.spans == causal_spans(bound, past_len):
        return OnnxAttention({"is_causal": 1}, {})
    try:
        ends = single_intervals(spans_shared_by_heads(bound))
    except Unrepresentable:
        return None
    if ends is None:
        return None
    windows = "window" in allowed and opset >= OPSETS["window"]
    if windows:
        attributes = _window_attributes(bound, ends, np.array([past_len]), None)
        if attributes is not None:
            return OnnxAttention(attributes, {})
    if "nonpad_kv_seqlen" not in allowed or opset < OPSETS["nonpad_kv_seqlen"] or past_len:
        return None
    # In every representation with lengths, the last query is aligned with the last key.
    q_len, kv_len = bound.shape[2:]
    lengths = ends[1][:, 0, -1] if q_len else np.full(ends[1].shape[0], kv_len)
    inputs = {"nonpad_kv_seqlen": np.broadcast_to(lengths, (bound.frame.batch,)).astype(np.int64)}
    row, stop = row_index(bound), lengths[:, None, None]
    if bound.spans == band(bound, np.zeros_like(row) * stop, np.zeros_like(row) + stop):
        return OnnxAttention({}, inputs)
    if bound.spans == band(bound, np.zeros_like(row) * stop, row + stop - q_len + 1):
        return OnnxAttention({"is_causal": 1}, inputs)
    if opset >= OPSETS["window"]:
        attributes = _window_attributes(bound, ends, lengths - q_len, lengths)
        return None if attributes is None else OnnxAttention(attributes, inputs)
    return None


def _window_attributes(
    bound: BoundMask, ends: tuple[IntArray, IntArray], offset: IntArray, lengths: IntArray | None
) -> dict[str, int | float] | None:
    """`left_window_size` and `right_window_size` that are equal to the mask, or None.

    `offset` (B or 1,) is added to the row index; `lengths` (B or 1,) bounds the keys.
    """
    kv_len = bound.shape[3]
    position = row_index(bound) + offset[:, None, None]  # (B or 1, 1, T)
    stop = (
        np.full_like(offset, kv_len)[:, None, None] if lengths is None else lengths[:, None, None]
    )
    low, high = ends
    visible = high > low
    back = np.where(visible & (low > 0), position - low, -1).max(initial=-1)
    ahead = np.where(visible & (high < stop), high - 1 - position, -1).max(initial=-1)
    # If no row is bounded by the window, a limit may still be needed to mask whole rows.
    back_limits = [int(back)] if back >= 0 else [-1, _reach(np.where(visible, position, 0))]
    past_end = np.where(visible, stop - 1 - position, 0)
    ahead_limits = [int(ahead)] if ahead >= 0 else [-1, _reach(past_end)]
    for left, right in product(back_limits, ahead_limits):
        first = position - left if left >= 0 else np.zeros_like(position)
        after = position + right + 1 if right >= 0 else np.zeros_like(position) + kv_len
        # A row below all keys or above them is empty: its bounds are clipped to each other.
        after = np.minimum(after, stop)
        if bound.spans == band(bound, np.minimum(first, after), after):
            sides = {"left_window_size": left, "right_window_size": right}
            return {name: side for name, side in sides.items() if side >= 0}
    return None


def _reach(distance: IntArray) -> int:
    return max(int(distance.max(initial=0)), 0)
