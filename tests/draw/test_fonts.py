"""Fonts: which one has a character, and what is said where none has."""

from __future__ import annotations

import pytest

from maskwright.draw import fonts

pytest.importorskip("matplotlib")


def test_scripts_are_named_with_a_font_for_them() -> None:
    found = fonts.Fonts()
    found.missing = dict(map(fonts._script, "注かक👩ᚠ⟁"))
    with pytest.warns(UserWarning, match="no installed font") as caught:
        found.warn()
    said = str(caught[0].message)
    assert "Chinese and Japanese and Devanagari and emoji and Runic and symbols" in said
    assert "such as Noto Sans CJK and Noto Sans Devanagari and Noto Emoji" in said


def test_fonts_are_chosen_by_what_they_have() -> None:
    found = fonts.Fonts()
    assert found.drawable("cafe\u0301 √∞") == "café √∞"
    assert found.families == ["DejaVu Sans"]
    assert found.drawable("a\nb") in ("a␊b", r"a\nb")
    assert not found.missing
    assert not any("Last Resort" in name for name in fonts._all_families())
