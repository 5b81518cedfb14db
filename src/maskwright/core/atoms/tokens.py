"""Atoms made from token data: padding masks, and documents packed into one sequence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core import regions
from maskwright.core.atoms.index import IndexSet, max_runs
from maskwright.core.atoms.position import (
    length_of,
    merge_lengths,
    prefix_regions,
    read_lengths,
)
from maskwright.core.cache import mask_property
from maskwright.core.expr import Atom, KeyOnly, Mask, set_max_intervals
from maskwright.core.frame import BroadcastDims
from maskwright.core.nodes import Cell, FormulaWriter, Operator, Row, Sizes
from maskwright.core.spans import Spans
from maskwright.core.validate import (
    MAX_INT,
    FrozenArray,
    describe_type,
    parse_int,
    read_array,
    read_bools,
    read_ints,
    token_rows,
)
from maskwright.errors import ArgumentError, FrameError
from maskwright.messages import Reason

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.frame import Frame
    from maskwright.core.regions import SignedRegions
    from maskwright.core.validate import BoolArray, IntArray


@dataclass(frozen=True, repr=False)
class Padding(KeyOnly):
    """The tokens of each sequence that are not padding: the first n, or those with `keep`."""

    name = "padding"
    _rank = 6
    lengths: FrozenArray | None = None  # (batch,)
    keep: FrozenArray | None = None  # (batch, tokens)

    def __post_init__(self) -> None:
        set_max_intervals(self, 1 if self.keep is None else max_runs(self.keep.data))

    def _spans(self, view: View) -> Spans:
        if self.lengths is not None:
            return view.band(0, self.lengths.data[:, None, None])
        return self._kept.key_spans(view)

    def _row(self, row: Row) -> list[tuple[int, int]] | None:
        if self.lengths is not None:
            return row.cut(0, length_of(self.lengths, row.batch))
        return self._kept.key_row(row)

    def _fit(self, frame: Frame) -> None:
        if self.keep is not None:
            count = int(self.keep.data.shape[1])
            fix = f"Pass kv_len={count}, or pass a column per key."
            frame.check_keys(count, "padding", f"keep has {count} columns", fix)
            return
        assert self.lengths is not None
        longest = int(self.lengths.data.max(initial=0))
        if longest > max(frame.k_stop, 0):
            raise FrameError(
                f"padding: lengths contains {longest} but the frame has {frame.k_stop} keys. "
                f"Pass kv_len={longest} or more, or shorten the lengths."
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        data = self.keep if self.lengths is None else self.lengths
        assert data is not None
        return (BroadcastDims("padding", int(data.data.shape[0]), 1),)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:  # noqa: ARG002
        return self if operator == "&" else None

    @mask_property
    def _kept(self) -> IndexSet:
        return IndexSet(None, self.keep)

    def _sizes(self, exact: bool) -> Sizes:
        if self.keep is not None:
            return Sizes(None, int(self.keep.data.shape[1]))
        assert self.lengths is not None
        return Sizes(None, None if exact else int(self.lengths.data.max(initial=0)))

    def _intersection(self, other: Any) -> Mask | None:
        return self._merge(other, np.minimum, np.logical_and)

    def _union(self, other: Any) -> Mask | None:
        return self._merge(other, np.maximum, np.logical_or)

    def _merge(self, other: Padding, lengths: Any, flags: Any) -> Mask | None:
        if self.lengths is not None and other.lengths is not None:
            merged = merge_lengths(lengths, self.lengths, other.lengths)
            return None if merged is None else Padding(merged)
        counts = {mask.keep.data.shape[1] for mask in (self, other) if mask.keep is not None}
        if len(counts) != 1:
            return None
        (tokens,) = counts
        mine, theirs = self._flags(tokens), other._flags(tokens)
        if mine.shape[0] != theirs.shape[0] and 1 not in (mine.shape[0], theirs.shape[0]):
            return None
        both = flags(mine, theirs)
        return Padding(keep=FrozenArray(both)) if both.shape[0] else None

    def _flags(self, tokens: int) -> BoolArray:
        """(batch, tokens), True for tokens that are not padding."""
        if self.keep is not None:
            return self.keep.data
        assert self.lengths is not None
        flags: BoolArray = np.arange(tokens) < self.lengths.data[:, None]
        return flags

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        return self._reason_code(visible, key=cell.key, sequence=cell.batch)

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:  # noqa: ARG002
        if self.lengths is not None:
            return writer.before(col, self.lengths)
        assert self.keep is not None
        return f"({writer.lookup('keep', self.keep.data, col)} == 1)"

    def _regions(self, batch: int, head: int) -> SignedRegions:  # noqa: ARG002
        if self.lengths is not None:
            return prefix_regions(self.lengths, batch)
        return regions.of_rectangles(None, self._kept.of_batch(batch))


class Runs(NamedTuple):
    """Maximal runs of tokens of one document, over all sequences in order."""

    start: IntArray
    stop: IntArray
    document: IntArray  # a number per (sequence, document); -1 is padding
    offsets: IntArray  # (batch + 1,): where the runs of each sequence begin
    max_per_document: int  # runs of one document


@dataclass(frozen=True, repr=False)
class Documents(Atom):
    """The keys of the query's own document."""

    name = "documents"
    _rank = 7
    lengths: tuple[tuple[int, ...], ...] | None = None
    ids: FrozenArray | None = None  # (batch, tokens), -1 is padding

    def __post_init__(self) -> None:
        set_max_intervals(self, 1 if self.ids is None else self._runs.max_per_document)

    @property
    def _batch(self) -> int:
        return int(self.ids.data.shape[0]) if self.ids is not None else len(self.lengths or ())

    @mask_property
    def _runs(self) -> Runs:
        if self.ids is None:
            assert self.lengths is not None
            counts = [len(row) for row in self.lengths]
            size = np.array([n for row in self.lengths for n in row], np.int64)
            offsets = np.array([0, *accumulate(counts)])
            stop = np.cumsum(size)
            if len(counts) > 1:  # less the tokens before each sequence
                stop -= np.repeat(np.concatenate(([0], stop))[offsets[:-1]], counts)
            return Runs(stop - size, stop, np.arange(size.size), offsets, min(size.size, 1))
        ids = self.ids.data
        batch, tokens = ids.shape
        begins = np.ones(ids.shape, np.bool_)
        begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
        row, start = begins.nonzero()
        stop = np.empty_like(start)
        stop[:-1], stop[-1:] = start[1:], tokens
        if batch > 1:
            stop[stop == 0] = tokens
        value = ids[row, start]
        offsets = np.searchsorted(row, np.arange(batch + 1))
        is_token = value >= 0
        sequence, name = row[is_token], value[is_token]
        # Most data has one run per document.
        if ((name[1:] > name[:-1]) | (sequence[1:] != sequence[:-1])).all():
            document = np.where(is_token, np.arange(value.size), -1)
            return Runs(start, stop, document, offsets, min(name.size, 1))
        names, number = np.unique(value, return_inverse=True)
        pairs = np.unique(row * names.size + number, return_inverse=True)[1]
        document = np.where(is_token, pairs, -1)
        max_per_document = int(np.bincount(document[is_token]).max(initial=0))
        return Runs(start, stop, document, offsets, max_per_document)

    @mask_property
    def _runs_by_document(self) -> IntArray:
        """Indices of the runs, sorted by document and then by position."""
        return np.argsort(self._runs.document, kind="stable")

    def _spans(self, view: View) -> Spans:
        runs = self._runs
        if runs.max_per_document <= 1:
            return self._band(view)
        (run,) = self._per_row(view, -1, np.arange(runs.start.size))  # -1 in no run
        document = np.append(runs.document, -1)[run]
        names, row_name = np.unique(document, return_inverse=True)
        # The runs of each document that are in view: their starts and stops are both sorted.
        order, far = self._runs_by_document, int(runs.stop.max(initial=0)) + 1
        base = runs.document[order] * far
        begin = np.searchsorted(base + runs.stop[order], names * far + view.first, side="right")
        end = np.searchsorted(base + runs.start[order], names * far + view.last + 1)
        num_runs = np.where(names >= 0, np.maximum(end - begin, 0), 0)
        counts = num_runs[row_name.ravel()]
        after = np.concatenate(([0], np.cumsum(counts)))
        nth = np.arange(after[-1]) - np.repeat(after[:-1], counts)
        member = order[np.repeat(begin[row_name.ravel()], counts) + nth]
        spans = view.ordered(counts, runs.start[member], runs.stop[member])
        return spans.reshape((self._batch, 1, view.rows))

    def _band(self, view: View) -> Spans:
        """The spans if no document has two runs: those of the row's run."""
        runs = self._runs
        # A run is cut to the view before its rows copy it; rows of padding are fully masked.
        low, high = view.columns(runs.start), view.columns(runs.stop)
        if self.ids is not None:
            high = np.where(runs.document >= 0, high, low)
        low, high = self._per_row(view, view.key, low, high)
        return Spans.from_band(low, high, view.frame.kv_len, view.rows)

    def _per_row(self, view: View, missing: int, *of_run: IntArray) -> list[IntArray]:
        """What each array has for the run of a row's query, as (batch, 1, rows).

        `missing` is the number of queries in no run.
        """
        runs, first = self._runs, view.frame.q_start + view.row
        stop, rows = first + view.rows, []
        offsets = runs.offsets.tolist()
        low = np.minimum(np.maximum(runs.start, first), stop)
        num_queries = np.minimum(np.maximum(runs.stop, first), stop) - low
        for begin, end in pairwise(offsets):
            known = [np.repeat(array[begin:end], num_queries[begin:end]) for array in of_run]
            # There is no gap between runs, so only queries at the ends can be in none.
            before = (int(low[begin]) if begin < end else stop) - first
            after = view.rows - before - known[0].size
            if before or after:
                ends = np.full(before, missing), np.full(after, missing)
                known = [np.concatenate([ends[0], array, ends[1]]) for array in known]
            rows.append(known)
        shape = (len(rows), 1, view.rows)
        if len(rows) == 1:
            return [array.reshape(shape) for array in rows[0]]
        return [
            np.array([row[n] for row in rows], np.int64).reshape(shape) for n in range(len(of_run))
        ]

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
                f"Pass kv_len={longest} or more; the remaining tokens are padding."
            )
        frame.check_tokens(frame.tokens, "documents", "positions count from 0", "")

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("documents", self._batch, 1),)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:  # noqa: ARG002
        return self if operator != "~" else None

    def _extent(self) -> int | None:
        runs = self._runs
        return None if runs.max_per_document > 1 else int((runs.stop - runs.start).max(initial=0))

    def _transposed(self) -> Mask:
        return self

    def _sizes(self, exact: bool) -> Sizes:
        if self.ids is not None:
            return Sizes(None, int(self.ids.data.shape[1]))
        longest = max((sum(row) for row in self.lengths or ()), default=0)
        return Sizes(None, None if exact else longest)

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        query, key = (self._document(cell.batch, p) for p in (cell.query, cell.key))
        if visible:
            return self._reason_code(True, document=query)
        return self._reason_code(False, query=_document_name(query), key=_document_name(key))

    def _formula(self, writer: FormulaWriter, row: str, col: str) -> str:
        table = self._table(writer.tokens)
        query = writer.lookup("document", table, row)
        key = writer.lookup("document", table, col)
        return f"(({query} == {key}) & ({key} >= 0))"

    def _table(self, tokens: int) -> IntArray:
        """(batch, tokens): the document of each token, -1 for padding."""
        if self.ids is not None:
            return self.ids.data
        ids = np.full((self._batch, tokens), -1)
        for row, lengths in zip(ids, self.lengths or (), strict=True):
            row[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
        return ids

    def _regions(self, batch: int, head: int) -> SignedRegions | None:  # noqa: ARG002
        runs = self._runs
        if runs.max_per_document > 1:
            return None
        index = batch if self._batch > 1 else 0
        part = slice(int(runs.offsets[index]), int(runs.offsets[index + 1]))
        is_token = runs.document[part] >= 0
        intervals = np.stack([runs.start[part][is_token], runs.stop[part][is_token]], axis=1)
        if len(intervals) > regions.MAX_RECTANGLES:
            return None
        return regions.of_rectangles(intervals, intervals)

    def _document(self, batch: int, position: int) -> int:
        batch = batch if self._batch > 1 else 0
        if self.ids is not None:
            return int(self.ids.data[batch, position])
        assert self.lengths is not None
        ends = np.cumsum(self.lengths[batch], dtype=np.int64)
        index = int(np.searchsorted(ends, position, side="right"))
        return index if index < ends.size else -1


def padding(*, lengths: Any = None, keep: Any = None, ids: Any = None, pad_id: Any = None) -> Mask:
    """The padding mask: queries attend to the tokens of their sequence that are not padding.

    Padding masks keys only; the rows of padding queries remain. `p & p.T` masks both.

    Args:
        lengths: Number of tokens of each sequence, for padding on the right.
        keep: A boolean per token, (tokens,) or (batch, tokens), False for padding, for padding on
            any side.
        ids: Token ids, (tokens,) or (batch, tokens), together with `pad_id`.
        pad_id: The id of padding tokens.

    Returns:
        The mask.

    Raises:
        ArgumentError: If not exactly one of `lengths`, `keep` and `ids` is passed, or its values
            are of another type.

    >>> import maskwright as mw
    >>> mw.padding(lengths=[1, 3]).on(3).spans.row(0, batch=1)
    [(0, 3)]
    >>> mw.padding(ids=[[0, 5, 7]], pad_id=0)
    padding(keep=[[0, 1, 1]])
    """
    if (lengths is not None) + (keep is not None) + (ids is not None) != 1:
        data = (("lengths", lengths), ("keep", keep), ("ids", ids))
        names = [name for name, value in data if value is not None]
        raise ArgumentError(
            f"padding: got {' and '.join(names) or 'no data'}. "
            "Pass exactly one of lengths, keep, or ids with pad_id."
        )
    if (ids is None) != (pad_id is None):
        raise ArgumentError(
            "padding: ids and pad_id must be passed together. Pass both, or neither."
        )
    if lengths is not None:
        return Padding(FrozenArray(read_lengths(lengths, "padding")))
    if ids is not None:
        kept = _read_tokens(ids, pad_id)
    else:
        flags = read_bools(
            keep,
            "padding: keep",
            instead="Pass True or 1 for tokens to keep: keep=(mask != 0) for a mask of 0.0 and 1.0, "
            "keep=(mask == 0) for an additive mask.",
        )
        kept = token_rows(flags, "padding: keep")
    if not kept.shape[0]:
        return Padding(FrozenArray(np.zeros(0, np.int64)))
    return Padding(keep=FrozenArray(kept))


def documents(*, lengths: Any = None, ids: Any = None) -> Mask:
    """Packed sequences: a query attends to the keys of its own document.

    Padding tokens attend to no key, and no query attends to them.

    Args:
        lengths: Lengths of the documents in each sequence; the remaining tokens are padding.
        ids: The document of each token, (tokens,) or (batch, tokens), -1 for padding.

    Returns:
        The mask.

    Raises:
        ArgumentError: If not exactly one of the two is passed, or its values are of another type.

    >>> import maskwright as mw
    >>> mw.documents(lengths=[[2, 1]]).on(4).dense().astype(int).tolist()
    [[[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]]
    >>> mw.documents(ids=[[0, 0, 1, -1]]).on(4).equals(mw.documents(lengths=[[2, 1]]))
    equal
    """
    if (lengths is None) == (ids is None):
        raise ArgumentError(
            f"documents: got {'neither lengths nor ids' if ids is None else 'lengths and ids'}. "
            "Pass exactly one of the two."
        )
    if lengths is not None:
        return Documents(_read_ragged(lengths))
    numbers = token_rows(read_ints(ids, "documents: ids"), "documents: ids")
    if numbers.size and int(numbers.min()) < -1:
        raise ArgumentError(
            f"documents: ids contains {int(numbers.min())}. Expected 0 or more, or -1 for padding."
        )
    if not numbers.shape[0]:
        return Documents(())
    return Documents(ids=FrozenArray(numbers))


def _read_ragged(lengths: Any) -> tuple[tuple[int, ...], ...]:
    what = "documents: lengths"
    if isinstance(lengths, (str, bytes, dict, set)) or not hasattr(lengths, "__iter__"):
        raise ArgumentError(
            f"{what} is {describe_type(lengths)}. Pass a list of lengths per sequence."
        )
    try:
        rows = list(lengths)
    except TypeError:  # a 0-d array has __iter__, which raises
        raise ArgumentError(f"{what} is one number. Pass a list of lengths per sequence.") from None
    if rows and not any(isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) for row in rows):
        rows = [rows]
    return tuple(_read_row(row, what) for row in rows)


