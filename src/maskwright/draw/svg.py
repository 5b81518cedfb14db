"""Scenes as SVG: one file without script, for papers, pages and notebooks.

Colours are plain attributes, and those of the dark theme a style on top, so that programs without
CSS show the picture too. Equal cells are merged into rectangles and these into one path for each
kind, which keeps pictures small.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from maskwright.draw.palette import DARK, LIGHT, Theme, needs_dark_text
from maskwright.draw.scene import Grid, Kind, Scene, flow
from maskwright.draw.text import BOLD, cut, escape, text_width, visible, wrap_pixels
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

ThemeName = Literal["auto", "light", "dark"]

FONT: Final = (
    "system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,'Noto Sans','PingFang SC',"
    "'Microsoft YaHei',sans-serif"
)
PAGE, MARGIN, GAP = 780, 16, 28  # width of a row of grids; around the picture; between grids
SIDES: Final = {1: 440, 2: 300}  # side of a grid by the number of grids
SIDE: Final = 220  # with more grids
MAX_TOOLTIPS: Final = 1024  # of all grids
MAX_LABELS: Final = 64  # more rows or columns are numbered, not labelled by tokens
LABEL_WIDTH, NUMBER_WIDTH, TITLE_WIDTH = 120, 76, 300  # longer texts are cut


class Place(NamedTuple):
    """Position of a grid's first cell in the picture, and the size of a cell."""

    x: float
    y: float
    wide: float
    tall: float


class Picture(NamedTuple):
    """An SVG with its id, the places of its grids, and its width."""

    text: str
    name: str
    places: tuple[Place, ...]
    width: float


def render(scene: Scene, theme: ThemeName = "auto") -> str:
    """A scene as a standalone SVG; "auto" is light or dark as its reader's system is.

    >>> import maskwright as mw
    >>> from maskwright.draw import svg
    >>> from maskwright.draw.masks import scene_of
    >>> picture = svg.render(scene_of(mw.causal().on(4)))
    >>> picture[:4], "<title" in picture, "<script" in picture
    ('<svg', True, False)
    """
    return draw(scene, theme).text


def draw(scene: Scene, theme: ThemeName = "auto", *, tooltips: bool = True) -> Picture:
    """A scene as an SVG, and the places of its cells.

    >>> import maskwright as mw
    >>> from maskwright.draw import svg
    >>> from maskwright.draw.masks import scene_of
    >>> svg.draw(scene_of(mw.causal().on(4))).places[0].wide
    34.0
    """
    if theme not in ("auto", "light", "dark"):
        raise ArgumentError(f'theme: expected "auto", "light" or "dark", got {theme!r}.')
    style = SvgStyle(DARK if theme == "dark" else LIGHT)
    boxes = [_Box(grid, SIDES.get(len(scene.grids), SIDE)) for grid in scene.grids]
    rows = flow([box.width + GAP for box in boxes], PAGE + GAP)
    lines = [[boxes[index] for index in row] for row in rows]
    width = max([280.0, *map(_line_width, lines)])
    width = max(width, min(480.0, text_width(scene.title, 15, bold=True)))
    tooltips = tooltips and sum(grid.kinds.size for grid in scene.grids) <= MAX_TOOLTIPS
    body, y = [], float(MARGIN)
    for line in wrap_pixels(scene.title, 15, width, bold=True):
        y += 19
        body.append(style.text(MARGIN, y - 4, line, "text", 15, extra=' font-weight="600"'))
    blocks = sorted({grid.block for grid in scene.grids} - {(1, 1)})
    sizes = [f"1 square = {rows:,} × {columns:,} cells" for rows, columns in blocks]
    for line in wrap_pixels("; ".join(filter(None, [scene.note, *sizes])), 11.5, width):
        y += 16
        body.append(style.text(MARGIN, y - 3, line, "faint", 11.5))
    y += 10
    places = []
    for row in lines:
        x, top = float(MARGIN), max(box.top for box in row)
        for box in row:
            # Whole pixels keep the edges of cells sharp.
            places.append(Place(round(x + box.left), round(y + top), box.wide, box.tall))
            body.append(_draw_grid(box, places[-1], style, tooltips))
            x += box.width + GAP
        y += top + max(box.height for box in row) + 18
    legend, y = _draw_legend(scene, style, y, width)
    return _document(scene, theme, style, "\n".join(body + legend), (width, y), places)


