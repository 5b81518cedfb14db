"""Checks of the shape of a mask array: which axes broadcast to which axes of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.frame import Frame
from maskwright.core.spans import Spans
from maskwright.linting.cells import Expected, Interpretation, PlacedMask
from maskwright.linting.codes import Finding, make_finding
from maskwright.messages import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.validate import BoolArray

AXES: Final = ("k", "qk", "bk", "bqk", "hqk", "bhqk")
AXES_FROM_RIGHT: Final = {1: "k", 2: "qk", 3: "hqk", 4: "bhqk"}
MAX_CELLS: Final = 2**24  # converted to spans at a time

Shape = tuple[int, ...]


class Sizes(NamedTuple):
    """The sizes of attention, None where unknown."""

    batch: int | None = None
    heads: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    q_start: int | None = None


class PlacedShape(NamedTuple):
    """The shape of an array as (batch, heads, query, key), None if it does not fit."""

    shape: tuple[int, int, int, int] | None
    findings: tuple[Finding, ...] = ()


def place_shape(
    shape: Shape, axes: str | None, sizes: Sizes, convention: str | None
) -> PlacedShape:
    """Aligns the axes of an array with those of attention: as stated, otherwise from the right."""
    letters = AXES_FROM_RIGHT.get(len(shape), "") if axes is None else axes
    if not letters or len(letters) != len(shape):
        expected = "(batch, heads, query, key)" if axes is None else f"axes={axes!r}"
        found = make_finding("wrong-rank", expected=expected, shape=shape, rank=len(shape))
        return PlacedShape(None, (found,))
    b, h, t, s = (shape[letters.index(name)] if name in letters else 1 for name in "bhqk")
    if convention == "drop" and axes is None and len(shape) == 3 and sizes.batch and sizes.heads:
        flat = h == sizes.batch * sizes.heads  # (batch * heads, query, key): nn.MultiheadAttention
        b, h = (sizes.batch, sizes.heads) if flat else (b, h)
    placed = (b, h, t, s)
    mismatches = tuple(_mismatches(shape, letters, placed, sizes, stated=axes is not None))
    return PlacedShape(None if mismatches else placed, mismatches)


def place_cells(visible: BoolArray, sizes: Sizes) -> PlacedMask:
    """Returns an array (batch, heads, query, key) as spans; an axis of 1 broadcasts."""
    b, h, t, s = visible.shape
    q_len = t if sizes.q_len is None else sizes.q_len
    kv_len = (t if s == 1 < t else s) if sizes.kv_len is None else sizes.kv_len
    frame = Frame(
        q_len,
        kv_len,
        b if sizes.batch is None else sizes.batch,
        h if sizes.heads is None else sizes.heads,
        kv_len - q_len if sizes.q_start is None else sizes.q_start,
    )
    return PlacedMask(_spans(visible, frame), frame)


def other_axes(
    visible: BoolArray, shape: Shape, placed: PlacedMask, sizes: Sizes, expected: Expected
) -> Iterator[Interpretation]:
    """Yields the interpretations of an array whose batch axis aligns with the heads or queries.

    The sizes are equal, so the array broadcasts without an error.
    """
    batch, frame = sizes.batch or 1, placed.frame
    if batch > 1 and visible.shape[:2] == (1, batch):
        heads = 1 if sizes.heads is None else frame.heads
        missing = len(shape) == 3
        message = "batch-on-heads.broadcast" if missing else "batch-on-heads.axis"
        yield Interpretation(
            make_finding("batch-on-heads", message=message, shape=shape, batch=batch),
            lambda: _reshape(visible, (batch, 1, *visible.shape[2:]), replace(frame, heads=heads)),
            likely=missing and bool((visible != visible[:, :1]).any()),
        )
    if batch > 1 and shape[:-1] == (batch,) == (frame.q_len,):
        yield Interpretation(
            make_finding("batch-on-queries", shape=shape, batch=batch),
            lambda: _reshape(visible, (batch, 1, 1, shape[1]), frame),
            likely=not expected.masks() and _looks_like_padding(placed),
        )


def _mismatches(
    shape: Shape, letters: str, placed: Shape, sizes: Sizes, *, stated: bool
) -> Iterator[Finding]:
    wrong = [
        (name, size, expected)
        for name, size, expected in zip("bhqk", placed, sizes[:4], strict=True)
        if expected is not None and size not in (1, expected)
    ]
    batch_first = not stated and sizes.batch == shape[0] and letters[0] != "b"
    if batch_first and wrong and all(name == letters[0] for name, *_ in wrong):
        name, size, expected = wrong[0]
        yield make_finding(
            "does-not-broadcast",
            message="does-not-broadcast.batch",
            shape=shape,
            batch=size,
            count=expected,
            axis=Reason(f"lint.axis_{name}", {}),
            index="mask[:, None]" if letters == "hqk" else "mask[:, None, None, :]",
        )
        return
    for name, size, expected in wrong:
        if name in "bh":
            axis = Reason(f"lint.axis_{name}", {})
            yield make_finding(
                "does-not-broadcast", shape=shape, actual=size, expected=expected, axis=axis
            )
        else:
            code = "keys-mismatch" if name == "k" else "queries-mismatch"
            yield make_finding(code, shape=shape, actual=size, expected=expected)


def _looks_like_padding(placed: PlacedMask) -> bool:
    """Whether each row is one interval from the same end, and their lengths are not sorted.

    The interval of a query grows with its position, if it changes at all; that of a sequence does
    not.
    """
    spans, frame = placed
    if not bool((np.diff(spans.offsets) == 1).all()):
        return False
    if bool((spans.starts == 0).all()):
        return bool((np.diff(spans.stops) < 0).any())
    return bool((spans.stops == frame.kv_len).all() and (np.diff(spans.starts) < 0).any())


def _reshape(visible: BoolArray, shape: Shape, frame: Frame) -> PlacedMask:
    return PlacedMask(_spans(visible.reshape(shape), frame), frame)


def _spans(visible: BoolArray, frame: Frame) -> Spans:
    """The spans of (batch, heads, query, key), converted in blocks of rows; axes of 1 broadcast."""
    b, h, rows, _ = visible.shape
    wide = np.broadcast_to(visible, (b, h, rows, frame.kv_len))
    step = max(1, MAX_CELLS // max(1, b * h * frame.kv_len))
    parts = [
        Spans.from_cells(wide[:, :, row : row + step], frame.kv_len)
        for row in range(0, max(rows, 1), step)
    ]
    spans = Spans.stack(parts, axis=2)
    if rows == frame.q_len:
        return spans
    index = np.arange(b * h).reshape(b, h, 1)
    return spans.take(np.broadcast_to(index, (b, h, frame.q_len)))
