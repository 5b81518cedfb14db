"""Batches of sequences of different lengths: padding, packing, and assignment to ranks."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from maskwright.core.atoms.tokens import documents, padding
from maskwright.core.validate import MAX_INT, parse_int, read_choice, read_ints
from maskwright.errors import ArgumentError, SizeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maskwright.core.expr import Mask
    from maskwright.core.validate import IntArray

MAX_TOKENS: Final = 2**27  # 1 GB
MAX_WORD_LENGTH: Final = 1_000  # a string array is as wide as its longest string


class Padded(NamedTuple):
    """What `pad` returns: the tokens (batch, tokens), and their padding mask.

    >>> import maskwright as mw
    >>> ids, mask = mw.pad([["hello", "world"], ["yes"]], pad_id="<pad>")
    >>> ids.tolist()
    [['hello', 'world'], ['yes', '<pad>']]
    """

    ids: npt.NDArray[Any]
    mask: Mask


class Packed(NamedTuple):
    """What `pack` returns; all arrays are (rows, length).

    `documents` has the index of each token's sequence in the input, -1 for padding; `positions`
    count from 0 in each document; `mask` restricts attention to the same document.

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
    """Pads sequences of different lengths to one array, and returns it with its padding mask.

    The mask is made from the lengths, so a token that equals `pad_id` stays visible.

    Args:
        sequences: Sequences of token ids, or of strings.
        pad_id: The padding token.
        side: "right" or "left".
        length: Length of all rows. Default: that of the longest sequence.

    Returns:
        A named tuple of `ids` (batch, tokens) and `mask`.

    Raises:
        ArgumentError: If a sequence is longer than `length`, or tokens are of different kinds.
        SizeError: If the array would be too large.

    >>> import maskwright as mw
    >>> batch = mw.pad([[5, 6, 7], [8]])
    >>> batch.ids.tolist()
    [[5, 6, 7], [8, 0, 0]]
    >>> batch.mask
    padding(lengths=[3, 1])
    >>> mw.pad([[5, 6, 7], [8]], side="left").mask
    padding(keep=[[1, 1, 1], [0, 0, 1]])
    """
    read_choice(side, "pad: side", ("right", "left"))
    batch = _read_sequences(sequences, pad_id, "pad")
    longest = int(batch.sizes.max(initial=0))
    width = longest if length is None else parse_int(length, "pad: length", minimum=0)
    if longest > width:
        raise ArgumentError(
            f"pad: a sequence has {longest} tokens but length={width}. Shorten it, or raise length."
        )
    ids = _filled((batch.sizes.size, width), batch, pad_id, "pad")
    sizes, columns = batch.sizes[:, None], np.arange(width)
    keep = columns < sizes if side == "right" else columns >= width - sizes
    ids[keep] = batch.tokens
    return Padded(ids, padding(lengths=batch.sizes) if side == "right" else padding(keep=keep))


