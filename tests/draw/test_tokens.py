"""Tokens: whole characters, and signs for what can't be seen."""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maskwright.draw.tokens import clean, clusters, shown

FAMILY = "👩\u200d👩\u200d👧"
ANYTHING = st.text(st.characters() | st.sampled_from(f"e\u0301注{FAMILY}🇬🇧\u202e\u200b\ufe0fק"))


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("\x00", "␀"),
        ("a\nb", "a␊b"),
        ("\r\n", "␍␊"),
        ("\t", "␉"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f", "␡"),
        ("\x9b", "<U+009B>"),
        ("\u2028", "<U+2028>"),
        ("\u202eabc\u202c", "<U+202E>abc<U+202C>"),
        ("\u2066x\u2069", "<U+2066>x<U+2069>"),
        ("\u200f", "<U+200F>"),
        ("\u200b", "<U+200B>"),
        ("\ufeff", "<U+FEFF>"),
        ("\ud83d", "�"),
        (" the", "␣the"),
        ("the ", "the␣"),
        ("  ", "␣␣"),
        ("a b", "a b"),
        ("\u0301", "◌\u0301"),
        (FAMILY, FAMILY),
        ("", ""),
        ("\uffff", "�"),
        ("\u200d\u0301", "<U+200D><U+0301>"),
        ("\u1161", "<U+1161>"),  # a vowel of no syllable
        ("\u06007", "\u06007"),
        ("\u0600", "<U+0600>"),
    ],
)
def test_what_cannot_be_seen_has_a_sign(text: str, sign: str) -> None:
    assert shown(text) == sign


@pytest.mark.parametrize(
    "parts",
    [
        ["c", "a", "f", "e\u0301"],
        [FAMILY, FAMILY],
        ["👩🏽\u200d🚀", "!"],
        ["❤\ufe0f\u200d🔥", "☺\ufe0f", "a"],
        ["🇬🇧", "🇬🇧", "🇬"],
        ["🏴\U000e0067\U000e0062\U000e007f", "x"],
        ["\u1112\u1161\u11ab", "\u1100\u1173", "한", "국"],
        ["क्षि", "ति"],  # two consonants and a vowel are one character
        ["กำ", "น"],
        ["\r\n", "\n", "\t", "\u0301"],
        ["a\u200d", "b"],
        ["\u200e", "\u0301"],
        ["\u06007", "7"],
        ["1\ufe0f\u20e3", "2"],
    ],
)
def test_a_character_is_what_a_reader_counts(parts: list[str]) -> None:
    assert clusters("".join(parts)) == parts


def test_sentences_keep_their_line_ends() -> None:
    assert clean("a\tb\r\n c ") == "a\tb␍\n c "
    assert clean("\x00\x7f\x85\ud800\ufffe\u2067") == "␀␡<U+0085>��<U+2067>"


@given(ANYTHING)
@example("\u0600\ufffe")
def test_what_is_shown_can_be_seen_and_kept(text: str) -> None:
    assert "".join(clusters(text)) == text
    assert shown(shown(text)) == shown(text)
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown(text))
    for said in (shown(text), clean(text)):
        escaped = said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert "".join(ET.fromstring(f"<t>{escaped}</t>").itertext()) == said


def test_clusters_are_those_of_wcwidth() -> None:
    wcwidth = pytest.importorskip("wcwidth")
    texts = ("cafe\u0301", FAMILY * 2, "🇬🇧🇫", "한국\u1112\u1161", "नमस्ते क्षत्रिय", "தமிழ்", "ไทยกำ")
    for text in (*texts, "".join(texts), "\u0600\u0661 שָׁלוֹם عَرَبِيّ"):
        assert clusters(text) == list(wcwidth.iter_graphemes(text))
