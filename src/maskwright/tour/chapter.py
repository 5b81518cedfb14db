"""What a chapter is made of: texts in two languages, and cells of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Language = Literal["en", "zh"]


class Text(NamedTuple):
    """The same in English and in Chinese."""

    en: str
    zh: str

    def in_language(self, language: Language) -> str:
        """One of both.

        >>> from maskwright.tour.chapter import Text
        >>> Text("key", "键").in_language("zh")
        '键'
        """
        return self.zh if language == "zh" else self.en


NOTHING = Text("", "")


@dataclass(frozen=True)
class Cell:
    """Some lines of code, with what is said before them, and after what they give.

    `needs` are the packages without which the cell is left out.
    """

    code: str
    before: Text = NOTHING
    after: Text = NOTHING
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A title, some words, and cells that share their names; `commands` are told, not run."""

    title: Text
    words: Text
    cells: tuple[Cell, ...] = ()
    commands: tuple[tuple[str, Text], ...] = ()
