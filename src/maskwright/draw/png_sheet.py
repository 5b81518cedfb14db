"""A sheet that is painted on: cells as pixels, so that each is exact; text and frames by matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from maskwright.draw import tokens
from maskwright.draw.columns import columns_of_line, wrapped
from maskwright.draw.fonts import FIRST_FONT, coverage
from maskwright.draw.palette import Theme, dark_on, mix
from maskwright.draw.scene import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.font_manager import FontProperties

    Pixels = npt.NDArray[np.uint8]  # (height, width, 3)

MARGIN = 20
SMALL = 9.0  # size of text


class Sheet:
    """Collects pixels, texts and frames, and grows as they do."""

    def __init__(self, theme: Theme, scale: int, families: Sequence[str]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.theme, self.scale, self.families = theme, scale, families
        self.figure = Figure(dpi=72 * scale, facecolor=theme.ground)
        # Matplotlib leaves parts of its canvas without types.
        self.canvas: Any = FigureCanvasAgg(self.figure)
        blank: Any = FigureCanvasAgg(Figure(dpi=72))
        self.ruler = blank.get_renderer()
        self.images: list[tuple[Pixels, float, float]] = []
        self.artists: list[tuple[Any, Any, float, float]] = []  # with what sets its place
        self.right = self.bottom = 0.0

    def png(self, title: str, description: str) -> bytes:
        """All of it as a file."""
        from matplotlib.transforms import IdentityTransform

        wide, high = round(self.right) + MARGIN, round(self.bottom) + MARGIN
        # Inches are fractions, and a pixel must not be lost by rounding.
        self.figure.set_size_inches((wide + 1e-6) / 72, (high + 1e-6) / 72)
        for pixels, x, y in self.images:
            below = round(high - y) * self.scale - pixels.shape[0]
            self.figure.figimage(pixels, round(x) * self.scale, below, origin="upper", zorder=0)
        for artist, place, x, y in self.artists:
            place((x * self.scale, (high - y) * self.scale))
            artist.set_transform(IdentityTransform())
            self.figure.add_artist(artist)
        told = {
            "Title": tokens.clean(title),
            "Description": tokens.clean(description),
            "Software": None,
        }
        buffer = io.BytesIO()
        self.canvas.print_png(buffer, metadata={k: v for k, v in told.items() if v != ""})
        return buffer.getvalue()

    def cells(
        self,
        kinds: npt.NDArray[np.uint8],
        shades: npt.NDArray[np.float64],
        x: float,
        y: float,
        tall: int,
        broad: int,
        plain: bool = False,
    ) -> None:
        """Cells of `tall` × `broad` points, patterned by kind; numbers are written on plain ones."""
        pixels = _painted(kinds, shades, self.theme, tall * self.scale, broad * self.scale, plain)
        if min(tall, broad) >= 10:  # lines between smaller ones would hide their patterns
            line = _rgb(self.theme.line)
            for edge in range(max(1, self.scale // 2)):
                pixels[edge :: tall * self.scale] = line
                pixels[:, edge :: broad * self.scale] = line
        self.images.append((pixels, x, y))
        self._grow(x + kinds.shape[1] * broad, y + kinds.shape[0] * tall)

    def text(
        self,
        text: str,
        x: float,
        y: float,
        size: float,
        colour: str,
        across: Literal["left", "center", "right"] = "left",
        down: Literal["bottom", "center"] = "center",
        turn: int = 0,
        bold: bool = False,
    ) -> None:
        """A line of text whose left, middle or right is there."""
        from matplotlib.text import Text

        if not text:
            return
        artist = Text(
            text=text,
            color=colour,
            fontproperties=self._font(text, size, bold),
            horizontalalignment=across,
            verticalalignment=down if turn or down != "center" else "center_baseline",
            rotation=turn,
            parse_math=False,
            usetex=False,
            zorder=3,
        )
        self.artists.append((artist, artist.set_position, x, y))
        length = 0.0 if turn else self.width_of(text, size, bold)
        self._grow(x + length * {"left": 1.0, "center": 0.5}.get(across, 0.0), y + size / 2)

    def paragraph(
        self,
        text: str,
        x: float,
        y: float,
        room: float,
        size: float,
        colour: str,
        bold: bool = False,
    ) -> float:
        """Text broken to lines that have room; returns where the next paragraph starts."""
        if not text:
            return y
        letter = self.width_of(text, size, bold) / max(columns_of_line(text), 1)
        for line in wrapped(text, max(int(room / max(letter, 1.0)), 8)):
            self.text(line, x, y + size * 0.7, size, colour, bold=bold)
            y += size * 1.5
        return y

    def frame(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        dashed: bool = False,
        thin: bool = False,
    ) -> None:
        """A rectangle without a filling, set off from what is below it."""
        from matplotlib.patches import Rectangle

        wide = 1.0 if thin else 2.0
        for colour, line, order in (
            (self.theme.ground, 2 * wide, 1),
            (self.theme.outline, wide, 2),
        ):
            size = (width * self.scale, height * self.scale)
            shape = Rectangle((0, 0), *size, fill=False, edgecolor=colour, linewidth=line)
            shape.set_zorder(order)
            if dashed and order == 2:
                shape.set_linestyle((0, (3, 2)))
            self.artists.append((shape, shape.set_xy, x, y + height))
        self._grow(x + width, y + height)

    def badge(self, text: str, x: float, y: float) -> None:
        """A number on a disc."""
        from matplotlib.patches import Ellipse

        size = 13 * self.scale
        disc = Ellipse((0, 0), size, size, facecolor=self.theme.outline, edgecolor="none", zorder=2)
        self.artists.append((disc, disc.set_center, x, y))
        colour = "#1b1f24" if dark_on(self.theme.outline) else "#ffffff"
        self.text(text, x, y, SMALL - 1, colour, across="center", bold=True)

    def width_of(self, text: str, size: float, bold: bool = False) -> float:
        """How many points long a text is."""
        if not text:
            return 0.0
        font = self._font(text, size, bold)
        return float(self.ruler.get_text_width_height_descent(text, font, False)[0])

    def _font(self, text: str, size: float, bold: bool) -> FontProperties:
        from matplotlib.font_manager import FontProperties

        # Where the bold font lacks a character, one weight for all looks better than two.
        if bold and coverage(FIRST_FONT, bold=True).issuperset(map(ord, text)):
            return FontProperties(family=[FIRST_FONT], size=size, weight="bold")
        return FontProperties(family=[*self.families], size=size)

    def _grow(self, right: float, bottom: float) -> None:
        self.right, self.bottom = max(self.right, right), max(self.bottom, bottom)


def _painted(
    kinds: npt.NDArray[np.uint8],
    shades: npt.NDArray[np.float64],
    theme: Theme,
    tall: int,
    broad: int,
    plain: bool,
) -> Pixels:
    """Every cell as so many pixels: its colour, and over it the pattern of its kind."""
    levels = np.round(np.clip(shades, 0, 1) * 255).astype(np.uint8)
    fills = np.empty((*kinds.shape, 3), np.uint8)
    inks = np.empty_like(fills)
    for kind in (Kind(int(kind)) for kind in np.unique(kinds)):
        for level in np.unique(levels[kinds == kind]):
            chosen = (kinds == kind) & (levels == level)
            fill = theme.fill(kind, int(level) / 255)
            fills[chosen] = _rgb(fill)
            inks[chosen] = _rgb(_ink(kind, fill, int(level) / 255, theme))
    pixels = fills.repeat(tall, 0).repeat(broad, 1)
    inked = np.zeros(pixels.shape[:2], bool)
    large = kinds.repeat(tall, 0).repeat(broad, 1)
    for kind in Kind:
        if kind == Kind.HIDDEN or not plain:
            inked |= (large == kind) & _pattern(kind, pixels.shape[0], pixels.shape[1], tall)
    pixels[inked] = inks.repeat(tall, 0).repeat(broad, 1)[inked]
    return pixels


def _ink(kind: Kind, fill: str, shade: float, theme: Theme) -> str:
    """The colour of a pattern, which must differ from the filling."""
    if kind == Kind.HIDDEN:
        return theme.hatch
    return mix(fill, theme.ground if shade >= 0.5 else theme.kinds[kind], 0.5)


def _pattern(kind: Kind, height: int, width: int, cell: int) -> npt.NDArray[np.bool_]:
    """Where a kind has ink: slanted lines, dots, none, upright lines, level lines, a lattice."""
    step = 12 if cell >= 12 else 8
    line = step // 6
    down, right = np.arange(height)[:, None], np.arange(width)
    level, upright = (down % step) < line, (right % step) < line
    return {
        Kind.HIDDEN: ((down + right) % step) < line,
        Kind.SOME: (down % (step // 2) < line) & (right % (step // 2) < line),
        Kind.SEEN: np.zeros((height, width), bool),
        Kind.FIRST: upright & (down >= 0),
        Kind.SECOND: level & (right >= 0),
        Kind.MIXED: level | upright,
    }[kind]


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue
