"""The tour runs, shows its code, and keeps its promises."""

from __future__ import annotations

import pytest

import maskwright as mw
from maskwright.tour import CHAPTERS, walk


def test_the_whole_tour_shows_every_line_of_code() -> None:
    lines = list(walk())
    for number, chapter in enumerate(CHAPTERS, start=1):
        assert any(line.startswith(f"── {number}. {chapter.title} ") for line in lines)
        for code in chapter.code.strip().splitlines():
            assert any(line in (f">>> {code}", f"... {code}") for line in lines) or "\\" in code
    assert "       [0.2186, 0.4864, 0.295 ]])" in lines


@pytest.mark.parametrize("number", range(1, len(CHAPTERS) + 1))
def test_a_chapter_stands_alone(number: int) -> None:
    lines = list(walk(number))
    assert lines[0].startswith(f"── {number}. ")
    assert sum(line.startswith("── ") for line in lines) == 1


def test_no_such_chapter() -> None:
    with pytest.raises(mw.ArgumentError, match="no chapter 0"):
        list(walk(0))
