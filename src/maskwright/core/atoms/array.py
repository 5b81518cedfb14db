"""Atoms given cell by cell: boolean arrays, block maps, and predicates."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.atoms.index import max_runs
from maskwright.core.atoms.position import Chunks
from maskwright.core.cache import mask_property
from maskwright.core.evaluate import MAX_CELLS, View
from maskwright.core.expr import Atom, Mask
from maskwright.core.frame import BroadcastDims, Frame
from maskwright.core.nodes import Operator, Sizes
from maskwright.core.predicate import Positions, call, call_with_arrays, frameworks
from maskwright.core.spans import Spans
from maskwright.core.validate import (
    FrozenArray,
    describe_type,
    parse_int,
    read_bools,
    read_ints,
)
from maskwright.errors import ArgumentError, FrameError, SizeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maskwright.core.validate import BoolArray

MAX_PLANES: Final = 2**24  # batch × heads × rows for which a predicate is evaluated at once


class _Stored(Atom):
    """Base class of `dense` and `blocks`, whose first argument is an array of four axes."""

    @property
    def _stored(self) -> FrozenArray:
        array: FrozenArray = getattr(self, self.positional[0])
        return array

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        batch, heads = self._stored.data.shape[:2]
        return (BroadcastDims(f"{self.name}: {self.positional[0]}", batch, heads),)

    @mask_property
    def _max_runs(self) -> int:
        data = self._stored.data
        return max_runs(data.reshape(-1, data.shape[3])) if data.size else 0

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._max_runs)


@dataclass(frozen=True, repr=False)
class Dense(_Stored):
    """The cells that are True in an array, which is broadcast to the frame."""

    name = "dense"
    positional = ("array",)
    _rank = 14
    array: FrozenArray  # (batch or 1, heads or 1, queries or 1, keys or 1)

    def _spans(self, view: View) -> Spans:
        cells = self.array.data
        batch, heads, q_len, kv_len = cells.shape
        if q_len > 1:
            cells = cells[:, :, view.row : view.row_stop]
        if kv_len == 1:
            owner = np.flatnonzero(cells)
            low, high = np.full_like(owner, view.key), np.full_like(owner, view.key_stop)
            spans = Spans.from_pieces(cells.shape[:3], view.frame.kv_len, owner, low, high)
        else:
            spans = view.cells(cells[..., view.key : view.key_stop])
        if q_len == 1:
            planes = np.arange(batch * heads).reshape(batch, heads, 1)
            spans = spans.take(planes.repeat(view.rows, axis=2))
        return spans

    def _fit(self, frame: Frame) -> None:
        q_len, kv_len = self.array.data.shape[2:]
        if q_len not in (1, frame.q_len) or kv_len not in (1, frame.kv_len):
            sizes = {"q_len": q_len, "kv_len": kv_len}
            fix = ", ".join(f"{name}={size}" for name, size in sizes.items() if size != 1)
            raise FrameError(
                f"dense: the array has {q_len} × {kv_len} cells but the frame "
                f"{frame.q_len} × {frame.kv_len}. Pass {fix}."
            )

    def _transposed(self) -> Mask:
        return Dense(FrozenArray(self.array.data.swapaxes(2, 3)))

    def _sizes(self, exact: bool) -> Sizes:  # noqa: ARG002
        q_len, kv_len = self.array.data.shape[2:]
        return Sizes(None if q_len == 1 else q_len, None if kv_len == 1 else kv_len)

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, _array_arguments("array", self.array)


@dataclass(frozen=True, repr=False)
class Blocks(_Stored):
    """The blocks that are True in a map."""

    name = "blocks"
    positional = ("map",)
    _rank = 13
    map: FrozenArray  # (batch, heads, query blocks, key blocks)
    q_size: int
    kv_size: int

    @mask_property
    def _map_spans(self) -> Spans:
        """The spans of the map, with blocks as rows and keys."""
        tall, broad = self.map.data.shape[2:]
        return View(Frame(tall, broad), 0, tall, 0, broad).cells(self.map.data)

    def _spans(self, view: View) -> Spans:
        line = np.arange(view.row, view.row_stop) // self.q_size
        first, stop = (int(line[0]), int(line[-1]) + 1) if line.size else (0, 0)
        blocks = self._map_spans.rows(first, stop)  # one row per row of blocks
        offsets, starts, stops = blocks.flat
        owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        low = np.clip(starts * self.kv_size, view.key, view.key_stop)
        high = np.clip(stops * self.kv_size, view.key, view.key_stop)
        cut = Spans.from_pieces(blocks.shape, view.frame.kv_len, owner, low, high)
        b, h, lines = blocks.shape
        number = np.arange(b * h * lines).reshape(b, h, lines)
        return cut.take(number[:, :, line - first])

    def _fit(self, frame: Frame) -> None:
        tall, broad = self.map.data.shape[2:]
        need = math.ceil(frame.q_len / self.q_size), math.ceil(frame.kv_len / self.kv_size)
        if (tall, broad) != need:
            raise FrameError(
                f"blocks: the map has {tall} × {broad} blocks of {self.q_size} × {self.kv_size} "
                f"but the frame needs {need[0]} × {need[1]}. Pass a map that covers the frame."
            )

    def _transposed(self) -> Mask:
        return Blocks(FrozenArray(self.map.data.swapaxes(2, 3)), self.kv_size, self.q_size)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:
        # Block diffusion: each half has the tokens of the text.
        blocks = self.map.data
        count = blocks.shape[3] // 2
        if operator != "&" or frame.q_start or self.q_size != self.kv_size or count < 2:
            return None
        if blocks.shape[2:] != (2 * count, 2 * count):
            return None
        same, earlier = np.eye(count, dtype=bool), np.tri(count, k=-1, dtype=bool)
        halves = np.block([[same, earlier], [np.zeros_like(same), same | earlier]])
        return Chunks(count * self.q_size) if bool((blocks == halves).all()) else None

    def _call(self) -> tuple[str, dict[str, Any]]:
        size = self.q_size if self.q_size == self.kv_size else (self.q_size, self.kv_size)
        arguments = _array_arguments("map", self.map)
        return self.name, {"map": arguments.pop("map"), "size": size, **arguments}


@dataclass(frozen=True, repr=False)
class Where(Atom):
    """The cells for which a vectorised predicate returns True."""

    name = "where"
    serializable = False
    _dims_known = False
    fn: Callable[[Any, Any, Any, Any], Any]
    arrays: bool = False  # called with arrays only, whatever it uses

    def _spans(self, view: View) -> Spans:
        if not view.frame.q_len or not view.frame.kv_len:
            return view.nothing()  # there is no position to call the predicate with
        cells = max(1, view.frame.batch * view.frame.heads * (view.key_stop - view.key))
        rows = max(1, MAX_CELLS // cells)
        stops = range(view.row, max(view.row_stop, view.row + 1), rows)
        parts = [view._replace(row=row, row_stop=min(row + rows, view.row_stop)) for row in stops]
        return Spans.stack([part.cells(self._evaluate(part)) for part in parts], axis=2)

    @mask_property
    def _exchanged(self) -> Where:
        """The mask of the predicate with queries and keys exchanged."""
        fn = self.fn  # not self, which would be a reference cycle
        return Where(lambda b, h, q, k: fn(b, h, k, q), self.arrays)

    def _spans_transposed(self, view: View) -> Spans:
        return self._exchanged._spans(view)

    def _planes(self, frame: Frame) -> tuple[int, int]:
        if not frame.q_len or not frame.kv_len:
            return 1, 1
        batch, heads = self._evaluate(View(frame, 0, 1, 0, 1)).shape[:2]
        return batch, heads

    def _evaluate(self, view: View) -> BoolArray:
        """The predicate's result, (batch or 1, heads or 1, rows, keys)."""
        if view.frame.batch * view.frame.heads * view.rows > MAX_PLANES:
            raise SizeError(
                f"{self._text()}: a predicate is evaluated for each of batch × heads = "
                f"{view.frame.batch * view.frame.heads} planes, at most {MAX_PLANES}. "
                "Bind a smaller batch."
            )
        if not view.rows or view.key == view.key_stop:
            planes = self._planes(view.frame)
            return np.zeros((*planes, view.rows, view.key_stop - view.key), np.bool_)
        frame, text = view.frame, self._text()
        positions = Positions(frame.batch, frame.heads, view.queries, view.keys)
        if self.arrays:
            return call_with_arrays(self.fn, positions, text)
        sample = Positions(
            min(frame.batch, 2), min(frame.heads, 3), view.queries[:4], view.keys[:5]
        )
        key = ("frameworks", "torch" in sys.modules, *(size > 1 for size in sample.shape))
        return call(
            self.fn, positions, text, self._cached(key, lambda: frameworks(self.fn, sample, text))
        )

    def _text(self, data: bool = True) -> str:  # noqa: ARG002
        return f"where({getattr(self.fn, '__name__', repr(self.fn))})"


