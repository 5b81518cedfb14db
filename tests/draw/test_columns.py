"""Columns without wcwidth: as with it, for the scripts and signs that people use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.draw import columns
from maskwright.draw.tokens import clusters

WITH = (columns.columns_of, columns.columns_of_line, columns.wrapped)
FAMILY = "👩\u200d👩\u200d👧"
SIGNS = st.sampled_from(
    [
        *"aZ9 é×−∞√·█▒▲◆",
        *"注意力中文かなカナｱ한국，。",
        *"שלום",
        "e\u0301",
        "☺\ufe0f",
        "🇬🇧",
        FAMILY,
        "🙂",
    ]
)
LINES = st.lists(SIGNS, max_size=40).map("".join)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "WIDTHS", None)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("text", "wide"),
    [
        *(("", 0), ("tea", 3), ("注意", 4), ("cafe\u0301", 4), (FAMILY, 2), ("🇬🇧", 2), ("🇬", 1)),
        *(
            ("한국", 4),
            ("\u1112\u1161\u11ab", 2),
            ("☺\ufe0f", 2),
            ("ｱ", 1),
            ("\x1b[1mtea\x1b[0m", 3),
        ),
    ],
)
def test_a_width_is_that_of_what_is_seen(text: str, wide: int) -> None:
    assert columns.columns_of_line(text) == wide


@given(LINES)
def test_a_line_is_as_wide_as_with_wcwidth(line: str) -> None:
    expected = columns.columns_of_line(line)
    each = [columns.columns_of(cluster) for cluster in clusters(line)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "WIDTHS", None)
        assert columns.columns_of_line(line) == expected
        assert [columns.columns_of(cluster) for cluster in clusters(line)] == each


@given(LINES, st.integers(2, 30))
def test_a_wrapped_text_keeps_its_signs_and_the_width(text: str, width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "WIDTHS", None)
        lines = columns.wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(columns.columns_of_line(line) <= width for line in lines)


@pytest.mark.usefixtures("alone")
def test_words_are_kept_whole_where_they_fit() -> None:
    assert columns.wrapped("a query may see a key", 11) == ["a query may", "see a key"]
    assert columns.wrapped("注意力 attention", 5) == ["注意", "力", "atten", "tion"]
    assert columns.wrapped("", 5) == []
