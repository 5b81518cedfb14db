"""Scenes of matrices: scores, softmax weights, outputs, or measured influence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CELLS: Final = 256  # along one side of a grid
MAX_NUMBERS: Final = 16  # rows or columns whose numbers are written
NUMBER_NAMES: Final = {Kind.VISIBLE: "darker: larger absolute value"}


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


def matrix_grid(
    values: Any,
    *,
    title: str = "",
    hidden: Any = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    names: tuple[str, str] = ("query", "key"),
    digits: int = 2,
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
    largest = float(size.max(initial=0.0))
    block = tuple(max(1, math.ceil(n / MAX_CELLS)) for n in array.shape)
    if block != (1, 1):
        rows = columns = None
        for axis, step in enumerate(block):
            starts = np.arange(0, array.shape[axis], step)
            size = np.maximum.reduceat(size, starts, axis=axis)
            masked = np.logical_and.reduceat(masked, starts, axis=axis)
    return Grid(
        np.where(masked, Kind.MASKED, Kind.VISIBLE).astype(np.uint8),
        title=title,
        shades=size / largest if largest else size,
        texts=texts,
        rows=None if rows is None else tuple(rows),
        columns=None if columns is None else tuple(columns),
        block=(block[0], block[1]),
        extent=(array.shape[0], array.shape[1]),
        row_name=names[0],
        column_name=names[1],
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
