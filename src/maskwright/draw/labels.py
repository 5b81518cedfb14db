"""Labels of a terminal: how many columns a text takes, and how to cut and pad it to so many."""

from __future__ import annotations

import unicodedata
from typing import Final, Literal

from maskwright.draw import tokens
from maskwright.draw.columns import columns_of


def shown(text: str, unicode: bool = True) -> str:
    r"""The text as it may be shown, in ASCII if need be.

    >>> shown(" the\n"), shown("3 × 注", unicode=False)
    ('␣the␊', '3 x \\u6ce8')
    """
    if not unicode:
        return "".join(map(_in_ascii, text))
    return tokens.shown(text)


def clusters(text: str, unicode: bool = True) -> list[str]:
    r"""What one sees as single characters, as they are shown.

    >>> [len(part) for part in clusters("cafe\u0301👩‍👩‍👧")]
    [1, 1, 1, 2, 5]
    """
    return tokens.clusters(shown(text, unicode))


def width(text: str, unicode: bool = True) -> int:
    r"""How many columns of a terminal the text takes as it is shown.

    >>> width("注意"), width("cafe\u0301"), width("👩‍👩‍👧")
    (4, 4, 2)
    """
    return sum(map(columns_of, clusters(text, unicode)))


def fit(text: str, columns: int, unicode: bool = True) -> str:
    r"""The text as it is shown, cut to at most so many columns.

    >>> fit("attention", 6), fit("注意力", 5), fit("注意力", 4), fit("cafe\u0301s", 4)
    ('atten…', '注意…', '注…', 'caf…')
    """
    parts = clusters(text, unicode)
    if sum(map(columns_of, parts)) <= columns:
        return _kept_in_place("".join(parts))
    mark = "…" if unicode else "..."[: max(columns, 0)]
    room = columns - len(mark)
    if room < 0:
        return ""
    taken = []
    for part in parts:
        room -= columns_of(part)
        if room < 0:
            break
        taken.append(part)
    return _kept_in_place("".join(taken) + mark)


def pad(
    text: str,
    columns: int,
    side: Literal["left", "right", "centre"] = "left",
    unicode: bool = True,
) -> str:
    """The text as it is shown, cut or filled to exactly so many columns; `side` is where it stands.

    >>> pad("注意", 6, "right") + "|", pad("é", 3, "centre") + "|", pad("long", 3) + "|"
    ('  注意|', ' é |', 'lo…|')
    """
    cut = fit(text, columns, unicode)
    missing = columns - sum(map(columns_of, tokens.clusters(cut)))
    before = {"left": 0, "right": missing, "centre": missing // 2}[side]
    return " " * before + cut + " " * (missing - before)


_LEFT_TO_RIGHT: Final = "\u200e"
_ASCII: Final = str.maketrans(
    {
        "×": "x",
        "−": "-",
        "–": "-",
        "…": "...",
        "·": ".",
        "∞": "inf",
        "√": "sqrt",
        "≤": "<=",
        "≥": ">=",
        "→": "->",
        "ᵀ": "^T",
        "’": "'",
    }
)


def _in_ascii(character: str) -> str:
    if " " <= character <= "~":
        return character
    plain = character.translate(_ASCII)
    return plain if plain.isascii() and plain.isprintable() else ascii(character)[1:-1]


def _kept_in_place(text: str) -> str:
    """Hebrew or Arabic would pull the numbers after it to its other side; a mark ends its reach."""
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text):
        return text + _LEFT_TO_RIGHT
    return text
