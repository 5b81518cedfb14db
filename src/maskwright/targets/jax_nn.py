"""jax: keyword arguments of jax.nn.dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.targets.base import EmptyRow, Target, invalid_device
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import (
    EmptyRows,
    band,
    check_empty_rows,
    first_true,
    row_index,
    single_intervals,
    visible_keys,
)
from maskwright.targets.scores import numpy_bias

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

TARGET = Target(
    name="jax",
    returns="mask, or is_causal, local_window_size and sequence lengths",
    supports="every mask whose fully masked rows are the last ones",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S), or no array",
    alignment="the frame's; is_causal and local_window_size at the upper left",
    empty_rows="uniform over all keys; zero for the last rows, with query_seq_lengths",
    encoding="keep",
    dtypes=("bool",),
    requires="jax",
    alternatives=("torch.sdpa", "torch.flex"),
    scores={"bias": "the argument bias, float32"},
    score_call="output = jax.nn.dot_product_attention(q, k, v, **lowered)",
)


def lower(
    bound: BoundMask,
    *,
    device: Any = None,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> dict[str, Any]:
    """Flags and lengths where they are equal; else a mask, with lengths for fully masked rows."""
    import jax
    import jax.numpy as jnp

    _check_device(device)
    check_empty_rows(bound, empty_rows, returns_zero=True)
    queries = _query_lengths(bound, strict=empty_rows == "zero")
    flags = _flags(bound, queries) if queries is not None else None
    if flags is None:
        flags = {"mask": bound.dense()}
        if queries is not None and bool((queries < bound.frame.q_len).any()):
            flags["query_seq_lengths"] = _per_sequence(queries, bound)
    if scores.bias is not None:
        flags["bias"] = numpy_bias(scores, bound)
    with jax.default_device(device):
        return {
            name: jnp.asarray(value) if isinstance(value, np.ndarray) else value
            for name, value in flags.items()
        }


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it, with q, k, v of (batch, length, heads, head_dim)."""
    lines, names = ["import jax"], []
    if "mask" in lowered:
        lines += mask_code(bound, "jnp")
    elif any(hasattr(value, "tolist") for value in lowered.values()):
        lines.append("import jax.numpy as jnp")
    if not lines[-1].startswith("mask"):
        lines.append("")
    for name, value in lowered.items():
        if name == "mask":
            names.append("mask=mask")
        elif hasattr(value, "tolist"):
            lines.append(f"{name} = jnp.array({value.tolist()}, dtype=jnp.int32)")
            names.append(f"{name}={name}")
        else:
            names.append(f"{name}={value}")
    call = ", ".join(["q", "k", "v", *names])
    note = "True keeps" if "mask" in lowered else "aligned at the upper left"
    return [*lines, f"output = jax.nn.dot_product_attention({call})  # {note}"]


def _check_device(device: Any) -> None:
    import jax

    try:
        with jax.default_device(device):
            jax.numpy.zeros(())
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise invalid_device(device, "jax", "those of jax.devices()") from error


def _query_lengths(bound: BoundMask, *, strict: bool) -> IntArray | None:
    """(B or 1,): the number of rows before the fully masked ones at the end.

    None if another row is fully masked too; EmptyRow if `strict`.
    """
    visible: BoolArray = np.logical_not(bound.spans.empty_rows())
    some: BoolArray = np.any(visible, axis=1)  # over heads
    lengths = _lengths(some)
    inside = np.arange(visible.shape[2]) < lengths[:, None, None]
    row = first_true(~visible & inside)
    if row is not None and strict:
        raise EmptyRow(*row)
    return lengths if row is None else None


def _flags(bound: BoundMask, queries: IntArray) -> dict[str, Any] | None:
    """Arguments that represent the mask without a dense array, or None."""
    spans, kv_len = bound.spans, bound.frame.kv_len
    if spans.shape[1] != 1 or single_intervals(spans) is None:
        return None
    lengths = _lengths(visible_keys(bound))
    unpadded = np.full_like(lengths, kv_len)
    flags = _window_flags(bound, queries, unpadded)  # key lengths only where they are needed
    return _window_flags(bound, queries, lengths) if flags is None else flags


def _window_flags(bound: BoundMask, queries: IntArray, keys: IntArray) -> dict[str, Any] | None:
    """The same, for these numbers of queries and keys per sequence."""
    spans, (q_len, kv_len) = bound.spans, bound.shape[2:]
    row, stop = row_index(bound), keys[:, None, None]
    unpadded = row < queries[:, None, None]
    ends = single_intervals(spans)
    assert ends is not None
    low, high = ends
    ahead, back = ((high - 1 - row)[unpadded & (high < stop)], (row - low)[unpadded & (low > 0)])
    right = int(ahead.max()) if ahead.size else None
    left = int(back.max()) if back.size else None
    if min(right or 0, left or 0) < 0:
        return None
    first = row - left if left is not None else row * 0
    after = row + right + 1 if right is not None else np.full_like(row, kv_len)
    window = band(bound, np.broadcast_to(first, spans.shape), np.minimum(after, stop))
    assert window.band is not None
    low, high = window.band
    if spans != band(bound, low, np.where(unpadded, high, low)):
        return None
    flags: dict[str, Any] = {}
    if right == 0:
        flags["is_causal"] = True
    if left is not None or right not in (None, 0):
        sides = (q_len if left is None else left, kv_len if right is None else right)
        flags["local_window_size"] = sides
    if bool((queries < q_len).any()):
        flags["query_seq_lengths"] = _per_sequence(queries, bound)
    if bool((keys < kv_len).any()):
        flags["key_value_seq_lengths"] = _per_sequence(keys, bound)
    return flags


def _lengths(rows: BoolArray) -> IntArray:
    """The number of entries of each row up to the last True."""
    from_end = np.argmax(rows[:, ::-1], axis=1) if rows.shape[1] else np.zeros(len(rows), np.int64)
    return np.where(rows.any(axis=1), rows.shape[1] - from_end, 0)


def _per_sequence(lengths: IntArray, bound: BoundMask) -> Any:
    return np.broadcast_to(lengths, (bound.frame.batch,)).astype(np.int32)
