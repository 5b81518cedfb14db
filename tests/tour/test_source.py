"""Code in parts: nothing is lost, and strings over several lines stay strings."""

from __future__ import annotations

import pytest

from maskwright.tour.chapters import CHAPTERS
from maskwright.tour.source import Part, lines_of

CODES = [cell.code.strip() for chapter in CHAPTERS for cell in chapter.cells]


@pytest.mark.parametrize("code", CODES, ids=range(len(CODES)))
def test_the_parts_are_the_code(code: str) -> None:
    assert ["".join(part.text for part in line) for line in lines_of(code)] == code.splitlines()


def test_kinds() -> None:
    assert lines_of('for x in (1, "for"):  # for') == [
        [
            *(Part("keyword", "for"), Part("plain", " x "), Part("keyword", "in")),
            *(Part("plain", " ("), Part("number", "1"), Part("plain", ", ")),
            *(Part("text", '"for"'), Part("plain", "):  "), Part("comment", "# for")),
        ]
    ]


def test_a_string_over_two_lines() -> None:
    first, second = lines_of('x = """a\nb"""')
    assert first[-1] == Part("text", '"""a')
    assert second == [Part("text", 'b"""')]
