"""The pen of a terminal: a sign for every kind, and colours as far as the terminal has them.

Every kind has a sign of its own, so that nothing is told by colour alone.
"""

from __future__ import annotations

import math
import os
import sys
from colorsys import rgb_to_hsv
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from maskwright.draw.columns import wrapped
from maskwright.draw.labels import shown
from maskwright.draw.palette import DARK, LIGHT, Theme, mix
from maskwright.draw.scene import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Look(NamedTuple):
    """A sign and the colours it is written in."""

    sign: str
    fore: str = ""
    back: str = ""


class Pen:
    """Writes in so many colours (0, 256 or 2**24), with or without signs beyond ASCII."""

    def __init__(self, depth: int, theme: Theme, unicode: bool) -> None:
        self.depth, self.theme, self.unicode = depth, theme, unicode
        self.signs = _UNICODE if unicode else _ASCII

    def look(self, kind: Kind, shade: float, count: int) -> Look:
        """How a cell of `count` columns looks."""
        if kind == Kind.HIDDEN:
            faint = mix(self.theme.hatch, self.theme.faint, 0.4)
            return Look(self.signs.kinds[kind] * count, faint)
        if kind == Kind.SEEN and self.depth and self.unicode:
            return Look(self.signs.kinds[kind] * count, self.theme.fill(kind, shade))
        sign, ramp = self.signs.kinds[kind], self.signs.ramp
        if kind == Kind.SEEN:
            sign = ramp[min(int(max(shade, 0.0) * 4), 3)]
        elif kind == Kind.SOME:  # never the full sign, which says that all is seen
            sign = ramp[min(int(max(shade, 0.0) * 3), 2)]
        return Look(sign * count, self.theme.kinds[kind])

    def halves(self, upper: tuple[Kind, float], lower: tuple[Kind, float] | None) -> Look:
        """Two cells in one column, one above the other; below the last row there may be none."""
        if self.depth:
            above = self.theme.fill(*upper)
            below = self.theme.fill(*lower) if lower else ""
            return Look(" ", "", above) if above == below else Look("▀", above, below)
        seen = (upper[0] == Kind.SEEN, lower is not None and lower[0] == Kind.SEEN)
        return Look({(True, True): "█", (True, False): "▀", (False, True): "▄"}.get(seen, "·"))

    def write(self, looks: Iterable[Look]) -> str:
        """All of them in a row, with a colour named only where it changes."""
        text = ""
        for (fore, back), run in groupby(looks, key=lambda look: (look.fore, look.back)):
            text += self.paint("".join(look.sign for look in run), fore, back)
        return text

    def paint(self, text: str, fore: str = "", back: str = "", bold: bool = False) -> str:
        """The text in these colours."""
        codes = ["1"] * bold
        codes += [f"{38 + 10 * place};{self._code(c)}" for place, c in enumerate((fore, back)) if c]
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.depth and codes else text

    def faint(self, text: str) -> str:
        """The text in the colour of labels."""
        return self.paint(text, self.theme.faint)

    def lines(self, text: str, width: int, bold: bool = False) -> list[str]:
        """A text in lines of at most `width` columns."""
        found = wrapped(shown(text.strip(), self.unicode), width)
        return [self.paint(line, bold=bold) for line in found]

    def _code(self, colour: str) -> str:
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        if self.depth > 256:
            return "2;" + ";".join(map(str, rgb))
        return f"5;{_nearest(*rgb)}"


def depth_of(colour: bool | None) -> int:
    """How many colours may be written; None asks the environment."""
    if colour is None:
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        colour = wanted and sys.stdout is not None and sys.stdout.isatty()
    if not colour:
        return 0
    return 2**24 if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") else 256


def theme_of() -> Theme:
    """Light where the terminal says that its ground is white, as some do by COLORFGBG."""
    return LIGHT if os.environ.get("COLORFGBG", "").split(";")[-1] in ("7", "15") else DARK


# ------------------------------------------------------------------------------------------- signs


class Signs(NamedTuple):
    """What is written for each kind, for its shades and for the directions of the axes."""

    kinds: Mapping[Kind, str]
    ramp: str  # from little to all
    down: str
    right: str


_UNICODE: Final = Signs(
    {
        Kind.HIDDEN: "·",
        Kind.SEEN: "█",
        Kind.FIRST: "▲",
        Kind.SECOND: "▼",
        Kind.MIXED: "◆",
        Kind.SOME: "▒",
    },
    ramp="░▒▓█",
    down="↓",
    right="→",
)
_ASCII: Final = Signs(
    {
        Kind.HIDDEN: ".",
        Kind.SEEN: "#",
        Kind.FIRST: "^",
        Kind.SECOND: "v",
        Kind.MIXED: "X",
        Kind.SOME: "+",
    },
    ramp=":+*#",
    down="v",
    right="->",
)


# ------------------------------------------------------------------------------------- 256 colours

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
        turned, strength, _ = rgb_to_hsv(*rgb)
        turn = abs((turned - hue + 0.5) % 1 - 0.5) if strength else 0.1
        return math.dist(rgb, (red, green, blue)) + weight * turn

    return min(_RGB, key=distance)
