"""Scenes of arrays: scores, weights, outputs, or how much of an input an output was seen to feel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

MOST_SIGNS = 256  # along one side
MOST_TEXTS = 16  # rows or columns whose numbers are written out


def matrix_scene(
    values: Any,
    *,
    title: str = "",
    note: str = "",
    hidden: Any = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    names: tuple[str, str] = ("query", "key"),
    digits: int = 2,
) -> Scene:
    """An array of two axes as a scene; `hidden` is True where a mask hides the number.

    >>> from maskwright.draw.numbers import matrix_scene
    >>> scene = matrix_scene([[0.25, 0.75], [1, -float("inf")]], title="weights")
    >>> scene.grids[0].texts
    (('0.25', '0.75'), ('1.00', '−∞'))
    """
    grid = matrix_grid(
        values, hidden=hidden, rows=rows, columns=columns, names=names, digits=digits
    )
    whole = f"{grid.extent[0]} × {grid.extent[1]}"
    said = note or whole
    if grid.block != (1, 1):
        said += f"; a sign is {grid.block[0]} × {grid.block[1]} numbers, the largest of them"
    legend = legend_of((grid,), {Kind.SEEN: "darker is larger"})
    return Scene(title, (grid,), said, legend, f"{title}, {said}.{_in_words(grid)}")


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
    """An array of two axes as a grid: the larger a number beside the largest, the darker."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"A picture can't be made of {type(values).__name__}. Give a bound mask, two of them, a "
            "walkthrough, or a table of numbers."
        ) from None
    if array.ndim != 2:
        raise ArgumentError(
            f"A picture of numbers needs two axes, and these have shape {array.shape}. "
            "Choose one batch row and head."
        )
    dark = np.zeros(array.shape, bool) if hidden is None else np.asarray(hidden, bool)
    if dark.shape != array.shape:
        raise ArgumentError(
            f"hidden has shape {dark.shape} but the numbers have {array.shape}. Give one for each."
        )
    size = array.shape
    texts = None
    if max(size) <= MOST_TEXTS:
        texts = tuple(tuple(in_short(x, digits) for x in row) for row in array.tolist())
    strength = np.where(dark | ~np.isfinite(array), 0.0, np.abs(array))
    largest = float(strength.max(initial=0.0))
    block = tuple(max(1, math.ceil(n / MOST_SIGNS)) for n in size)
    if block != (1, 1):
        strength, seen = (_largest(x, block) for x in (strength, (~dark).astype(float)))
        dark = seen == 0
        rows = columns = None
    return Grid(
        np.where(dark, Kind.HIDDEN, Kind.SEEN).astype(np.uint8),
        title=title,
        shades=strength / largest if largest else strength,
        texts=texts,
        rows=None if rows is None else tuple(rows),
        columns=None if columns is None else tuple(columns),
        block=(block[0], block[1]),
        extent=(size[0], size[1]),
        row_name=names[0],
        column_name=names[1],
    )


def in_short(number: float, digits: int = 2) -> str:
    """A number in a few signs.

    >>> from maskwright.draw.numbers import in_short
    >>> in_short(0.2186, 4), in_short(-1e9), in_short(float("-inf")), in_short(-0.001)
    ('0.2186', '−1e9', '−∞', '0.00')
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


def _largest(x: npt.NDArray[np.float64], block: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """The largest of every tile."""
    for axis, step in enumerate(block):
        x = np.maximum.reduceat(x, np.arange(0, x.shape[axis], step), axis=axis)
    return x


def _in_words(grid: Grid) -> str:
    if grid.texts is None:
        return ""
    lines = []
    for number, row in enumerate(grid.texts):
        cells = (
            f"{text} hidden" if kind == Kind.HIDDEN else text
            for text, kind in zip(row, grid.kinds[number].tolist(), strict=True)
        )
        lines.append(f"{grid.row_name} {grid.row_label(number)}: {', '.join(cells)}")
    return f" {'; '.join(lines)}."
