"""Texts of a picture: cut where a reader would, and escaped."""

from __future__ import annotations

import pytest

from maskwright.draw.svg_text import cut, escape, short, text_width, visible, wrap


@pytest.mark.parametrize("part", ["👩\u200d👩\u200d👧", "e\u0301", "한", "\u1112\u1161\u11ab"])
def test_a_cut_leaves_characters_whole(part: str) -> None:
    for room in range(12, 80, 3):
        kept = cut(part * 20, 11, room).removesuffix("…")
        assert kept == part * (len(kept) // len(part))
        assert text_width(kept, 11) < room


def test_a_joined_emoji_is_as_wide_as_one() -> None:
    assert text_width("👩\u200d👩\u200d👧", 10) == text_width("👩", 10)
    assert text_width("注", 10) > text_width("a", 10) > text_width("i", 10)


def test_lines_have_room_and_the_rest_is_cut_off() -> None:
    lines = wrap("one two three four five six seven eight nine ten", 10, 60, most=3)
    assert len(lines) == 3
    assert all(text_width(line, 10) <= 60 for line in lines)
    assert lines[-1].endswith("…")


def test_markup_is_escaped_and_what_a_file_may_not_hold_replaced() -> None:
    assert escape("<a href=\"'&\x00") == "&lt;a href=&quot;&#x27;&amp;␀"
    assert (visible(""), visible("", empty=""), visible(" \t\n")) == ("∅", "", "␣␉␊")


@pytest.mark.parametrize(("number", "text"), [(-0.5, "-.5"), (10.0, "10"), (1.005, "1"), (0, "0")])
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text
