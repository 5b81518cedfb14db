"""Text: tokens, graphemes, symbols for invisible characters, widths, cutting and wrapping."""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ET

import pytest
import wcwidth
from hypothesis import example, given
from hypothesis import strategies as st

from maskwright.draw.text import (
    clean,
    cut,
    display_width,
    escape,
    fit,
    graphemes,
    pad,
    split_tokens,
    text_width,
    visible,
    wrap,
    wrap_pixels,
)

FAMILY = "👩\u200d👩\u200d👧"
FLAG = "🇬🇧"
ANYTHING = st.text(st.characters() | st.sampled_from(f"e\u0301注{FAMILY}{FLAG}\u202e\u200b\ufe0fק"))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("  ", []),
        (" I like\ttea ", ["I", "like", "tea"]),
        ("我 喜欢 喝 茶", ["我", "喜欢", "喝", "茶"]),
        ("我喜欢喝茶。", ["我", "喜", "欢", "喝", "茶", "。"]),
        ("我爱tea和café", ["我", "爱", "tea", "和", "café"]),
        ("한국어", ["한", "국", "어"]),
        (f"a{FAMILY}b", ["a", FAMILY, "b"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
    ],
)
def test_spaces_separate_tokens_and_without_any_wide_characters_do(
    text: str, tokens: list[str]
) -> None:
    assert split_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("\x00", "␀"),
        ("a\nb", "a␊b"),
        ("\r\n", "␍␊"),
        ("\x1b[31m", "␛[31m"),
        ("\x9b", "<U+009B>"),
        ("\u202eabc\u202c", "<U+202E>abc<U+202C>"),
        ("\ud83d", "�"),
        (" the", "␣the"),
        ("  ", "␣␣"),
        ("\u0301", "◌\u0301"),
        (FAMILY, FAMILY),
        ("", ""),
        ("\uffff", "�"),
        ("\u200d\u0301", "<U+200D><U+0301>"),
        ("\u1161", "<U+1161>"),  # a vowel without a syllable
        ("\u06007", "\u06007"),
        ("\u0600", "<U+0600>"),
    ],
)
def test_invisible_characters_have_symbols(text: str, symbols: str) -> None:
    assert visible(text) == symbols


def test_sentences_keep_their_line_ends() -> None:
    assert clean("a\tb\r\n c ") == "a\tb␍\n c "
    assert clean("\x00\x7f\x85\ud800\ufffe\u2067") == "␀␡<U+0085>��<U+2067>"


@given(ANYTHING)
@example("\u0600\ufffe")
def test_visible_and_escaped_text_is_valid_xml(text: str) -> None:
    assert "".join(graphemes(text)) == text
    assert visible(visible(text)) == visible(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in visible(text))
    for shown in (visible(text), clean(text)):
        assert "".join(ET.fromstring(f"<t>{escape(shown)}</t>").itertext()) == shown


def test_text_is_cut_between_graphemes() -> None:
    assert fit("cafe\u0301s", 5) == "cafe\u0301s"
    assert fit("e\u0301e\u0301e\u0301", 2) == "e\u0301…"
    assert fit(FAMILY + FAMILY, 3) == FAMILY + "…"
    assert fit(FLAG + FLAG, 2) == "…"
    assert fit("注意力", 5) == "注意…"
    assert fit("注意力", 0) == ""


def test_ascii_only() -> None:
    assert visible("7 × 7 … −∞", unicode=False) == "7 x 7 ... -inf"
    assert visible("注\n\U0001f469", unicode=False) == r"\u6ce8\n\U0001f469"
    assert fit("注意", 8, unicode=False) == r"\u6ce..."


def test_right_to_left_labels_end_with_a_mark() -> None:
    assert fit("שלום", 9) == "שלום\u200e"
    assert pad("שלום", 6, "right") == "  שלום\u200e"
    assert fit("שלום", 3) == "של…\u200e"


@given(ANYTHING, st.integers(0, 12), st.booleans())
@example("\u0600", 1, True)
@example("\u0301\u202e", 3, True)
@example("a\u200d", 1, True)
def test_padded_text_has_the_width(text: str, columns: int, unicode: bool) -> None:
    left, right = pad(text, columns, "left", unicode), pad(text, columns, "right", unicode)
    assert left.strip() == right.strip()
    for line in (left, right):
        assert wcwidth.width(line) == columns
        assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in line)
        assert unicode or line.isascii()


@given(ANYTHING, st.integers(2, 30))
def test_wrapped_lines_have_at_most_the_width(text: str, width: int) -> None:
    shown = visible(text)
    lines = wrap(shown, width)
    assert all(display_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(shown.split())


@given(ANYTHING, st.integers(10, 100))
def test_pixel_text_is_cut_and_wrapped_to_the_width(text: str, width: int) -> None:
    shown = visible(text)
    assert text_width(cut(shown, 11, width), 11) <= max(width, text_width("…", 11))
    lines = wrap_pixels(text, 11, width, max_lines=3)
    assert len(lines) <= 3
    assert all(text_width(line, 11) <= max(width, text_width("…", 11)) for line in lines)
    assert text_width(shown, 11) <= text_width(shown, 11, bold=True)
