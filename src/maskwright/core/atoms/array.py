"""Atoms that hold the answer itself, as an array or a predicate, for the frame's rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.atoms.index import most_runs
from maskwright.core.evaluate import MAX_CELLS, View
from maskwright.core.expr import Atom, Cell, Mask, mask_property
from maskwright.core.frame import BroadcastDims, Frame
from maskwright.core.spans import Spans
from maskwright.core.validate import FrozenArray, parse_int, read_array, read_bools, read_ints
from maskwright.errors import ArgumentError, FrameError, MaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maskwright.core.validate import BoolArray


@dataclass(frozen=True, repr=False)
class Dense(Atom):
    """What an array says."""

    name = "dense"
    array: FrozenArray  # (batch, heads, queries, keys)

    def _spans(self, view: View) -> Spans:
        rows, keys = slice(view.row, view.row_stop), slice(view.key, view.key_stop)
        return view.cells(self.array.data[:, :, rows, keys])

    def _fit(self, frame: Frame) -> None:
        q_len, kv_len = self.array.data.shape[2:]
        if (q_len, kv_len) != (frame.q_len, frame.kv_len):
            raise FrameError(
                f"dense: the array has {q_len} × {kv_len} cells but the frame "
                f"{frame.q_len} × {frame.kv_len}. Pass q_len={q_len}, kv_len={kv_len}."
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("dense", *self.array.data.shape[:2]),)

    @mask_property
    def _runs(self) -> int:
        data = self.array.data
        return most_runs(data.reshape(-1, data.shape[3])) if data.size else 0

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._runs)

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, _array_call(self.array)

    def _reason(self, cell: Cell, sees: bool) -> str:  # noqa: ARG002
        return f"the array holds {sees} there"


@dataclass(frozen=True, repr=False)
class Blocks(Atom):
    """The blocks that are switched on."""

    name = "blocks"
    map: FrozenArray  # (batch, heads, query blocks, key blocks)
    q_size: int
    kv_size: int

    @mask_property
    def _lit(self) -> Spans:
        """The map's own spans, in blocks of keys."""
        tall, broad = self.map.data.shape[2:]
        return View(Frame(tall, broad), 0, tall, 0, broad).cells(self.map.data)

    def _spans(self, view: View) -> Spans:
        line = np.arange(view.row, view.row_stop) // self.q_size
        first, stop = (int(line[0]), int(line[-1]) + 1) if line.size else (0, 0)
        lit = self._lit.rows(first, stop)  # one row for each line of blocks
        offsets, starts, stops = lit.flat
        owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        low = np.clip(starts * self.kv_size, view.key, view.key_stop)
        high = np.clip(stops * self.kv_size, view.key, view.key_stop)
        cut = Spans.from_pieces(lit.shape, view.frame.kv_len, owner, low, high)
        b, h, lines = lit.shape
        number = np.arange(b * h * lines).reshape(b, h, lines)
        return cut.take(number[:, :, line - first])

    def _fit(self, frame: Frame) -> None:
        tall, broad = self.map.data.shape[2:]
        need = math.ceil(frame.q_len / self.q_size), math.ceil(frame.kv_len / self.kv_size)
        if (tall, broad) != need:
            raise FrameError(
                f"blocks: the map has {tall} × {broad} blocks of {self.q_size} × {self.kv_size} "
                f"but the frame needs {need[0]} × {need[1]}. Give one for every part of the frame."
            )

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("blocks: map", *self.map.data.shape[:2]),)

    @mask_property
    def _runs(self) -> int:
        data = self.map.data
        return most_runs(data.reshape(-1, data.shape[3])) if data.size else 0

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._runs)

    def _call(self) -> tuple[str, dict[str, Any]]:
        size = self.q_size if self.q_size == self.kv_size else (self.q_size, self.kv_size)
        shape = _array_call(self.map)
        return self.name, {"": shape.pop(""), "size": size, **shape}

    def _reason(self, cell: Cell, sees: bool) -> str:  # noqa: ARG002
        return f"their block is switched {'on' if sees else 'off'}"


