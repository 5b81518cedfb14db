"""Comparison of two bound masks: equal, or the first cell in which they differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from maskwright.core.expr import Mask
from maskwright.core.expression import drawn
from maskwright.core.simplify import simplify
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.frame import Frame


@dataclass(frozen=True)
class Comparison:
    """Whether two bound masks are equal, and if not, the first cell in which they differ.

    >>> import maskwright as mw
    >>> mw.causal().on(3).equals(mw.window(back=1))
    first differs at batch 0, head 0, query 2, key 0: visible only in the left mask
    >>> bool(mw.causal().on(3).equals(mw.window(back=2)))
    True
    """

    cell: tuple[int, int, int, int] | None
    left: bool = False
    masks: tuple[BoundMask, BoundMask] | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return self.cell is None

    def __repr__(self) -> str:
        if self.cell is None:
            return "equal"
        place = "batch {}, head {}, query {}, key {}".format(*self.cell)
        side = "left" if self.left else "right"
        return f"first differs at {place}: visible only in the {side} mask"

    def _repr_html_(self) -> str | None:
        """What a notebook displays: the difference as a picture; None, the text, without one."""
        if self.cell is None or self.masks is None:
            return None
        picture = drawn(self.masks, "notebook_html")
        return None if picture is None else f"<p>{self!r}</p>{picture}"


def compare(left: BoundMask, right: BoundMask) -> Comparison:
    """Compares the simplified expressions, then the spans, some rows at a time."""
    if left.frame != right.frame:
        raise FrameError(
            f"equals: one is on {_sizes(left.frame)}, the other on {_sizes(right.frame)}. "
            "Bind both to the same frame."
        )
    if not left.frame.cells or (
        left._part == right._part and simplify(left.mask) == simplify(right.mask)
    ):
        return Comparison(None)
    row, result = 0, Comparison(None)
    step = min(left._reader.step(), right._reader.step())
    keys = min(left._reader.max_keys(), right._reader.max_keys())
    readers = (
        left._reader.pieces(step=step, keys=keys),
        right._reader.pieces(step=step, keys=keys),
    )
    for pieces in zip(*readers, strict=True):
        rows = 0
        for mine, theirs in zip(*pieces, strict=True):
            rows = mine.shape[2]
            cell = mine.first_difference(theirs)
            if cell is None:
                continue
            b, h, r, k = cell
            place = (b, h, r + row, k)
            # A later row of an earlier batch row or head comes first.
            if result.cell is None or place < result.cell:
                visible = any(start <= k < stop for start, stop in mine.row(r, b, h))
                result = Comparison(place, visible)
        if result.cell is not None and result.cell[:2] == (0, 0):
            break
        row += rows
    return replace(result, masks=(left, right))


def bind_like(bound: BoundMask, other: Any) -> BoundMask:
    """The other mask on the frame of this one, or as it is if it is bound."""
    if isinstance(other, type(bound)):
        return other
    if not isinstance(other, Mask):
        raise ArgumentError(
            f"equals: expected a mask, got {type(other).__name__}. Wrap an array in dense(...)."
        )
    # Its data may describe the frame that this mask is a part of, or only that part.
    refused = _refusal(other, bound._home)
    if refused is None:
        return type(bound)(other, bound._home, bound._part)
    if _refusal(other, bound.frame) is None:
        return type(bound)(other, bound.frame)
    raise FrameError(f"equals: the other mask does not fit this frame. {refused}")


def common(left: BoundMask, right: BoundMask) -> BoundMask:
    """The cells that are visible in both."""
    return _joined(left, right, left.mask & right.mask)


def only(left: BoundMask, right: BoundMask) -> BoundMask:
    """The cells that are visible only in the left mask."""
    return _joined(left, right, left.mask - right.mask)


def _joined(left: BoundMask, right: BoundMask, mask: Mask) -> BoundMask:
    if left._home != right._home or left._part != right._part:
        raise FrameError(
            f"One mask is on {_sizes(left.frame)}, the other on {_sizes(right.frame)}. "
            "Bind both to the same frame."
        )
    return type(left)(mask, left._home, left._part)


def _refusal(mask: Mask, frame: Frame) -> FrameError | None:
    """The error of binding the mask to this frame; None if it fits."""
    try:
        mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)
    except FrameError as error:
        return error
    return None


def _sizes(frame: Frame) -> str:
    return (
        f"{frame.q_len} queries from position {frame.q_start} × {frame.kv_len} keys, "
        f"batch {frame.batch}, heads {frame.heads}"
    )
