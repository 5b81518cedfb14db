"""Sentences in lines: English breaks at spaces, Chinese between signs, but never before a comma."""

from __future__ import annotations

import re
from typing import Final

from maskwright.draw.labels import width

_CLOSING: Final = "，。；：？！、）”》"
_OPENING: Final = "（“《"
_WIDE: Final = r"[\u2e80-\u9fff\uff00-\uffef]"
# What stays together: a wide sign with the marks around it, or a word of other letters.
_UNIT: Final = re.compile(
    rf"\s+|[{_OPENING}]*(?:{_WIDE}|[^\s{_OPENING}{_CLOSING}\u2e80-\u9fff\uff00-\uffef]+)"
    rf"[{_CLOSING}]*|[{_OPENING}{_CLOSING}]+"
)


def wrap(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, where its words allow that.

    >>> from maskwright.tour.wrapping import wrap
    >>> wrap("a query may see a key", 12), wrap("查询（行）看键，懂吗？", 10)
    (['a query may', 'see a key'], ['查询（行）', '看键，懂', '吗？'])
    """
    lines, used = [""], 0
    for unit in _UNIT.findall(text):
        needs = len(unit) if unit.isspace() else width(unit)
        if lines[-1] and used + needs > columns and not unit.isspace():
            lines.append("")
            used = 0
        if lines[-1] or not unit.isspace():
            lines[-1] += unit
            used += needs
    return [line.rstrip() for line in lines]
