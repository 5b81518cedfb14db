"""Steps as lines of text, with colours where somebody looks and the terminal has them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from maskwright.draw import terminal
from maskwright.draw.labels import shown, width
from maskwright.draw.pen import Pen, depth_of, theme_of
from maskwright.draw.scene import Kind
from maskwright.tour.source import lines_of
from maskwright.tour.steps import Code, Commands, Heading, Missing, Output, Picture, Words
from maskwright.tour.wrapping import wrap

if TYPE_CHECKING:
    from maskwright.tour.source import Part
    from maskwright.tour.steps import Step

WIDEST: Final = 96
NARROWEST: Final = 24


class Terminal:
    r"""Draws steps in so many columns.

    `colour` and `columns` are asked of the terminal, where they are None; without `unicode` all is
    ASCII.

    >>> from maskwright.tour.steps import Heading
    >>> from maskwright.tour.terminal import Terminal
    >>> print("\n".join(Terminal(30, colour=False).lines(Heading(1, "Say a mask"))))
    <BLANKLINE>
    ── 1. Say a mask ─────────────
    <BLANKLINE>
    """

    def __init__(
        self, columns: int | None = None, colour: bool | None = None, unicode: bool = True
    ) -> None:
        if columns is None:
            columns = shutil.get_terminal_size().columns
        self.columns = min(max(columns, NARROWEST), WIDEST)
        self.unicode = unicode
        self.pen = Pen(depth_of(colour) if unicode else 0, theme_of(), unicode)

    def lines(self, step: Step) -> list[str]:
        """A step, with an empty line behind it."""
        drawn = [*self._draw(step), ""]
        return drawn if self.unicode else [shown(line, unicode=False) for line in drawn]

    def _draw(self, step: Step) -> list[str]:
        match step:
            case Heading(number, title):
                return self._heading(f"{number}. {title}")
            case Words(text):
                return wrap(text, self.columns)
            case Code(source):
                bar = self.pen.faint("│" if self.unicode else "|")
                return [f"{bar} {self._coloured(line)}".rstrip() for line in lines_of(source)]
            case Output(text):
                return text.splitlines()
            case Picture(scene):
                colour = bool(self.pen.depth)
                drawn = terminal.render(scene, self.columns, colour, self.unicode)
                return drawn.splitlines()
            case Missing(text):
                sign = "✗" if self.unicode else "x"
                return [f"{sign} {text}"]  # unbroken, so that its command can be copied
            case Commands(rows):
                return self._commands(rows)

    def _heading(self, text: str) -> list[str]:
        rule = "─" if self.unicode else "-"
        rest = rule * max(2, self.columns - width(text) - 4)
        return ["", f"{self.pen.faint(rule * 2)} {self._bold(text)} {self.pen.faint(rest)}"]

    def _bold(self, text: str) -> str:
        return self.pen.paint(text, bold=True)

    def _coloured(self, parts: list[Part]) -> str:
        theme = self.pen.theme
        colours = {
            "plain": "",
            "comment": theme.faint,
            "keyword": theme.kinds[Kind.SECOND],
            "text": theme.kinds[Kind.FIRST],
            "number": theme.kinds[Kind.SEEN],
        }
        return "".join(self.pen.paint(part.text, colours[part.kind]) for part in parts)

    def _commands(self, rows: tuple[tuple[str, str], ...]) -> list[str]:
        lines = []
        for command, answer in rows:
            lines += wrap(answer, self.columns)
            lines.append(f"    {self._bold(command)}")
        return lines