def dense(array: Any, *, shape: Sequence[int] | None = None) -> Mask:
    """The mask of a boolean array, True or 1 where the query attends to the key.

    Args:
        array: (query, key), (batch, query, key) or (batch, heads, query, key). An axis of size 1
            broadcasts, so (batch, 1, 1, key) is a padding mask.
        shape: The shape of an array that has no cells, and is passed as `[]`.

    Returns:
        The mask. It fits only the array's own number of queries and keys, apart from axes of size 1.

    Raises:
        ArgumentError: If the array is not boolean, or has another number of dimensions.

    >>> import maskwright as mw
    >>> mw.dense([[1, 0], [1, 1]]).on(2).equals(mw.causal())
    equal
    >>> mw.dense([[1, 1, 0]]).on(3).equals(mw.padding(lengths=[2]))
    equal
    """
    return Dense(FrozenArray(_read_cells(array, shape, "dense: the array")))


def blocks(map: Any, size: int | tuple[int, int], *, shape: Sequence[int] | None = None) -> Mask:  # noqa: A002
    """A block-sparse mask: a query attends to the key blocks that are True for its query block.

    Args:
        map: A boolean per block: (query blocks, key blocks), with batch, or with batch and heads
            before that.
        size: Queries and keys per block, one number or two. Blocks count from the first row.
        shape: The shape of a map that has no blocks, and is passed as `[]`.

    Returns:
        The mask.

    Raises:
        ArgumentError: If the map is not boolean, or has another number of dimensions.

    >>> import maskwright as mw
    >>> mw.blocks([[1, 0], [1, 1]], size=2).on(4).spans.row(3)
    [(0, 4)]
    """
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2:
        raise ArgumentError(f"blocks: size has {len(pair)} numbers. Pass one, or (queries, keys).")
    tall, broad = (parse_int(side, "blocks: size", minimum=1) for side in pair)
    return Blocks(FrozenArray(_read_cells(map, shape, "blocks: the map")), tall, broad)