@dataclass(frozen=True, repr=False)
class Where(Atom):
    """What a vectorised predicate says."""

    name = "where"
    _dims_known = False
    fn: Callable[[Any, Any, Any, Any], Any]

    def _spans(self, view: View) -> Spans:
        if not view.frame.q_len or not view.frame.kv_len:
            return view.nothing()  # there is no position to ask about
        cells = max(1, view.frame.batch * view.frame.heads * (view.key_stop - view.key))
        rows = max(1, MAX_CELLS // cells)
        stops = range(view.row, max(view.row_stop, view.row + 1), rows)
        parts = [view._replace(row=row, row_stop=min(row + rows, view.row_stop)) for row in stops]
        return Spans.stack([part.cells(self._ask(part)) for part in parts], axis=2)

    def _spans_transposed(self, view: View) -> Spans:
        other = Where(lambda b, h, q, k: self.fn(b, h, k, q))
        return other._spans(view)

    def _width_transposed(self, keys: int) -> int:
        return self._width(keys)

    def _planes(self, frame: Frame) -> tuple[int, int]:
        if not frame.q_len or not frame.kv_len:
            return 1, 1
        batch, heads = self._ask(View(frame, 0, 1, 0, 1)).shape[:2]
        return batch, heads

    def _ask(self, view: View) -> BoolArray:
        """The predicate's answer, (batch or 1, heads or 1, rows, keys)."""
        b = np.arange(view.frame.batch).reshape(-1, 1, 1, 1)
        h = np.arange(view.frame.heads).reshape(1, -1, 1, 1)
        q, k = view.queries.reshape(1, 1, -1, 1), view.keys.reshape(1, 1, 1, -1)
        try:
            answer = read_array(self.fn(b, h, q, k), self._text())
        except MaskError:
            raise
        except Exception as error:
            answer = self._ask_tensors((b, h, q, k), error)
        if answer.dtype != np.bool_:
            raise ArgumentError(
                f"{self._text()}: the predicate gave dtype {answer.dtype}. Give truth values."
            )
        whole = np.broadcast_shapes(b.shape, h.shape, q.shape, k.shape)
        shape = (1,) * (4 - answer.ndim) + answer.shape
        if (
            any(size not in (1, full) for size, full in zip(shape, whole, strict=False))
            or len(shape) != 4
        ):
            raise ArgumentError(
                f"{self._text()}: the predicate gave shape {answer.shape} for cells {whole}. "
                "Let it broadcast."
            )
        return np.broadcast_to(answer.reshape(shape), (*shape[:2], *whole[2:]))

    def _ask_tensors(self, index: Sequence[Any], error: Exception) -> Any:
        """Ask again with tensors, for a FlexAttention mask_mod that captures tensors of its own."""
        import sys

        torch = sys.modules.get("torch")  # a predicate about tensors has imported it already
        if torch is not None:
            try:
                return read_array(self.fn(*(torch.from_numpy(i) for i in index)), self._text())
            except Exception:
                pass
        raise ArgumentError(
            f"{self._text()}: the predicate failed with {type(error).__name__}: {error}. "
            "Let it take four broadcastable arrays b, h, q, k, and return truth values."
        ) from error

    def _width(self, keys: int) -> int:
        return keys // 2 + 1

    def _text(self) -> str:
        return f"where({getattr(self.fn, '__name__', repr(self.fn))})"

    def _reason(self, cell: Cell, sees: bool) -> str:  # noqa: ARG002
        return f"the predicate says {sees}"


def dense(array: Any, *, shape: Sequence[int] | None = None) -> Mask:
    """A query sees what a bool array says: (query, key), (batch, query, key) or with heads.

    True or 1 means "may see". `shape` is needed only for an array without any cell.

    >>> import maskwright as mw
    >>> mw.dense([[1, 0], [1, 1]]).on(2).equals(mw.causal())
    equal
    """
    return Dense(FrozenArray(_read_cells(array, shape, "dense: the array")))


def blocks(map: Any, size: int | tuple[int, int], *, shape: Sequence[int] | None = None) -> Mask:  # noqa: A002
    """A query sees the blocks of keys that are switched on for its block of queries.

    `map` is (query blocks, key blocks), or with batch, or with batch and heads, before that.
    `size` is the side of a block, or (queries, keys). Blocks count from the frame's first row.

    >>> import maskwright as mw
    >>> mw.blocks([[1, 0], [1, 1]], size=2).on(4).spans.row(3)
    [(0, 4)]
    """
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2:
        raise ArgumentError(f"blocks: size has {len(pair)} numbers. Give one, or (queries, keys).")
    tall, broad = (parse_int(side, "blocks: size", minimum=1) for side in pair)
    return Blocks(FrozenArray(_read_cells(map, shape, "blocks: the map")), tall, broad)


def where(fn: Callable[[Any, Any, Any, Any], Any]) -> Mask:
    """A query sees the keys for which `fn(b, h, q, k)` is true.

    The predicate is given broadcastable arrays of batch rows, heads, query and key positions; a
    FlexAttention mask_mod works. How many batch rows and heads there are it can't tell, so pass
    both to `.on()` if it uses them. Such a mask is read in blocks, and has no text form.

    >>> import maskwright as mw
    >>> mw.where(lambda b, h, q, k: (q + k) % 3 != 0).on(3).dense().astype(int).tolist()
    [[[[0, 1, 1], [1, 1, 0], [1, 0, 1]]]]
    """
    if not callable(fn):
        raise ArgumentError(f"where: got {type(fn).__name__}. Give a function of b, h, q, k.")
    return Where(fn)


def _read_cells(array: Any, shape: Sequence[int] | None, what: str) -> BoolArray:
    cells = read_bools(
        array,
        what,
        instead="Give True or 1 for cells that may be seen: (mask != 0) for a mask of 0.0 and 1.0, "
        "(mask == 0) for an additive one.",
    )
    if shape is not None:
        sizes = tuple(read_ints(shape, f"{what}'s shape").reshape(-1).tolist())
        if math.prod(sizes) != cells.size or not all(0 <= size < 2**31 for size in sizes):
            raise ArgumentError(
                f"{what} has {cells.size} values, which do not make shape {sizes!s:.80}. "
                "Leave shape out, or give the array's own."
            )
        cells = cells.reshape(sizes)
    if cells.ndim not in (2, 3, 4):
        raise ArgumentError(
            f"{what} has shape {cells.shape}. Give (query, key), (batch, query, key) or "
            "(batch, heads, query, key)."
        )
    if cells.ndim == 3:
        cells = cells[:, None]
    return cells.reshape((1,) * (4 - cells.ndim) + cells.shape)


def _array_call(array: FrozenArray) -> dict[str, Any]:
    """The array without its leading axes of 1; one without cells is given by its shape."""
    data = array.data
    if not data.size:
        return {"": (), "shape": data.shape}
    if data.shape[:2] == (1, 1):
        return {"": FrozenArray(data[0, 0])}
    return {"": FrozenArray(data[:, 0]) if data.shape[1] == 1 else array}
