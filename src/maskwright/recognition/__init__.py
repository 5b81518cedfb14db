"""Recognition: the shortest mask expression for a given array.

The array is read as visible and masked cells (`encoding`), and the expression with the shortest
text is searched for (minimum description length). For each plane of queries and keys, terms that
fit it are proposed (`position_terms`, `structure_terms`); the cheapest set of them whose & or | is
the plane is selected (`cover`); & and | are nested, and batch rows and heads are combined, where
that is shorter (`search`). The result is compared with all cells of the array before it is returned
(`recognize`), so it is exact: where no expression fits, it is the array itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.core.atoms.array import Dense
from maskwright.core.atoms.position import Nothing
from maskwright.core.bound import BoundMask
from maskwright.core.expr import brief, data_size
from maskwright.core.frame import MAX_SIZE, Frame
from maskwright.core.validate import FrozenArray, describe_type, parse_int, read_choice
from maskwright.errors import ArgumentError, FrameError
from maskwright.messages import Reason, render
from maskwright.recognition.encoding import (
    MAX_MASK_VALUE,
    Convention,
    Interpretation,
    choose_polarity,
    collapse_repeats,
    interpretations,
    read_values,
)
from maskwright.recognition.plane import prefix_lengths
from maskwright.recognition.search import explain_array, explain_keys

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.recognition.cover import Candidate

AXES: Final = "bhqk"
DEFAULT_AXES: Final = {1: "k", 2: "qk", 3: "bqk", 4: "bhqk"}
POLARITIES: Final = ("keep", "drop")
MAX_TEXT: Final = 240  # characters of an expression that is shown in full
MIN_ALIGNMENT_GAIN: Final = 10.0  # characters that q_start=0 must save to be preferred
MIN_PADDING_GAIN: Final = 10  # characters that padding() of each row must save to be preferred
MAX_CHECKED_CELLS: Final = 2**24  # that are compared at a time

Polarity = Literal["keep", "drop"]


@dataclass(frozen=True, repr=False)
class Recognized:
    """The result of `recognize`.

    Attributes:
        mask: The expression.
        frame: The sizes and positions on which it is exactly the array.
        convention: How the array encodes the mask.
        reasons: Remarks as data, which `maskwright.messages.render` translates.
        other: The result for the other polarity, if the values do not show which one is meant.

    >>> import maskwright as mw
    >>> found = mw.recognize([[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    >>> found
    window(back=1)   integer, 1 keeps, 0 masks, (3, 3), int64
    >>> found.mask, found.ambiguous
    (window(back=1), False)
    """

    mask: Mask
    frame: Frame
    convention: Convention
    reasons: tuple[Reason, ...] = ()
    other: Recognized | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the array, such as several fill values, which show that two masks were summed.

        >>> import maskwright as mw
        >>> mw.recognize([[0.0, -1e9], [-1e9, -2e9]]).notes
        ('several mask values (-1e+09 … -2e+09): two masks were summed',)
        """
        return tuple(render(reason) for reason in self.reasons)

    @property
    def ambiguous(self) -> bool:
        """Whether both polarities are plausible.

        >>> import maskwright as mw
        >>> mw.recognize([False, False, True, True]).ambiguous
        True
        """
        return self.other is not None

    def __str__(self) -> str:
        lines = [f"{_abbreviate(self.mask)}   {self.convention}", *self.notes]
        if self.other is not None:
            lines += ["ambiguous; with the other polarity:", str(self.other)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook displays: the text, and the mask as a picture if it can be drawn."""
        picture = BoundMask(self.mask, self.frame)._repr_html_()
        return f"<pre>{escape(str(self))}</pre>{picture or ''}"


def recognize(
    array: object,
    *,
    polarity: Polarity | None = None,
    axes: str | None = None,
    q_start: int | None = None,
) -> Recognized:
    """Returns the shortest mask expression that is equal to an array of any framework and encoding.

    Args:
        array: A mask of bools, of 0 and 1, or of values to add to the scores.
        polarity: Whether True or 1 means "keep" or "drop". Default: inferred from the values.
        axes: The array's axes, some of the letters b, h, q and k. Default: "k", "qk", "bqk" or
            "bhqk". A padding mask (sequence, token) is "bk", which is also the default where rows
            look like padding and no short expression relates them.
        q_start: Position of the first query. Default: the last query is aligned with the last key,
            unless `q_start=0` gives a much shorter expression.

    Returns:
        The mask, with the frame and the convention. If the polarity is ambiguous, `other` is the
        result for the less likely one.

    Raises:
        ArgumentError: If the array holds other values, or the axes do not match it.

    >>> import maskwright as mw
    >>> mw.recognize([[0.0, -1e9, -1e9], [0.0, 0.0, -1e9], [0.0, 0.0, 0.0]])
    causal()   additive, 0 keeps, -1e+09 masks, (3, 3), float64
    >>> mw.recognize([[1, 1, 1, 0], [1, 1, 1, 1]], axes="bk")
    padding(lengths=[3, 4])   integer, 1 keeps, 0 masks, (2, 4), int64
    >>> mw.recognize([False, False, True, True], polarity="drop")
    padding(lengths=[2])   bool, False keeps, (4,)
    """
    wanted = None if polarity is None else read_choice(polarity, "recognize: polarity", POLARITIES)
    start = None if q_start is None else parse_int(q_start, "recognize: q_start")
    if start is not None and abs(start) > MAX_SIZE:
        raise ArgumentError(
            f"recognize: q_start={start} is beyond {MAX_SIZE}. Pass a smaller position."
        )
    interpreted = _with_polarity(interpretations(array, "recognize: the array"), wanted)
    names = _parse_axes(axes, len(interpreted[0].convention.shape))
    batch, heads = (
        interpreted[0].convention.shape[names.index(name)] if name in names else 1 for name in "bh"
    )
    cells = [_to_4d(interpretation.visible, names) for interpretation in interpreted]
    rows_like_padding = axes is None and names == "qk" and any(map(_rows_like_padding, cells))
    if len(interpreted) == 2:
        rows, keys = cells[0].shape[2:]
        starts = {keys - rows, 0} if start is None else {start}
        choice = choose_polarity(cells[0], cells[1], starts if "q" in names else set())
        order = [choice.best] if choice.clear else [choice.best, 1 - choice.best]
        interpreted, cells = tuple(interpreted[i] for i in order), [cells[i] for i in order]
    shared = _value_reasons(array, interpreted[0].convention)
    result = None
    for interpretation, visible in reversed(list(zip(interpreted, cells, strict=True))):
        mask, frame, reasons = _explain(visible, names, batch, heads, start)
        if rows_like_padding and frame.q_len != frame.kv_len and _rows_like_padding(visible):
            reasons = [*reasons, Reason("recognition.rows_like_padding")]
        result = Recognized(mask, frame, interpretation.convention, (*shared, *reasons), result)
    assert result is not None
    if rows_like_padding and start is None:
        padding = recognize(array, polarity=polarity, axes="bk")
        if len(repr(padding.mask)) + MIN_PADDING_GAIN <= len(repr(result.mask)):
            return replace(
                padding, reasons=(*padding.reasons, Reason("recognition.read_as_padding"))
            )
    return result


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def _with_polarity(
    interpreted: tuple[Interpretation, ...], polarity: str | None
) -> tuple[Interpretation, ...]:
    """The interpretations with this polarity; all of them if it is None."""
    if polarity is None:
        return interpreted
    zeros, known = collapse_repeats(interpreted[0].visible), interpreted[0].convention
    if len(interpreted) == 1 and zeros.all():  # all 0: additive, or floats that choose
        keep = Convention("float", 1.0, 0.0, known.shape, known.dtype)
        drop = Convention("float", 0.0, 1.0, known.shape, known.dtype)
        nothing, everything = (np.broadcast_to(x, known.shape) for x in (~zeros, zeros))
        interpreted = (Interpretation(nothing, keep), Interpretation(everything, drop))
    if len(interpreted) == 1:
        raise ArgumentError(
            f"recognize: polarity={polarity!r} but the array is added to scores, where 0 keeps. "
            "Leave polarity out."
        )
    return interpreted[:1] if polarity == "keep" else interpreted[1:]


def _parse_axes(axes: object, ndim: int) -> str:
    if axes is None:
        if ndim not in DEFAULT_AXES:
            raise ArgumentError(
                f"recognize: the array has {ndim} axes, expected 1 to 4. "
                "Pass an array whose last axis is the keys."
            )
        return DEFAULT_AXES[ndim]
    if not isinstance(axes, str):
        raise ArgumentError(
            f"recognize: axes is {describe_type(axes)}. Pass letters, such as 'bqk'."
        )
    indices = [AXES.find(name) for name in axes]
    if -1 in indices or indices != sorted(set(indices)) or not axes.endswith("k"):
        raise ArgumentError(
            f"recognize: axes={axes!r:.40} are not some of b, h, q, k in this order, with k last. "
            "Pass such letters, and move the array's axes to match."
        )
    if len(axes) != ndim:
        raise ArgumentError(
            f"recognize: axes={axes!r} names {len(axes)} axes but the array has {ndim}. "
            "Pass one letter per axis."
        )
    return axes


def _to_4d(cells: BoolArray, names: str) -> BoolArray:
    """The cells as (batch, heads, queries, keys), with size 1 along axes that the array lacks.

    A batch or head axis that repeats the same memory gets size 1, too.
    """
    sizes = dict(zip(names, cells.shape, strict=True))
    cells_4d = cells.reshape([sizes.get(name, 1) for name in AXES])
    return cells_4d[
        tuple(slice(0, 1) if stride == 0 else slice(None) for stride in cells_4d.strides[:2])
    ]


# ── the expression ────────────────────────────────────────────────────────────────────────────


def _explain(
    cells: BoolArray, names: str, batch: int, heads: int, start: int | None
) -> tuple[Mask, Frame, list[Reason]]:
    """The expression, its frame, and remarks."""
    rows, keys = cells.shape[2:]
    default_start = keys - rows
    frame = Frame(rows, keys, batch, heads, default_start if start is None else start)
    if not cells.size:
        return Nothing(), frame, []
    if "q" not in names:
        return _verify(explain_keys(cells), frame, cells, [])
    candidate = explain_array(cells, frame.q_start)
    if start is None and default_start and candidate.cost > MIN_ALIGNMENT_GAIN:
        other = explain_array(cells, 0)
        if other.cost + MIN_ALIGNMENT_GAIN < candidate.cost and other.closed:
            frame = Frame(rows, keys, batch, heads, 0)
            return _verify(other, frame, cells, [Reason("recognition.first_aligned")])
    return _verify(candidate, frame, cells, [])


def _verify(
    candidate: Candidate, frame: Frame, cells: BoolArray, reasons: list[Reason]
) -> tuple[Mask, Frame, list[Reason]]:
    """The expression if it is exactly these cells, else dense()."""
    mask, closed = candidate.mask, candidate.closed
    if not _equals(mask, frame, cells):
        mask, closed = Dense(FrozenArray(cells)), False
    if not closed:
        part = "part_" if mask._parts() else ""
        reasons = [*reasons, Reason(f"recognition.{part}not_closed")]
    return mask, frame, reasons


def _equals(mask: Mask, frame: Frame, cells: BoolArray) -> bool:
    """Whether the mask has exactly these cells on this frame."""
    try:
        bound = mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)
    except FrameError:
        return False
    step = max(1, MAX_CHECKED_CELLS * frame.q_len // cells.size)
    for row in range(0, frame.q_len, step):
        stop = min(row + step, frame.q_len)
        if not bool((bound.rows(row, stop).dense() == cells[:, :, row:stop]).all()):
            return False
    return True


# ── remarks and text ──────────────────────────────────────────────────────────────────────────


def _value_reasons(array: object, convention: Convention) -> list[Reason]:
    if convention.form == "float":
        return [Reason("recognition.float_zero_one")]
    if convention.form != "additive":
        return []
    values = collapse_repeats(read_values(array, "recognize: the array")[0])
    masked = values[values <= MAX_MASK_VALUE]
    if not masked.size or masked.min() == masked.max():
        return []
    highest, lowest = (f"{float(value):.2g}" for value in (masked.max(), masked.min()))
    return [Reason("recognition.several_mask_values", {"highest": highest, "lowest": lowest})]


def _rows_like_padding(cells: BoolArray) -> bool:
    """Whether the rows of (query, key) look like padding masks of several sequences."""
    plane = cells[0, 0]
    for chosen in (plane, plane[:, ::-1]):
        lengths = prefix_lengths(chosen)
        if len(plane) < 2 or lengths is None or not lengths.all():
            continue
        steps = set(np.diff(lengths).tolist())
        if steps - {-1, 0, 1} or (0 in steps and len(steps) > 1):
            return True
    return False


def _abbreviate(mask: Mask) -> str:
    """The expression, without its data if it is long."""
    text = "" if data_size(mask) > MAX_TEXT else repr(mask)
    return text if text and len(text) <= MAX_TEXT else brief(mask)