def merge(keys: npt.NDArray[np.integer[Any]]) -> Iterator[Run]:
    """Covers a matrix by few rectangles of equal cells.

    >>> import numpy as np
    >>> from maskwright.draw.svg import merge
    >>> [tuple(run) for run in merge(np.array([[1, 1, 0], [1, 1, 2]]))]
    [(0, 0, 2, 1, 1), (1, 0, 0, 2, 2), (2, 1, 2, 1, 1)]
    """
    rows, columns = keys.shape
    open_runs: dict[tuple[int, int, int], int] = {}  # (start, stop, value) -> first row
    for row in range(rows):
        edges = [0, *(np.flatnonzero(np.diff(keys[row])) + 1).tolist(), columns]
        runs = {(a, b, int(keys[row, a])): row for a, b in pairwise(edges) if a < b}
        for run, first in open_runs.items():
            if run in runs:
                runs[run] = first
            else:
                yield Run(run[2], first, run[0], row - first, run[1] - run[0])
        open_runs = runs
    for (a, b, key), first in open_runs.items():
        yield Run(key, first, a, rows - first, b - a)


class Run(NamedTuple):
    """A rectangle of cells with the same value."""

    key: int
    row: int
    column: int
    rows: int
    columns: int


# ── colours ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SvgStyle:
    """Colours of SVG elements: the attribute of one theme, and a class for the other."""

    theme: Theme

    def attributes(self, role: str) -> str:
        """The class and colour attributes of a role."""
        what, colour = ROLES[role]
        return f'class="{role}" {what}="{colour(self.theme)}"'

    def text(
        self,
        x: float,
        y: float,
        text: str,
        role: str,
        size: float,
        *,
        full: str | None = None,
        extra: str = "",
    ) -> str:
        """A line of text; `full` is its uncut form."""
        return (
            f'<text x="{short(x)}" y="{short(y)}" font-size="{short(size)}"'
            f" {self.attributes(role)}{extra}>"
            f"{escape(text) if full is None else _with_tooltip(text, full)}</text>"
        )

    def rules(self, name: str, theme: Theme, body: str) -> str:
        """CSS of another theme, for the classes that occur."""
        used = {"ground", *re.findall(r'class="(\w+)"', body)}
        return "".join(
            f"#{name} .{role}{{{what}:{colour(theme)}}}"
            for role, (what, colour) in ROLES.items()
            if role in used
        )

    def patterns(self, body: str) -> str:
        """Definitions of the patterns that occur."""
        used = "".join(
            f'<pattern id="{ID}-{key:d}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f"<path {self.attributes(role)} {shape}/></pattern>"
            for key, (role, shape) in PATTERNS.items()
            if f"#{ID}-{key:d})" in body
        )
        return f"<defs>{used}</defs>\n" if used else ""


def _kind_colour(kind: Kind) -> Callable[[Theme], str]:
    return lambda theme: theme.kinds[kind]


def _number_colour(dark_in_light: bool, dark_in_dark: bool) -> Callable[[Theme], str]:
    """The colour of a number: dark or light, as its cell needs in the light and the dark theme."""

    def colour(theme: Theme) -> str:
        if theme is DARK:
            return theme.ground if dark_in_dark else theme.text
        return theme.text if dark_in_light else theme.ground

    return colour


# A role is a class in the picture: the attribute that it colours, and its colour in a theme.
ROLES: Final[dict[str, tuple[str, Callable[[Theme], str]]]] = {
    "ground": ("fill", lambda theme: theme.ground),
    "text": ("fill", lambda theme: theme.text),
    "faint": ("fill", lambda theme: theme.faint),
    "line": ("stroke", lambda theme: theme.line),
    "gap": ("stroke", lambda theme: theme.ground),
    "dot": ("fill", lambda theme: theme.ground),
    "hatch": ("stroke", lambda theme: theme.hatch),
    **{f"k{kind.value}": ("fill", _kind_colour(kind)) for kind in Kind},
    **{
        f"on{a:d}{b:d}": ("fill", _number_colour(a, b))
        for a in (False, True)
        for b in (False, True)
    },
}
ID: Final = "\x00"  # stands for the picture's id until its content is known
SPARSE: Final = len(Kind)  # pattern of a block with few visible cells: dark dots instead of light
DOTS: Final = 'd="M1 1h1.6v1.6h-1.6zM4 4h1.6v1.6h-1.6z"'
PATTERNS: Final[dict[int, tuple[str, str]]] = {  # visible cells have none
    Kind.MASKED: ("hatch", 'd="M-1.5 1.5l3-3M0 6l6-6M4.5 7.5l3-3" stroke-width="1.1"'),
    Kind.PARTIAL: ("dot", f'{DOTS} fill-opacity=".75"'),
    SPARSE: ("k1", f'{DOTS} fill-opacity=".6"'),
    Kind.FIRST_ONLY: ("gap", 'd="M0 3h6" stroke-width="1.2" stroke-opacity=".6"'),
    Kind.SECOND_ONLY: ("gap", 'd="M3 0v6" stroke-width="1.2" stroke-opacity=".6"'),
    Kind.BOTH_DIFFER: ("gap", 'd="M0 3h6M3 0v6" stroke-width="1.2" stroke-opacity=".6"'),
}