def _read_row(row: Any, what: str) -> tuple[int, ...]:
    plain = type(row) is list and all(type(number) is int for number in row)
    numbers = row if plain else read_ints(row, what)
    if not plain and numbers.ndim != 1:
        raise ArgumentError(f"{what} is not a list of lists. Pass [[3, 2], [4]] for two sequences.")
    result = tuple(numbers if plain else numbers.tolist())
    if result and not 0 <= min(result) <= max(result) <= MAX_INT:
        raise ArgumentError(
            f"{what} contains a number below 0 or beyond 2**62. Pass lengths of 0 or more."
        )
    return result


def _read_tokens(ids: Any, pad_id: Any) -> Any:
    """(batch, tokens): True for tokens other than `pad_id`. Tokens may be strings."""
    if isinstance(pad_id, str):
        words = read_array(ids, "padding: ids")
        if words.dtype.kind != "U":
            raise ArgumentError(
                f"padding: pad_id={pad_id!r} is a string but ids has dtype {words.dtype}. "
                "Pass both as strings, or both as integers."
            )
        return token_rows(words, "padding: ids") != pad_id
    return token_rows(read_ints(ids, "padding: ids"), "padding: ids") != parse_int(
        pad_id, "padding: pad_id"
    )


def _document_name(document: int) -> Reason:
    if document < 0:
        return Reason("documents.padding")
    return Reason("documents.document", {"document": document})
