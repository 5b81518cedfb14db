"""Ragged sequences into rectangles: padded one a row, or packed several a row."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from maskwright.core.arrays import read_array, read_whole
from maskwright.core.atoms_tokens import documents, padding
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maskwright.core.arrays import IntArray
    from maskwright.core.mask import Mask


class Padded(NamedTuple):
    """What `pad` returns: the tokens (batch, tokens), and the mask that hides the filling.

    >>> import maskwright as mw
    >>> ids, mask = mw.pad([["hello", "world"], ["yes"]], pad_id="<pad>")
    >>> ids.tolist()
    [['hello', 'world'], ['yes', '<pad>']]
    """

    ids: npt.NDArray[Any]
    mask: Mask


class Packed(NamedTuple):
    """What `pack` returns; all arrays are (rows, length).

    `documents` holds for every token the number of its sequence in the input, -1 for filling;
    `positions` count from 0 in every document; `mask` keeps documents apart.

    >>> import maskwright as mw
    >>> mw.pack([[5, 6], [7]], length=4).positions.tolist()
    [[0, 1, 0, 0]]
    """

    ids: npt.NDArray[Any]
    documents: IntArray
    positions: IntArray
    mask: Mask


def pad(
    sequences: Iterable[Any],
    pad_id: Any = 0,
    side: Literal["right", "left"] = "right",
    length: int | None = None,
) -> Padded:
    """Sequences of any lengths as one array, filled with `pad_id` on one side, and their mask.

    The mask comes from the lengths, so a real token that equals `pad_id` stays visible.

    >>> import maskwright as mw
    >>> batch = mw.pad([[5, 6, 7], [8]])
    >>> batch.ids.tolist()
    [[5, 6, 7], [8, 0, 0]]
    >>> batch.mask
    padding(lengths=[3, 1])
    >>> mw.pad([[5, 6, 7], [8]], side="left").mask
    padding(keep=[[1, 1, 1], [0, 0, 1]])
    """
    if side not in ("right", "left"):
        raise ArgumentError(f"pad: side is {side!r}. Give 'right' or 'left'.")
    rows = _read_sequences(sequences, "pad")
    longest = max((len(row) for row in rows), default=0)
    width = longest if length is None else read_whole(length, "pad: length", least=0)
    if longest > width:
        raise ArgumentError(
            f"pad: a sequence has {longest} tokens but length={width}. Shorten it, or raise length."
        )
    ids = _filled((len(rows), width), rows, pad_id, "pad")
    keep = np.zeros((len(rows), width), np.bool_)
    for index, row in enumerate(rows):
        part = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[index, part] = row
        keep[index, part] = True
    if side == "right":
        return Padded(ids, padding(lengths=[len(row) for row in rows]))
    return Padded(ids, padding(keep=keep))


def pack(sequences: Iterable[Any], length: int, pad_id: Any = 0) -> Packed:
    """Several sequences a row, each row `length` tokens, by best fit: little filling is left.

    Longest first, every sequence goes to the fullest row that still has room for it. Combine the
    mask with `causal()` for a decoder.

    >>> import maskwright as mw
    >>> packed = mw.pack([[5, 6, 7], [8], [9, 9]], length=4)
    >>> packed.ids.tolist()
    [[5, 6, 7, 8], [9, 9, 0, 0]]
    >>> packed.documents.tolist()
    [[0, 0, 0, 1], [2, 2, -1, -1]]
    >>> packed.mask
    documents(lengths=[[3, 1], [2]])
    """
    rows = _read_sequences(sequences, "pack")
    width = read_whole(length, "pack: length", least=1)
    longest = max((len(row) for row in rows), default=0)
    if longest > width:
        raise ArgumentError(
            f"pack: a sequence has {longest} tokens but length={width}. Split it, or raise length."
        )
    bins = _best_fit([len(row) for row in rows], width)
    ids = _filled((len(bins), width), rows, pad_id, "pack")
    numbers = np.full((len(bins), width), -1)
    positions = np.zeros((len(bins), width), np.int64)
    for line, members in enumerate(bins):
        start = 0
        for member in members:
            stop = start + len(rows[member])
            ids[line, start:stop] = rows[member]
            numbers[line, start:stop] = member
            positions[line, start:stop] = np.arange(stop - start)
            start = stop
    lengths = [[len(rows[member]) for member in members] for members in bins]
    return Packed(ids, numbers, positions, documents(lengths=lengths))


def _best_fit(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Which sequences share a row; rows and members in the order of the input."""
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, bin), sorted
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = bisect_left(room, (sizes[index], -1))
        if place < len(room):
            left, number = room.pop(place)
        else:
            left, number = width, len(bins)
            bins.append([])
        bins[number].append(index)
        insort(room, (left - sizes[index], number))
    return sorted(sorted(members) for members in bins)


def _read_sequences(sequences: Iterable[Any], what: str) -> list[npt.NDArray[Any]]:
    if isinstance(sequences, (str, bytes)) or not hasattr(sequences, "__iter__"):
        raise ArgumentError(f"{what}: got {type(sequences).__name__}. Give a list of token lists.")
    rows = []
    for number, sequence in enumerate(sequences):
        words = isinstance(sequence, (list, tuple)) and any(isinstance(t, str) for t in sequence)
        name = f"{what}: sequence {number}"
        row = np.array(sequence, np.str_) if words else read_array(sequence, name)
        if row.size == 0:
            row = row.reshape(-1).astype(np.int64)
        if row.ndim != 1 or row.dtype.kind not in "iuU":
            raise ArgumentError(
                f"{what}: sequence {number} has shape {row.shape} and dtype {row.dtype}. "
                "Give one list of whole numbers, or of words, a sequence."
            )
        rows.append(row)
    return rows


def _filled(
    shape: tuple[int, int], rows: list[npt.NDArray[Any]], pad_id: Any, what: str
) -> npt.NDArray[Any]:
    real = [row.dtype for row in rows if row.size]
    if any(dtype.kind == "U" for dtype in real):
        if not all(dtype.kind == "U" for dtype in real) or not isinstance(pad_id, str):
            raise ArgumentError(
                f"{what}: the sequences are words but not all of them, or pad_id={pad_id!r} is none. "
                "Give words with a word such as '<pad>', or numbers with a number."
            )
        return np.full(shape, pad_id, np.result_type(*real, np.array(pad_id).dtype))
    if isinstance(pad_id, bool) or not hasattr(pad_id, "__index__"):
        raise ArgumentError(
            f"{what}: pad_id is of type {type(pad_id).__name__}. Give a whole number for number tokens."
        )
    return np.full(shape, pad_id, np.int64)
