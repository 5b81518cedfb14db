"""Properties of a bound mask that several targets test, and the spans they compare it with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.core.frame import MAX_BYTES
from maskwright.core.spans import Spans
from maskwright.core.validate import read_choice
from maskwright.errors import SizeError
from maskwright.targets.base import EmptyRow, Unrepresentable

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

EmptyRows = Literal["zero", "error", "native"]
EMPTY_ROWS: Final = ("zero", "error", "native")


def is_full(bound: BoundMask) -> bool:
    """Whether nothing is masked."""
    return bound.spans == full_spans(bound)


def is_upper_left_causal(bound: BoundMask) -> bool:
    """Whether row r attends to exactly the keys 0 … r, for any number of keys."""
    return bound.spans == causal_spans(bound)


def row_index(bound: BoundMask) -> IntArray:
    """The index of each row, in the shape (1, 1, rows)."""
    return np.arange(bound.spans.shape[2])[None, None]


def band(bound: BoundMask, low: IntArray, high: IntArray) -> Spans:
    """Spans in which row r attends to the keys low[r] … high[r] - 1, clipped to the keys."""
    keys = bound.spans.kv_len
    first, stop = np.clip(low, 0, keys), np.clip(high, 0, keys)
    return Spans.from_band(first, stop, keys, bound.spans.shape[2])


def causal_spans(bound: BoundMask, offset: int = 0) -> Spans:
    """Spans in which row r attends to the keys 0 … r + offset."""
    stop = row_index(bound) + offset + 1
    return band(bound, np.zeros_like(stop), stop)


def full_spans(bound: BoundMask) -> Spans:
    """Spans in which nothing is masked."""
    zeros = np.zeros_like(row_index(bound))
    return band(bound, zeros, zeros + bound.spans.kv_len)


def visible_keys(bound: BoundMask) -> BoolArray:
    """(batch, keys), True for a key that some query of some head attends to."""
    visible: BoolArray = np.logical_not(bound.unseen_keys().all(axis=1))
    return visible


def spans_shared_by_heads(bound: BoundMask) -> Spans:
    """The spans of one head, if all heads have the same.

    Raises:
        Unrepresentable: If the heads differ, or there are none.
    """
    if not bound.spans.shape[1]:
        raise Unrepresentable("there are no heads")
    spans = bound.spans.plane(1, 0)
    if bound.spans.shape[1] != 1 and bound.spans != spans:
        raise Unrepresentable("heads differ")
    return spans


def single_intervals(spans: Spans) -> tuple[IntArray, IntArray] | None:
    """The start and stop of each row in the shape of the rows, 0 and 0 for a fully masked row.

    None if a row has several intervals.
    """
    counts = np.diff(spans.offsets)
    if bool((counts > 1).any()):
        return None
    low, high = np.zeros((2, counts.size), np.int64)
    low[counts == 1], high[counts == 1] = spans.starts, spans.stops
    return low.reshape(spans.shape), high.reshape(spans.shape)


def interval_index(spans: Spans) -> tuple[IntArray, IntArray]:
    """For each interval, the flat index of its row and its index within that row."""
    counts = np.diff(spans.offsets)
    nth = np.arange(spans.starts.size) - np.repeat(spans.offsets[:-1], counts)
    return np.repeat(np.arange(counts.size), counts), nth


def max_intervals_sampled(bound: BoundMask) -> int:
    """The largest number of intervals in the first, middle and last row.

    A cheap test before the spans of all rows are computed.
    """
    last = bound.shape[2] - 1
    sampled = sorted({0, last // 2, last}) if last >= 0 else []
    spans = [bound.rows(row, row + 1).spans for row in sampled]
    return max((int(np.diff(row_spans.offsets).max(initial=0)) for row_spans in spans), default=0)


def first_true(flags: BoolArray) -> tuple[int, int, int] | None:
    """The first index (batch, head, row) at which `flags` is True, or None."""
    if not bool(flags.any()):
        return None
    b, h, q = (int(i) for i in np.unravel_index(int(np.argmax(flags)), flags.shape))
    return b, h, q


def first_empty_row(bound: BoundMask) -> tuple[int, int, int] | None:
    """The first fully masked row, as (batch, head, row), or None."""
    return first_true(bound.spans.empty_rows())


def check_empty_rows(bound: BoundMask, empty_rows: EmptyRows, *, returns_zero: bool) -> None:
    """Raises EmptyRow for a fully masked row, unless the option `empty_rows` accepts it."""
    read_choice(empty_rows, "lower: empty_rows", EMPTY_ROWS)
    if empty_rows == "native" or (empty_rows == "zero" and returns_zero):
        return
    row = first_empty_row(bound)
    if row is not None:
        raise EmptyRow(*row)


def check_bytes(shape: tuple[int, ...], itemsize: int) -> None:
    """Raises SizeError for an array that is too large, before it is allocated."""
    size = math.prod(shape) * itemsize
    if size > MAX_BYTES:
        raise SizeError(
            f"lower: an array of shape {shape} would need {size / 1e9:.1f} GB. "
            "Lower a range of rows at a time, bound.rows(start, stop), or use torch.flex."
        )
