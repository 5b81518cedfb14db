"""A scene as a PNG file, drawn by matplotlib without pyplot or any state of its own.

Lengths are in points, y runs downwards, and `scale` is how many pixels a point has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from maskwright._optional_deps import require
from maskwright.draw.fonts import drawable
from maskwright.draw.palette import DARK, LIGHT, dark_on
from maskwright.draw.png_sheet import MARGIN, SMALL, Sheet
from maskwright.draw.scene import Kind
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.draw.scene import Grid, Outline, Scene

PAGE = 760  # grids stand side by side up to this width
GAP = 28
BODY, LARGE = 10.5, 14.0  # sizes of text
MOST_OUTLINES = 12  # that are named below a grid


def render(scene: Scene, theme: Literal["light", "dark"] = "light", scale: int = 2) -> bytes:
    r"""The scene as a PNG file; the same scene gives the same bytes with the same fonts.

    The title and the description are written into the file as text.

    Args:
        scene: What to draw.
        theme: Dark signs on white, or light ones on a dark ground.
        scale: Pixels of a point, 1 or more; 2 is right for most screens.

    Raises:
        MissingError: Matplotlib is not installed.
        ArgumentError: There is no such theme, or `scale` is less than 1.

    >>> import numpy as np
    >>> from maskwright.draw.scene import Grid, Scene
    >>> render(Scene("causal()", (Grid(np.tri(3, dtype=np.uint8) * 2),)))[:4]
    b'\x89PNG'
    """
    themes = {"light": LIGHT, "dark": DARK}
    if theme not in themes:
        raise ArgumentError(f"png: there is no theme {theme!r}. Give 'light' or 'dark'.")
    if scale < 1 or scale != int(scale):
        raise ArgumentError(f"png: scale={scale} is not a whole number of 1 or more. Give 2.")
    with require("png"):
        import matplotlib.backends.backend_agg  # noqa: F401
    texts, families = drawable(scene)
    sheet = Sheet(themes[theme], int(scale), families)
    _lay_out(texts, sheet)
    return sheet.png(scene.title, scene.description)


def _lay_out(scene: Scene, sheet: Sheet) -> None:
    panels = [_Panel(grid, sheet) for grid in scene.grids]
    page = max([PAGE // 2, *(panel.width for panel in panels)])
    if len(panels) > 1:
        page = max(page, min(PAGE, sum(panel.width + GAP for panel in panels) - GAP))
    y = float(MARGIN)
    y = sheet.paragraph(scene.title, MARGIN, y, page, LARGE, sheet.theme.text, bold=True)
    y = sheet.paragraph(scene.note, MARGIN, y, page, BODY, sheet.theme.faint)
    y += 10 if scene.title or scene.note else 0
    x, tallest = 0.0, 0.0
    for panel in panels:
        if x and x + panel.width > page:
            x, y, tallest = 0.0, y + tallest + GAP, 0.0
        panel.draw(MARGIN + x, y)
        x += panel.width + GAP
        tallest = max(tallest, panel.height)
    _draw_legend(scene, sheet, y + tallest + 16, page)


def _draw_legend(scene: Scene, sheet: Sheet, y: float, page: float) -> None:
    """Every kind that occurs, with a swatch."""
    found = {int(kind) for grid in scene.grids for kind in np.unique(grid.kinds)}
    x, swatch = 0.0, 14
    for entry in scene.legend:
        if entry.kind not in found:
            continue
        wide = swatch + 6 + sheet.width_of(entry.text, SMALL + 1)
        if x and x + wide > page:
            x, y = 0.0, y + swatch + 8
        shade = 0.5 if entry.kind == Kind.SOME else 1.0
        kinds = np.array([[entry.kind]], np.uint8)
        sheet.cells(kinds, np.array([[shade]]), MARGIN + x, y, swatch, swatch)
        middle = y + swatch / 2
        sheet.text(entry.text, MARGIN + x + swatch + 6, middle, SMALL + 1, sheet.theme.text)
        x += wide + 18


class _Panel:
    """One grid with its title, labels, frames and their names."""

    def __init__(self, grid: Grid, sheet: Sheet) -> None:
        self.grid, self.sheet = grid, sheet
        rows, columns = grid.shape
        self.tall = self.broad = _cell_size(max(rows, columns))
        if grid.texts is not None:
            written = [sheet.width_of(text, SMALL) for row in grid.texts for text in row]
            self.tall = 24
            self.broad = max(36, int(max(written, default=0)) + 14)
        self.step = self._step()
        self.row_ticks = self._ticks(0)
        self.column_ticks = self._ticks(1)
        self.upright = self._upright()
        sizes = [sheet.width_of(text, SMALL) for _, text in self.column_ticks]
        self.above = (max(sizes, default=0.0) if self.upright else SMALL) + 22
        self.named = [outline for outline in grid.outlines if outline.text]
        self.left = max([*(sheet.width_of(text, SMALL) for _, text in self.row_ticks), 0.0]) + 26
        self.top = self.above + (LARGE + 8 if grid.title else 0)
        title = sheet.width_of(grid.title, BODY + 1, bold=True)
        names = [sheet.width_of(outline.text, SMALL) + 22 for outline in self._listed()]
        self.width = max(self.left + columns * self.broad, title, *names, 0.0)
        self.height = self.top + rows * self.tall + 18 * len(self._listed()) + 6

    def draw(self, x: float, y: float) -> None:
        """Draws it with its upper left corner there."""
        grid, sheet = self.grid, self.sheet
        if grid.title:
            sheet.text(grid.title, x, y + LARGE / 2, BODY + 1, sheet.theme.text, bold=True)
        left, top = round(x + self.left), round(y + self.top)
        rows, columns = grid.shape
        self._draw_labels(left, top)
        if not grid.kinds.size:
            said = f"{rows} {grid.row_name} rows, {columns} {grid.column_name} columns"
            sheet.text(said, left, top + 6, SMALL, sheet.theme.faint)
            return
        shades = np.ones(grid.shape) if grid.shades is None else grid.shades
        sheet.cells(grid.kinds, shades, left, top, self.tall, self.broad, bool(grid.texts))
        self._draw_texts(left, top)
        bottom = top + rows * self.tall
        for outline in sorted(grid.outlines, key=lambda o: -o.rows * o.columns):
            self._draw_outline(outline, left, top)
        for number, outline in enumerate(self._listed()):
            middle = bottom + 18 * number + 14
            sheet.badge(str(number + 1), left + 7, middle)
            sheet.text(outline.text, left + 20, middle, SMALL, sheet.theme.text)

    def _listed(self) -> list[Outline]:
        return self.named[:MOST_OUTLINES]

    def _draw_labels(self, left: float, top: float) -> None:
        grid, sheet = self.grid, self.sheet
        faint = sheet.theme.faint
        rows, columns = grid.shape
        for index, text in self.row_ticks:
            y = top + (index + 0.5) * self.tall
            sheet.text(text, left - 6, y, SMALL, faint, across="right")
        for index, text in self.column_ticks:
            x = left + (index + 0.5) * self.broad
            turn = 90 if self.upright else 0
            sheet.text(text, x, top - 5, SMALL, faint, across="center", down="bottom", turn=turn)
        x, y = left + columns * self.broad / 2, top - self.above + 6
        sheet.text(grid.column_name, x, y, SMALL, faint, across="center")
        x, y = left - self.left + 8, top + rows * self.tall / 2
        sheet.text(grid.row_name, x, y, SMALL, faint, across="center", turn=90)

    def _draw_texts(self, left: float, top: float) -> None:
        grid, sheet = self.grid, self.sheet
        for row, texts in enumerate(grid.texts or ()):
            for column, text in enumerate(texts):
                kind = Kind(int(grid.kinds[row, column]))
                fill = sheet.theme.fill(kind, grid.shade(row, column))
                colour = "#1b1f24" if dark_on(fill) else "#ffffff"
                if kind == Kind.HIDDEN:
                    colour = sheet.theme.faint
                x, y = left + (column + 0.5) * self.broad, top + (row + 0.5) * self.tall
                sheet.text(text, x, y, SMALL, colour, across="center")

    def _draw_outline(self, outline: Outline, left: float, top: float) -> None:
        x, y = left + outline.column * self.broad, top + outline.row * self.tall
        size = (outline.columns * self.broad, outline.rows * self.tall)
        thin = self.grid.thin_outlines
        self.sheet.frame(x, y, *size, dashed=outline.dashed, thin=thin)
        if outline in self._listed():
            self.sheet.badge(str(self.named.index(outline) + 1), x, y)

    def _ticks(self, axis: Literal[0, 1]) -> list[tuple[int, str]]:
        """Which rows or columns have a label: all that have a token, or as many as have room."""
        grid = self.grid
        size = (self.tall, self.broad)[axis]
        tokens = (grid.rows, grid.columns)[axis]
        if tokens is not None and size >= SMALL + 1:
            return [*enumerate(tokens)]
        start, block = grid.start[axis], grid.block[axis]
        numbers = range(start, start + grid.shape[axis] * block, block)
        return [(index, str(numbers[index])) for index in range(0, len(numbers), self.step)]

    def _step(self) -> int:
        """Every how many rows and columns a number has room, the same for both."""
        last = self.grid.start[1] + self.grid.shape[1] * self.grid.block[1]
        wide = self.sheet.width_of(str(last), SMALL) + 6
        steps = [base * power for power in (1, 10, 100, 1000) for base in (1, 2, 5)]
        return next(s for s in steps if s * self.broad >= wide and s * self.tall >= SMALL + 5)

    def _upright(self) -> bool:
        """Whether column labels are turned, as they are when one is wider than its column."""
        if self.grid.columns is None or self.broad < SMALL + 1:
            return False
        widths = (self.sheet.width_of(text, SMALL) for _, text in self.column_ticks)
        return max(widths, default=0.0) > self.broad - 4


def _cell_size(count: int) -> int:
    """Points of a cell: large while there are few, and never so many that the picture is not."""
    return next(
        (size for most, size in ((12, 26), (24, 18), (48, 12), (96, 6)) if count <= most), 2
    )
