"""Steps as text: plain where nobody looks, coloured on a terminal, ASCII where there is no more."""

from __future__ import annotations

import re

import pytest

from maskwright.draw.labels import width
from maskwright.tour.run import walk
from maskwright.tour.steps import Code, Commands, Heading, Missing, Words
from maskwright.tour.terminal import Terminal


def drawn(terminal: Terminal, number: int, language: str = "en") -> list[str]:
    return [line for step in walk(number, language) for line in terminal.lines(step)]  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 2, 4, 9])
def test_no_escape_codes_without_a_terminal(number: int) -> None:
    assert "\x1b" not in "".join(drawn(Terminal(), number))


def test_colours_change_nothing_but_colours() -> None:
    plain, coloured = (drawn(Terminal(80, colour=colour), 3) for colour in (False, True))
    assert any("\x1b[" in line for line in coloured)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert Terminal().pen.depth == 0
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal().pen.depth > 0


def test_ascii_is_ascii() -> None:
    assert "".join(drawn(Terminal(80, unicode=False), 4)).isascii()


def test_words_and_headings_fit_a_narrow_window() -> None:
    terminal = Terminal(30, colour=False)
    steps = (
        Heading(8, "训练 BabyGPT：有掩码和没有掩码"),
        Words("a query may see a key " * 5),
    )
    assert len(terminal.lines(steps[0])) == 3
    assert all(width(line) <= 30 for line in terminal.lines(steps[1]))
    long = "Left out, for torch is not installed. Run: pip install 'maskwright[torch]'"
    assert terminal.lines(Missing(long)) == [f"✗ {long}", ""]


def test_code_has_a_bar_and_commands_stand_below_what_they_answer() -> None:
    terminal = Terminal(60, colour=False)
    assert terminal.lines(Code("a = 1\n\nb = 2")) == ["│ a = 1", "│", "│ b = 2", ""]
    commands = Commands((("maskwright show", "What does it look like?"),))
    assert terminal.lines(commands) == ["What does it look like?", "    maskwright show", ""]
