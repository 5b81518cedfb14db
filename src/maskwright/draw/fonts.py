"""Fonts of a PNG: which of the installed ones has which character, and what to do without."""

from __future__ import annotations

import contextlib
import re
import unicodedata
import warnings
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from maskwright.draw.labels import clusters, fit
from maskwright.draw.scene import Entry, Scene

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry

FIRST_FONT: Final = "DejaVu Sans"  # comes with matplotlib
_JOINERS: Final = re.compile("[\u200c\u200d\ufe00-\ufe0f]")
_CONTROLS: Final = {chr(0x2400 + code): ascii(chr(code))[1:-1] for code in range(32)} | {
    "␡": r"\x7f",
    "␣": "_",
}
_LIKELY: Final = ("noto sans", "noto", "source han", "wenquanyi", "pingfang", "yahei", "unicode")
_FONT_FOR: Final = {
    "CJK": ("Chinese", "Noto Sans CJK"),
    "HIRAGANA": ("Japanese", "Noto Sans CJK"),
    "KATAKANA": ("Japanese", "Noto Sans CJK"),
    "HANGUL": ("Korean", "Noto Sans CJK"),
}


def drawable(scene: Scene) -> tuple[Scene, list[str]]:
    """The scene with texts that can be drawn, and the fonts that do; warns of what can't be."""
    fonts = Fonts()
    grids = tuple(
        replace(
            grid,
            title=fonts.drawable(grid.title),
            texts=grid.texts and tuple(tuple(map(fonts.drawable, row)) for row in grid.texts),
            rows=grid.rows and tuple(map(fonts.label, grid.rows)),
            columns=grid.columns and tuple(map(fonts.label, grid.columns)),
            outlines=tuple(replace(o, text=fonts.drawable(o.text)) for o in grid.outlines),
            row_name=fonts.drawable(grid.row_name),
            column_name=fonts.drawable(grid.column_name),
        )
        for grid in scene.grids
    )
    legend = tuple(Entry(kind, fonts.drawable(text)) for kind, text in scene.legend)
    title, note = fonts.drawable(scene.title), fonts.drawable(scene.note)
    fonts.warn()
    return Scene(title, grids, note, legend, scene.description), fonts.families


class Fonts:
    """The fonts that a scene needs, and the scripts that none of the installed ones has."""

    def __init__(self) -> None:
        self.families = [FIRST_FONT]
        self.missing: dict[str, str] = {}  # from a script to a font that has it

    def drawable(self, text: str) -> str:
        """The text, with U+XXXX for every character that no font has."""
        return self._drawable(text.strip())

    def label(self, text: str) -> str:
        """A token that can be drawn, with the spaces around it, and is not too long."""
        return fit(self._drawable(text), 24).rstrip("\u200e")

    def warn(self) -> None:
        """One warning of everything that is missing."""
        if self.missing:
            fonts = " and ".join(dict.fromkeys(self.missing.values()))
            warnings.warn(
                f"png: no installed font can draw {' and '.join(self.missing)}, so U+XXXX stands "
                f"for each character. Install a font that has them, such as {fonts}.",
                stacklevel=4,
            )

    def _drawable(self, text: str) -> str:
        parts = clusters(unicodedata.normalize("NFC", text))
        return re.sub(r"(?<=[0-9A-F])(?=U\+)", " ", "".join(map(self._drawable_cluster, parts)))

    def _drawable_cluster(self, cluster: str) -> str:
        if cluster in _CONTROLS and _family_with(cluster) is None:
            return _CONTROLS[cluster]
        if all(map(self._has, cluster)):
            return cluster
        # What only joins or varies the others may be missed.
        signs = [sign for sign in cluster if not _JOINERS.match(sign)]
        return "".join(sign if self._has(sign) else f"U+{ord(sign):04X}" for sign in signs)

    def _has(self, character: str) -> bool:
        family = _family_with(character)
        if family is None:
            if not _JOINERS.match(character):
                script, font = _script(character)
                self.missing[script] = font
            return False
        if family not in self.families:
            self.families.append(family)
        return True


@cache
def coverage(family: str, bold: bool = False) -> frozenset[int]:
    """The characters of a font; none if it is made of bitmaps, which matplotlib can't draw."""
    from matplotlib.font_manager import fontManager, weight_dict
    from matplotlib.ft2font import FT2Font

    weight = 700 if bold else 400
    upright = [e for e in fontManager.ttflist if e.name == family and e.style == "normal"]
    if not upright:
        return frozenset()

    def distance(entry: FontEntry) -> int:
        own = entry.weight
        return abs((weight_dict[own] if isinstance(own, str) else own) - weight)

    entry = min(upright, key=distance)
    try:
        font = FT2Font(entry.fname)
        font.set_size(10, 72)
    except (OSError, RuntimeError):
        return frozenset()
    return frozenset(font.get_charmap())


@cache
def _family_with(character: str) -> str | None:
    if unicodedata.category(character) == "Co":  # for private use, so no two fonts agree on it
        return None
    return next((name for name in _all_families() if ord(character) in coverage(name)), None)


@cache
def _all_families() -> tuple[str, ...]:
    """Installed fonts, those first that are likely to have much."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    # Matplotlib keeps a list of fonts, and knows nothing of those installed since it was made.
    known = {entry.fname for entry in fontManager.ttflist}
    for path in sorted({*findSystemFonts()} - known):
        with contextlib.suppress(OSError, RuntimeError):  # what it can't read, it can't draw with
            fontManager.addfont(path)

    def rank(name: str) -> tuple[bool, int, str]:
        found = [place for place, part in enumerate(_LIKELY) if part in name.lower()]
        return name != FIRST_FONT, min(found, default=len(_LIKELY)), name

    # The font of last resort has only a box for each character, and cmr10 and its like have signs
    # of formulas in place of letters.
    odd = re.compile("Last Resort|cm[a-z]+10$")
    names = {entry.name for entry in fontManager.ttflist if not odd.search(entry.name)}
    return tuple(sorted(names, key=rank))


def _script(character: str) -> tuple[str, str]:
    """What a character belongs to, and a font for it."""
    name = unicodedata.name(character, "")
    if not name:
        return "characters without a name", "GNU Unifont"
    if unicodedata.category(character).startswith("S"):
        emoji = ord(character) >= 0x1F000
        return ("emoji", "Noto Emoji") if emoji else ("symbols", "Noto Sans Symbols")
    first = name.split()[0]
    return _FONT_FOR.get(first, (first.title(), f"Noto Sans {first.title()}"))
