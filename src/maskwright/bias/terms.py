"""Terms: the forms in which a backend reads a bias, with the values of every cell of a frame.

`Bias.lower(frame)` returns a bias as a sum of terms: at most one `DistanceTerm`, at most one
`GridTerm` per grid size, and `TensorTerm`s of distinct broadcast shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from maskwright.bias.values import add, take

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maskwright.core.frame import Frame


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


class TensorTerm(NamedTuple):
    """Added score = values[b, h, row, k], with broadcasting.

    `row` is the query row (0-based) and k the key index.

    >>> import maskwright as mw
    >>> mw.bias.per_key([1.0, 2.0]).on(3, 2).lower()
    (TensorTerm(values=array([[[[1., 2.]]]])),)
    """

    values: Any  # 4-D, each axis full size or 1; any strides (stride 0 on broadcast axes)


Term: TypeAlias = DistanceTerm | GridTerm | TensorTerm


def merge_terms(terms: Iterable[Term]) -> tuple[Term, ...]:
    """The same sum with one term per kind, grid size and shape; all terms are of one frame."""
    merged: dict[object, Term] = {}
    for term in terms:
        if isinstance(term, DistanceTerm):
            key: object = ("distance", term.zero)
        elif isinstance(term, GridTerm):
            key = ("grid", term.height, term.width)
        else:
            key = ("tensor", tuple(term.values.shape))
        other = merged.get(key)
        merged[key] = (
            term if other is None else other._replace(values=add(other.values, term.values))
        )
    return tuple(merged.values())


def dense_terms(terms: Iterable[Term], frame: Frame) -> Any:
    """The sum of the terms, (batch or 1, heads or 1, queries, keys)."""
    total: Any = np.zeros((1, 1, frame.q_len, frame.kv_len), np.float32)
    for term in terms:
        total = add(total, dense_term(term, frame))
    return total


def dense_term(term: Term, frame: Frame) -> Any:
    """The added scores of one term: (batch or 1, heads or 1, queries or 1, keys or 1)."""
    if isinstance(term, TensorTerm):
        return term.values
    q = np.arange(frame.q_start, frame.q_stop)[:, None]
    k = np.arange(frame.k_start, frame.k_stop)[None, :]
    if isinstance(term, DistanceTerm):
        return take(term.values, k - q + term.zero)[None]
    y = k // term.width - q // term.width + term.height - 1
    x = k % term.width - q % term.width + term.width - 1
    heads = term.values.shape[0]
    flat = term.values.reshape(heads, (2 * term.height - 1) * (2 * term.width - 1))
    return take(flat, y * (2 * term.width - 1) + x)[None]
