"""Scenes of matrices: scores, biases, softmax weights, outputs, or measured influence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.bias.expr import brief
from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.bias.expr import BoundBias
    from maskwright.core.bound import BoundMask

MAX_CELLS: Final = 256  # along one side of a grid
MAX_NUMBERS: Final = 16  # rows or columns whose numbers are written
MAX_PLANES: Final = 8  # of a bias
MAX_TITLE: Final = 80
NUMBER_NAMES: Final = {Kind.VISIBLE: "darker: larger absolute value"}
SIGN_NAMES: Final = {  # of diverging colours: blue and orange
    Kind.VISIBLE: "0 or more",
    Kind.FIRST_ONLY: "negative; darker: larger absolute value",
}


def matrix_scene(values: Any, *, title: str = "", note: str = "", **options: Any) -> Scene:
    """A matrix as a scene.

    Args:
        values: The numbers, with two axes.
        title: The title of the scene.
        note: The line below the title. Default: the shape.
        options: Those of `matrix_grid`.

    >>> from maskwright.draw.matrices import matrix_scene
    >>> scene = matrix_scene([[0.25, 0.75], [1, -float("inf")]], title="weights")
    >>> scene.grids[0].texts
    (('0.25', '0.75'), ('1.00', '−∞'))
    """
    grid = matrix_grid(values, **options)
    note = note or f"{grid.extent[0]} × {grid.extent[1]}"
    if grid.block != (1, 1):
        note += ", maximum of each block"
    legend = legend_of((grid,), NUMBER_NAMES)
    return Scene(title, (grid,), note, legend, f"{title}, {note}.{_describe(grid)}")


def bias_scene(
    bound: BoundBias,
    *,
    batch: int | None = None,
    head: int | None = None,
    mask: BoundMask | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    digits: int = 2,
) -> Scene:
    """A bound bias as a scene, with a grid for each batch row and head that differs.

    Negative values are orange and others blue, darker the larger they are; all grids have one scale.

    Args:
        bound: The bias.
        batch: Draw this batch row only.
        head: Draw this head only.
        mask: A bound mask of the same size, which hides values.
        tokens: Labels of the queries, and of the keys without `key_tokens`.
        key_tokens: Labels of the keys.
        digits: Decimal places.

    >>> import maskwright as mw
    >>> print(mw.picture(mw.bias.alibi([0.5]).on(3), form="text"))
    alibi([0.5])
    3 queries × 3 keys, from −1.00 to 0.00
    <BLANKLINE>
    query ↓  key →
                  0       1       2
          0    0.00  ▲−0.50  ▲−1.00
          1  ▲−0.50    0.00  ▲−0.50
          2  ▲−1.00  ▲−0.50    0.00
    <BLANKLINE>
    ▲0 negative; darker: larger absolute value   0 0 or more
    """
    values = np.asarray(bound, np.float64)
    hidden = np.zeros(values.shape, bool) if mask is None else ~_mask_cells(bound, mask)
    planes = np.broadcast_shapes(values.shape, hidden.shape)[:2]
    chosen = _chosen_planes(planes, bound.frame.batch, bound.frame.heads, batch, head)
    values, hidden = (np.broadcast_to(x, (*planes, *x.shape[2:])) for x in (values, hidden))
    columns = tokens if key_tokens is None and len(tokens or ()) == values.shape[3] else key_tokens
    scale = float(np.abs(np.where(hidden, 0, values)).max(initial=0.0))
    grids = tuple(
        matrix_grid(
            values[b, h],
            title=_plane_title(planes, b, h),
            hidden=hidden[b, h],
            rows=tokens,
            columns=columns,
            digits=digits,
            diverging=True,
            scale=scale,
        )
        for b, h in chosen[:MAX_PLANES]
    )
    text = repr(bound.bias)
    title = text if len(text) <= MAX_TITLE else brief(bound.bias)
    shown = values[~hidden]
    ends = (
        (format_number(float(x), digits) for x in (shown.min(), shown.max())) if shown.size else ()
    )
    note = f"{values.shape[2]} queries × {values.shape[3]} keys"
    note += f", from {' to '.join(ends)}" if shown.size else ""
    if len(chosen) > MAX_PLANES:
        note += f", the first {MAX_PLANES} of {len(chosen)} batch rows and heads"
    legend = legend_of(grids, SIGN_NAMES)
    return Scene(title, grids, note, legend, f"{title}, {note}.{''.join(map(_describe, grids))}")


def matrix_grid(
    values: Any,
    *,
    title: str = "",
    hidden: Any = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    names: tuple[str, str] = ("query", "key"),
    digits: int = 2,
    diverging: bool = False,
    scale: float | None = None,
) -> Grid:
    """A matrix as a grid. Cells are darker the larger their absolute value is.

    Args:
        values: The numbers, with two axes.
        title: The title of the grid.
        hidden: True where the number is masked.
        rows: Labels of the rows.
        columns: Labels of the columns.
        names: What a row and a column is.
        digits: Decimal places.
        diverging: Whether negative numbers have another colour.
        scale: The absolute value of the darkest cells. Default: the largest of the matrix.
    """
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            "picture: expected a bound mask, two bound masks, a walkthrough or a matrix of numbers, "
            f"got {type(values).__name__}."
        ) from None
    if array.ndim != 2:
        raise ArgumentError(
            f"picture: expected a matrix with two axes, got shape {array.shape}. "
            "Select one batch row and head."
        )
    masked = np.zeros(array.shape, bool) if hidden is None else np.asarray(hidden, bool)
    if masked.shape != array.shape:
        raise ArgumentError(
            f"hidden: expected the shape of the numbers, {array.shape}, got {masked.shape}."
        )
    texts = None
    if max(array.shape) <= MAX_NUMBERS:
        texts = tuple(tuple(format_number(x, digits) for x in row) for row in array.tolist())
    size = np.where(masked | ~np.isfinite(array), 0.0, np.abs(array))
    largest = float(size.max(initial=0.0)) if scale is None else scale
    negative = (array < 0) & diverging
    block = tuple(max(1, math.ceil(n / MAX_CELLS)) for n in array.shape)
    if block != (1, 1):
        rows = columns = None
        for axis, step in enumerate(block):
            starts = np.arange(0, array.shape[axis], step)
            strongest = np.maximum.reduceat(np.where(negative, 0, size), starts, axis=axis)
            size = np.maximum.reduceat(size, starts, axis=axis)
            negative = size > strongest
            masked = np.logical_and.reduceat(masked, starts, axis=axis)
    return Grid(
        np.where(masked, Kind.MASKED, np.where(negative, Kind.FIRST_ONLY, Kind.VISIBLE)).astype(
            np.uint8
        ),
        title=title,
        shades=size / largest if largest else size,
        texts=texts,
        rows=None if rows is None else tuple(rows),
        columns=None if columns is None else tuple(columns),
        block=(block[0], block[1]),
        extent=(array.shape[0], array.shape[1]),
        row_name=names[0],
        column_name=names[1],
        names=SIGN_NAMES if diverging else None,
    )


def format_number(number: float, digits: int = 2) -> str:
    """A number in a few characters.

    >>> from maskwright.draw.matrices import format_number
    >>> [format_number(x) for x in (0.2186, -1e9, float("-inf"), -0.001)]
    ['0.22', '−1e9', '−∞', '0.00']
    """
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if abs(number) >= 1e5:
        mantissa, power = f"{number:.0e}".split("e")
        return f"{mantissa}e{int(power)}".replace("-", "−")
    text = f"{number:.{digits}f}"
    return (text if float(text) else text.removeprefix("-")).replace("-", "−")


def _mask_cells(bound: BoundBias, mask: BoundMask) -> Any:
    bias_frame, mask_frame = bound.frame, mask.frame
    if (bias_frame.q_len, bias_frame.kv_len) != (mask_frame.q_len, mask_frame.kv_len):
        raise ArgumentError(
            f"picture: the mask is bound to {mask_frame.q_len} × {mask_frame.kv_len}, the bias to "
            f"{bias_frame.q_len} × {bias_frame.kv_len}. Bind both to the same size."
        )
    return mask.dense()


def _chosen_planes(
    planes: tuple[int, ...], batches: int, heads: int, batch: int | None, head: int | None
) -> list[tuple[int, int]]:
    for name, index, count in (("batch", batch, batches), ("head", head, heads)):
        if index is not None and not 0 <= index < count:
            raise ArgumentError(f"picture: {name}={index} is out of range. Pass 0 to {count - 1}.")
    rows = range(planes[0]) if batch is None else [batch % planes[0]]
    columns = range(planes[1]) if head is None else [head % planes[1]]
    return [(b, h) for b in rows for h in columns]


def _plane_title(planes: tuple[int, ...], b: int, h: int) -> str:
    parts = [f"batch {b}"] * (planes[0] > 1) + [f"head {h}"] * (planes[1] > 1)
    return ", ".join(parts)


def _describe(grid: Grid) -> str:
    if grid.texts is None:
        return ""
    lines = []
    for index, row in enumerate(grid.texts):
        cells = (
            f"{text} masked" if kind == Kind.MASKED else text
            for text, kind in zip(row, grid.kinds[index].tolist(), strict=True)
        )
        lines.append(f"{grid.row_name} {grid.label(0, index)}: {', '.join(cells)}")
    return f" {'; '.join(lines)}."
