"""Scenes as lines of text for a terminal.

A cell takes two columns if they fit, else one; beyond that, blocks of cells share a character. Each
kind has a character of its own, so that colour carries no information alone. No line is wider than
the given width.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from colorsys import rgb_to_hsv
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from maskwright.draw.palette import DARK, LIGHT, Theme, mix, needs_dark_text
from maskwright.draw.scene import KIND_NAMES, Grid, Kind, Scene, flow
from maskwright.draw.text import display_width, fit, graphemes, pad, visible, wrap
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# Columns per cell: two, one, or one for two rows.
Mode = Literal["double", "single", "half"]

MIN_WIDTH: Final = 20
MAX_DOUBLE_ROWS: Final = 64  # more rows of two columns per cell would fill several screens
MIN_JOINED_ROWS: Final = 20  # fewer rows are neither joined nor drawn two per line
MAX_VERTICAL: Final = 12  # characters of a label that is written downwards
GAP: Final = 4  # columns between grids side by side
MASK_KINDS: Final = frozenset({Kind.MASKED, Kind.PARTIAL, Kind.VISIBLE})


def render(
    scene: Scene, width: int | None = None, colour: bool | None = None, unicode: bool = True
) -> str:
    """A scene as text, without a line break at its end.

    Args:
        scene: The scene.
        width: Maximum number of columns. Default: those of the terminal.
        colour: Whether to write colours. Default: if standard output is a terminal and NO_COLOR is
            not set. COLORTERM decides between 24-bit and 256 colours.
        unicode: Whether characters beyond ASCII may be used.

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
    ## visible   .. masked
    """
    if width is None:
        width = max(shutil.get_terminal_size().columns, MIN_WIDTH)
    if width < MIN_WIDTH:
        raise ArgumentError(f"render: width must be at least {MIN_WIDTH}, got {width}.")
    style = TerminalStyle(color_depth(colour), terminal_theme(), unicode)
    in_legend = {entry.kind for entry in scene.legend}
    blocks = [_draw_grid(grid, width, style, in_legend) for grid in scene.grids]
    note = "; ".join(
        dict.fromkeys(text for text in (scene.note, *(b.note for b in blocks)) if text)
    )
    parts = [
        [*style.lines(scene.title, width, bold=True), *style.lines(note, width)],
        *_side_by_side(blocks, width),
        _draw_legend(scene, blocks, width, style),
    ]
    return "\n\n".join("\n".join(line.rstrip(" ") for line in part) for part in parts if part)


class _Block(NamedTuple):
    """A drawn grid: its lines, the symbols of the kinds in it, and the cells of a character."""

    title: Sequence[str]
    head: Sequence[str] = ()  # axes and column labels
    body: Sequence[str] = ()
    symbols: Mapping[Kind, str] = MappingProxyType({})
    note: str = ""

    @property
    def width(self) -> int:
        return max(map(display_width, [*self.title, *self.head, *self.body]), default=0)

    def lines(self, title: int, head: int) -> list[str]:
        """All lines, padded to `title` and `head` lines so that grids side by side align."""
        space = title - len(self.title) + head - len(self.head)
        return [*self.title, *[""] * space, *self.head, *self.body]


def _draw_grid(grid: Grid, width: int, style: TerminalStyle, in_legend: set[Kind]) -> _Block:
    title = style.lines(grid.title, width, bold=True)
    rows, columns = grid.shape
    if not rows or not columns:
        return _Block([*title, *style.lines(f"no cells: {rows:,} × {columns:,}", width)])
    if grid.texts is not None:
        axes, labels, *body = _table(grid, width, style)
        symbols = {kind: "0".join(_brackets(kind, style)).strip() for kind in _kinds(grid)}
        if Kind.VISIBLE not in in_legend:  # a number without brackets explains itself
            symbols.pop(Kind.VISIBLE, None)
        return _Block(title, [axes, labels], body, symbols)
    grid, mode = _fitted(grid, width, style)
    body = [*_rows(grid, mode, width, style)]
    if cut := _cut_labels(grid, mode, style):
        body += ["", *style.lines(cut, width)]
    tall, wide = grid.block
    tall *= 2 if mode == "half" else 1
    characters = "2 characters" if mode == "double" else "1 character"
    note = "" if (tall, wide) == (1, 1) else f"{characters} = {tall:,} × {wide:,} cells"
    symbols = {kind: style.symbol(kind, mode) for kind in _kinds(grid)}
    return _Block(title, [*_head(grid, mode, width, style)], body, symbols, note)


def _side_by_side(blocks: Sequence[_Block], width: int) -> Iterator[list[str]]:
    """Grids side by side where they fit, else below each other."""
    for chosen in flow([block.width + GAP for block in blocks], width + GAP):
        row = [blocks[index] for index in chosen]
        sizes = max(len(block.title) for block in row), max(len(block.head) for block in row)
        drawn = [block.lines(*sizes) for block in row]
        lines = []
        for number in range(max(map(len, drawn))):
            text, start = "", 0
            for block, block_lines in zip(row, drawn, strict=True):
                text += " " * (start - display_width(text))
                text += block_lines[number] if number < len(block_lines) else ""
                start += block.width + GAP
            lines.append(text)
        yield lines


def _draw_legend(
    scene: Scene, blocks: Sequence[_Block], width: int, style: TerminalStyle
) -> list[str]:
    """The symbols of each kind that was drawn."""
    symbols: dict[Kind, dict[str, None]] = {}
    for block in blocks:
        for kind, symbol in block.symbols.items():
            symbols.setdefault(kind, {})[symbol] = None
    names = dict(KIND_NAMES)
    for grid in scene.grids:
        names |= grid.names or {}
    names |= {entry.kind: entry.text for entry in scene.legend}
    items = []
    for kind in sorted(symbols, reverse=True):
        drawn = " ".join(symbols[kind])
        left = width - display_width(drawn) - 1
        items.append(f"{drawn} {fit(names[kind], left, style.unicode)}")
    lines = flow([display_width(item) + 3 for item in items], width + 3)
    return ["   ".join(items[index] for index in line) for line in lines]


# ── cells ────────────────────────────────────────────────────────────────────────────────────────


def _fitted(grid: Grid, width: int, style: TerminalStyle) -> tuple[Grid, Mode]:
    """The grid, with cells joined if need be, and the widest mode that fits."""
    rows, columns = grid.shape
    label = _label_width(grid, "double", width, style)
    if rows <= MAX_DOUBLE_ROWS and label + 2 + 2 * columns <= width:
        return grid, "double"
    mode = _narrow_mode(grid, style)
    left = width - 2 - _label_width(grid, mode, width, style)
    if columns <= left:
        return grid, mode
    wide = math.ceil(columns / left)
    halves = style.depth and style.unicode and MASK_KINDS.issuperset(_kinds(grid))
    # A character is twice as high as wide.
    tall = 1 if rows <= MIN_JOINED_ROWS else wide if halves else 2 * wide
    joined = _joined(grid, tall, wide)
    return joined, _narrow_mode(joined, style)


def _narrow_mode(grid: Grid, style: TerminalStyle) -> Mode:
    """Two rows per line, unless rows are few, or tokens, kinds or shades would be lost."""
    kinds = _kinds(grid)
    few = grid.rows is not None or grid.shape[0] <= MIN_JOINED_ROWS
    if few or not style.unicode or not MASK_KINDS.issuperset(kinds):
        return "single"
    shaded = Kind.PARTIAL in kinds or grid.shades is not None
    return "half" if style.depth or not shaded else "single"


def _joined(grid: Grid, tall: int, wide: int) -> Grid:
    """The grid with blocks of cells made one: their mean shade, and every difference in them."""
    fill = grid.fill
    rows, columns = (math.ceil(n / by) for n, by in zip(grid.shape, (tall, wide), strict=True))
    kinds, means = np.zeros((rows, columns), np.uint8), np.zeros((rows, columns))
    for row, column in np.ndindex(rows, columns):
        part = np.s_[row * tall : (row + 1) * tall, column * wide : (column + 1) * wide]
        kinds[row, column] = _joint_kind({Kind(int(kind)) for kind in np.unique(grid.kinds[part])})
        means[row, column] = fill[part].mean()
    block = (grid.block[0] * tall, grid.block[1] * wide)
    return replace(grid, kinds=kinds, shades=means, rows=None, columns=None, block=block)


def _joint_kind(kinds: set[Kind]) -> Kind:
    different = kinds - MASK_KINDS
    if different:
        return different.pop() if len(different) == 1 else Kind.BOTH_DIFFER
    return kinds.pop() if len(kinds) == 1 else Kind.PARTIAL


def _rows(grid: Grid, mode: Mode, width: int, style: TerminalStyle) -> Iterator[str]:
    """The cells, line by line, with row labels."""
    rows, columns = grid.shape
    kinds, fill = grid.kinds, grid.fill

    def cell(row: int, column: int) -> tuple[Kind, float]:
        return Kind(int(kinds[row, column])), float(fill[row, column])

    side = _label_width(grid, mode, width, style)
    for row in range(0, rows, 2 if mode == "half" else 1):
        label = style.faint(pad(_row_label(grid, row, mode), side, "right", style.unicode))
        if mode == "half":
            paired = row + 1 < rows
            cells = [
                style.halves(cell(row, c), cell(row + 1, c) if paired else None)
                for c in range(columns)
            ]
        else:
            count = 2 if mode == "double" else 1
            cells = [style.cell(*cell(row, c), count) for c in range(columns)]
        yield f"{label}  {style.write(cells)}"


def _kinds(grid: Grid) -> list[Kind]:
    return [Kind(int(kind)) for kind in np.unique(grid.kinds)]


# ── labels ───────────────────────────────────────────────────────────────────────────────────────


def _head(grid: Grid, mode: Mode, width: int, style: TerminalStyle) -> Iterator[str]:
    """The names of the axes, and the column labels: tokens written downwards, or some positions."""
    side = _label_width(grid, mode, width, style)
    yield _axes(grid, side, width, style)
    indent = " " * (side + 2)
    if mode != "double" or grid.columns is None:
        count = 2 if mode == "double" else 1
        yield indent + style.faint(_ticks(grid, count, width - side - 2))
        return
    labels = [_vertical(label, style) for label in grid.columns]
    height = max(map(len, labels))
    for line in range(height):
        letters = [label[line - height] if line >= height - len(label) else "" for label in labels]
        text = "".join(pad(letter, 2, unicode=style.unicode) for letter in letters)
        yield indent + style.faint(text)


def _axes(grid: Grid, side: int, width: int, style: TerminalStyle) -> str:
    down = pad(f"{grid.row_name} {style.symbols.down}", side, "right", style.unicode)
    right = fit(f"{grid.column_name} {style.symbols.right}", width - side - 2, style.unicode)
    return style.faint(f"{down}  {right}")


def _label_width(grid: Grid, mode: Mode, width: int, style: TerminalStyle) -> int:
    labels = (_row_label(grid, row, mode) for row in range(grid.shape[0]))
    widths = [display_width(visible(label, style.unicode)) for label in labels]
    return min(max([display_width(grid.row_name) + 2, *widths]), width // 3)


def _row_label(grid: Grid, row: int, mode: Mode) -> str:
    number = str(grid.position(0, row))
    if grid.rows is not None:  # columns have positions where their tokens do not fit
        return grid.rows[row] if mode == "double" else f"{number} {visible(grid.rows[row])}"
    step = {"double": 1, "single": 5, "half": 10}[mode] if grid.shape[0] > 12 else 1
    return number if mode == "double" or row % step == 0 else ""


def _ticks(grid: Grid, count: int, max_width: int) -> str:
    """The positions of as many columns as fit, each above its own."""
    columns = grid.shape[1]
    numbers = [str(grid.position(1, column)) for column in range(columns)]
    longest = max(map(len, numbers)) + 1
    steps = (base * 10**power for power in range(12) for base in (1, 2, 5))
    step = next(s for s in steps if s * count >= longest)
    text = ""
    for column in range(0, columns, step):
        if column * count + len(numbers[column]) <= min(max(columns * count, longest), max_width):
            text = text.ljust(column * count) + numbers[column]
    return text


def _vertical(label: str, style: TerminalStyle) -> list[str]:
    letters = graphemes(visible(label, style.unicode))
    if len(letters) > MAX_VERTICAL:
        letters = [*letters[: MAX_VERTICAL - 1], "…" if style.unicode else "~"]
    return letters


def _cut_labels(grid: Grid, mode: Mode, style: TerminalStyle) -> str:
    """The full labels of columns whose labels were cut or omitted."""
    if grid.columns is None or (mode != "double" and grid.columns == grid.rows):
        return ""
    labels = [visible(label, style.unicode) for label in grid.columns]
    listed = [
        f"{grid.position(1, column)} {label}"
        for column, label in enumerate(labels)
        if mode != "double" or len(graphemes(label)) > MAX_VERTICAL
    ]
    return f"{grid.column_name} labels: {', '.join(listed)}" if listed else ""


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


def _table(grid: Grid, width: int, style: TerminalStyle) -> Iterator[str]:
    """Numbers in columns, as several tables below each other if the width requires it."""
    assert grid.texts is not None
    side = _label_width(grid, "double", width, style)
    max_width = width - side - 2
    widths = [  # three more for the brackets and the gap
        min(
            max(display_width(visible(t, style.unicode)) for t in (grid.label(1, column), *texts)),
            max_width - 3,
        )
        for column, texts in enumerate(zip(*grid.texts, strict=True))
    ]
    for number, chosen in enumerate(flow([w + 3 for w in widths], max_width)):
        if number:
            yield ""
        yield _axes(grid, side, width, style)
        labels = (
            pad(grid.label(1, c), widths[c] + 1, "right", style.unicode) + "  " for c in chosen
        )
        yield " " * (side + 2) + style.faint("".join(labels))
        for row in range(grid.shape[0]):
            label = style.faint(pad(grid.label(0, row), side, "right", style.unicode))
            yield f"{label}  {' '.join(_number(grid, row, c, widths[c], style) for c in chosen)}"


def _number(grid: Grid, row: int, column: int, width: int, style: TerminalStyle) -> str:
    assert grid.texts is not None
    kind = Kind(int(grid.kinds[row, column]))
    text = fit(grid.texts[row][column], width, style.unicode)
    before, behind = _brackets(kind, style)
    text = " " * (width - display_width(text)) + before + text + behind
    if kind == Kind.MASKED:
        return style.faint(text)
    back = style.theme.fill(kind, float(grid.fill[row, column]))
    return style.paint(text, "#000000" if needs_dark_text(back) else "#ffffff", back)


def _brackets(kind: Kind, style: TerminalStyle) -> tuple[str, str]:
    """The characters before and behind a number that show its kind without colour."""
    if kind == Kind.MASKED:
        return "(", ")"
    return {Kind.VISIBLE: " ", Kind.PARTIAL: "~"}.get(kind, style.symbols.kinds[kind]), " "


# ── characters and colours ───────────────────────────────────────────────────────────────────────


class Cell(NamedTuple):
    """Characters and their colours."""

    text: str
    fore: str = ""
    back: str = ""


@dataclass(frozen=True)
class TerminalStyle:
    """Characters and colours of a terminal.

    Args:
        depth: Number of colours: 0, 256 or 2**24.
        theme: The theme whose colours are used.
        unicode: Whether characters beyond ASCII may be used.
    """

    depth: int
    theme: Theme
    unicode: bool

    @property
    def symbols(self) -> Symbols:
        """The characters of each kind."""
        return _UNICODE if self.unicode else _ASCII

    def cell(self, kind: Kind, shade: float, count: int) -> Cell:
        """A cell of `count` columns."""
        symbol, ramp = self.symbols.kinds[kind], self.symbols.ramp
        if kind == Kind.MASKED:
            return Cell(symbol * count, mix(self.theme.hatch, self.theme.faint, 0.4))
        if kind == Kind.VISIBLE and self.depth and self.unicode:
            return Cell(symbol * count, self.theme.fill(kind, shade))
        if kind == Kind.VISIBLE:
            symbol = ramp[min(int(max(shade, 0.0) * 4), 3)]
        elif kind == Kind.PARTIAL:  # never the last one, which means that all cells are visible
            symbol = ramp[min(int(max(shade, 0.0) * 3), 2)]
        return Cell(symbol * count, self.theme.kinds[kind])

    def halves(self, upper: tuple[Kind, float], lower: tuple[Kind, float] | None) -> Cell:
        """Two cells in one column, one above the other; the last row may have no lower one."""
        if self.depth:
            above = self.theme.fill(*upper)
            below = self.theme.fill(*lower) if lower else ""
            return Cell(" ", "", above) if above == below else Cell("▀", above, below)
        visible = (upper[0] == Kind.VISIBLE, lower is not None and lower[0] == Kind.VISIBLE)
        return Cell({(True, True): "█", (True, False): "▀", (False, True): "▄"}.get(visible, "·"))

    def symbol(self, kind: Kind, mode: Mode) -> str:
        """The legend's sample of a kind."""
        if mode == "half" and self.depth:
            shade = 0.5 if kind == Kind.PARTIAL else 1.0
            return self.write([Cell("██", self.theme.fill(kind, shade))])
        if kind == Kind.PARTIAL:
            return self.write(self.cell(kind, shade, 1) for shade in (0.0, 0.5, 1.0))
        return self.write([self.cell(kind, 1.0, 2 if mode == "double" else 1)])

    def write(self, cells: Iterable[Cell]) -> str:
        """The cells, with colour codes only where the colour changes."""
        return "".join(
            self.paint("".join(cell.text for cell in run), fore, back)
            for (fore, back), run in groupby(cells, key=lambda cell: (cell.fore, cell.back))
        )

    def paint(self, text: str, fore: str = "", back: str = "", bold: bool = False) -> str:
        """Text in these colours."""
        codes = ["1"] * bold
        codes += [f"{38 + 10 * place};{self._code(c)}" for place, c in enumerate((fore, back)) if c]
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.depth and codes else text

    def faint(self, text: str) -> str:
        """Text in the colour of labels."""
        return self.paint(text, self.theme.faint)

    def lines(self, text: str, width: int, bold: bool = False) -> list[str]:
        """Text in lines of at most `width` columns."""
        lines = wrap(visible(text.strip(), self.unicode), width)
        return [self.paint(line, bold=bold) for line in lines]

    def _code(self, colour: str) -> str:
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        if self.depth > 256:
            return "2;" + ";".join(map(str, rgb))
        return f"5;{_nearest(*rgb)}"


