"""The colours of pictures.

Kinds of cells differ in lightness as well as in hue: blue, orange and purple are distinguishable with
the common colour blindnesses and in greyscale.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from maskwright.draw.scene import Kind


class Theme(NamedTuple):
    """Colours as #rrggbb: background, text, lines, hatching, and one for each kind of cell."""

    ground: str
    text: str
    faint: str  # labels and legends
    line: str  # between cells
    hatch: str  # over masked cells
    accent: str
    kinds: dict[Kind, str]

    def fill(self, kind: Kind, shade: float) -> str:
        """The colour of a cell: that of its kind, mixed with that of masked cells by its shade.

        >>> from maskwright.draw.palette import LIGHT
        >>> from maskwright.draw.scene import Kind
        >>> LIGHT.fill(Kind.VISIBLE, 1.0) == LIGHT.kinds[Kind.VISIBLE]
        True
        """
        full = self.kinds[kind]
        if shade >= 1 or kind == Kind.MASKED:
            return full
        return mix(self.kinds[Kind.MASKED], full, max(shade, 0.0))


def mix(start: str, end: str, share: float) -> str:
    """Interpolates two colours; a share of 0 is the first."""
    pairs = [(int(start[i : i + 2], 16), int(end[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def needs_dark_text(colour: str) -> bool:
    """Whether dark text on this background is more legible than light text."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 0.55


def _kinds(*colours: str) -> dict[Kind, str]:
    """The colours of the kinds, in their order."""
    return dict(zip(Kind, colours, strict=True))


LIGHT: Final = Theme(
    ground="#ffffff",
    text="#1b1f24",
    faint="#57606a",
    line="#d0d7de",
    hatch="#b6bec8",
    accent="#b3261e",
    kinds=_kinds("#eef1f4", "#2b6cb0", "#2b6cb0", "#e8860c", "#6b2fa0", "#8c1d40"),
)
DARK: Final = Theme(
    ground="#0f1419",
    text="#e6edf3",
    faint="#9aa7b4",
    line="#30363d",
    hatch="#3d4753",
    accent="#ff8a80",
    kinds=_kinds("#1b222b", "#6cb2f5", "#6cb2f5", "#f5a742", "#c69cf0", "#f28ba8"),
)
