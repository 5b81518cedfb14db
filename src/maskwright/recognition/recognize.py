"""The way back: an array in, the shortest expression that is exactly that array out.

What may enter here: reading the array, choosing among its readings, and checking the answer. What
expressions there are to choose from is for the `patterns` files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.core.atoms.array import Dense
from maskwright.core.atoms.position import Nothing
from maskwright.core.expr import Atom, brief, walk
from maskwright.core.frame import MAX_SIZE, Frame
from maskwright.core.validate import FrozenArray, describe_type, parse_int, read_choice
from maskwright.errors import ArgumentError, FrameError
from maskwright.recognition.axes import express, express_keys, is_closed
from maskwright.recognition.encoding import LEAST_FILL, Convention, Reading, read_values, readings
from maskwright.recognition.plane import first_lines
from maskwright.recognition.polarity import choose

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.recognition.cover import Found

AXES: Final = "bhqk"
BY_NDIM: Final = {1: "k", 2: "qk", 3: "bqk", 4: "bhqk"}
LONGEST: Final = 240  # letters of an expression that is shown in full
OTHER_START: Final = 10.0  # letters that the other alignment must save to be taken
MAX_CELLS: Final = 2**24  # that are checked at a time

POLARITIES: Final = ("keep", "drop")

Polarity = Literal["keep", "drop"]


@dataclass(frozen=True, repr=False)
class Recognized:
    """What an array says: a mask, the frame it holds on, and how the array says it.

    `other` is the second reading, where the values do not tell whether True keeps or drops.

    >>> import maskwright as mw
    >>> found = mw.recognize([[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    >>> found
    window(back=1)   integer, 1 keeps, 0 hides, (3, 3), int64
    >>> found.mask, found.ambiguous
    (window(back=1), False)
    """

    mask: Mask
    frame: Frame
    convention: Convention
    notes: tuple[str, ...] = ()
    other: Recognized | None = None

    @property
    def ambiguous(self) -> bool:
        """Does the array have two readings that both make sense?

        >>> import maskwright as mw
        >>> mw.recognize([False, False, True, True]).ambiguous
        True
        """
        return self.other is not None

    def __str__(self) -> str:
        lines = [f"{_shown(self.mask)}   {self.convention}", *self.notes]
        if self.other is not None:
            lines += ["ambiguous; or, the other way round:", str(self.other)]
        return "\n".join(lines)

    __repr__ = __str__


def recognize(
    array: object,
    *,
    polarity: Polarity | None = None,
    axes: str | None = None,
    q_start: int | None = None,
) -> Recognized:
    """The shortest mask that is exactly this array, whatever framework and convention it is in.

    `polarity` says whether True or 1 keeps or drops a cell, where the values alone do not tell.
    `axes` names the array's axes by the letters b, h, q and k; if not given, it is "k", "qk",
    "bqk" or "bhqk". A padding mask of (sequence, token) is "bk". The last query sits at the last
    key unless `q_start` says otherwise.

    >>> import maskwright as mw
    >>> mw.recognize([[0.0, -1e9, -1e9], [0.0, 0.0, -1e9], [0.0, 0.0, 0.0]])
    causal()   additive, 0 keeps, -1e+09 hides, (3, 3), float64
    >>> mw.recognize([[1, 1, 1, 0], [1, 1, 1, 1]], axes="bk")
    padding(lengths=[3, 4])   integer, 1 keeps, 0 hides, (2, 4), int64
    >>> mw.recognize([False, False, True, True], polarity="drop")
    padding(lengths=[2])   bool, False keeps, (4,)
    """
    said = None if polarity is None else read_choice(polarity, "recognize: polarity", POLARITIES)
    start = None if q_start is None else parse_int(q_start, "recognize: q_start")
    if start is not None and abs(start) > MAX_SIZE:
        raise ArgumentError(
            f"recognize: q_start={start} is beyond {MAX_SIZE}. Give a smaller position."
        )
    every = _chosen(readings(array, "recognize: the array"), said)
    names = _read_axes(axes, len(every[0].convention.shape))
    whole = [_spread(reading.allowed, names) for reading in every]
    if len(every) == 2:
        rows, keys = whole[0].shape[2:]
        starts = {keys - rows, 0} if start is None else {start}
        choice = choose(whole[0], whole[1], starts if "q" in names else set())
        order = [choice.best] if choice.clear else [choice.best, 1 - choice.best]
        every, whole = tuple(every[i] for i in order), [whole[i] for i in order]
    shared = _notes_on_values(array, every[0].convention)
    other = None
    for reading, cells in reversed(list(zip(every, whole, strict=True))):
        mask, frame, notes = _fit(cells, names, start)
        if axes is None and names == "qk":
            notes += _note_on_rows(cells)
        other = Recognized(mask, frame, reading.convention, (*shared, *notes), other)
    assert other is not None
    return other


# ── reading ───────────────────────────────────────────────────────────────────────────────────


def _chosen(every: tuple[Reading, ...], polarity: str | None) -> tuple[Reading, ...]:
    """The readings that the given polarity leaves."""
    if polarity is None:
        return every
    if len(every) == 1 and every[0].allowed.all():  # zeros only: what is said decides
        kept, said = every[0].allowed, every[0].convention
        form = Convention("float", 1.0, 0.0, said.shape, said.dtype)
        every = (
            Reading(~kept, form),
            Reading(kept, Convention("float", 0.0, 1.0, said.shape, said.dtype)),
        )
    if len(every) == 1:
        raise ArgumentError(
            f"recognize: polarity={polarity!r} but the array is added to scores, where 0 keeps. "
            "Leave polarity out."
        )
    return every[:1] if polarity == "keep" else every[1:]


def _read_axes(axes: object, ndim: int) -> str:
    if axes is None:
        if ndim not in BY_NDIM:
            raise ArgumentError(
                f"recognize: the array has {ndim} axes. Give one of 1 to 4, the last of them the keys."
            )
        return BY_NDIM[ndim]
    if not isinstance(axes, str):
        raise ArgumentError(
            f"recognize: axes is {describe_type(axes)}. Give letters, such as 'bqk'."
        )
    places = [AXES.find(name) for name in axes]
    if -1 in places or places != sorted(set(places)) or not axes.endswith("k"):
        raise ArgumentError(
            f"recognize: axes={axes!r:.40} are not some of b, h, q, k in this order, with k last. "
            "Give such letters, and move the array's axes to match."
        )
    if len(axes) != ndim:
        raise ArgumentError(
            f"recognize: axes={axes!r} names {len(axes)} axes but the array has {ndim}. "
            "Give a letter for each."
        )
    return axes


def _spread(cells: BoolArray, names: str) -> BoolArray:
    """The cells as (batch, heads, queries, keys), 1 along axes that the array does not have."""
    sizes = dict(zip(names, cells.shape, strict=True))
    return cells.reshape([sizes.get(name, 1) for name in AXES])


# ── the answer ────────────────────────────────────────────────────────────────────────────────


def _fit(cells: BoolArray, names: str, start: int | None) -> tuple[Mask, Frame, list[str]]:
    """The mask, the frame it holds on, and what is to be said about it."""
    batch, heads, rows, keys = cells.shape
    usual = keys - rows
    frame = Frame(rows, keys, batch, heads, usual if start is None else start)
    notes: list[str] = []
    if not cells.size:
        return Nothing(), frame, notes
    if "q" not in names:
        return _checked(express_keys(cells), frame, cells, notes)
    found = express(cells, frame.q_start)
    if start is None and usual and found.cost > OTHER_START:
        other = express(cells, 0)
        if other.cost + OTHER_START < found.cost and is_closed(other.mask):
            found, frame = other, Frame(rows, keys, batch, heads, 0)
            notes.append(
                "the first query sits at the first key here (q_start=0), not the last at the last"
            )
    return _checked(found, frame, cells, notes)


def _checked(
    found: Found, frame: Frame, cells: BoolArray, notes: list[str]
) -> tuple[Mask, Frame, list[str]]:
    """The mask if it is exactly these cells, else the cells themselves."""
    mask = found.mask if _holds(found.mask, frame, cells) else Dense(FrozenArray(cells))
    if not is_closed(mask):
        notes.append(
            "no closed form fits" if isinstance(mask, Dense) else "no closed form fits all"
        )
    return mask, frame, notes


def _holds(mask: Mask, frame: Frame, cells: BoolArray) -> bool:
    """Does the mask allow exactly these cells on this frame?"""
    try:
        bound = mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)
    except FrameError:
        return False
    step = max(1, MAX_CELLS * frame.q_len // cells.size)
    for row in range(0, frame.q_len, step):
        stop = min(row + step, frame.q_len)
        if not bool((bound.rows(row, stop).dense() == cells[:, :, row:stop]).all()):
            return False
    return True


# ── notes and text ────────────────────────────────────────────────────────────────────────────


def _notes_on_values(array: object, convention: Convention) -> list[str]:
    if convention.form == "float":
        return ["0 and 1 as floats: added to scores it hides nothing"]
    if convention.form != "additive":
        return []
    values = read_values(array, "recognize: the array")[0]
    hidden = values[values <= LEAST_FILL]
    if not hidden.size or hidden.min() == hidden.max():
        return []
    ends = " … ".join(f"{float(fill):.2g}" for fill in (hidden.max(), hidden.min()))
    return [f"several fills ({ends}): two masks were summed"]


def _note_on_rows(cells: BoolArray) -> list[str]:
    """A hint where the rows of (query, key) look like sequences with padding."""
    plane = cells[0, 0]
    rows, keys = plane.shape
    if rows < 2 or rows == keys:
        return []
    for lines in (plane, plane[:, ::-1]):
        lengths = first_lines(lines)
        if lengths is None or not lengths.all():
            continue
        steps = set(np.diff(lengths).tolist())
        if steps - {-1, 0, 1} or (0 in steps and len(steps) > 1):
            return ['every row reads as one padded sequence: if so, pass axes="bk"']
    return []


def _shown(mask: Mask) -> str:
    """The expression, with its data left out where that is long."""
    data = sum(
        math.prod(value.data.shape)
        for part in walk(mask)
        if isinstance(part, Atom)
        for value in part._call()[1].values()
        if isinstance(value, FrozenArray)
    )
    text = "" if data > LONGEST else repr(mask)
    return text if text and len(text) <= LONGEST else brief(mask)
