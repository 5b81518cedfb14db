"""Atoms made from token data: padding and packed documents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.arrays import FrozenArray, read_array, read_bools, read_ints, read_whole
from maskwright.core.atoms_choice import every_row, most_runs
from maskwright.core.atoms_position import read_lengths
from maskwright.core.mask import Atom, Axes, Cell, Mask
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.arrays import IntArray
    from maskwright.core.frame import Frame
    from maskwright.core.region import Region
    from maskwright.core.spans import Spans


@dataclass(frozen=True, repr=False)
class Padding(Atom):
    """The real tokens of each sequence: the first n, or those that are kept."""

    name = "padding"
    lengths: FrozenArray | None  # (batch,)
    keep: FrozenArray | None  # (batch, tokens)

    def _read(self, region: Region) -> Spans:
        if self.lengths is not None:
            return region.band(0, self.lengths.data[:, None, None])
        assert self.keep is not None
        kept = self.keep.data[:, region.first : region.last + 1]
        return every_row(region.cells(kept[:, None, None, :]), region.rows)

    def _fit(self, frame: Frame) -> None:
        if self.keep is not None:
            count = int(self.keep.data.shape[1])
            fix = f"Pass kv_len={count}, or give a column for every key."
            frame.check_tokens(count, "padding", f"keep has {count} columns", fix)
            return
        assert self.lengths is not None
        longest = int(self.lengths.data.max(initial=0))
        if longest > max(frame.k_stop, 0):
            raise FrameError(
                f"padding: lengths holds {longest} but the frame has {frame.k_stop} keys. "
                f"Pass kv_len={longest} or more, or shorten the lengths."
            )

    def _axes(self) -> Iterator[Axes]:
        data = self.keep if self.lengths is None else self.lengths
        assert data is not None
        yield Axes("padding", int(data.data.shape[0]), 1)

    def _width(self, keys: int) -> int:
        return 1 if self.keep is None else min(keys // 2 + 1, self._runs)

    @cached_property
    def _runs(self) -> int:
        return 1 if self.keep is None else most_runs(self.keep.data)

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self.lengths is not None:
            return self.name, {"lengths": self.lengths}
        return self.name, {"keep": self.keep}

    def _reason(self, cell: Cell, sees: bool) -> str:
        return f"key {cell.key} is {'a real token' if sees else 'padding'} of sequence {cell.batch}"


class Runs(NamedTuple):
    """Maximal stretches of tokens of one document, over all sequences in order."""

    start: IntArray
    stop: IntArray
    document: IntArray  # a number of its own for each (sequence, document); -1 is padding
    offsets: IntArray  # where each sequence's runs begin


@dataclass(frozen=True, repr=False)
class Documents(Atom):
    """The keys of the query's own document."""

    name = "documents"
    lengths: tuple[tuple[int, ...], ...] | None
    ids: FrozenArray | None  # (batch, tokens), -1 is padding

    @property
    def _batch(self) -> int:
        return int(self.ids.data.shape[0]) if self.ids is not None else len(self.lengths or ())

    @cached_property
    def _runs(self) -> Runs:
        if self.ids is None:
            assert self.lengths is not None
            counts = [len(row) for row in self.lengths]
            size = np.fromiter((n for row in self.lengths for n in row), np.int64, sum(counts))
            offsets = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
            ends = np.cumsum(size)
            base = np.concatenate(([0], ends))[offsets[:-1]]  # tokens before each sequence
            stop = ends - np.repeat(base, counts)
            return Runs(stop - size, stop, np.arange(size.size), offsets)
        ids = self.ids.data
        batch, tokens = ids.shape
        begins = np.ones(ids.shape, np.bool_)
        begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
        row, start = np.nonzero(begins)
        stop = np.append(start[1:], tokens)[: start.size]
        stop[stop == 0] = tokens
        value = ids[row, start]
        names, number = np.unique(value, return_inverse=True)
        pairs = np.unique(row * names.size + number, return_inverse=True)[1]
        document = np.where(value < 0, -1, pairs)
        return Runs(start, stop, document, np.searchsorted(row, np.arange(batch + 1)))

    @cached_property
    def _members(self) -> tuple[IntArray, IntArray]:
        """The runs ordered by document, and where each document's begin among them."""
        document = self._runs.document
        order = np.argsort(document, kind="stable")
        return order, np.searchsorted(document[order], np.arange(int(document.max(initial=-1)) + 2))

    @cached_property
    def _contiguous(self) -> bool:
        real = self._runs.document[self._runs.document >= 0]
        return bool(np.unique(real).size == real.size)

    def _read(self, region: Region) -> Spans:
        runs = self._runs
        first = region.frame.q_start + region.row
        rows = [self._run_of(b, first, first + region.rows) for b in range(self._batch)]
        run = np.stack(rows) if rows else np.zeros((0, region.rows), np.int64)  # -1 in no run
        inside = run >= 0
        if runs.document.size:
            inside &= runs.document[run] >= 0
        if self._contiguous:
            padded = np.append(runs.start, 0), np.append(runs.stop, 0)
            low, high = (np.where(inside, ends[run], 0)[:, None, :] for ends in padded)
            return region.band(low, high)
        order, begin = self._members
        document = np.where(inside, runs.document[run], -1)
        counts = np.where(document >= 0, np.diff(begin, append=begin[-1])[document], 0).ravel()
        after = np.concatenate(([0], np.cumsum(counts)))
        nth = np.arange(after[-1]) - np.repeat(after[:-1], counts)
        member = order[np.repeat(begin[document.ravel()], counts) + nth]
        row = np.repeat(np.arange(counts.size), counts)
        return region.pieces(row, runs.start[member], runs.stop[member], batch=self._batch)

    def _run_of(self, batch: int, first: int, stop: int) -> IntArray:
        """For positions first … stop - 1 of one sequence: the number of the run, -1 for none."""
        runs = self._runs
        begin, end = int(runs.offsets[batch]), int(runs.offsets[batch + 1])
        starts, stops = runs.start[begin:end], runs.stop[begin:end]
        low = np.clip(starts, first, stop)
        held = np.clip(stops, first, stop) - low
        known = np.repeat(np.arange(begin, end), held)
        # Runs follow each other without a gap, so only the ends can lack one.
        before = (int(low[0]) if low.size else stop) - first
        after = stop - first - before - known.size
        return np.concatenate([np.full(before, -1), known, np.full(after, -1)])

    def _fit(self, frame: Frame) -> None:
        if self.ids is not None:
            count = int(self.ids.data.shape[1])
            fix = f"Pass kv_len={count} or pad the ids with -1."
            frame.check_tokens(count, "documents", f"ids has {count} columns", fix)
            frame.check_queries(count, "documents", f"ids has {count} columns")
            return
        longest = max((sum(row) for row in self.lengths or ()), default=0)
        if longest > max(frame.k_stop, 0):
            raise FrameError(
                f"documents: lengths add up to {longest} but the frame has {frame.k_stop} keys. "
                f"Pass kv_len={longest} or more; what is left over counts as padding."
            )
        frame.check_queries(frame.k_stop, "documents", f"there are {frame.k_stop} tokens")

    def _axes(self) -> Iterator[Axes]:
        yield Axes("documents", self._batch, 1)

    def _width(self, keys: int) -> int:
        if self._contiguous:
            return 1
        most = int(np.diff(self._members[1]).max(initial=0))
        return min(keys // 2 + 1, most)

    def _extent(self) -> int | None:
        if not self._contiguous:
            return None
        return int((self._runs.stop - self._runs.start).max(initial=0))

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self.lengths is not None:
            return self.name, {"lengths": self.lengths}
        return self.name, {"ids": self.ids}

    def _reason(self, cell: Cell, sees: bool) -> str:
        query, key = (self._document(cell.batch, p) for p in (cell.query, cell.key))
        return (
            f"both in document {query}" if sees else f"query in {_name(query)}, key in {_name(key)}"
        )

    def _document(self, batch: int, position: int) -> int:
        batch = batch if self._batch > 1 else 0
        if self.ids is not None:
            return int(self.ids.data[batch, position])
        assert self.lengths is not None
        ends = np.cumsum(self.lengths[batch], dtype=np.int64)
        index = int(np.searchsorted(ends, position, side="right"))
        return index if index < ends.size else -1


def padding(*, lengths: Any = None, keep: Any = None, ids: Any = None, pad_id: Any = None) -> Mask:
    """A query sees the real tokens of its sequence, never the padding.

    Say which tokens are real by one of: `lengths`, the first n of each sequence; `keep`, a truth
    value for each token, for left padding or holes; `ids` with `pad_id`, the token that fills up.
    Padding hides keys only: a padded query keeps its row. Write `p & p.T` to hide both.

    >>> import maskwright as mw
    >>> mw.padding(lengths=[1, 3]).on(3).spans.row(0, batch=1)
    [(0, 3)]
    >>> mw.padding(ids=[[0, 5, 7]], pad_id=0)
    padding(keep=[[0, 1, 1]])
    """
    given = [n for n, v in (("lengths", lengths), ("keep", keep), ("ids", ids)) if v is not None]
    if len(given) != 1:
        raise ArgumentError(
            f"padding: got {' and '.join(given) or 'no data'}. "
            "Give exactly one of lengths, keep, or ids with pad_id."
        )
    if (ids is None) != (pad_id is None):
        raise ArgumentError("padding: ids and pad_id go together. Give both, or neither.")
    if lengths is not None:
        return Padding(FrozenArray(read_lengths(lengths, "padding")), None)
    if ids is not None:
        kept = _read_tokens(ids, pad_id)
    else:
        flags = read_bools(
            keep,
            "padding: keep",
            instead="Give True or 1 for real tokens: keep=(mask != 0) for a mask of 0.0 and 1.0, "
            "keep=(mask == 0) for an additive one.",
        )
        kept = _token_rows(flags, "padding: keep")
    if not kept.shape[0]:
        return Padding(FrozenArray(np.zeros(0, np.int64)), None)
    return Padding(None, FrozenArray(kept))


def documents(*, lengths: Any = None, ids: Any = None) -> Mask:
    """A query sees its own document, of several that are packed into one sequence.

    Give `lengths`, those of the documents in each sequence (what is left over is padding), or
    `ids`, the document of each token, with -1 for padding. Padding sees nothing and is seen by
    nobody.

    >>> import maskwright as mw
    >>> mw.documents(lengths=[[2, 1]]).on(4).dense().astype(int).tolist()
    [[[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]]
    >>> mw.documents(ids=[[0, 0, 1, -1]]).on(4).equals(mw.documents(lengths=[[2, 1]]))
    equal
    """
    if (lengths is None) == (ids is None):
        raise ArgumentError("documents: give exactly one of lengths and ids.")
    if lengths is not None:
        return Documents(_read_ragged(lengths), None)
    numbers = _token_rows(read_ints(ids, "documents: ids"), "documents: ids")
    if numbers.size and int(numbers.min()) < -1:
        raise ArgumentError(
            f"documents: ids holds {int(numbers.min())}. Number documents from 0, with -1 for padding."
        )
    if not numbers.shape[0]:
        return Documents((), None)
    return Documents(None, FrozenArray(numbers))


def _read_ragged(lengths: Any) -> tuple[tuple[int, ...], ...]:
    what = "documents: lengths"
    rows = list(lengths) if hasattr(lengths, "__iter__") and not isinstance(lengths, str) else None
    if rows is None:
        raise ArgumentError(f"{what} is one number. Give a list of lengths for each sequence.")
    if rows and not any(
        hasattr(row, "__len__") and getattr(row, "shape", None) != () for row in rows
    ):
        rows = [rows]
    result = []
    for row in rows:
        numbers = read_ints(row, what)
        if numbers.ndim != 1:
            raise ArgumentError(
                f"{what} is not two levels deep. Give [[3, 2], [4]] for two sequences."
            )
        if numbers.size and int(numbers.min()) < 0:
            raise ArgumentError(f"{what} holds {int(numbers.min())}. Lengths are 0 or more.")
        result.append(tuple(numbers.tolist()))
    return tuple(result)


def _token_rows(array: Any, what: str) -> Any:
    """One sequence or a batch of them, as (batch, tokens)."""
    if array.ndim == 1:
        return array[None]
    if array.ndim != 2:
        raise ArgumentError(f"{what} has shape {array.shape}. Give (tokens,) or (batch, tokens).")
    return array


def _read_tokens(ids: Any, pad_id: Any) -> Any:
    """(batch, tokens): which tokens are real. Words are as good as numbers."""
    if isinstance(pad_id, str):
        words = read_array(ids, "padding: ids")
        if words.dtype.kind != "U":
            raise ArgumentError(
                f"padding: pad_id={pad_id!r} is a word but ids has dtype {words.dtype}. "
                "Give both as words, or both as numbers."
            )
        return _token_rows(words, "padding: ids") != pad_id
    return _token_rows(read_ints(ids, "padding: ids"), "padding: ids") != _read_id(pad_id)


def _read_id(pad_id: Any) -> int:
    if (
        hasattr(pad_id, "__index__")
        and not isinstance(pad_id, bool)
        and int(pad_id.__index__()) < 0
    ):
        return int(pad_id.__index__())
    return read_whole(pad_id, "padding: pad_id", least=0)


def _name(document: int) -> str:
    return f"document {document}" if document >= 0 else "padding"
