"""Atoms made from token data: padding and packed documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.atoms.index import IndexSet
from maskwright.core.atoms.position import read_lengths
from maskwright.core.expr import Atom, Cell, KeyOnly, Mask, mask_property
from maskwright.core.frame import BroadcastDims
from maskwright.core.spans import Spans
from maskwright.core.validate import (
    MAX_INT,
    FrozenArray,
    describe_type,
    parse_int,
    read_array,
    read_bools,
    read_ints,
)
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.frame import Frame
    from maskwright.core.validate import IntArray


@dataclass(frozen=True, repr=False)
class Padding(KeyOnly):
    """The real tokens of each sequence: the first n, or those that are kept."""

    name = "padding"
    lengths: FrozenArray | None  # (batch,)
    keep: FrozenArray | None  # (batch, tokens)

    def _spans(self, view: View) -> Spans:
        if self.lengths is not None:
            return view.band(0, self.lengths.data[:, None, None])
        return self._real.key_spans(view)

    def _fit(self, frame: Frame) -> None:
        if self.keep is not None:
            count = int(self.keep.data.shape[1])
            fix = f"Pass kv_len={count}, or give a column for every key."
            frame.check_keys(count, "padding", f"keep has {count} columns", fix)
            return
        assert self.lengths is not None
        longest = int(self.lengths.data.max(initial=0))
        if longest > max(frame.k_stop, 0):
            raise FrameError(
                f"padding: lengths holds {longest} but the frame has {frame.k_stop} keys. "
                f"Pass kv_len={longest} or more, or shorten the lengths."
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        data = self.keep if self.lengths is None else self.lengths
        assert data is not None
        return (BroadcastDims("padding", int(data.data.shape[0]), 1),)

    def _width(self, keys: int) -> int:
        return 1 if self.keep is None else min(keys // 2 + 1, self._real.runs)

    @mask_property
    def _real(self) -> IndexSet:
        return IndexSet(None, self.keep)

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

    @mask_property
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

    @mask_property
    def _runs_by_document(self) -> IntArray:
        """The runs' numbers, ordered by document and within it by place."""
        return np.argsort(self._runs.document, kind="stable")

    @mask_property
    def _most_runs(self) -> int:
        """The most runs that one document is torn into."""
        document = self._runs.document
        return int(np.bincount(document[document >= 0]).max(initial=0))

    def _spans(self, view: View) -> Spans:
        runs = self._runs
        first = view.frame.q_start + view.row
        rows = [self._run_of(b, first, first + view.rows) for b in range(self._batch)]
        run = np.array(rows, np.int64).reshape(self._batch, 1, view.rows)  # -1 in no run
        if self._most_runs <= 1:
            # Cut a run to the view before its rows copy it; what is padding sees nothing.
            real = np.append(runs.document >= 0, False)
            low, high = (
                view.columns(np.where(real, np.append(ends, 0), 0))
                for ends in (runs.start, runs.stop)
            )
            return Spans.from_band(low[run], high[run], view.frame.kv_len, view.rows)
        document = np.append(runs.document, -1)[run]
        names, row_name = np.unique(document, return_inverse=True)
        # Of each document, the runs that lie in view: their starts and stops are both in order.
        order, far = self._runs_by_document, int(runs.stop.max(initial=0)) + 1
        base = runs.document[order] * far
        begin = np.searchsorted(base + runs.stop[order], names * far + view.first, side="right")
        end = np.searchsorted(base + runs.start[order], names * far + view.last + 1)
        held = np.where(names >= 0, np.maximum(end - begin, 0), 0)
        counts = held[row_name.ravel()]
        after = np.concatenate(([0], np.cumsum(counts)))
        nth = np.arange(after[-1]) - np.repeat(after[:-1], counts)
        member = order[np.repeat(begin[row_name.ravel()], counts) + nth]
        spans = view.ordered(counts, runs.start[member], runs.stop[member])
        return spans.reshape((self._batch, 1, view.rows))

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
        if not before and not after:
            return known
        return np.concatenate([np.full(before, -1), known, np.full(after, -1)])

    def _fit(self, frame: Frame) -> None:
        if self.ids is not None:
            count = int(self.ids.data.shape[1])
            fix = f"Pass kv_len={count} or pad the ids with -1."
            frame.check_tokens(count, "documents", f"ids has {count} columns", fix)
            return
        longest = max((sum(row) for row in self.lengths or ()), default=0)
        if longest > frame.tokens:
            raise FrameError(
                f"documents: lengths add up to {longest} but the frame has {frame.tokens} tokens. "
                f"Pass kv_len={longest} or more; what is left over counts as padding."
            )
        frame.check_tokens(frame.tokens, "documents", "positions count from 0", "")

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("documents", self._batch, 1),)

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._most_runs) if self._most_runs > 1 else 1

    def _extent(self) -> int | None:
        if self._most_runs > 1:
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
    if (lengths is not None) + (keep is not None) + (ids is not None) != 1:
        data = (("lengths", lengths), ("keep", keep), ("ids", ids))
        given = [name for name, value in data if value is not None]
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
        raise ArgumentError(
            f"documents: got {'neither lengths nor ids' if ids is None else 'lengths and ids'}. "
            "Give exactly one of the two."
        )
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
    if isinstance(lengths, (str, bytes, dict, set)) or not hasattr(lengths, "__iter__"):
        raise ArgumentError(
            f"{what} is {describe_type(lengths)}. Give a list of lengths a sequence."
        )
    try:
        rows = list(lengths)
    except TypeError:  # an array of no axes says it can be iterated, and then can't
        raise ArgumentError(f"{what} is one number. Give a list of lengths a sequence.") from None
    if rows and not any(isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) for row in rows):
        rows = [rows]
    return tuple(_read_row(row, what) for row in rows)


def _read_row(row: Any, what: str) -> tuple[int, ...]:
    plain = type(row) is list and all(type(number) is int for number in row)
    numbers = row if plain else read_ints(row, what)
    if not plain and numbers.ndim != 1:
        raise ArgumentError(f"{what} is not two levels deep. Give [[3, 2], [4]] for two sequences.")
    result = tuple(numbers if plain else numbers.tolist())
    if result and not 0 <= min(result) <= max(result) <= MAX_INT:
        raise ArgumentError(
            f"{what} holds a number below 0 or beyond 2**62. Give lengths of 0 or more."
        )
    return result


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
    return _token_rows(read_ints(ids, "padding: ids"), "padding: ids") != parse_int(
        pad_id, "padding: pad_id"
    )


def _name(document: int) -> str:
    return f"document {document}" if document >= 0 else "padding"
