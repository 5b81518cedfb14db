"""Numbers on a terminal: a grid's texts in columns, each with a mark of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.draw.columns import columns_of_line
from maskwright.draw.labels import fit, pad
from maskwright.draw.labels import width as width_of
from maskwright.draw.palette import dark_on
from maskwright.draw.scene import Grid, Kind
from maskwright.draw.terminal_grid import axes_line, kinds_of, label_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.draw.pen import Pen


def table(grid: Grid, width: int, pen: Pen) -> Iterator[str]:
    """Numbers in columns, as many tables below each other as the width needs."""
    assert grid.texts is not None
    side = label_width(grid, "double", width, pen)
    room = width - side - 2
    most = room - 3  # the sign before, the bracket behind, the gap
    broads = [
        min(
            max(width_of(text, pen.unicode) for text in (grid.column_label(column), *written)), most
        )
        for column, written in enumerate(zip(*grid.texts, strict=True))
    ]
    for number, chosen in enumerate(chunks([broad + 3 for broad in broads], room)):
        if number:
            yield ""
        yield axes_line(grid, side, width, pen)
        labels = (
            pad(grid.column_label(c), broads[c] + 1, "right", pen.unicode) + "  " for c in chosen
        )
        yield " " * (side + 2) + pen.faint("".join(labels))
        for row in range(grid.shape[0]):
            label = pen.faint(pad(grid.row_label(row), side, "right", pen.unicode))
            yield f"{label}  {' '.join(_number(grid, row, c, broads[c], pen) for c in chosen)}"


def number_signs(grid: Grid, pen: Pen) -> dict[Kind, str]:
    """How a number of each kind in the grid is marked."""
    return {kind: "0".join(_marks(kind, pen)).strip() for kind in kinds_of(grid)}


def chunks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Indexes in their order, so many together as have room."""
    found: list[list[int]] = [[]]
    used = 0
    for index, width in enumerate(widths):
        if found[-1] and used + width > room:
            found.append([])
            used = 0
        found[-1].append(index)
        used += width
    return found


def _number(grid: Grid, row: int, column: int, broad: int, pen: Pen) -> str:
    assert grid.texts is not None
    kind = Kind(int(grid.kinds[row, column]))
    text = fit(grid.texts[row][column], broad, pen.unicode)
    before, behind = _marks(kind, pen)
    text = " " * (broad - columns_of_line(text)) + before + text + behind
    if kind == Kind.HIDDEN:
        return pen.faint(text)
    back = pen.theme.fill(kind, grid.shade(row, column))
    return pen.paint(text, "#000000" if dark_on(back) else "#ffffff", back)


def _marks(kind: Kind, pen: Pen) -> tuple[str, str]:
    """What stands before and behind a number, so that its kind is told without colour."""
    if kind == Kind.HIDDEN:
        return "(", ")"
    return {Kind.SEEN: " ", Kind.SOME: "~"}.get(kind, pen.signs.kinds[kind]), " "
