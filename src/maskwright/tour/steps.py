"""Steps of the walk, before anyone decides how they look."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from maskwright.draw.scene import Scene


class Heading(NamedTuple):
    """A chapter begins."""

    number: int
    title: str


class Words(NamedTuple):
    """Something is said."""

    text: str


class Code(NamedTuple):
    """The lines that are run next."""

    source: str


class Output(NamedTuple):
    """What they gave, as text."""

    text: str


class Picture(NamedTuple):
    """What they gave, to be drawn."""

    scene: Scene


class Missing(NamedTuple):
    """Something was left out, and what it takes to have it."""

    text: str


class Commands(NamedTuple):
    """Commands, each with what it answers."""

    rows: tuple[tuple[str, str], ...]


Step = Heading | Words | Code | Output | Picture | Missing | Commands
