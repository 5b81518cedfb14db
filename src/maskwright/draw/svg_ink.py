"""The ink of an SVG: what each thing is coloured by, and the patterns that tell kinds apart.

Colours are plain attributes, and those of the other theme a style on top, so that even programs
that know no style show the picture.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from maskwright.draw.palette import DARK, Theme
from maskwright.draw.scene import Kind
from maskwright.draw.svg_text import escape, short, visible

if TYPE_CHECKING:
    from collections.abc import Callable


class Ink:
    """Writes what has a colour: the attribute of one theme, and the class for the other."""

    def __init__(self, theme: Theme) -> None:
        self.theme = theme

    def of(self, role: str) -> str:
        """The attributes of a role."""
        what, colour = ROLES[role]
        return f'class="{role}" {what}="{colour(self.theme)}"'

    def text(
        self,
        x: float,
        y: float,
        said: str,
        role: str,
        size: float,
        *,
        full: str | None = None,
        extra: str = "",
    ) -> str:
        """A line of text; `full` is all of it where it may have been cut."""
        return (
            f'<text x="{short(x)}" y="{short(y)}" font-size="{short(size)}" {self.of(role)}{extra}>'
            f"{escape(said) if full is None else written(said, full)}</text>"
        )

    def rules(self, name: str, theme: Theme, body: str) -> str:
        """The style of another theme, for the classes that occur."""
        used = {"ground", *re.findall(r'class="(\w+)"', body)}
        return "".join(
            f"#{name} .{role}{{{what}:{colour(theme)}}}"
            for role, (what, colour) in ROLES.items()
            if role in used
        )


def written(said: str, full: str) -> str:
    """A text, with all of it as a tooltip where it was cut."""
    shown = visible(full)
    return escape(said) if said == shown else f"<title>{escape(shown)}</title>{escape(said)}"


def patterns(ink: Ink, body: str) -> str:
    """The definitions of the patterns that occur."""
    drawn = "".join(
        f'<pattern id="{OWN}-{key:d}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f"<path {ink.of(role)} {shape}/></pattern>"
        for key, (role, shape) in PATTERNS.items()
        if f"#{OWN}-{key:d})" in body
    )
    return f"<defs>{drawn}</defs>\n" if drawn else ""


def _kind_colour(kind: Kind) -> Callable[[Theme], str]:
    return lambda theme: theme.kinds[kind]


def _on(light: bool, dark: bool) -> Callable[[Theme], str]:
    """The colour of a number: dark or light, as its cell asks for in either theme."""

    def colour(theme: Theme) -> str:
        if theme is DARK:
            return theme.ground if dark else theme.text
        return theme.text if light else theme.ground

    return colour


# A role is a class in the picture: what it colours, and how.
ROLES: Final[dict[str, tuple[str, Callable[[Theme], str]]]] = {
    "ground": ("fill", lambda theme: theme.ground),
    "text": ("fill", lambda theme: theme.text),
    "faint": ("fill", lambda theme: theme.faint),
    "line": ("stroke", lambda theme: theme.line),
    "gap": ("stroke", lambda theme: theme.ground),
    "dot": ("fill", lambda theme: theme.ground),
    "hatch": ("stroke", lambda theme: theme.hatch),
    "frame": ("stroke", lambda theme: theme.outline),
    "said": ("fill", lambda theme: theme.outline),
    **{f"k{kind.value}": ("fill", _kind_colour(kind)) for kind in Kind},
    **{f"on{a:d}{b:d}": ("fill", _on(a, b)) for a in (False, True) for b in (False, True)},
}
OWN: Final = "\x00"  # stands for the picture's id until its content is known
FEW: Final = len(Kind)  # the pattern of a tile of which little is seen: dark dots, not light ones
DOTS: Final = 'd="M1 1h1.6v1.6h-1.6zM4 4h1.6v1.6h-1.6z"'
PATTERNS: Final[dict[int, tuple[str, str]]] = {  # the seen have none
    Kind.HIDDEN: ("hatch", 'd="M-1.5 1.5l3-3M0 6l6-6M4.5 7.5l3-3" stroke-width="1.1"'),
    Kind.SOME: ("dot", f'{DOTS} fill-opacity=".75"'),
    FEW: ("k1", f'{DOTS} fill-opacity=".6"'),
    Kind.FIRST: ("gap", 'd="M0 3h6" stroke-width="1.2" stroke-opacity=".6"'),
    Kind.SECOND: ("gap", 'd="M3 0v6" stroke-width="1.2" stroke-opacity=".6"'),
    Kind.MIXED: ("gap", 'd="M0 3h6M3 0v6" stroke-width="1.2" stroke-opacity=".6"'),
}
