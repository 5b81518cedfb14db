"""Lines that fit, in both languages, with every letter in its place."""

from __future__ import annotations

import re

import pytest

from maskwright.draw.labels import width
from maskwright.tour.wrapping import wrap
from tests.tour.test_chapters import TEXTS

SAID = sorted({said for text in TEXTS for said in text})


@pytest.mark.parametrize("columns", [24, 40, 80])
def test_lines_fit_and_nothing_is_lost(columns: int) -> None:
    for said in SAID:
        lines = wrap(said, columns)
        assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", said)
        for line in lines:
            assert width(line) <= columns or " " not in line
            assert not line.startswith(("，", "。", "、", "：", "；", "？", "）"))
            assert not line.endswith(("（", "“"))


def test_words_are_not_torn() -> None:
    assert wrap("原子（atom）是最小的掩码", 10) == ["原子", "（atom）是", "最小的掩码"]
