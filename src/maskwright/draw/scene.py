"""A scene: what a picture shows, before anyone decides how it looks.

A grid has a row for each query and a column for each key, or, where these are too many, a sign for
each tile. Every cell has a kind, which is told by pattern as well as by colour, and may have a
shade and a text. Renderers read this and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class Kind(IntEnum):
    """What a cell, or a tile of cells, is."""

    HIDDEN = 0  # no cell of it may be seen
    SOME = 1  # some cells of the tile, not all
    SEEN = 2
    FIRST = 3  # only the first of two masks lets it through
    SECOND = 4  # only the second does
    MIXED = 5  # a tile of which each of the two lets through what the other does not


class Entry(NamedTuple):
    """A line of the legend."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Outline:
    """A rectangle around some cells, in cells of the grid: a tile, or a row being computed."""

    row: float
    column: float
    rows: float
    columns: float
    text: str = ""
    dashed: bool = False


@dataclass(frozen=True, eq=False)
class Grid:
    """One picture: `kinds` (rows, columns) of `Kind`, with `shades` from 0 to 1 for how strongly.

    `block` is how many queries and keys a sign stands for, `start` the query row and key of the
    upper left, `extent` how many of both the grid spans. Labels are tokens, one a sign, or absent.
    `texts` are numbers to write into the cells. Many outlines side by side are drawn thin.
    """

    kinds: npt.NDArray[np.uint8]
    title: str = ""
    shades: npt.NDArray[np.float64] | None = None
    texts: tuple[tuple[str, ...], ...] | None = None
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    block: tuple[int, int] = (1, 1)
    start: tuple[int, int] = (0, 0)
    extent: tuple[int, int] = (0, 0)
    outlines: tuple[Outline, ...] = ()
    thin_outlines: bool = False
    row_name: str = "query"
    column_name: str = "key"

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns of signs there are."""
        rows, columns = self.kinds.shape
        return rows, columns

    def shade(self, row: int, column: int) -> float:
        """How strongly a sign is filled, from 0 to 1."""
        if self.shades is not None:
            return float(self.shades[row, column])
        return 0.0 if self.kinds[row, column] == Kind.HIDDEN else 1.0

    def row_label(self, row: int) -> str:
        """What a row is called: its token, or the number of its first query."""
        return self._label(self.rows, row, 0)

    def column_label(self, column: int) -> str:
        """What a column is called: its token, or the number of its first key."""
        return self._label(self.columns, column, 1)

    def _label(self, given: tuple[str, ...] | None, index: int, axis: int) -> str:
        return str(self.start[axis] + index * self.block[axis]) if given is None else given[index]

    def says(self, row: int, column: int) -> str:
        """One sign in words, as a tooltip has it.

        >>> import maskwright as mw
        >>> from maskwright.draw.masks import scene_of
        >>> scene_of(mw.causal().on(4)).grids[0].says(0, 2)
        'query 0, key 2: hidden'
        """
        place = f"{self.place(0, row)}, {self.place(1, column)}"
        words = WORDS[Kind(int(self.kinds[row, column]))]
        if self.texts is not None:
            words = f"{self.texts[row][column]} ({words})"
        elif self.kinds[row, column] == Kind.SOME:
            words = f"{self.shade(row, column):.0%} seen"
        return f"{place}: {words}"

    def place(self, axis: int, index: int) -> str:
        """Where a row (axis 0) or a column (axis 1) of signs is, in words.

        >>> import maskwright as mw
        >>> from maskwright.draw.masks import scene_of
        >>> grid = scene_of(mw.causal().on(1000)).grids[0]
        >>> grid.place(0, 1), grid.place(1, 249)
        ('query 4 … 7', 'key 996 … 999')
        """
        name = (self.row_name, self.column_name)[axis]
        labels = (self.rows, self.columns)[axis]
        first = self.start[axis] + index * self.block[axis]
        last = min(first + self.block[axis], self.start[axis] + self.extent[axis]) - 1
        token = f" {labels[index]}" if labels is not None else ""
        return f"{name} {first}{token}" if last <= first else f"{name} {first} … {last}"


@dataclass(frozen=True, eq=False)
class Scene:
    """Some grids under one title, with a legend, and all of it in words for who can't see it.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import scene_of
    >>> scene = scene_of(mw.causal().on(4))
    >>> scene.title, scene.note
    ('causal()', '4 queries × 4 keys, density 0.62')
    >>> print(scene.description)
    causal(), 4 queries × 4 keys, density 0.62. Rows are queries, columns are keys. query 0 sees key
    0; query 1 sees keys 0 to 1; query 2 sees keys 0 to 2; query 3 sees keys 0 to 3.
    """

    title: str
    grids: tuple[Grid, ...]
    note: str = ""
    legend: tuple[Entry, ...] = ()
    description: str = ""


WORDS = {
    Kind.HIDDEN: "hidden",
    Kind.SOME: "partly seen",
    Kind.SEEN: "seen",
    Kind.FIRST: "only the first sees it",
    Kind.SECOND: "only the second sees it",
    Kind.MIXED: "each sees what the other does not",
}


def legend_of(grids: tuple[Grid, ...], words: dict[Kind, str] | None = None) -> tuple[Entry, ...]:
    """An entry for every kind that occurs."""
    found: set[Any] = set()
    for grid in grids:
        found |= set(np.unique(grid.kinds).tolist())
    said = {**WORDS, **(words or {})}
    return tuple(Entry(kind, said[kind]) for kind in sorted(Kind, reverse=True) if kind in found)
