"""Bound masks: a mask expression on a frame, with everything that can be computed from it."""

from __future__ import annotations

import math
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import numpy as np

from maskwright.core.cache import MISSING
from maskwright.core.evaluate import RowReader, View, row_intervals
from maskwright.core.expr import Mask, tensor_hint
from maskwright.core.expression import BoundExpression, drawn
from maskwright.core.frame import MAX_SIZE, Frame, check_size, on_call
from maskwright.core.interval_ops import CSR
from maskwright.core.mask_registry import HANDLES, MASKS, outside_graphs
from maskwright.core.nodes import Cell
from maskwright.core.spans import Spans
from maskwright.core.tiles import Tiles, covered_cells, cut, read_index, read_range
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, FrameError, TruthError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import numpy.typing as npt

    from maskwright.core.compare import Comparison
    from maskwright.core.explain import Why
    from maskwright.core.validate import BoolArray, IntArray

ValueT = TypeVar("ValueT")


class BoundMask(BoundExpression):
    """A mask bound to a size. Returned by `Mask.on()`; immutable.

    >>> import maskwright as mw
    >>> bound = (mw.causal() & mw.padding(lengths=[2, 3])).on(3)
    >>> bound
    (causal() & padding(lengths=[2, 3])).on(3, kv_len=3, batch=2, heads=1, q_start=0)
    >>> print(bound)
    causal() & padding(lengths=[2, 3])
    3 queries × 3 keys, batch 2, density 0.61
    batch 0
    ■ · ·
    ■ ■ ·
    ■ ■ ·
    batch 1
    ■ · ·
    ■ ■ ·
    ■ ■ ■
    """

    mask: Mask
    _home: Frame  # the frame that the mask's data fits
    _part: View  # the rows and keys of it that are kept
    _frame: Frame
    _known_planes: tuple[int, int] | None  # None if a predicate has to be evaluated for them
    _handle: int  # in the mask registry; a plain attribute, which torch.compile can read
    _values: dict[Hashable, Any]  # of cached()
    _lock: RLock

    def __init__(
        self,
        mask: Mask,
        frame: Frame,
        part: View | None = None,
        planes: tuple[int, int] | None = None,
    ) -> None:
        part_frame = frame
        if part is None:
            part = View(frame, 0, frame.q_len, 0, frame.kv_len)
        else:
            rows, start = part.row_stop - part.row, frame.q_start + part.row
            part_frame = Frame(rows, part.key_stop, frame.batch, frame.heads, start, frame.k_start)
        handle = next(HANDLES)
        state = self.__dict__
        state["mask"], state["_home"], state["_part"], state["_frame"] = (
            mask,
            frame,
            part,
            part_frame,
        )
        state["_known_planes"], state["_handle"] = planes, handle
        state["_values"], state["_lock"] = {}, RLock()
        MASKS[handle] = self

    def __getstate__(self) -> tuple[Mask, Frame, View]:
        return self.mask, self._home, self._part  # without the cache

    def __setstate__(self, state: tuple[Mask, Frame, View]) -> None:
        BoundMask.__init__(self, *state)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"A bound mask is immutable: cannot set {name}. Bind the mask again with other sizes."
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = tensor_hint(name).replace(", q_len=...", "")
        raise AttributeError(f"A bound mask has no attribute {name}.{hint}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMask):
            return NotImplemented
        return self.mask == other.mask and self._part == other._part

    def __hash__(self) -> int:
        return hash((self.mask, self._part))

    def cached(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Returns the cached value of `key`, calling `make` the first time.

        Everything derived from a bound mask is kept here: spans, plans, buffers of kernels. `make`
        is called once even if several threads ask at the same time, and may itself call `cached`.
        Copies and pickles do not contain the cache.

        Args:
            key: A hashable key, such as `("plan", dtype)`.
            make: Computes the value.

        >>> import maskwright as mw
        >>> bound = mw.causal().on(4)
        >>> bound.cached("visible", bound.count)
        10
        >>> bound.has_cached("visible")
        True
        """
        value: ValueT = self._values.get(key, MISSING)
        if value is not MISSING:
            return value
        with self._lock:  # reentrant: one value may be computed from another
            value = self._values.get(key, MISSING)
            if value is MISSING:
                value = make()
                value = self._values.setdefault(key, value)
        return value

    def has_cached(self, key: Hashable) -> bool:
        """Whether `cached` has a value for `key`.

        >>> import maskwright as mw
        >>> mw.causal().on(4).has_cached("spans")
        False
        """
        return key in self._values

    @property
    def frame(self) -> Frame:
        """The sizes and positions of this mask's queries and keys.

        >>> import maskwright as mw
        >>> mw.causal().on(8).rows(4, 6).frame
        Frame(q_len=2, kv_len=8, batch=1, heads=1, q_start=4, k_start=0)
        """
        return self._frame

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys), with 1 where nothing varies: the shape of `dense()`.

        >>> import maskwright as mw
        >>> mw.causal().on(4, batch=8).shape
        (1, 1, 4, 4)
        """
        return (*self._planes, self._frame.q_len, self._frame.kv_len)

    @property
    def _planes(self) -> tuple[int, int]:
        """Number of batch rows and heads that differ, 1 where nothing varies."""
        if self._known_planes is not None:
            return self._known_planes
        return self.cached("planes", lambda: self.mask._planes(self._home))

    # ── what is computed ───────────────────────────────────────────────────────────────────────────

    @property
    def spans(self) -> Spans:
        """The key intervals of each query row, computed on first use.

        >>> import maskwright as mw
        >>> mw.causal().on(3).spans.row(2)
        [(0, 3)]
        """
        return self.cached("spans", self._make_spans)

    def _make_spans(self) -> Spans:
        row_spans = self._one_row()
        if row_spans is not None:
            return row_spans
        parts: list[Spans] = []
        size = 0
        for spans in self._reader.blocks():
            parts.append(spans)
            size += 16 * spans.intervals()
            check_size("spans", size, ".count(), .tiles() or .rows(start, stop)")
        return (parts[0] if len(parts) == 1 else Spans.stack(parts, axis=2)).freeze()

    def _one_row(self) -> Spans | None:
        """The spans of a decode step, without numpy; None if the mask does not support it."""
        intervals = self._row_intervals()
        if intervals is None:
            return None
        offsets, starts, stops = intervals
        ends = np.array(offsets + starts + stops)
        count, size = len(offsets), len(starts)
        flat = CSR(ends[:count], ends[count : count + size], ends[count + size :])
        return Spans((*self._planes, 1), self._part.key_stop, flat=flat).freeze()

    def _row_intervals(self) -> tuple[list[int], list[int], list[int]] | None:
        """The spans of a decode step as lists: offsets, starts and stops. None as `_one_row`."""
        return row_intervals(self.mask, self._part, self._planes)

    def dense(self) -> BoolArray:
        """A boolean array, True where the query attends to the key.

        >>> import maskwright as mw
        >>> mw.window(back=0, ahead=1).on(2).dense().tolist()
        [[[[True, True], [False, True]]]]
        """
        check_size("dense()", math.prod(self.shape), ".spans, .tiles() or .rows(start, stop)")
        out = np.empty(self.shape, np.bool_)
        row = 0
        for spans in self._blocks():
            rows = spans.shape[2]
            spans.write_dense(out[:, :, row : row + rows])
            row += rows
        return out

    def tiles(self, q_block: int = 128, kv_block: int | None = None) -> Tiles:
        """Classifies the tiles of the mask as empty, full or partial.

        >>> import maskwright as mw
        >>> mw.causal().on(1_000_000).tiles(128, 128).counts()["partial"]
        7813
        """
        tall = parse_int(q_block, "tiles: q_block", minimum=1)
        broad = tall if kv_block is None else parse_int(kv_block, "tiles: kv_block", minimum=1)
        rows = math.prod(self._planes) * math.ceil(self._part.rows / tall)
        check_size("tiles()", 32 * rows, "larger blocks or .rows(start, stop)")
        return cut(self._blocks(tall), tall, broad)

    def coverage(
        self,
        q_block: int = 1,
        kv_block: int | None = None,
        *,
        batch: int = 0,
        head: int = 0,
        rows: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
    ) -> IntArray:
        """Number of visible cells per tile, for one batch row and head.

        `rows` and `keys` restrict it to (start, stop) ranges; tiles begin at their starts.

        >>> import maskwright as mw
        >>> mw.causal().on(6).coverage(3).tolist()
        [[6, 0], [9, 6]]
        >>> mw.window(back=1).on(1_000_000).coverage(keys=(9, 12), rows=(10, 12)).tolist()
        [[1, 1, 0], [0, 1, 1]]
        """
        tall = parse_int(q_block, "coverage: q_block", minimum=1)
        broad = tall if kv_block is None else parse_int(kv_block, "coverage: kv_block", minimum=1)
        b = read_index(batch, "batch", self._home.batch)
        h = read_index(head, "head", self._home.heads)
        across = read_range(rows, "rows", self._part.rows)
        along = read_range(keys, "keys", self._part.key_stop)
        size = 8 * math.ceil(len(across) / tall) * math.ceil(len(along) / broad)
        check_size("coverage", size, "larger blocks, or a range of rows and keys")
        parts = self._reader.plane(b, h, across, along)
        return covered_cells(parts, len(across), along, tall, broad)

    def count(self) -> int:
        """Number of visible cells over all batch rows and heads.

        >>> import maskwright as mw
        >>> mw.causal().on(4, batch=2).count()
        20
        """
        batch, heads = self._planes
        shared = (self._home.batch if batch == 1 else 1) * (self._home.heads if heads == 1 else 1)
        if "spans" in self._values:
            return shared * self.spans.cells()
        return shared * self._reader.count_cells()

    @property
    def density(self) -> float:
        """Fraction of cells that are visible; 0 if there are no cells.

        >>> import maskwright as mw
        >>> mw.causal().on(3).density
        0.6666666666666666
        """
        return self.count() / self.frame.cells if self.frame.cells else 0.0

    def empty_rows(self) -> BoolArray:
        """True for each fully masked row, (batch, heads, queries).

        >>> import maskwright as mw
        >>> (mw.causal() & ~mw.keys([0])).on(3).empty_rows().tolist()
        [[[True, False, False]]]
        """
        check_size("empty_rows()", math.prod(self.shape[:3]), ".rows(start, stop)")
        parts = []
        for pieces in self._pieces():
            empty = next(pieces).empty_rows()
            for spans in pieces:
                empty = empty & spans.empty_rows()
            parts.append(empty)
        return np.concatenate(parts, axis=2)

    def unseen_keys(self) -> BoolArray:
        """True for each key that no query attends to, (batch, heads, keys).

        >>> import maskwright as mw
        >>> mw.padding(lengths=[2]).on(4).unseen_keys().tolist()
        [[[False, False, True, True]]]
        """
        keys = self._part.key_stop
        check_size("unseen_keys()", 32 * math.prod(self._planes) * (keys + 1), "fewer keys")
        change = np.zeros((*self._planes, keys + 1), np.int64)
        for spans in chain.from_iterable(self._pieces()):
            b, h, rows = spans.shape
            offsets, starts, stops = spans.flat
            row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
            plane = row // max(rows, 1) * (keys + 1)
            size = b * h * (keys + 1)
            edges = np.bincount(plane + starts, minlength=size)
            edges -= np.bincount(plane + stops, minlength=size)
            change += edges.reshape(b, h, keys + 1)
        return np.equal(np.cumsum(change, axis=2)[:, :, :-1], 0)

    def why(self, q: int, k: int, batch: int = 0, head: int = 0) -> Why:
        """Explains which terms make this cell visible or masked. Indices are those of `dense()`.

        >>> import maskwright as mw
        >>> (mw.causal() & mw.padding(lengths=[3])).on(4).why(0, 2)
        query 0 does not attend to key 2: causal() masks it (2 > 0); padding(...) would allow it
        """
        from maskwright.core.explain import explain

        sizes = (self._home.batch, self._home.heads, self._part.rows, self._part.key_stop)
        names = ("batch", "head", "query", "key")
        cell = [
            parse_int(index, f"why: {name}")
            for name, index in zip(names, (batch, head, q, k), strict=True)
        ]
        for name, index, size in zip(names, cell, sizes, strict=True):
            if not 0 <= index < size:
                raise FrameError(
                    f"why: {name} {index} is out of range. Expected 0 to {size - 1}."
                    if size
                    else f"why: the frame has no {name}. Bind the mask to a larger one."
                )
        b, h, row, key = cell
        return explain(self.mask, self._home, Cell(b, h, row + self.frame.q_start, key), row)

    def equals(self, other: Mask | BoundMask) -> Comparison:
        """Compares the visible cells of two masks, and finds the first cell in which they differ.

        >>> import maskwright as mw
        >>> mw.causal().on(3).equals(mw.causal() | mw.keys([0]))
        equal
        """
        from maskwright.core.compare import bind_like, compare

        return compare(self, bind_like(self, other))

    # ── parts ─────────────────────────────────────────────────────────────────────────────────

    def rows(self, start: int, stop: int, kv_len: int | None = None) -> BoundMask:
        """The rows `start` … `stop - 1` with the first `kv_len` keys (default: all).

        Spans that have been computed are sliced; otherwise they are computed on first use.

        >>> import maskwright as mw
        >>> mw.causal().on(6).rows(2, 4, kv_len=4).dense().astype(int).tolist()
        [[[[1, 1, 1, 0], [1, 1, 1, 1]]]]
        """
        first = parse_int(start, "rows: start", minimum=0)
        last = parse_int(stop, "rows: stop", minimum=first)
        if last > self._part.rows:
            raise FrameError(
                f"rows: stop={last} but there are {self._part.rows} rows. Pass a smaller stop."
            )
        keys = (
            self._part.key_stop if kv_len is None else parse_int(kv_len, "rows: kv_len", minimum=0)
        )
        if keys > self._part.key_stop:
            raise FrameError(
                f"rows: kv_len={keys} but there are {self._part.key_stop} keys. Pass a smaller kv_len."
            )
        top = self._part.row
        view = View(self._home, top + first, top + last, 0, keys)
        part = BoundMask(self.mask, self._home, view, self._planes)
        if self.has_cached("spans"):
            spans = part._one_row() or self.spans.rows(first, last).clip(keys).freeze()
            part.cached("spans", lambda: spans)
        return part

    def step(self, position: int, kv_len: int | None = None) -> BoundMask:
        """The row of the query at `position`, for one decode step.

        Pass `kv_len=position + 1` with a growing KV cache; by default all keys are included.

        >>> import maskwright as mw
        >>> mw.window(back=1).on(6).step(3, kv_len=4).dense().astype(int).tolist()
        [[[[0, 0, 1, 1]]]]
        """
        row = parse_int(position, "step: position") - self.frame.q_start
        if not 0 <= row < self._part.rows:
            raise FrameError(
                f"step: there is no query at position {position}. Expected "
                f"{self.frame.q_start} … {self.frame.q_stop - 1}."
            )
        return self.rows(row, row + 1, kv_len)

    def next(self) -> BoundMask:
        """The row of the next query, after the last one of this mask: the next decode step.

        There is one more key, as in a KV cache that grows. If there are keys after the last query
        already, as in a static cache, their number stays. The cost of a step does not depend on
        the number of keys.

        Data of tokens, such as `padding(keep=...)`, has to include the new token: bind the mask to
        the maximum length, and take the first step of that.

        Returns:
            The bound mask of one query.

        Raises:
            FrameError: If the mask's data does not include the next token.

        >>> import maskwright as mw
        >>> prefill = mw.window(back=2).on(4)
        >>> prefill.next()
        (window(back=2)).on(1, kv_len=5, batch=1, heads=1, q_start=4)
        >>> prefill.next().next().spans.row(0)
        [(3, 6)]
        >>> left = mw.causal() & mw.padding(keep=[[0, 1, 1, 1, 1]])
        >>> left.on(5).step(2, kv_len=3).next().spans.row(0)
        [(1, 4)]
        """
        home, part, frame = self._home, self._part, self._frame
        mask, position = self.mask, frame.q_start + frame.q_len
        row, keys = part.row_stop, part.key_stop + (part.key_stop <= position)
        if row < home.q_len and keys <= home.kv_len:
            return BoundMask(mask, home, View(home, row, row + 1, 0, keys), self._planes)
        try:
            if keys > MAX_SIZE or position > MAX_SIZE or not mask._dims_known:
                return mask.on(1, keys, home.batch, home.heads, position)
            step = Frame(1, keys, home.batch, home.heads, position)  # all of it has been checked
            mask._fit(step)
            return BoundMask(mask, step, planes=self._known_planes)
        except FrameError as error:
            raise FrameError(
                f"next: {error} Alternatively, bind the mask to the maximum length, and start with "
                "mask.on(max_len).step(position, kv_len=position + 1)."
            ) from None

    # ── evaluation ────────────────────────────────────────────────────────────────────────────

    @property
    def _reader(self) -> RowReader:
        return RowReader(self.mask, self._home, self._part, self._planes)

    def _blocks(self, block: int = 1, step: int | None = None) -> Iterator[Spans]:
        """Spans of a block of rows at a time; all at once if they have been computed."""
        if step is None and "spans" in self._values:
            return iter((self.spans,))
        return self._reader.blocks(block, step)

    def _pieces(self) -> Iterator[Iterator[Spans]]:
        """As `_blocks`, but the keys of rows with very many intervals are split, too."""
        if "spans" in self._values:
            return iter((iter((self.spans,)),))
        return self._reader.pieces()

    def __bool__(self) -> NoReturn:
        raise TruthError("A bound mask has no boolean value. Use .count() or .equals(other).")

    def __and__(self, other: object) -> NoReturn:
        raise ArgumentError(
            "Bound masks cannot be combined. Combine the masks, then bind: (a & b).on(n)."
        )

    __or__ = __sub__ = __xor__ = __rand__ = __ror__ = __rsub__ = __and__

    def __invert__(self) -> NoReturn:
        raise ArgumentError(
            "A bound mask cannot be negated. Negate the mask, then bind: (~a).on(n)."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The dense array, so that numpy functions accept bound masks."""
        if copy is False:
            raise ArgumentError(
                "A bound mask has no array to share: copy=False is not supported. Omit copy."
            )
        return self.dense() if dtype is None else self.dense().astype(dtype)

    # Called by torch in place of a function of its own that received a mask; set by the package
    __torch_function__: ClassVar[Any]

    def __repr__(self) -> str:
        home, part = self._home, self._part
        whole = f"({self.mask!r}).{on_call(home)}"
        if (part.rows, part.key_stop) == (home.q_len, home.kv_len):
            return whole
        return f"{whole}.rows({part.row}, {part.row_stop}, kv_len={part.key_stop})"

    def __str__(self) -> str:
        from maskwright.core.ascii import render

        return render(self)

    def _repr_html_(self) -> str | None:
        return drawn(self, "notebook_html")


Mask._bound_class = BoundMask
outside_graphs(BoundMask.__init__)
