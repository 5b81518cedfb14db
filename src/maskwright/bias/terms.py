"""Terms: the forms in which a backend reads a bias, with the values of every cell of a frame.

`Bias.lower(frame)` returns a bias as a sum of terms: at most one `DistanceTerm`, at most one
`GridTerm` per grid size, and `TensorTerm`s of distinct broadcast shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from maskwright.bias.values import add, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maskwright.core.frame import Frame
    from maskwright.core.validate import IntArray


class Positions(NamedTuple):
    """Absolute positions of the queries and keys of a call, both ascending int64 arrays."""

    rows: IntArray
    keys: IntArray


def positions_of(frame: Frame) -> Positions:
    """The positions of the queries and keys of a frame."""
    rows, keys = (frame.q_start, frame.q_stop), (frame.k_start, frame.k_stop)
    return Positions(np.arange(*rows), np.arange(*keys))


class DistanceTerm(NamedTuple):
    """One value per head and distance: added score = values[h, k - q + zero].

    k and q are absolute positions. Every distance that occurs in the frame has a value (clipping
    is already applied).

    >>> import maskwright as mw
    >>> mw.bias.relative([[5.0, 0.0, 7.0]]).on(1, 3).lower()
    (DistanceTerm(values=array([[5., 5., 0.]]), zero=2),)
    """

    values: Any  # (heads | 1, num_distances), contiguous along the last axis
    zero: int  # index of distance 0 (may lie outside [0, num_distances))

    def coordinates(self, positions: Positions) -> tuple[IntArray, IntArray, int]:
        """Coordinates of rows and keys, and an offset: see `cell_index`.

        >>> import maskwright as mw
        >>> from maskwright.bias.terms import positions_of
        >>> frame = mw.causal().on(1, 3).frame
        >>> (term,) = mw.bias.relative([[5.0, 0.0, 7.0]]).lower(frame)
        >>> rows, keys, offset = term.coordinates(positions_of(frame))
        >>> keys - rows[0] + offset
        array([0, 1, 2])
        """
        return positions.rows, positions.keys, self.zero

    def lookup(self, q_start: int) -> Callable[..., Any]:
        """The added score as a function of batch row, head, row of the query, and key.

        >>> import maskwright as mw
        >>> (term,) = mw.bias.alibi([0.5]).on(1, 3).lower()
        >>> float(term.lookup(q_start=2)(0, 0, 0, 1))
        -0.5
        """
        values, per_head = self.values, int(self.values.shape[0] != 1)
        shift = self.zero - q_start
        return lambda b, h, q, k: values[h * per_head, k - q + shift]  # noqa: ARG005

    def required_shape(self, frame: Frame) -> str | None:
        """The shape that the values need, if they do not have one for each distance.

        >>> import maskwright as mw
        >>> (term,) = mw.bias.alibi([0.5]).on(3).lower()
        >>> term.required_shape(mw.causal().on(4).frame)
        '(heads or 1, distances) with a value for the distances -3 to 3'
        """
        first, last = 1 - frame.q_stop, frame.kv_len - 1 - frame.q_start
        shape = self.values.shape
        fits = len(shape) == 2 and (shape[0] == 1 or shape[0] == frame.heads)
        is_empty = frame.q_len == 0 or frame.kv_len == 0
        if fits and (is_empty or (first + self.zero >= 0 and last + self.zero < shape[1])):
            return None
        return f"(heads or 1, distances) with a value for the distances {first} to {last}"


class GridTerm(NamedTuple):
    """Relative positions in a 2-D grid (Swin), where position p = y * width + x.

    The added score is values[h, y_k - y_q + height - 1, x_k - x_q + width - 1].

    >>> import maskwright as mw
    >>> mw.bias.grid([[0.0], [1.0], [2.0]], height=1, width=2).on(2).lower()
    (GridTerm(values=array([[[2., 1., 0.]]]), height=1, width=2),)
    """

    values: Any  # (heads | 1, 2 * height - 1, 2 * width - 1)
    height: int
    width: int

    def coordinates(self, positions: Positions) -> tuple[IntArray, IntArray, int]:
        """Coordinates of rows and keys, and an offset: see `cell_index`.

        >>> import maskwright as mw
        >>> from maskwright.bias.terms import positions_of
        >>> frame = mw.causal().on(2).frame
        >>> (term,) = mw.bias.grid([[0.0], [1.0], [2.0]], height=1, width=2).lower(frame)
        >>> rows, keys, offset = term.coordinates(positions_of(frame))
        >>> keys - rows[:, None] + offset
        array([[1, 2],
               [0, 1]])
        """
        pitch = 2 * self.width - 1
        rows, keys = (p // self.width * pitch + p % self.width for p in positions)
        return rows, keys, (self.height - 1) * pitch + self.width - 1

    def lookup(self, q_start: int) -> Callable[..., Any]:
        """The added score as a function of batch row, head, row of the query, and key.

        >>> import maskwright as mw
        >>> (term,) = mw.bias.grid([[0.0], [1.0], [2.0]], height=1, width=2).on(2).lower()
        >>> float(term.lookup(q_start=0)(0, 0, 1, 0))
        2.0
        """
        values, per_head = self.values, int(self.values.shape[0] != 1)
        height, width = self.height, self.width

        def value(b: Any, h: Any, q: Any, k: Any) -> Any:  # noqa: ARG001
            at = q + q_start
            down, across = k // width - at // width, k % width - at % width
            return values[h * per_head, down + (height - 1), across + (width - 1)]

        return value

    def required_shape(self, frame: Frame) -> str | None:
        """The shape that the values need, if the grid does not have every position.

        >>> import maskwright as mw
        >>> (term,) = mw.bias.grid([[0.0], [1.0], [2.0]], height=1, width=2).on(2).lower()
        >>> term.required_shape(mw.causal().on(4).frame)
        'the values of a grid with 4 or more positions'
        """
        last, shape = max(frame.q_stop, frame.kv_len), self.values.shape
        fits = shape[1:] == (2 * self.height - 1, 2 * self.width - 1)
        fits = fits and (shape[0] == 1 or shape[0] == frame.heads)
        if fits and frame.q_start >= 0 and last <= self.height * self.width:
            return None
        return f"the values of a grid with {last} or more positions"


class TensorTerm(NamedTuple):
    """Added score = values[b, h, row, k], with broadcasting.

    `row` is the query row (0-based) and k the key index.

    >>> import maskwright as mw
    >>> mw.bias.per_key([1.0, 2.0]).on(3, 2).lower()
    (TensorTerm(values=array([[[[1., 2.]]]])),)
    """

    values: Any  # 4-D, each axis full size or 1; any strides (stride 0 on broadcast axes)

    def lookup(self, q_start: int) -> Callable[..., Any]:  # noqa: ARG002 - rows and keys by index
        """The added score as a function of batch row, head, row of the query, and key.

        >>> import maskwright as mw
        >>> (term,) = mw.bias.per_key([1.0, 2.0]).on(3, 2).lower()
        >>> float(term.lookup(q_start=0)(0, 0, 2, 1))
        2.0
        """
        values, factors = self.values, [int(size != 1) for size in self.values.shape]

        def value(*cell: Any) -> Any:
            return values[tuple(n * factor for n, factor in zip(cell, factors, strict=True))]

        return value

    def required_shape(self, frame: Frame) -> str | None:
        """The shape that the values need, if they do not broadcast to all cells.

        >>> import maskwright as mw
        >>> (term,) = mw.bias.per_key([1.0, 2.0]).on(3, 2).lower()
        >>> term.required_shape(mw.causal().on(3).frame)
        'shape (1, 1, 3, 3), with 1 where it is shared'
        """
        sizes, shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len), self.values.shape
        fits = len(shape) == 4 and all(
            dim == 1 or dim == size for dim, size in zip(shape, sizes, strict=True)
        )
        return None if fits else f"shape {sizes}, with 1 where it is shared"


Term: TypeAlias = DistanceTerm | GridTerm | TensorTerm


def merge_terms(terms: Iterable[Term]) -> tuple[Term, ...]:
    """The same sum with one term per kind, grid size and shape; all terms are of one frame."""
    merged: dict[object, Term] = {}
    for term in terms:
        _, *rest = term
        key = (type(term), *rest) if rest else (type(term), tuple(term.values.shape))
        other = merged.get(key)
        merged[key] = (
            term if other is None else other._replace(values=add(other.values, term.values))
        )
    return tuple(merged.values())


def dense_terms(terms: Iterable[Term], frame: Frame) -> Any:
    """The sum of the terms, (batch or 1, heads or 1, queries, keys)."""
    total: Any = np.zeros((1, 1, frame.q_len, frame.kv_len), np.float32)
    for term in terms:
        total = add(total, dense_term(term, positions_of(frame)))
    return total


def dense_term(term: Term, positions: Positions) -> Any:
    """The added scores of one term: (batch or 1, heads or 1, queries or 1, keys or 1)."""
    if isinstance(term, TensorTerm):
        return term.values
    heads = term.values.shape[0]
    flat = term.values.reshape(heads, int(np.prod(term.values.shape[1:])))
    return take(flat, cell_index(term, positions))[None]


def cell_index(term: DistanceTerm | GridTerm, positions: Positions) -> IntArray:
    """Which of the values of a head each cell has, (queries, keys), for the flattened values."""
    rows, keys, offset = term.coordinates(positions)
    index: IntArray = keys - rows[:, None] + offset
    return index
