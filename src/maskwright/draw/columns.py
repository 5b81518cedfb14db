"""How many columns of a terminal a text takes: by wcwidth, or without it by what Python knows.

The standard library tells which characters are wide, which is right for all but a few rare signs.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

from maskwright.draw.tokens import clusters

try:
    import wcwidth

    WIDTHS: Any = wcwidth
except ModuleNotFoundError:
    WIDTHS = None


def columns_of(cluster: str) -> int:
    r"""The columns of one character with its marks.

    >>> columns_of("注"), columns_of("e\u0301"), columns_of("👩‍👩‍👧")
    (2, 1, 2)
    """
    if WIDTHS is not None:
        return max(int(WIDTHS.wcswidth(cluster)), 0)
    if _AS_PICTURE in cluster:
        return 2
    if all(ord(sign) in _FLAG_LETTERS for sign in cluster):
        return len(cluster)
    return max(map(_columns_of_sign, cluster), default=0)


def columns_of_line(line: str) -> int:
    r"""The columns of a finished line, colours and all.

    >>> columns_of_line("\x1b[1mcausal()\x1b[0m")
    8
    """
    if WIDTHS is not None:
        return int(WIDTHS.width(line))
    return sum(map(columns_of, clusters(_COLOUR.sub("", line))))


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most so many columns, broken at spaces where there are any.

    >>> wrapped("a query may see a key", 11)
    ['a query may', 'see a key']
    """
    if WIDTHS is not None:
        return list(WIDTHS.wrap(text, width))
    lines: list[str] = []
    for word in text.split():
        if lines and columns_of_line(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for part in clusters(word):
            if lines[-1] and columns_of_line(lines[-1] + part) > width:
                lines.append("")
            lines[-1] += part
    return lines


_AS_PICTURE: Final = "\ufe0f"  # makes a sign an emoji, which is wide
_FLAG_LETTERS: Final = range(0x1F1E6, 0x1F200)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def _columns_of_sign(sign: str) -> int:
    category = unicodedata.category(sign)
    if category.startswith("M") or category in ("Cf", "Cc"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in ("W", "F") else 1
