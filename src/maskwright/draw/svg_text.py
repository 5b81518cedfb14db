"""Texts of a picture: how wide they are in a proportional font, cut, wrapped and escaped."""

from __future__ import annotations

import html
import unicodedata

from maskwright.draw.tokens import clean, clusters, shown

BOLD = 1.13  # how much wider bold letters are


def escape(text: str) -> str:
    """Text for XML and HTML: markup escaped, and what XML forbids or turns text round replaced.

    >>> from maskwright.draw.svg_text import escape
    >>> escape('<b> & "c"'), escape(chr(0) + chr(0x202E))
    ('&lt;b&gt; &amp; &quot;c&quot;', '␀&lt;U+202E&gt;')
    """
    return html.escape(clean(text), quote=True)


def visible(text: str, empty: str = "∅") -> str:
    """A token as a label; one without any character has a sign too.

    >>> from maskwright.draw.svg_text import visible
    >>> visible(" the"), visible("")
    ('␣the', '∅')
    """
    return shown(text) if text else empty


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """About how wide a text is, rather too much than too little."""
    return size * (BOLD if bold else 1) * sum(map(_sign_width, clusters(text)))


def cut(text: str, size: float, room: float) -> str:
    """A text, or as much of its beginning as there is room for, and an ellipsis."""
    if text_width(text, size) <= room:
        return text
    kept, left = "", room - text_width("…", size)
    for cluster in clusters(text):
        left -= text_width(cluster, size)
        if left < 0:
            break
        kept += cluster
    return kept + "…"


def wrap(text: str, size: float, room: float, *, bold: bool = False, most: int = 4) -> list[str]:
    """A text in lines; what a few lines can't hold is cut off."""
    size = size * BOLD if bold else size
    lines: list[str] = []
    for word in visible(text, empty="").split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > most:
        lines = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [cut(line, size, room) for line in lines]


def short(number: float) -> str:
    """A number in as few digits as a picture needs.

    >>> from maskwright.draw.svg_text import short
    >>> short(12.000000001), short(0.5), short(-0.001)
    ('12', '.5', '0')
    """
    whole = int(number)
    if whole == number:
        return str(whole)
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    if text in ("-0", "0"):
        return "0"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _sign_width(cluster: str) -> float:
    first = cluster[0]
    if ord(first) >= 0x1F000 or "\ufe0f" in cluster:
        return 1.4
    if unicodedata.east_asian_width(first) in "WF":
        return 1.05
    if first in "mwMW@%—…":
        return 0.98
    if first in "iljtfrI.,:;'|!()[] ":
        return 0.4
    if first in "=+<>&~#−×√∞" or ord(first) > 0x2000:
        return 0.84
    return 0.72 if first.isupper() else 0.62