# ── layout ───────────────────────────────────────────────────────────────────────────────────────


class _Mark(NamedTuple):
    """A label of an axis: the index of its cell, as drawn, and uncut."""

    at: int
    text: str
    full: str


@dataclass
class _Box:
    """A grid with the sizes of its cells and of the labels around them."""

    grid: Grid
    side: float

    def __post_init__(self) -> None:
        rows, columns = self.grid.shape
        self._size_cells(rows, columns)
        self.body = (columns * self.wide or 24.0, rows * self.tall or 24.0)
        self.row_marks = _marks(self.grid, 0, self.tall)
        self.column_marks = _marks(self.grid, 1, self.wide)
        widths = [text_width(mark.text, 11) for mark in self.column_marks]
        labelled = self.grid.columns is not None and len(self.column_marks) == columns
        self.turned = labelled and max(widths, default=0) > self.wide - 2
        self.above = (max(widths, default=0) if self.turned else 11) + 6
        self.left = max((text_width(mark.text, 11) for mark in self.row_marks), default=0) + 24
        self.title = cut(visible(self.grid.title), 12.5 * BOLD, max(self.body[0], TITLE_WIDTH))
        self.top = self.above + 16 + (20 if self.title else 0)
        names = text_width(self.title, 12.5, bold=True), text_width(self.grid.column_name, 11)
        self.width = self.left + max(self.body[0], *names)
        self.height = max(self.body[1], text_width(self.grid.row_name, 11))

    def _size_cells(self, rows: int, columns: int) -> None:
        longer = max(rows, columns, 1)
        side = (self.side if longer <= MAX_LABELS else 1.17 * self.side) / longer
        side = float(min(side // 1, 34)) if side >= 2 else max(side * 2 // 1 / 2, 1.0)
        # A few rows of many columns would be too thin, so cells need not be square.
        self.tall = max(side, min(20, 48 // max(rows, 1)))
        self.wide = max(side, min(20, 48 // max(columns, 1)))
        if self.grid.rows is not None and rows <= MAX_LABELS:
            self.tall = max(self.tall, 15)
        if self.grid.columns is not None and columns <= MAX_LABELS:
            self.wide = max(self.wide, 15)
        if self.grid.texts is not None:
            widest = max(
                (text_width(text, 11) for row in self.grid.texts for text in row), default=0
            )
            self.wide = max(self.wide, min(int(widest) + 12, NUMBER_WIDTH))
            self.tall = max(self.tall, 24)


def _marks(grid: Grid, axis: int, cell: float) -> list[_Mark]:
    """The labels of an axis: all tokens if they fit, else positions at round steps."""
    size = grid.shape[axis]
    tokens = (grid.rows, grid.columns)[axis]
    if tokens is not None and size <= MAX_LABELS:
        shown = (visible(token, empty="∅") for token in tokens)
        return [
            _Mark(index, cut(text, 11, LABEL_WIDTH), tokens[index])
            for index, text in enumerate(shown)
        ]
    numbers = [str(grid.position(axis, index)) for index in range(size)]
    widest = max((text_width(number, 11) for number in numbers), default=0)
    needed = 15.0 if axis == 0 and cell >= 13 else widest + (3 if cell >= 13 else 14)
    binary = grid.block[axis] > 1 or size % 16 == 0
    bases, power = ((1,), 2) if binary else ((1, 2, 5), 10)
    steps = (base * power**exponent for exponent in count() for base in bases)
    step = next(step for step in steps if step * cell >= needed)
    offset = 0 if binary else -grid.start[axis] % step
    return [_Mark(index, numbers[index], numbers[index]) for index in range(offset, size, step)]


def _line_width(line: Sequence[_Box]) -> float:
    return sum(box.width for box in line) + GAP * (len(line) - 1)


# ── elements ─────────────────────────────────────────────────────────────────────────────────────


def _document(
    scene: Scene,
    theme: ThemeName,
    style: SvgStyle,
    body: str,
    size: tuple[float, float],
    places: Sequence[Place],
) -> Picture:
    width, height = round(size[0] + 2 * MARGIN), round(size[1] + MARGIN - 6)
    content = f"{theme}{scene.title}{scene.description}{body}".encode("utf-8", "replace")
    name = "mw" + hashlib.sha256(content).hexdigest()[:8]
    body = style.patterns(body) + body
    css = f"#{name}{{max-width:100%;height:auto}}"
    if theme == "auto":
        css += f"@media (prefers-color-scheme:dark){{{style.rules(name, DARK, body)}}}"
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d"'
        f' font-family="{FONT}">\n'
        f'<title id="{name}-t">{escape(scene.title)}</title>\n'
        f'<desc id="{name}-d">{escape(scene.description)}</desc>\n'
        f"<style>{css}</style>\n"
        f'<rect width="{width}" height="{height}" rx="6" {style.attributes("ground")}/>\n'
        f"{body.replace(ID, name)}\n</svg>\n"
    )
    return Picture(text, name, tuple(places), width)


def _draw_legend(scene: Scene, style: SvgStyle, y: float, width: float) -> tuple[list[str], float]:
    parts, x = [], 0.0
    for entry in scene.legend:
        text = cut(visible(entry.text, empty="∅"), 11.5, width - 24)
        needed = 22 + text_width(text, 11.5)
        if x and x + needed > width:
            x, y = 0.0, y + 20
        square = f'x="{short(MARGIN + x)}" y="{short(y)}" width="14" height="14"'
        parts.append(f"<rect {square} {style.attributes('k0')}/>")
        if entry.kind != Kind.MASKED:
            opacity = ' fill-opacity=".5"' if entry.kind == Kind.PARTIAL else ""
            parts.append(f"<rect {square} {style.attributes(f'k{entry.kind.value}')}{opacity}/>")
        if entry.kind in PATTERNS:
            parts.append(f'<rect {square} fill="url(#{ID}-{entry.kind.value})"/>')
        parts.append(f'<rect {square} fill="none" {style.attributes("line")}/>')
        parts.append(style.text(MARGIN + x + 20, y + 11, text, "faint", 11.5, full=entry.text))
        x += needed + 18
    return parts, y + (20 if scene.legend else 0)


def _draw_grid(box: _Box, place: Place, style: SvgStyle, tooltips: bool) -> str:
    parts = [f'<g transform="translate({short(place.x)} {short(place.y)})">']
    parts += [*_axes(box, style), *_cells(box, style)]
    if box.grid.texts is not None:
        parts += _numbers(box, box.grid.texts, style)
    if tooltips:
        parts += _tooltips(box)
    return "\n".join([*parts, "</g>"])


def _axes(box: _Box, style: SvgStyle) -> Iterator[str]:
    grid, (width, height) = box.grid, box.body
    if box.title:
        bold = ' font-weight="600"'
        yield style.text(0, 12 - box.top, box.title, "text", 12.5, full=grid.title, extra=bold)
    name = ' text-anchor="middle" font-style="italic"'
    x = max(width, text_width(grid.column_name, 11)) / 2
    yield style.text(x, -box.above - 5, grid.column_name, "faint", 11, extra=name)
    turn = f' transform="translate({short(6 - box.left)} {short(height / 2)}) rotate(-90)"'
    yield style.text(0, 4, grid.row_name, "faint", 11, extra=name + turn)
    yield f'<g font-size="11" text-anchor="middle" {style.attributes("text")}>'
    for mark in box.column_marks:
        x = (mark.at + 0.5) * box.wide
        if box.turned:
            place = f'text-anchor="start" transform="translate({short(x + 4)} -6) rotate(-90)"'
        else:
            place = f'x="{short(x)}" y="-6"'
        yield f"<text {place}>{_with_tooltip(mark.text, mark.full)}</text>"
    yield f'</g><g font-size="11" text-anchor="end" {style.attributes("text")}>'
    for mark in box.row_marks:
        y = short((mark.at + 0.5) * box.tall + 4)
        yield f'<text x="-7" y="{y}">{_with_tooltip(mark.text, mark.full)}</text>'
    yield "</g>"
    ticks = ""
    if box.wide < 13:
        ticks += "".join(f"M{short((m.at + 0.5) * box.wide)} -4v4" for m in box.column_marks)
    if box.tall < 13:
        ticks += "".join(f"M-4 {short((m.at + 0.5) * box.tall)}h4" for m in box.row_marks)
    if ticks:
        yield f'<path {style.attributes("line")} d="{ticks}"/>'


def _cells(box: _Box, style: SvgStyle) -> Iterator[str]:
    grid, (width, height) = box.grid, box.body
    size = f'width="{short(width)}" height="{short(height)}"'
    if grid.kinds.size:
        yield f"<rect {size} {style.attributes('k0')}/>"
    yield '<g shape-rendering="crispEdges">'
    percent = _percents(grid)
    for key, path in _paths(
        np.where(grid.kinds == Kind.MASKED, -1, grid.kinds * np.int64(101) + percent), box
    ):
        if key >= 0:
            kind, share = divmod(key, 101)
            opacity = "" if share == 100 else f' fill-opacity="{short(share / 100)}"'
            yield f'<path {style.attributes(f"k{kind}")}{opacity} d="{path}"/>'
    yield "</g>"
    sparse = (grid.kinds == Kind.PARTIAL) & (percent < 45)
    for key, path in _paths(np.where(sparse, SPARSE, grid.kinds), box):
        if key in PATTERNS:
            yield f'<path fill="url(#{ID}-{key})" d="{path}"/>'
    rows, columns = grid.shape
    if grid.kinds.size > 1 and min(box.wide, box.tall) >= 8:
        lines = [f"M0 {short(row * box.tall)}h{short(width)}" for row in range(1, rows)]
        lines += [f"M{short(column * box.wide)} 0v{short(height)}" for column in range(1, columns)]
        yield f'<path {style.attributes("gap")} d="{"".join(lines)}"/>'
    yield f'<rect {size} fill="none" {style.attributes("line")}/>'


def _percents(grid: Grid) -> npt.NDArray[np.int64]:
    if grid.shades is None:
        return np.full(grid.shape, 100, np.int64)
    return np.rint(np.clip(np.nan_to_num(grid.shades), 0, 1) * 100).astype(np.int64)


def _paths(keys: npt.NDArray[np.integer[Any]], box: _Box) -> Iterator[tuple[int, str]]:
    """A path around the cells of each value."""
    for key, runs in groupby(sorted(merge(keys), key=lambda run: run.key), lambda run: run.key):
        yield (
            key,
            "".join(
                f"M{short(run.column * box.wide)} {short(run.row * box.tall)}"
                f"h{short(run.columns * box.wide)}v{short(run.rows * box.tall)}"
                f"h{short(-run.columns * box.wide)}z"
                for run in runs
            ),
        )


def _numbers(box: _Box, texts: tuple[tuple[str, ...], ...], style: SvgStyle) -> Iterator[str]:
    percent = _percents(box.grid)
    yield '<g text-anchor="middle">'
    for (row, column), value in np.ndenumerate(box.grid.kinds):
        text = visible(texts[row][column])
        if not text:
            continue
        kind, share = Kind(int(value)), percent[row, column] / 100
        shown = cut(text, 11, box.wide - 6)
        x, y = (column + 0.5) * box.wide, (row + 0.5) * box.tall
        on_light, on_dark = (needs_dark_text(theme.fill(kind, share)) for theme in (LIGHT, DARK))
        role = f"on{on_light:d}{on_dark:d}"
        if kind == Kind.MASKED:  # no hatching behind a number
            role, width = "faint", text_width(shown, 11) + 4
            yield (
                f'<rect x="{short(x - width / 2)}" y="{short(y - 8)}" width="{short(width)}"'
                f' height="16" rx="3" {style.attributes("k0")}/>'
            )
        yield style.text(x, y + 4, shown, role, 11, full=text)
    yield "</g>"


def _tooltips(box: _Box) -> Iterable[str]:
    yield '<g fill-opacity="0">'
    size = f"h{short(box.wide)}v{short(box.tall)}h{short(-box.wide)}z"
    for row, column in np.ndindex(box.grid.shape):
        start = f"M{short(column * box.wide)} {short(row * box.tall)}"
        text = escape(box.grid.describe_cell(row, column))
        yield f'<path d="{start}{size}"><title>{text}</title></path>'
    yield "</g>"


def _with_tooltip(text: str, full: str) -> str:
    """A text, with its uncut form as a tooltip if it was cut."""
    shown = visible(full, empty="∅")
    return escape(text) if text == shown else f"<title>{escape(shown)}</title>{escape(text)}"


def short(number: float) -> str:
    """A coordinate in as few digits as a picture needs.

    >>> from maskwright.draw.svg import short
    >>> short(12.000000001), short(0.5), short(-0.001)
    ('12', '.5', '0')
    """
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    if text in ("-0", "0"):
        return "0"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text
