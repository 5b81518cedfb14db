"""Labels: widths, and cuts between characters."""

from __future__ import annotations

import unicodedata

import pytest
import wcwidth
from hypothesis import example, given
from hypothesis import strategies as st

from maskwright.draw.labels import clusters, fit, pad, shown, width

FAMILY = "👩\u200d👩\u200d👧"
FLAG = "🇬🇧"
ANYTHING = st.text(st.characters() | st.sampled_from(f"e\u0301注{FAMILY}{FLAG}\u202e\u200b\ufe0fק"))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", 0),
        ("tea", 3),
        ("注意", 4),
        ("cafe\u0301", 4),
        (FAMILY, 2),
        (FLAG, 2),
        ("한국", 4),
        ("\u1112\u1161\u11ab", 2),  # one syllable of three letters
        ("☺\ufe0f", 2),
        ("ｱ", 1),
    ],
)
def test_a_width_is_that_of_what_is_seen(text: str, columns: int) -> None:
    assert width(text) == columns


def test_a_cut_leaves_characters_whole() -> None:
    assert fit("cafe\u0301s", 5) == "cafe\u0301s"
    assert fit("e\u0301e\u0301e\u0301", 2) == "e\u0301…"
    assert fit(FAMILY + FAMILY, 3) == FAMILY + "…"
    assert fit(FAMILY + FAMILY, 2) == "…"
    assert fit(FLAG + FLAG, 3) == FLAG + "…"
    assert fit("注意力", 5) == "注意…"
    assert fit("注意力", 0) == ""


def test_ascii_says_everything_in_ascii() -> None:
    assert shown("7 × 7 … −∞", unicode=False) == "7 x 7 ... -inf"
    assert shown("注\n\U0001f469", unicode=False) == r"\u6ce8\n\U0001f469"
    assert fit("注意", 8, unicode=False) == r"\u6ce..."


def test_a_label_from_right_to_left_is_closed_by_a_mark() -> None:
    assert fit("שלום", 9) == "שלום\u200e"
    assert pad("שלום", 6, "right") == "  שלום\u200e"
    assert fit("שלום", 3) == "של…\u200e"


@pytest.mark.parametrize(
    ("side", "padded"), [("left", "é    "), ("right", "    é"), ("centre", "  é  ")]
)
def test_a_label_stands_at_its_side(side: str, padded: str) -> None:
    assert pad("é", 5, side) == padded  # type: ignore[arg-type]


@given(ANYTHING, st.integers(0, 12), st.booleans())
@example("\u0600", 1, True)
@example("\u0301\u202e", 3, True)
@example("a\u200d", 1, True)
def test_a_padded_label_is_as_wide_as_asked(text: str, columns: int, unicode: bool) -> None:
    for side in ("left", "right", "centre"):
        line = pad(text, columns, side, unicode)  # type: ignore[arg-type]
        assert wcwidth.width(line) == columns
        assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in line)
        assert unicode or line.isascii()


@given(ANYTHING, st.integers(0, 12))
def test_a_cut_keeps_whole_characters_from_the_start(text: str, columns: int) -> None:
    cut = fit(text, columns).rstrip("\u200e")
    if cut == shown(text) or not cut:
        return
    kept = cut.removesuffix("…")
    assert any(kept == "".join(clusters(text)[:n]) for n in range(len(cut)))
