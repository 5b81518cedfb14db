"""Fonts: which one has a character, and what is said where none has."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from maskwright.draw import fonts

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_font_installed_since_matplotlib_made_its_list_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import font_manager

    fresh, broken = tmp_path / "fresh.ttf", tmp_path / "broken.ttf"
    shutil.copy(font_manager.findfont("DejaVu Sans"), fresh)
    broken.write_bytes(b"no font")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(fresh), str(broken)])
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    fonts._all_families.cache_clear()
    try:
        assert fonts._all_families() == ("DejaVu Sans",)
    finally:
        fonts._all_families.cache_clear()
