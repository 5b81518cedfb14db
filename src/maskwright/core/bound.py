"""A bound mask: an expression on a frame. It answers everything, and builds as little as it can.

How its rows are read is told in `reading.py`.
"""

from __future__ import annotations

import importlib
import math
import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from maskwright.core.arrays import read_number, read_whole
from maskwright.core.coverage import covered_cells, read_index, read_stretch
from maskwright.core.frame import MOST_BYTES
from maskwright.core.living import new_number
from maskwright.core.mask import Cell, Mask, answer_torch
from maskwright.core.reading import Reading
from maskwright.core.region import Region
from maskwright.core.spans import Spans
from maskwright.core.tiles import Tiles, cut
from maskwright.errors import ArgumentError, FrameError, SizeError, TruthError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import numpy.typing as npt

    from maskwright.core.arrays import BoolArray, IntArray
    from maskwright.core.compare import Comparison
    from maskwright.core.frame import Frame
    from maskwright.core.why import Why

T = TypeVar("T")


class BoundMask:
    """A mask on a frame. Made by `Mask.on()`; immutable.

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
    _home: Frame
    _part: Region
    _number: int
    _cache: dict[Hashable, Any]
    _lock: threading.RLock

    def __init__(self, mask: Mask, frame: Frame, part: Region | None = None) -> None:
        # `frame` is what the mask's data fits; a part of it may be all that is held.
        whole = Region(frame, 0, frame.q_len, 0, frame.kv_len)
        self.__dict__.update(mask=mask, _home=frame, _part=whole if part is None else part)
        self.__dict__["_number"] = new_number(self)
        self.__dict__.update(_cache={}, _lock=threading.RLock())

    def __getstate__(self) -> tuple[Mask, Frame, Region]:
        return self.mask, self._home, self._part  # what was found out is found out again

    def __setstate__(self, state: tuple[Mask, Frame, Region]) -> None:
        BoundMask.__init__(self, *state)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"A bound mask does not change. Bind another one instead of setting {name}."
        )

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns the value stored under `key`, made on first use.

        >>> import maskwright as mw
        >>> mw.causal().on(3).cached("answer", lambda: 42)
        42
        """
        if key not in self._cache:
            with self._lock:
                if key not in self._cache:
                    self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoundMask):
            return NotImplemented
        return self.mask == other.mask and self._part == other._part

    def __hash__(self) -> int:
        return hash((self.mask, self._part))

    @cached_property
    def frame(self) -> Frame:
        """The sizes and positions of what is held here.

        >>> import maskwright as mw
        >>> mw.causal().on(8).rows(4, 6).frame
        Frame(q_len=2, kv_len=8, batch=1, heads=1, q_start=4, k_start=0)
        """
        part = self._part
        return replace(
            self._home,
            q_len=part.rows,
            kv_len=part.key_stop,
            q_start=self._home.q_start + part.row,
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys), with 1 where nothing varies: the shape of `dense()`.

        >>> import maskwright as mw
        >>> mw.causal().on(4, batch=8).shape
        (1, 1, 4, 4)
        """
        return (*self._planes, self._part.rows, self._part.key_stop)

    @cached_property
    def _planes(self) -> tuple[int, int]:
        return self.mask._planes(self._home)

    # ── the answers ───────────────────────────────────────────────────────────────────────────

    @cached_property
    def spans(self) -> Spans:
        """The key intervals of every row, read once and kept.

        >>> import maskwright as mw
        >>> mw.causal().on(3).spans.row(2)
        [(0, 3)]
        """
        parts, size = [], 0
        for spans in self._read():
            parts.append(spans)
            size += 16 * spans.intervals()
            if size > MOST_BYTES:
                raise SizeError(
                    f"spans would need more than {MOST_BYTES / 1e9:.1f} GB. "
                    "Use .count(), .tiles() or .rows(start, stop)."
                )
        return Spans.stack(parts, axis=2).freeze()

    def dense(self) -> BoolArray:
        """A bool array, True where a query may see a key.

        >>> import maskwright as mw
        >>> mw.window(back=0, ahead=1).on(2).dense().tolist()
        [[[[True, True], [False, True]]]]
        """
        size = math.prod(self.shape)
        if size > MOST_BYTES:
            raise SizeError(
                f"dense() would need {size / 1e9:.1f} GB for shape {self.shape}. "
                "Use .spans, .tiles() or .rows(start, stop)."
            )
        out = np.empty(self.shape, np.bool_)
        row = 0
        for spans in self._read():
            rows = spans.shape[2]
            spans.paint(out[:, :, row : row + rows])
            row += rows
        return out

    def tiles(self, q_block: int = 128, kv_block: int | None = None) -> Tiles:
        """Which blocks of the mask are empty, full or partial.

        >>> import maskwright as mw
        >>> mw.causal().on(1_000_000).tiles(128, 128).counts()["partial"]
        7813
        """
        tall = read_whole(q_block, "tiles: q_block", least=1)
        broad = tall if kv_block is None else read_whole(kv_block, "tiles: kv_block", least=1)
        return cut(self._read(tall), tall, broad)

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
        """How many cells of every tile may be seen, in one plane, or in some rows and keys of it.

        `rows` and `keys` are a first and one past the last, and tiles are counted from the first.

        >>> import maskwright as mw
        >>> mw.causal().on(6).coverage(3).tolist()
        [[6, 0], [9, 6]]
        >>> mw.window(back=1).on(1_000_000).coverage(keys=(9, 12), rows=(10, 12)).tolist()
        [[1, 1, 0], [0, 1, 1]]
        """
        tall = read_whole(q_block, "coverage: q_block", least=1)
        broad = tall if kv_block is None else read_whole(kv_block, "coverage: kv_block", least=1)
        b = read_index(batch, "batch", self._home.batch)
        h = read_index(head, "head", self._home.heads)
        across = read_stretch(rows, "rows", self._part.rows)
        along = read_stretch(keys, "keys", self._part.key_stop)
        size = 8 * math.ceil(len(across) / tall) * math.ceil(len(along) / broad)
        if size > MOST_BYTES:
            raise SizeError(
                f"coverage would need {size / 1e9:.1f} GB. Give larger blocks, or some rows and keys."
            )
        parts = self._reading.plane(b, h, across, along)
        return covered_cells(parts, len(across), along, tall, broad)

    def count(self) -> int:
        """How many cells may be seen, over all batch rows and heads.

        >>> import maskwright as mw
        >>> mw.causal().on(4, batch=2).count()
        20
        """
        batch, heads = self._planes
        shared = (self._home.batch if batch == 1 else 1) * (self._home.heads if heads == 1 else 1)
        return shared * sum(spans.cells() for spans in self._read())

    @property
    def density(self) -> float:
        """The share of cells that may be seen; 0 where there is no cell.

        >>> import maskwright as mw
        >>> mw.causal().on(3).density
        0.6666666666666666
        """
        return self.count() / self.frame.cells if self.frame.cells else 0.0

    def empty_rows(self) -> BoolArray:
        """True for every row that sees nothing, (batch, heads, queries).

        >>> import maskwright as mw
        >>> (mw.causal() & ~mw.keys([0])).on(3).empty_rows().tolist()
        [[[True, False, False]]]
        """
        return np.concatenate([spans.empty_rows() for spans in self._read()], axis=2)

    def unseen_keys(self) -> BoolArray:
        """True for every key that no query sees, (batch, heads, keys).

        >>> import maskwright as mw
        >>> mw.padding(lengths=[2]).on(4).unseen_keys().tolist()
        [[[False, False, True, True]]]
        """
        keys = self._part.key_stop
        change = np.zeros((*self._planes, keys + 1), np.int64)
        for spans in self._read():
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
        """Which term lets this cell through, or stops it. Indices are those of `dense()`.

        >>> import maskwright as mw
        >>> (mw.causal() & mw.padding(lengths=[3])).on(4).why(0, 2)
        query 0 may not see key 2: causal() stops it (2 > 0); padding(...) would allow it
        """
        from maskwright.core.why import explain

        sizes = (self._home.batch, self._home.heads, self._part.rows, self._part.key_stop)
        names = ("batch", "head", "query", "key")
        cell = [
            read_number(index, f"why: {name}")
            for name, index in zip(names, (batch, head, q, k), strict=True)
        ]
        for name, index, size in zip(names, cell, sizes, strict=True):
            if not 0 <= index < size:
                raise FrameError(
                    f"why: {name} {index} is not there. Give a number from 0 to {size - 1}."
                    if size
                    else f"why: the frame has no {name}. Bind the mask to a larger one."
                )
        b, h, row, key = cell
        return explain(self.mask, self._home, Cell(b, h, row + self.frame.q_start, key), row)

    def equals(self, other: Mask | BoundMask) -> Comparison:
        """May the same cells be seen in both? If not, in which cell do they differ first?

        >>> import maskwright as mw
        >>> mw.causal().on(3).equals(mw.causal() | mw.keys([0]))
        equal
        """
        from maskwright.core.compare import bind_beside, compare

        return compare(self, bind_beside(self, other))

    # ── parts ─────────────────────────────────────────────────────────────────────────────────

    def rows(self, start: int, stop: int, kv_len: int | None = None) -> BoundMask:
        """The rows `start` … `stop - 1`, and the first `kv_len` keys (all, if not given).

        Nothing is rebuilt: spans that are known already are cut, others are read when asked for.

        >>> import maskwright as mw
        >>> mw.causal().on(6).rows(2, 4, kv_len=4).dense().astype(int).tolist()
        [[[[1, 1, 1, 0], [1, 1, 1, 1]]]]
        """
        first = read_whole(start, "rows: start", least=0)
        last = read_whole(stop, "rows: stop", least=first)
        if last > self._part.rows:
            raise FrameError(
                f"rows: stop={last} but there are {self._part.rows} rows. Give a smaller stop."
            )
        keys = (
            self._part.key_stop if kv_len is None else read_whole(kv_len, "rows: kv_len", least=0)
        )
        if keys > self._part.key_stop:
            raise FrameError(
                f"rows: kv_len={keys} but there are {self._part.key_stop} keys. Give fewer."
            )
        top = self._part.row
        part = BoundMask(
            self.mask, self._home, Region(self._home, top + first, top + last, 0, keys)
        )
        part.__dict__["_planes"] = self._planes
        if "spans" in self.__dict__:
            part.__dict__["spans"] = self.spans.rows(first, last).clip(keys)
        return part

    def step(self, position: int, kv_len: int | None = None) -> BoundMask:
        """The one row whose query sits at `position`, as a decoding step needs it.

        With a cache that grows pass `kv_len=position + 1`; else all keys of the frame are there.

        >>> import maskwright as mw
        >>> mw.window(back=1).on(6).step(3, kv_len=4).dense().astype(int).tolist()
        [[[[0, 0, 1, 1]]]]
        """
        row = read_number(position, "step: position") - self.frame.q_start
        if not 0 <= row < self._part.rows:
            raise FrameError(
                f"step: no query sits at position {position}. Give one of "
                f"{self.frame.q_start} … {self.frame.q_stop - 1}."
            )
        return self.rows(row, row + 1, kv_len)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _reading(self) -> Reading:
        return Reading(self.mask, self._home, self._part, self._planes)

    def _read(self, block: int = 1, step: int | None = None) -> Iterator[Spans]:
        """Spans of some rows at a time; all at once where they are known already."""
        if "spans" in self.__dict__ and step is None:
            return iter((self.spans,))
        return self._reading.blocks(block, step)

    def __bool__(self) -> NoReturn:
        raise TruthError(
            "A bound mask is a set of cells, neither true nor false. Ask .count() or .equals(other)."
        )

    def __and__(self, other: object) -> NoReturn:
        raise ArgumentError(
            "A bound mask does not combine. Combine the masks, then bind: (a & b).on(n)."
        )

    __or__ = __sub__ = __xor__ = __rand__ = __ror__ = __rsub__ = __and__

    def __invert__(self) -> NoReturn:
        raise ArgumentError("A bound mask is not negated. Negate the mask, then bind: (~a).on(n).")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The dense array, so that numpy functions take a bound mask as it is."""
        if copy is False:
            raise ArgumentError("A bound mask holds no array to share. Leave copy out.")
        return self.dense() if dtype is None else self.dense().astype(dtype)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of a function of its own that was given a bound mask."""
        return answer_torch(func, args, kwargs or {})

    def __repr__(self) -> str:
        home, part = self._home, self._part
        whole = (
            f"({self.mask!r}).on({home.q_len}, kv_len={home.kv_len}, batch={home.batch}, "
            f"heads={home.heads}, q_start={home.q_start})"
        )
        if (part.rows, part.key_stop) == (home.q_len, home.kv_len):
            return whole
        return f"{whole}.rows({part.row}, {part.row_stop}, kv_len={part.key_stop})"

    def __str__(self) -> str:
        from maskwright.core.grid import render

        return render(self)

    def _repr_svg_(self) -> str | None:
        return self._drawn("svg_of")

    def _repr_html_(self) -> str | None:
        return self._drawn("html_of")

    def _drawn(self, how: str) -> str | None:
        """What a notebook shows; None, where it is too large, makes it print the text."""
        # Found by its name: what a mask is knows nothing of pictures.
        notebook = importlib.import_module("maskwright.draw.notebook")
        try:
            picture: str = getattr(notebook, how)(self)
        except SizeError:
            return None
        return picture
