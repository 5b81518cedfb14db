"""Terms: the forms in which a backend reads a bias, with the values of every cell of a frame.

`Bias.lower(frame)` returns a bias as a sum of terms: at most one `DistanceTerm`, at most one
`GridTerm` per grid size, and `TensorTerm`s of distinct broadcast shapes.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class DistanceTerm(NamedTuple):
    """One value per head and distance: added score = values[h, k - q + zero].

    k and q are absolute positions. Every distance that occurs in the frame has a value (clipping
    is already applied).
    """

    values: Any  # (heads | 1, num_distances), contiguous along the last axis
    zero: int  # index of distance 0 (may lie outside [0, num_distances))


class GridTerm(NamedTuple):
    """Relative positions in a 2-D grid (Swin), where position p = y * width + x.

    The added score is values[h, y_k - y_q + height - 1, x_k - x_q + width - 1].
    """

    values: Any  # (heads | 1, 2 * height - 1, 2 * width - 1)
    height: int
    width: int


class TensorTerm(NamedTuple):
    """Added score = values[b, h, row, k], with broadcasting.

    `row` is the query row (0-based) and k the key index.
    """

    values: Any  # 4-D, each axis full size or 1; any strides (stride 0 on broadcast axes)


Term = DistanceTerm | GridTerm | TensorTerm
