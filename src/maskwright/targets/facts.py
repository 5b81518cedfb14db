"""Questions about a bound mask that several targets ask. All are answered from its spans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.core.frame import MAX_BYTES
from maskwright.core.spans import Spans
from maskwright.core.validate import read_choice
from maskwright.errors import SizeError
from maskwright.targets.target import CannotSay, LeavesEmpty

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

EmptyRows = Literal["zero", "error", "native"]
EMPTY_ROWS: Final = ("zero", "error", "native")


def band(bound: BoundMask, low: IntArray, high: IntArray) -> Spans:
    """Spans on the same keys: row r sees low[r] … high[r] - 1, cut to the keys there are."""
    keys = bound.spans.kv_len
    first, stop = np.clip(low, 0, keys), np.clip(high, 0, keys)
    return Spans.from_band(first, stop, keys, bound.spans.shape[2])


def rows(bound: BoundMask) -> IntArray:
    """The rows' numbers, in the shape (1, 1, rows)."""
    return np.arange(bound.spans.shape[2])[None, None]


def triangle(bound: BoundMask, shift: int = 0) -> Spans:
    """Row r sees the keys 0 … r + shift."""
    reach = rows(bound) + shift + 1
    return band(bound, np.zeros_like(reach), reach)


def everything(bound: BoundMask) -> Spans:
    """Every row sees every key."""
    here = rows(bound)
    return band(bound, here * 0, here * 0 + bound.spans.kv_len)


def sees_everything(bound: BoundMask) -> bool:
    """Does every row see every key?"""
    return bound.spans == everything(bound)


def is_upper_left_causal(bound: BoundMask) -> bool:
    """Does row r see exactly the keys 0 … r, whatever the number of keys?"""
    return bound.spans == triangle(bound)


def seen_keys(bound: BoundMask) -> BoolArray:
    """(batch, keys), True for every key that some query of some head sees."""
    seen: BoolArray = np.logical_not(bound.unseen_keys().all(axis=1))
    return seen


def of_all_heads(bound: BoundMask) -> Spans:
    """The spans of one head, if all heads have the same; else CannotSay."""
    if not bound.spans.shape[1]:
        raise CannotSay("there is no head")
    one = bound.spans.plane(1, 0)
    if bound.spans.shape[1] != 1 and bound.spans != one:
        raise CannotSay("heads differ")
    return one


def each_interval(spans: Spans) -> tuple[IntArray, IntArray]:
    """For every interval the flat number of its row, and the how manieth it is there."""
    counts = np.diff(spans.offsets)
    nth = np.arange(spans.starts.size) - np.repeat(spans.offsets[:-1], counts)
    return np.repeat(np.arange(counts.size), counts), nth


def intervals_of_some_rows(bound: BoundMask) -> int:
    """The most intervals that one of a few rows has: a look, before all rows are read."""
    last = bound.shape[2] - 1
    places = sorted({0, last // 2, last}) if last >= 0 else []
    some = [bound.rows(row, row + 1).spans for row in places]
    return max((int(np.diff(spans.offsets).max(initial=0)) for spans in some), default=0)


def first_true(flags: BoolArray) -> tuple[int, int, int] | None:
    """The first place of three axes that is True, or None."""
    if not bool(flags.any()):
        return None
    b, h, q = (int(i) for i in np.unravel_index(int(np.argmax(flags)), flags.shape))
    return b, h, q


def first_empty_row(bound: BoundMask) -> tuple[int, int, int] | None:
    """The first (batch, head, row) that sees nothing, or None."""
    return first_true(bound.spans.empty_rows())


def check_bytes(shape: tuple[int, ...], itemsize: int) -> None:
    """Refuse an array that is too large to build, before anything is built."""
    size = math.prod(shape) * itemsize
    if size > MAX_BYTES:
        raise SizeError(
            f"lower: an array of shape {shape} would need {size / 1e9:.1f} GB. "
            "Lower some rows at a time, bound.rows(start, stop), or use torch.flex."
        )


def check_empty_rows(bound: BoundMask, wish: EmptyRows, *, gives_zero: bool) -> None:
    """Refuse a row that sees nothing where the wish can't be had."""
    read_choice(wish, "lower: empty_rows", EMPTY_ROWS)
    if wish == "native" or (wish == "zero" and gives_zero):
        return
    row = first_empty_row(bound)
    if row is not None:
        raise LeavesEmpty(*row)
