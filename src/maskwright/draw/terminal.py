"""A scene as lines of text: two columns a cell while they fit, then one, then several cells a sign.

Every kind has a sign of its own, so that nothing is told by colour alone, and no line is wider
than asked for.
"""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, NamedTuple

from maskwright.draw.columns import columns_of_line
from maskwright.draw.labels import fit
from maskwright.draw.pen import Pen, depth_of, theme_of
from maskwright.draw.scene import WORDS, Grid, Kind, Outline, Scene
from maskwright.draw.terminal_grid import body, cut_labels, fitted, grid_signs, head, plural
from maskwright.draw.terminal_table import chunks, number_signs, table
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maskwright.draw.scene import Entry

NARROWEST = 20
MOST_OUTLINES = 24
GAP = 4  # between grids side by side


def render(
    scene: Scene, width: int | None = None, colour: bool | None = None, unicode: bool = True
) -> str:
    """The scene as text of at most `width` columns, without a line break at its end.

    Args:
        scene: What to show.
        width: How many columns there are; None asks the terminal.
        colour: Whether to write colours; None writes them to a terminal that can show them, unless
            NO_COLOR is set. COLORTERM decides between 24-bit and 256 colours.
        unicode: Whether more than ASCII may be written.

    Raises:
        ArgumentError: `width` is less than 20.

    >>> import numpy as np
    >>> from maskwright.draw.scene import Grid, Scene, legend_of
    >>> grid = Grid(np.tri(3, dtype=np.uint8) * 2, rows=("I", "like", "tea"))
    >>> print(render(Scene("causal()", (grid,), legend=legend_of((grid,))), 40, False, False))
    causal()
    <BLANKLINE>
    query v  key ->
             0 1 2
          I  ##....
       like  ####..
        tea  ######
    <BLANKLINE>
    ## seen   .. hidden
    """
    if width is None:
        width = max(shutil.get_terminal_size().columns, NARROWEST)
    if width < NARROWEST:
        raise ArgumentError(
            f"render: width={width} is too narrow for a picture. Give {NARROWEST} or more."
        )
    pen = Pen(depth_of(colour), theme_of(), unicode)
    told = {entry.kind for entry in scene.legend}
    blocks = [_block(grid, width, pen, told) for grid in scene.grids]
    parts = [
        [*pen.lines(scene.title, width, bold=True), *pen.lines(scene.note, width)],
        *_flow(blocks, width),
        _legend(scene.legend, blocks, width, pen),
    ]
    return "\n\n".join("\n".join(line.rstrip(" ") for line in part) for part in parts if part)


class _Block(NamedTuple):
    """A drawn grid, and the signs that stand for the kinds in it."""

    lines: list[str]
    signs: dict[Kind, str]

    @property
    def width(self) -> int:
        return max(map(columns_of_line, self.lines), default=0)


def _block(grid: Grid, width: int, pen: Pen, told: set[Kind]) -> _Block:
    """A grid with all that is said below it; `told` are the kinds that the scene has words for."""
    lines = pen.lines(grid.title, width, bold=True)
    rows, columns = grid.shape
    if not rows or not columns:
        lines += pen.lines(f"nothing to draw: {_sizes(grid, rows, columns)}", width)
        return _Block(lines, {})
    if grid.texts is not None:
        lines += [*table(grid, width, pen), *_with_space(_outlines(grid, width, pen))]
        signs = number_signs(grid, pen)
        if Kind.SEEN not in told:  # a number without a mark explains itself
            signs.pop(Kind.SEEN, None)
        return _Block(lines, signs)
    drawn, mode = fitted(grid, width, pen)
    lines += [*head(drawn, mode, width, pen), *body(drawn, mode, width, pen)]
    said = []
    if drawn.block != grid.block:
        said += pen.lines(f"one sign here: {_sizes(grid, *drawn.block)}", width)
    said += [*cut_labels(drawn, mode, width, pen), *_outlines(grid, width, pen)]
    lines += _with_space(said)
    return _Block(lines, grid_signs(drawn, mode, pen))


def _flow(blocks: Sequence[_Block], width: int) -> Iterator[list[str]]:
    """Grids side by side where they fit, else below each other."""
    for chosen in chunks([block.width + GAP for block in blocks], width + GAP):
        beside = [blocks[index] for index in chosen]
        lines = []
        for row in range(max((len(block.lines) for block in beside), default=0)):
            text, start = "", 0
            for block in beside:
                text += " " * (start - columns_of_line(text))
                text += block.lines[row] if row < len(block.lines) else ""
                start += block.width + GAP
            lines.append(text)
        yield lines


def _legend(entries: Sequence[Entry], blocks: Sequence[_Block], width: int, pen: Pen) -> list[str]:
    """Every kind that was drawn, with its signs."""
    signs: dict[Kind, dict[str, None]] = {}
    for block in blocks:
        for kind, sign in block.signs.items():
            signs.setdefault(kind, {})[sign] = None
    words = WORDS | {entry.kind: entry.text for entry in entries}
    items = []
    for kind in sorted(signs, reverse=True):
        drawn = " ".join(signs[kind])
        items.append(f"{drawn} {fit(words[kind], width - columns_of_line(drawn) - 1, pen.unicode)}")
    lines = chunks([columns_of_line(item) + 3 for item in items], width + 3)
    return ["   ".join(items[index] for index in line) for line in lines if line]


def _outlines(grid: Grid, width: int, pen: Pen) -> Iterator[str]:
    for outline in grid.outlines[:MOST_OUTLINES]:
        places = ", ".join(_stretch(grid, outline, axis) for axis in (0, 1))
        text = f"{outline.text}: {places}" if outline.text else f"frame: {places}"
        yield from pen.lines(text, width)
    left = len(grid.outlines) - MOST_OUTLINES
    if left > 0:
        yield from pen.lines(f"and {left} more frames", width)


def _with_space(lines: Iterable[str]) -> list[str]:
    found = [*lines]
    return ["", *found] if found else []


def _stretch(grid: Grid, outline: Outline, axis: int) -> str:
    name = (grid.row_name, grid.column_name)[axis]
    first = (outline.row, outline.column)[axis]
    count = (outline.rows, outline.columns)[axis]
    block, start, extent = grid.block[axis], grid.start[axis], grid.extent[axis]
    low = start + math.floor(first * block)
    high = start + math.ceil((first + count) * block) - 1
    if extent:
        high = min(high, start + extent - 1)
    return f"{name} {low}" if high <= low else f"{plural(name, 2)} {low} to {high}"


def _sizes(grid: Grid, rows: int, columns: int) -> str:
    return (
        f"{rows:,} {plural(grid.row_name, rows)} × {columns:,} {plural(grid.column_name, columns)}"
    )
