"""One grid of an SVG: its axes, cells, numbers, tooltips and frames.

Equal cells are merged into rectangles and these into one path a kind, so that a picture stays
small.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.draw.palette import DARK, LIGHT, dark_on
from maskwright.draw.scene import Grid, Kind
from maskwright.draw.svg_ink import FEW, OWN, PATTERNS, written
from maskwright.draw.svg_text import cut, escape, short, text_width, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from maskwright.draw.svg_box import Box
    from maskwright.draw.svg_ink import Ink

MOST_SIDE = 32  # cells of a side that say what they are


class Place(NamedTuple):
    """Where the cells of a grid are in the picture, and how wide and tall one is."""

    x: float
    y: float
    wide: float
    tall: float


def draw_grid(box: Box, place: Place, ink: Ink, tooltips: bool) -> str:
    """All of a grid, with its upper left cell at its place."""
    parts = [f'<g transform="translate({short(place.x)} {short(place.y)})">', *_axes(box, ink)]
    parts += _cells(box, ink)
    if box.texts is not None:
        parts += _numbers(box, ink)
    if tooltips and max(box.grid.shape) <= MOST_SIDE:
        parts += _tooltips(box)
    parts += _outlines(box, ink)
    return "\n".join([*parts, "</g>"])


class Run(NamedTuple):
    """A rectangle of cells that are all alike."""

    key: int
    row: int
    column: int
    rows: int
    columns: int


def merge(keys: npt.NDArray[np.integer[Any]]) -> Iterator[Run]:
    """Few rectangles that cover a matrix: runs along a row, and equal runs of rows below.

    >>> import numpy as np
    >>> from maskwright.draw.svg_grid import merge
    >>> [tuple(run) for run in merge(np.array([[1, 1, 0], [1, 1, 2]]))]
    [(0, 0, 2, 1, 1), (1, 0, 0, 2, 2), (2, 1, 2, 1, 1)]
    """
    rows, columns = keys.shape
    begun: dict[tuple[int, int, int], int] = {}  # the first row of every run still going on
    for row in range(rows):
        edges = [0, *(np.flatnonzero(np.diff(keys[row])) + 1).tolist(), columns]
        now = {(a, b, int(keys[row, a])): row for a, b in pairwise(edges) if a < b}
        for run, first in begun.items():
            if run in now:
                now[run] = first
            else:
                yield Run(run[2], first, run[0], row - first, run[1] - run[0])
        begun = now
    for (a, b, key), first in begun.items():
        yield Run(key, first, a, rows - first, b - a)


def _axes(box: Box, ink: Ink) -> Iterator[str]:
    width, height = box.body
    if box.title:
        yield ink.text(
            *(0, -box.top + 12, box.title, "text", 12.5),
            full=box.grid.title,
            extra=' font-weight="600"',
        )
    middle = ' text-anchor="middle"'
    italic = ' font-style="italic"'
    column_name, row_name = box.grid.column_name, box.grid.row_name
    x = max(width, text_width(column_name, 11)) / 2
    yield ink.text(x, -box.labels_top - 5, column_name, "faint", 11, extra=middle + italic)
    turn = f' transform="translate({short(6 - box.left)} {short(height / 2)}) rotate(-90)"'
    yield ink.text(0, 4, row_name, "faint", 11, extra=middle + italic + turn)
    yield f'<g font-size="11" text-anchor="middle" {ink.of("text")}>'
    for mark in box.column_marks:
        x = (mark.at + 0.5) * box.wide
        if box.turned:
            place = f'text-anchor="start" transform="translate({short(x + 4)} -6) rotate(-90)"'
        else:
            place = f'x="{short(x)}" y="-6"'
        yield f"<text {place}>{written(mark.text, mark.full)}</text>"
    yield f'</g><g font-size="11" text-anchor="end" {ink.of("text")}>'
    for mark in box.row_marks:
        y = short((mark.at + 0.5) * box.tall + 4)
        yield f'<text x="-7" y="{y}">{written(mark.text, mark.full)}</text>'
    yield "</g>"
    ticks = [f"M{short((m.at + 0.5) * box.wide)} -4v4" for m in box.column_marks]
    ticks = ticks if box.wide < 13 else []
    if box.tall < 13:
        ticks += [f"M-4 {short((m.at + 0.5) * box.tall)}h4" for m in box.row_marks]
    if ticks:
        yield f'<path {ink.of("line")} d="{"".join(ticks)}"/>'


def _cells(box: Box, ink: Ink) -> Iterator[str]:
    grid, (width, height) = box.grid, box.body
    size = f'width="{short(width)}" height="{short(height)}"'
    if grid.kinds.size:
        yield f"<rect {size} {ink.of('k0')}/>"
    yield '<g shape-rendering="crispEdges">'
    percent = _percents(grid)
    keys = np.where(grid.kinds == Kind.HIDDEN, -1, grid.kinds * np.int64(101) + percent)
    found = sorted(merge(keys), key=lambda run: -run.key)
    for key, runs in groupby(found, key=lambda run: run.key):
        if key >= 0:
            kind, share = divmod(key, 101)
            faint = "" if share == 100 else f' fill-opacity="{short(share / 100)}"'
            yield f'<path {ink.of(f"k{kind}")}{faint} d="{_path(runs, box)}"/>'
    yield "</g>"
    few = (grid.kinds == Kind.SOME) & (percent < 45)
    found = sorted(merge(np.where(few, FEW, grid.kinds)), key=lambda run: run.key)
    for key, runs in groupby(found, key=lambda run: run.key):
        if key in PATTERNS:
            yield f'<path fill="url(#{OWN}-{key})" d="{_path(runs, box)}"/>'
    rows, columns = grid.shape
    if grid.kinds.size > 1 and min(box.wide, box.tall) >= 8:
        lines = [f"M0 {short(row * box.tall)}h{short(width)}" for row in range(1, rows)]
        lines += [f"M{short(column * box.wide)} 0v{short(height)}" for column in range(1, columns)]
        yield f'<path {ink.of("gap")} d="{"".join(lines)}"/>'
    yield f'<rect {size} fill="none" {ink.of("line")}/>'


def _percents(grid: Grid) -> npt.NDArray[np.int64]:
    if grid.shades is None:
        return np.full(grid.shape, 100, np.int64)
    shades = np.clip(np.nan_to_num(grid.shades), 0, 1)
    return np.rint(shades * 100).astype(np.int64)


def _path(runs: Iterator[Run], box: Box) -> str:
    wide, tall = box.wide, box.tall
    return "".join(
        f"M{short(run.column * wide)} {short(run.row * tall)}"
        f"h{short(run.columns * wide)}v{short(run.rows * tall)}h{short(-run.columns * wide)}z"
        for run in runs
    )


def _numbers(box: Box, ink: Ink) -> Iterator[str]:
    assert box.texts is not None
    percent = _percents(box.grid)
    yield '<g text-anchor="middle">'
    for (row, column), kind in np.ndenumerate(box.grid.kinds):
        text = visible(box.texts[row][column], empty="")
        if not text:
            continue
        fitting = cut(text, 11, box.wide - 6)
        x, y = (column + 0.5) * box.wide, (row + 0.5) * box.tall
        if kind == Kind.HIDDEN:  # no hatching behind a number
            width = text_width(fitting, 11) + 4
            yield (
                f'<rect x="{short(x - width / 2)}" y="{short(y - 8)}" width="{short(width)}"'
                f' height="16" rx="3" {ink.of("k0")}/>'
            )
        share = percent[row, column] / 100
        light, dark = (dark_on(theme.fill(Kind(int(kind)), share)) for theme in (LIGHT, DARK))
        role = "faint" if kind == Kind.HIDDEN else f"on{light:d}{dark:d}"
        yield ink.text(x, y + 4, fitting, role, 11, full=text)
    yield "</g>"


def _tooltips(box: Box) -> Iterator[str]:
    yield '<g fill-opacity="0">'
    rows, columns = box.grid.shape
    size = f"h{short(box.wide)}v{short(box.tall)}h{short(-box.wide)}z"
    for row in range(rows):
        for column in range(columns):
            start = f"M{short(column * box.wide)} {short(row * box.tall)}"
            said = escape(box.grid.says(row, column))
            yield f'<path d="{start}{size}"><title>{said}</title></path>'
    yield "</g>"


def _outlines(box: Box, ink: Ink) -> Iterator[str]:
    stroke = 1 if box.grid.thin_outlines else 2
    for outline in box.grid.outlines:
        title = f"<title>{escape(outline.text)}</title>" if outline.text else ""
        dashes = ' stroke-dasharray="3 2"' if outline.dashed else ""
        yield (
            f'<rect x="{short(outline.column * box.wide)}" y="{short(outline.row * box.tall)}"'
            f' width="{short(outline.columns * box.wide)}"'
            f' height="{short(outline.rows * box.tall)}" rx="2" fill="none" stroke-width="{stroke}"'
            f"{dashes} {ink.of('frame')}>{title}</rect>"
        )
    for outline in box.inside:
        x, y = outline.column * box.wide + 4, outline.row * box.tall + 4
        width = short(text_width(outline.text, 10.5) + 6)
        yield (
            f'<rect x="{short(x)}" y="{short(y)}" width="{width}" height="15" rx="3"'
            f' fill-opacity=".92" {ink.of("ground")}/>'
        )
        yield ink.text(x + 3, y + 11, visible(outline.text), "said", 10.5)
    for outline, text, height in box.outside:
        edge = (outline.column + outline.columns) * box.wide
        middle = (outline.row + outline.rows / 2) * box.tall
        start, end = short(edge + 1), short(box.body[0] + 11)
        yield f'<path fill="none" {ink.of("frame")} d="M{start} {short(middle)}L{end} {short(height)}"/>'
        yield ink.text(box.body[0] + 14, height + 4, text, "said", 10.5, full=outline.text)
