"""The colours of every picture: kinds differ in lightness too, so that no eye needs the hue.

Blue, orange and purple stay apart under the common colour blindnesses, and in grey.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from maskwright.draw.scene import Kind


class Theme(NamedTuple):
    """Colours as #rrggbb: the ground, text, lines, hatching, and one for every kind of cell."""

    ground: str
    text: str
    faint: str  # labels and legends
    line: str  # between cells
    hatch: str  # over hidden cells
    outline: str
    kinds: dict[Kind, str]

    def fill(self, kind: Kind, shade: float) -> str:
        """The colour of a cell of that kind, mixed with that of hidden ones by its shade.

        >>> from maskwright.draw.palette import LIGHT
        >>> from maskwright.draw.scene import Kind
        >>> LIGHT.fill(Kind.SEEN, 1.0) == LIGHT.kinds[Kind.SEEN]
        True
        """
        full = self.kinds[kind]
        if shade >= 1 or kind == Kind.HIDDEN:
            return full
        return mix(self.kinds[Kind.HIDDEN], full, max(shade, 0.0))


def mix(one: str, other: str, share: float) -> str:
    """A colour between two; a share of 0 is the first."""
    pairs = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def dark_on(colour: str) -> bool:
    """Is text on this colour better dark than light?"""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 0.55


LIGHT: Final = Theme(
    ground="#ffffff",
    text="#1b1f24",
    faint="#57606a",
    line="#d0d7de",
    hatch="#b6bec8",
    outline="#b3261e",
    kinds={
        Kind.HIDDEN: "#eef1f4",
        Kind.SOME: "#2b6cb0",
        Kind.SEEN: "#2b6cb0",
        Kind.FIRST: "#e8860c",
        Kind.SECOND: "#6b2fa0",
        Kind.MIXED: "#8c1d40",
    },
)
DARK: Final = Theme(
    ground="#0f1419",
    text="#e6edf3",
    faint="#9aa7b4",
    line="#30363d",
    hatch="#3d4753",
    outline="#ff8a80",
    kinds={
        Kind.HIDDEN: "#1b222b",
        Kind.SOME: "#6cb2f5",
        Kind.SEEN: "#6cb2f5",
        Kind.FIRST: "#f5a742",
        Kind.SECOND: "#c69cf0",
        Kind.MIXED: "#f28ba8",
    },
)
