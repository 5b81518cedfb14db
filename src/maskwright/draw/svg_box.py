"""Where the cells of a grid go in an SVG, and how much room its labels and frames need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from maskwright.draw.svg_text import BOLD, cut, text_width, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.draw.scene import Grid, Outline

MOST_LABELS = 64  # more rows or columns are numbered, not named
MOST_TEXTS = 1024
LABEL_ROOM, TEXT_ROOM, TITLE_ROOM = 120, 76, 300  # longer texts are cut


class Mark(NamedTuple):
    """A label of an axis: of which sign, as written, and in full."""

    at: int
    text: str
    full: str


@dataclass
class Box:
    """A grid with the room that it needs around its cells."""

    grid: Grid
    side: float

    def __post_init__(self) -> None:
        rows, columns = self.grid.shape
        self._size_cells(rows, columns)
        self.body = (columns * self.wide or 24.0, rows * self.tall or 24.0)
        self.row_marks = _marks(self.grid, 0, self.tall)
        self.column_marks = _marks(self.grid, 1, self.wide)
        names = self.grid.columns is not None and len(self.column_marks) == columns
        widths = [text_width(mark.text, 11) for mark in self.column_marks]
        self.turned = names and max(widths, default=0) > self.wide - 2
        above = (max(widths, default=0) if self.turned else 11) + 6
        beside = max((text_width(mark.text, 11) for mark in self.row_marks), default=0) + 8
        self.left = beside + 16
        self.title = cut(visible(self.grid.title, ""), 12.5 * BOLD, max(self.body[0], TITLE_ROOM))
        self.labels_top = above
        self.top = above + 16 + (20 if self.title else 0)
        self.inside, self.outside = self._outline_texts()
        right = max((text_width(text, 10.5) + 20 for _, text, _ in self.outside), default=0)
        least = max(text_width(self.title, 12.5, bold=True), text_width(self.grid.column_name, 11))
        self.width = self.left + max(self.body[0] + right, least)
        self.height = max(self.body[1], text_width(self.grid.row_name, 11))

    def _size_cells(self, rows: int, columns: int) -> None:
        most = max(rows, columns, 1)
        side = (self.side if most <= MOST_LABELS else 1.17 * self.side) / most
        side = float(min(side // 1, 34)) if side >= 2 else max(side * 2 // 1 / 2, 1.0)
        # A few rows of many columns would be too thin to see, so they need not be square.
        self.tall = max(side, min(20, 48 // max(rows, 1)))
        self.wide = max(side, min(20, 48 // max(columns, 1)))
        if self.grid.rows is not None and rows <= MOST_LABELS:
            self.tall = max(self.tall, 15)
        if self.grid.columns is not None and columns <= MOST_LABELS:
            self.wide = max(self.wide, 15)
        self.texts = self.grid.texts if rows * columns <= MOST_TEXTS else None
        if self.texts is not None:
            widest = max((text_width(text, 11) for row in self.texts for text in row), default=0)
            self.wide = max(self.wide, min(int(widest) + 12, TEXT_ROOM))
            self.tall = max(self.tall, 24)

    def _outline_texts(self) -> tuple[list[Outline], list[tuple[Outline, str, float]]]:
        """Outlines whose text fits into them, and the others with the height of theirs beside."""
        inside, outside = [], []
        for outline in self.grid.outlines:
            room = (outline.columns * self.wide, outline.rows * self.tall)
            needs = text_width(outline.text, 10.5) + 14
            if self.texts is None and room[0] >= needs and room[1] >= 22:
                inside.append(outline)
            elif outline.text:
                outside.append(outline)
        placed, free = [], 8.0
        for outline in sorted(outside, key=lambda outline: outline.row):
            height = max(free, (outline.row + outline.rows / 2) * self.tall)
            if height > self.body[1] + 8:
                break  # no room: the frame's tooltip says it
            placed.append((outline, cut(outline.text, 10.5, 180), height))
            free = height + 14
        return [outline for outline in inside if outline.text], placed


def _marks(grid: Grid, axis: int, cell: float) -> list[Mark]:
    """The labels of an axis: all tokens if there is room, else numbers at round steps."""
    count = grid.shape[axis]
    given = (grid.rows, grid.columns)[axis]
    if given is not None and count <= MOST_LABELS:
        shown = [visible(token) for token in given]
        return [
            Mark(index, cut(text, 11, LABEL_ROOM), given[index]) for index, text in enumerate(shown)
        ]
    numbers = [str(grid.start[axis] + index * grid.block[axis]) for index in range(count)]
    widest = max((text_width(number, 11) for number in numbers), default=0)
    room = 15.0 if axis == 0 and cell >= 13 else widest + (3 if cell >= 13 else 14)
    binary = grid.block[axis] > 1 or count % 16 == 0
    step = next(step for step in _steps(binary) if step * cell >= room)
    offset = 0 if binary else -grid.start[axis] % step
    return [Mark(index, numbers[index], numbers[index]) for index in range(offset, count, step)]


def _steps(binary: bool) -> Iterator[int]:
    scale = 1
    while True:
        yield from (scale, 2 * scale, 4 * scale) if binary else (scale, 2 * scale, 5 * scale)
        scale *= 8 if binary else 10
