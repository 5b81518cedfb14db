"""One grid of a terminal: two columns a cell while they fit, then one, then several cells a sign."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from maskwright.draw.labels import clusters, fit, pad, shown
from maskwright.draw.labels import width as width_of
from maskwright.draw.pen import Look
from maskwright.draw.scene import Grid, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from maskwright.draw.pen import Pen

Mode = Literal["double", "single", "half"]

MOST_ROWS = 64  # of two columns a cell; more fill several screens
FEW_ROWS = 20  # that are neither joined nor drawn two a line
MOST_LETTERS = 12  # of a label that is written downwards
PLAIN_KINDS: Final = frozenset({Kind.HIDDEN, Kind.SOME, Kind.SEEN})


def fitted(grid: Grid, width: int, pen: Pen) -> tuple[Grid, Mode]:
    """The finest way to draw the grid that is not too wide; cells are joined if none is."""
    rows, columns = grid.shape
    if rows <= MOST_ROWS and label_width(grid, "double", width, pen) + 2 + 2 * columns <= width:
        return grid, "double"
    mode = _narrow_mode(grid, pen)
    room = width - 2 - label_width(grid, mode, width, pen)
    if columns <= room:
        return grid, mode
    broad = math.ceil(columns / room)
    colourful = pen.depth and pen.unicode and PLAIN_KINDS.issuperset(kinds_of(grid))
    tall = 1 if rows <= FEW_ROWS else broad if colourful else 2 * broad  # a sign is twice as high
    joined = _joined(grid, tall, broad)
    return joined, _narrow_mode(joined, pen)


def head(grid: Grid, mode: Mode, width: int, pen: Pen) -> Iterator[str]:
    """The names of the axes, and the column labels: tokens written downwards, or some numbers."""
    side = label_width(grid, mode, width, pen)
    yield axes_line(grid, side, width, pen)
    if mode == "double" and grid.columns is not None:
        letters = [_downwards(label, pen) for label in grid.columns]
        height = max(map(len, letters))
        for line in range(height):
            row = [
                part[line - height + len(part)] if line >= height - len(part) else ""
                for part in letters
            ]
            text = "".join(pad(letter, 2, unicode=pen.unicode) for letter in row)
            yield " " * (side + 2) + pen.faint(text)
        return
    count = 2 if mode == "double" else 1
    yield " " * (side + 2) + pen.faint(_ticks(grid, count, width - side - 2))


def body(grid: Grid, mode: Mode, width: int, pen: Pen) -> Iterator[str]:
    """The cells, line by line, each line with its label."""
    rows, columns = grid.shape
    kinds, shades = grid.kinds, shades_of(grid)

    def cell(row: int, column: int) -> tuple[Kind, float]:
        return Kind(int(kinds[row, column])), float(shades[row, column])

    side = label_width(grid, mode, width, pen)
    for row in range(0, rows, 2 if mode == "half" else 1):
        label = pen.faint(pad(_row_label(grid, row, mode), side, "right", pen.unicode))
        if mode == "half":
            paired = row + 1 < rows
            looks = [
                pen.halves(cell(row, c), cell(row + 1, c) if paired else None)
                for c in range(columns)
            ]
        else:
            count = 2 if mode == "double" else 1
            looks = [pen.look(*cell(row, c), count) for c in range(columns)]
        yield f"{label}  {pen.write(looks)}"


def cut_labels(grid: Grid, mode: Mode, width: int, pen: Pen) -> Iterator[str]:
    """The columns in full whose labels had to be cut, or that have no room for any."""
    if grid.columns is None:
        return
    said = []
    for column, label in enumerate(grid.columns):
        if mode != "double":
            if grid.columns != grid.rows:
                said.append(f"{grid.start[1] + column} {shown(label, pen.unicode)}")
        elif len(clusters(label, pen.unicode)) > MOST_LETTERS:
            said.append(f"{grid.start[1] + column} {shown(label, pen.unicode)}")
    if said:
        yield from pen.lines(f"{plural(grid.column_name, 2)}: {', '.join(said)}", width)


def grid_signs(grid: Grid, mode: Mode, pen: Pen) -> dict[Kind, str]:
    """The signs that stand for the kinds in a grid."""
    signs = {}
    for kind in kinds_of(grid):
        if mode == "half" and pen.depth:
            looks = [Look("  ", "", pen.theme.fill(kind, 0.5 if kind == Kind.SOME else 1.0))]
        elif kind == Kind.SOME:
            looks = [pen.look(kind, shade, 1) for shade in (0.0, 0.5, 1.0)]
        else:
            looks = [pen.look(kind, 1.0, 2 if mode == "double" else 1)]
        signs[kind] = pen.write(looks)
    return signs


# ----------------------------------------------------------------------------- what is drawn, how


def _narrow_mode(grid: Grid, pen: Pen) -> Mode:
    """Two rows a line, unless they are few, or tokens, patterns or shades would be lost."""
    kinds = kinds_of(grid)
    few = grid.rows is not None or grid.shape[0] <= FEW_ROWS
    if few or not pen.unicode or not PLAIN_KINDS.issuperset(kinds):
        return "single"
    return "half" if pen.depth or (Kind.SOME not in kinds and grid.shades is None) else "single"


def _joined(grid: Grid, tall: int, broad: int) -> Grid:
    """The grid with so many signs made one: their mean, and every difference that is in them."""
    shades = shades_of(grid)
    rows, columns = (math.ceil(n / by) for n, by in zip(grid.shape, (tall, broad), strict=True))
    kinds, means = np.zeros((rows, columns), np.uint8), np.zeros((rows, columns))
    for row, column in np.ndindex(rows, columns):
        part = np.s_[row * tall : (row + 1) * tall, column * broad : (column + 1) * broad]
        found = {Kind(int(kind)) for kind in np.unique(grid.kinds[part])}
        kinds[row, column] = _kind_of(found)
        means[row, column] = shades[part].mean()
    block = (grid.block[0] * tall, grid.block[1] * broad)
    return replace(grid, kinds=kinds, shades=means, rows=None, columns=None, block=block)


def _kind_of(found: set[Kind]) -> Kind:
    if Kind.MIXED in found or {Kind.FIRST, Kind.SECOND} <= found:
        return Kind.MIXED
    for kind in (Kind.FIRST, Kind.SECOND):
        if kind in found:
            return kind
    return found.pop() if len(found) == 1 else Kind.SOME


def kinds_of(grid: Grid) -> list[Kind]:
    """The kinds that occur."""
    return [Kind(int(kind)) for kind in np.unique(grid.kinds)]


def shades_of(grid: Grid) -> npt.NDArray[np.float64]:
    """How strongly each cell is filled; wholly or not at all where the grid does not say."""
    return (grid.kinds != Kind.HIDDEN).astype(float) if grid.shades is None else grid.shades


# ------------------------------------------------------------------------------------------ labels


def axes_line(grid: Grid, side: int, width: int, pen: Pen) -> str:
    """The names of both axes, in one line."""
    down = pad(f"{grid.row_name} {pen.signs.down}", side, "right", pen.unicode)
    right = fit(f"{grid.column_name} {pen.signs.right}", width - side - 2, pen.unicode)
    return pen.faint(f"{down}  {right}")


def label_width(grid: Grid, mode: Mode, width: int, pen: Pen) -> int:
    """How many columns the labels of the rows take."""
    labels = [_row_label(grid, row, mode) for row in range(grid.shape[0])]
    name = width_of(grid.row_name) + 2
    return min(max([name, *(width_of(label, pen.unicode) for label in labels)]), width // 3)


def _row_label(grid: Grid, row: int, mode: Mode) -> str:
    number = str(grid.start[0] + row * grid.block[0])
    if grid.rows is not None:  # the columns are numbered where their tokens have no room
        return grid.rows[row] if mode == "double" else f"{number} {shown(grid.rows[row])}"
    step = {"double": 1, "single": 5, "half": 10}[mode] if grid.shape[0] > 12 else 1
    return number if mode == "double" or row % step == 0 else ""


def _ticks(grid: Grid, count: int, room: int) -> str:
    """The numbers of as many columns as have room, each above its own."""
    columns = grid.shape[1]
    numbers = [str(grid.start[1] + column * grid.block[1]) for column in range(columns)]
    need = max(map(len, numbers)) + 1
    step = next(s for s in _round_numbers() if s * count >= need)
    text = ""
    for column in range(0, columns, step):
        if column * count + len(numbers[column]) <= min(max(columns * count, need), room):
            text = text.ljust(column * count) + numbers[column]
    return text


def _round_numbers() -> Iterator[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _downwards(label: str, pen: Pen) -> list[str]:
    letters = clusters(label, pen.unicode)
    if len(letters) > MOST_LETTERS:
        letters = [*letters[: MOST_LETTERS - 1], "…" if pen.unicode else "~"]
    return letters


def plural(name: str, count: int) -> str:
    """The name of an axis, for so many of it."""
    if count == 1:
        return name
    return f"{name[:-1]}ies" if name.endswith("ry") else f"{name}s"
