"""Scenes: the content of a picture, independent of its output format.

A grid has a cell for each query and key, or, if these are too many, for each block of them. Every
cell has a kind, which is drawn as a pattern as well as a colour, and may have a shade and a text.
Renderers read scenes and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class Kind(IntEnum):
    """What a cell of a grid is."""

    MASKED = 0
    PARTIAL = 1  # a block of which some cells are visible
    VISIBLE = 2
    FIRST_ONLY = 3  # visible under the first of two masks only
    SECOND_ONLY = 4
    BOTH_DIFFER = 5  # a block in which each of two masks has cells that the other masks


KIND_NAMES: Final = {
    Kind.MASKED: "masked",
    Kind.PARTIAL: "partly visible",
    Kind.VISIBLE: "visible",
    Kind.FIRST_ONLY: "visible only in the first",
    Kind.SECOND_ONLY: "visible only in the second",
    Kind.BOTH_DIFFER: "each has cells that the other masks",
}


class LegendEntry(NamedTuple):
    """A line of the legend."""

    kind: Kind
    text: str


@dataclass(frozen=True, eq=False)
class Grid:
    """A matrix of cells with labels.

    Args:
        kinds: A `Kind` for each cell, (rows, columns).
        title: The title of this grid.
        shades: From 0 to 1 for each cell: the visible share of a block, or the size of a number.
        texts: Numbers to write into the cells.
        rows: Tokens of the rows.
        columns: Tokens of the columns.
        block: Number of queries and keys of a cell.
        start: The first query and key.
        extent: Number of queries and keys of the grid.
        row_name: What a row is.
        column_name: What a column is.
        names: Names of kinds that differ from the usual ones.
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
    row_name: str = "query"
    column_name: str = "key"
    names: dict[Kind, str] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns of cells."""
        rows, columns = self.kinds.shape
        return rows, columns

    @property
    def fill(self) -> npt.NDArray[np.float64]:
        """The shade of each cell; 0 or 1 where the grid has no shades."""
        return (self.kinds != Kind.MASKED).astype(float) if self.shades is None else self.shades

    def label(self, axis: int, index: int) -> str:
        """The label of a row (axis 0) or a column (axis 1): its token or its first position."""
        tokens = (self.rows, self.columns)[axis]
        return str(self.position(axis, index)) if tokens is None else tokens[index]

    def position(self, axis: int, index: int) -> int:
        """The first query of a row (axis 0), or the first key of a column (axis 1)."""
        return self.start[axis] + index * self.block[axis]

    def describe_axis(self, axis: int, index: int) -> str:
        """The position of a row (axis 0) or a column (axis 1) as text.

        >>> import maskwright as mw
        >>> from maskwright.draw.masks import scene_of
        >>> grid = scene_of(mw.causal().on(1000)).grids[0]
        >>> grid.describe_axis(0, 1), grid.describe_axis(1, 249)
        ('query 4 … 7', 'key 996 … 999')
        """
        name = (self.row_name, self.column_name)[axis]
        tokens = (self.rows, self.columns)[axis]
        first = self.position(axis, index)
        last = min(first + self.block[axis], self.start[axis] + self.extent[axis]) - 1
        if last > first:
            return f"{name} {first} … {last}"
        return f"{name} {first}" if tokens is None else f"{name} {first} {tokens[index]}"

    def describe_cell(self, row: int, column: int) -> str:
        """A cell as text, for tooltips.

        >>> import maskwright as mw
        >>> from maskwright.draw.masks import scene_of
        >>> scene_of(mw.causal().on(4)).grids[0].describe_cell(0, 2)
        'query 0, key 2: masked'
        """
        place = f"{self.describe_axis(0, row)}, {self.describe_axis(1, column)}"
        return f"{place}: {self.describe_kind(row, column)}"

    def describe_kind(self, row: int, column: int) -> str:
        """The kind and the number of a cell as text."""
        kind = Kind(int(self.kinds[row, column]))
        name = (self.names or {}).get(kind, KIND_NAMES[kind])
        if self.texts is not None:
            return f"{self.texts[row][column]} ({name})"
        if kind == Kind.PARTIAL:
            return f"{self.fill[row, column]:.0%} visible"
        return name


@dataclass(frozen=True, eq=False)
class Scene:
    """Grids under one title, with a legend and a text alternative.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import scene_of
    >>> scene = scene_of(mw.causal().on(3))
    >>> scene.title, scene.note
    ('causal()', '3 queries × 3 keys, density 0.67')
    >>> print(scene.description)
    causal(), 3 queries × 3 keys, density 0.67. Rows are queries, columns are keys. query 0 attends
    to key 0; query 1 attends to keys 0 to 1; query 2 attends to keys 0 to 2.
    """

    title: str
    grids: tuple[Grid, ...]
    note: str = ""
    legend: tuple[LegendEntry, ...] = ()
    description: str = ""


def legend_of(
    grids: Sequence[Grid], names: dict[Kind, str] | None = None
) -> tuple[LegendEntry, ...]:
    """A legend entry for each kind that occurs; `names` replace the usual ones."""
    kinds: set[Any] = set()
    for grid in grids:
        kinds |= set(np.unique(grid.kinds).tolist())
    texts = {**KIND_NAMES, **(names or {})}
    return tuple(LegendEntry(kind, texts[kind]) for kind in reversed(Kind) if kind in kinds)


def flow(widths: Sequence[float], max_width: float) -> list[list[int]]:
    """Consecutive indices in rows, none wider than `max_width` unless a single item is.

    >>> flow([3, 3, 9, 2], 6)
    [[0, 1], [2], [3]]
    """
    rows: list[list[int]] = []
    used = 0.0
    for index, width in enumerate(widths):
        if not rows or used + width > max_width:
            rows.append([])
            used = 0.0
        rows[-1].append(index)
        used += width
    return rows