def pack(
    sequences: Iterable[Any], length: int, pad_id: Any = 0, *, ranks: int | None = None
) -> Packed:
    """Packs several sequences into each row of `length` tokens, with little padding.

    Best-fit decreasing: each sequence, longest first, is put into the fullest row with enough
    space. Combine the mask with `causal()` for a decoder.

    With `ranks`, a sequence is put into the row with the least attention work so far, which is the
    sum of squared lengths, so that `ids[rank::ranks]` has about the same work on all ranks. Each
    rank then has the same number of rows; the last ones may be empty.

    Args:
        sequences: Sequences of token ids, or of strings.
        length: Tokens per row.
        pad_id: The padding token.
        ranks: Number of ranks that share the rows.

    Returns:
        A named tuple of `ids`, `documents`, `positions` and `mask`.

    Raises:
        ArgumentError: If a sequence is longer than `length`, or tokens are of different kinds.
        SizeError: If the arrays would be too large.

    >>> import maskwright as mw
    >>> packed = mw.pack([[5, 6, 7], [8], [9, 9]], length=4)
    >>> packed.ids.tolist()
    [[5, 6, 7, 8], [9, 9, 0, 0]]
    >>> packed.documents.tolist()
    [[0, 0, 0, 1], [2, 2, -1, -1]]
    >>> packed.mask
    documents(lengths=[[3, 1], [2]])
    """
    batch = _read_sequences(sequences, pad_id, "pack")
    width = parse_int(length, "pack: length", minimum=1)
    longest = int(batch.sizes.max(initial=0))
    if longest > width:
        raise ArgumentError(
            f"pack: a sequence has {longest} tokens but length={width}. Split it, or raise length."
        )
    sizes = batch.sizes.tolist()
    bins = _best_fit(sizes, width)
    if ranks is not None:
        count = parse_int(ranks, "pack: ranks", minimum=1)
        bins = assign_to_ranks(even_fit(sizes, width, -(-len(bins) // count) * count), sizes, count)
    ids = _filled((len(bins), width), batch, pad_id, "pack")
    numbers = np.full(ids.shape, -1)
    positions = np.zeros(ids.shape, np.int64)
    # The sequences in the order of the rows, and where the tokens of each begin: among those of
    # the rows before, in the input, and in its row.
    counts = [len(members) for members in bins]
    order = np.fromiter(chain.from_iterable(bins), np.int64, len(sizes))
    ordered_sizes = batch.sizes[order]
    before = np.cumsum(ordered_sizes) - ordered_sizes
    source = (np.cumsum(batch.sizes) - batch.sizes)[order]
    first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))[:-1]  # sequence of each row
    row_before = np.append(before, ordered_sizes.sum())[first]  # tokens of the rows before
    target = before + np.repeat(np.arange(len(bins)) * width - row_before, counts)
    position = np.arange(ordered_sizes.sum()) - np.repeat(before, ordered_sizes)
    at = position + np.repeat(target, ordered_sizes)
    ids.ravel()[at] = batch.tokens[position + np.repeat(source, ordered_sizes)]
    numbers.ravel()[at] = np.repeat(order, ordered_sizes)
    positions.ravel()[at] = position
    lengths = [[sizes[member] for member in members] for members in bins]
    return Packed(ids, numbers, positions, documents(lengths=lengths))


def _best_fit(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Indices of the sequences in each row, in the order of the input."""
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free tokens, bin), sorted
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        place = bisect_left(free, (sizes[index], -1))
        if place < len(free):
            left, number = free.pop(place)
        else:
            left, number = width, len(bins)
            bins.append([])
        bins[number].append(index)
        insort(free, (left - sizes[index], number))
    return sorted(sorted(members) for members in bins)


class _Sequences(NamedTuple):
    """Sequences of different lengths, one after the other."""

    tokens: npt.NDArray[Any]
    sizes: IntArray


def _read_sequences(sequences: Iterable[Any], pad_id: Any, what: str) -> _Sequences:
    if isinstance(sequences, (str, bytes, dict)) or not hasattr(sequences, "__iter__"):
        raise ArgumentError(
            f"{what}: expected a list of sequences, got {type(sequences).__name__}. Pass token lists."
        )
    items = list(sequences)
    tokens = _join(items)
    if tokens is not None:
        sizes = np.fromiter(map(len, items), np.int64, len(items))
        kinds = {"i"} if tokens.size else set()
    else:  # tensors, strings, tuples, or something invalid
        rows = [_read_sequence(row, f"{what}: sequence {n}") for n, row in enumerate(items)]
        sizes = np.fromiter((row.size for row in rows), np.int64, len(rows))
        rows = [row for row in rows if row.size]
        kinds = {row.dtype.kind for row in rows}
        tokens = np.concatenate(rows) if len(kinds) == 1 else np.zeros(0, np.int64)
    if len(kinds) > 1 or (kinds and ("U" in kinds) != isinstance(pad_id, str)):
        raise ArgumentError(
            f"{what}: tokens and pad_id={pad_id!r:.40} are neither all strings nor all integers. "
            "Pass strings with a string such as '<pad>', or integers with an integer."
        )
    return _Sequences(tokens, sizes)


def _join(sequences: list[Any]) -> IntArray | None:
    """All tokens in one array, if these are lists of plain integers or integer arrays; else None."""
    kinds = set(map(type, sequences))
    if kinds == {list}:
        flat = list(chain.from_iterable(sequences))
        if set(map(type, flat)) != {int}:
            return None
        try:
            tokens = np.array(flat, np.int64)
        except OverflowError:
            return None
    elif kinds == {np.ndarray} and all(
        row.ndim == 1 and row.dtype.kind in "iu" for row in sequences
    ):
        tokens = np.concatenate(sequences)
    else:
        return None
    if tokens.dtype.kind not in "iu":  # uint64 and int64 together are float64
        return None
    if tokens.size and not -MAX_INT <= int(tokens.min()) <= int(tokens.max()) <= MAX_INT:
        return None
    return tokens.astype(np.int64, copy=False)


def _read_sequence(sequence: Any, name: str) -> npt.NDArray[Any]:
    listed = isinstance(sequence, (list, tuple))
    words = listed and any(isinstance(token, str) for token in sequence)
    row = _read_words(sequence, name) if words else read_ints(sequence, name)
    if row.ndim != 1:
        raise ArgumentError(
            f"{name} has {row.ndim} dimensions. Pass one list of tokens per sequence."
        )
    return row


def _read_words(sequence: Any, name: str) -> npt.NDArray[Any]:
    if not all(isinstance(token, str) for token in sequence):
        raise ArgumentError(f"{name} mixes strings and integers. Pass only one kind.")
    if max(map(len, sequence)) > MAX_WORD_LENGTH:
        raise ArgumentError(
            f"{name} has a string of more than {MAX_WORD_LENGTH} characters. Split it."
        )
    return np.array(sequence, np.str_)


def _filled(shape: tuple[int, int], batch: _Sequences, pad_id: Any, what: str) -> npt.NDArray[Any]:
    """An array filled with `pad_id`, in which the tokens fit."""
    if shape[0] * shape[1] > MAX_TOKENS:
        raise SizeError(
            f"{what} would create {shape[0]} × {shape[1]} tokens. Pass fewer, or a smaller length."
        )
    if isinstance(pad_id, str):
        words = [np.array(pad_id[:MAX_WORD_LENGTH])] + [batch.tokens] * bool(batch.tokens.size)
        return np.full(shape, pad_id, np.result_type(*(part.dtype for part in words)))
    return np.full(shape, parse_int(pad_id, f"{what}: pad_id"), np.int64)


def even_fit(sizes: Sequence[int], width: int, count: int) -> list[list[int]]:
    """Indices of the sequences in each of `count` rows of similar work, or more if necessary.

    >>> even_fit([6, 3, 3, 6], 12, 2)
    [[0, 1], [2, 3]]
    """
    bins: list[list[int]] = [[] for _ in range(count)]
    free = [width] * count
    heap = [(0, number) for number in range(count)]  # (work, row)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        aside = []
        while heap and free[heap[0][1]] < sizes[index]:
            aside.append(heapq.heappop(heap))
        if heap:
            work, number = heapq.heappop(heap)
        else:
            work, number = 0, len(bins)
            bins.append([])
            free.append(width)
        bins[number].append(index)
        free[number] -= sizes[index]
        for entry in (*aside, (work + sizes[index] ** 2, number)):
            if free[entry[1]]:
                heapq.heappush(heap, entry)
    return [sorted(members) for members in bins]


def assign_to_ranks(bins: list[list[int]], sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """The rows in an order in which row i belongs to rank i % ranks, with similar work per rank.

    >>> assign_to_ranks([[0], [1], [2], [3]], [4, 1, 1, 4], 2)
    [[0], [3], [1], [2]]
    """
    rows_per_rank = -(-len(bins) // ranks)
    bins = bins + [[] for _ in range(rows_per_rank * ranks - len(bins))]
    work = [sum(sizes[member] ** 2 for member in members) for members in bins]
    assigned: list[list[list[int]]] = [[] for _ in range(ranks)]
    heap = [(0, rank) for rank in range(ranks)]
    for number in sorted(range(len(bins)), key=lambda n: -work[n]):
        load, rank = heapq.heappop(heap)
        assigned[rank].append(bins[number])
        if len(assigned[rank]) < rows_per_rank:
            heapq.heappush(heap, (load + work[number], rank))
    return [assigned[rank][place] for place in range(rows_per_rank) for rank in range(ranks)]