def where(fn: Callable[[Any, Any, Any, Any], Any]) -> Mask:
    """The mask of a predicate: a query attends to the keys for which `fn(b, h, q, k)` is True.

    A FlexAttention `mask_mod` gives the mask of PyTorch's `create_mask`: if it uses tensors, it is
    called by that function, with tensors, and otherwise with numpy arrays. The batch size and
    number of heads are not known from the predicate: pass both to `.on()` if it uses them. The mask
    is evaluated in blocks, and has no text or JSON form.

    Args:
        fn: A function of broadcastable integer arrays of batch rows, heads, query positions and
            key positions, or of such tensors, which returns booleans.

    Returns:
        The mask.

    Raises:
        ArgumentError: If `fn` is not callable. When the mask is evaluated: if `fn` fails, mixes
            tensors and arrays, returns anything but booleans, or returns different masks for
            arrays and for tensors.

    >>> import maskwright as mw
    >>> mw.where(lambda b, h, q, k: (q + k) % 3 != 0).on(3).dense().astype(int).tolist()
    [[[[0, 1, 1], [1, 1, 0], [1, 0, 1]]]]
    """
    if not callable(fn):
        raise ArgumentError(f"where: fn is {describe_type(fn)}. Pass a function of b, h, q and k.")
    return Where(fn)


def _read_cells(array: Any, shape: Sequence[int] | None, what: str) -> BoolArray:
    cells = read_bools(
        array,
        what,
        instead="Pass True or 1 for visible cells: (mask != 0) for a mask of 0.0 and 1.0, "
        "(mask == 0) for an additive mask.",
    )
    if shape is not None:
        sizes = tuple(read_ints(shape, f"{what}'s shape").reshape(-1).tolist())
        fits = len(sizes) <= 4 and all(0 <= size < 2**31 for size in sizes)
        if not fits or math.prod(sizes) != cells.size:
            raise ArgumentError(
                f"{what} has {cells.size} values, which do not make shape {sizes!s:.80}. "
                "Omit shape, or pass the array's own."
            )
        cells = cells.reshape(sizes)
    if cells.ndim not in (2, 3, 4):
        raise ArgumentError(
            f"{what} has shape {cells.shape}. Expected (query, key), (batch, query, key) or "
            "(batch, heads, query, key)."
        )
    if cells.ndim == 3:
        cells = cells[:, None]
    return cells.reshape((1,) * (4 - cells.ndim) + cells.shape)


def _array_arguments(name: str, array: FrozenArray) -> dict[str, Any]:
    """The array without leading dimensions of 1; an array without cells is given by its shape."""
    data = array.data
    if not data.size:
        return {name: (), "shape": data.shape}
    if data.shape[:2] == (1, 1):
        return {name: FrozenArray(data[0, 0])}
    return {name: FrozenArray(data[:, 0]) if data.shape[1] == 1 else array}