def color_depth(colour: bool | None = None) -> int:
    """Number of colours to write: 0, 256 or 2**24. None decides by the environment."""
    if colour is None:
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        colour = wanted and sys.stdout is not None and sys.stdout.isatty()
    if not colour:
        return 0
    return 2**24 if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") else 256


def terminal_theme() -> Theme:
    """The light theme if COLORFGBG says that the terminal's background is white, else dark."""
    return LIGHT if os.environ.get("COLORFGBG", "").split(";")[-1] in ("7", "15") else DARK


class Symbols(NamedTuple):
    """Characters for each kind, for shades from little to all, and for the axes."""

    kinds: Mapping[Kind, str]
    ramp: str
    down: str
    right: str


_UNICODE: Final = Symbols(dict(zip(Kind, "·▒█▲▼◆", strict=True)), "░▒▓█", "↓", "→")
_ASCII: Final = Symbols(dict(zip(Kind, ".+#^vX", strict=True)), ":+*#", "v", "->")
_STEPS: Final = (0, 95, 135, 175, 215, 255)
_RGB: Final = {
    16 + 36 * r + 6 * g + b: (_STEPS[r], _STEPS[g], _STEPS[b])
    for r in range(6)
    for g in range(6)
    for b in range(6)
} | {232 + step: (8 + 10 * step,) * 3 for step in range(24)}


@cache
def _nearest(red: int, green: int, blue: int) -> int:
    """The closest of 256 colours; a grey or a darker blue is closer to a blue than a purple is."""
    hue, saturation, _ = rgb_to_hsv(red, green, blue)
    weight = 600 * min(1.0, 5 * max(0.0, saturation - 0.15))  # greys have no hue to keep

    def distance(number: int) -> float:
        rgb = _RGB[number]
        other, strength, _ = rgb_to_hsv(*rgb)
        turn = abs((other - hue + 0.5) % 1 - 0.5) if strength else 0.1
        return math.dist(rgb, (red, green, blue)) + weight * turn

    return min(_RGB, key=distance)
