"""Text in pictures: tokens of a sentence, visible characters, widths, cutting and wrapping.

Columns of a terminal and graphemes (what a reader counts as one character) come from `wcwidth`.
The pixel width of proportional text is an estimate, because an SVG is drawn with its reader's font;
for that, code points are good enough where `wcwidth` is not installed.
"""

from __future__ import annotations

import html
import unicodedata
from typing import Any, Final, Literal

from maskwright._optional_deps import require
from maskwright.errors import MissingError

BOLD: Final = 1.13  # width of bold text relative to regular text


def split_tokens(text: str) -> list[str]:
    """Splits a sentence into the tokens that pictures show.

    Spaces separate tokens in every language. In a text without spaces, each wide character
    (Chinese, Japanese, Korean, emoji) is one token, and each run of other characters is one.

    >>> split_tokens("I like tea"), split_tokens("我 喜欢 喝 茶"), split_tokens("我喝tea")
    (['I', 'like', 'tea'], ['我', '喜欢', '喝', '茶'], ['我', '喝', 'tea'])
    """
    words = text.split()
    if len(words) != 1 or text.isascii():
        return words
    tokens: list[str] = []
    after_wide = True
    for grapheme in graphemes(words[0]):
        wide = unicodedata.east_asian_width(grapheme[0]) in "WF"
        if wide or after_wide:
            tokens.append(grapheme)
        else:
            tokens[-1] += grapheme
        after_wide = wide
    return tokens


def graphemes(text: str) -> list[str]:
    r"""Splits text into extended grapheme clusters.

    >>> [len(grapheme) for grapheme in graphemes("cafe\u0301👩‍👩‍👧")]
    [1, 1, 1, 2, 5]
    """
    try:
        return list(_wcwidth().iter_graphemes(text))
    except MissingError:
        return list(text)


# ── characters that cannot be seen ───────────────────────────────────────────────────────────────


def visible(text: str, unicode: bool = True, empty: str = "") -> str:
    r"""A token with symbols for invisible characters, and for spaces at its ends.

    Args:
        text: The token.
        unicode: Whether characters beyond ASCII may be used.
        empty: Returned for an empty token.

    >>> visible(" the\n"), visible("\u202eabc"), visible("\u0301"), visible("", empty="∅")
    ('␣the␊', '<U+202E>abc', '◌́', '∅')
    >>> visible("3 × 注", unicode=False)
    '3 x \\u6ce8'
    """
    if not text:
        return empty
    if not unicode:
        return "".join(map(_ascii, text))
    body = text.strip(" ␣")  # " the" and "the" are different tokens
    if not body:
        return "␣" * len(text)
    start = text.index(body)
    end = len(text) - start - len(body)
    return "␣" * start + "".join(map(_visible_grapheme, graphemes(body))) + "␣" * end


def clean(text: str) -> str:
    r"""Text with symbols for characters that XML forbids or that change the writing direction.

    Unlike `visible`, it keeps line ends, tabs and spaces.

    >>> clean("one\ntwo"), clean("\x00\x7f\ufffe"), clean("\u202eabc")
    ('one\ntwo', '␀␡�', '<U+202E>abc')
    """
    return "".join(_symbol(c) if _is_forbidden(c) else c for c in text)


def escape(text: str) -> str:
    """Text for XML and HTML: cleaned, with markup escaped.

    >>> escape('<b> & "c"'), escape(chr(0) + chr(0x202E))
    ('&lt;b&gt; &amp; &quot;c&quot;', '␀&lt;U+202E&gt;')
    """
    return html.escape(clean(text), quote=True)


# ── columns of a terminal ────────────────────────────────────────────────────────────────────────


def display_width(text: str) -> int:
    r"""Number of terminal columns of a text. Colour sequences have none.

    >>> [display_width(text) for text in ("注意", "cafe\u0301", "👩‍👩‍👧", "\x1b[1mbold\x1b[0m")]
    [4, 4, 2, 4]
    """
    return int(_wcwidth().width(text))


def wrap(text: str, max_width: int) -> list[str]:
    """Breaks text into lines of at most `max_width`, at spaces where possible.

    >>> wrap("a query attends to a key", 11)
    ['a query', 'attends to', 'a key']
    """
    return list(_wcwidth().wrap(text, max_width))


def fit(text: str, max_width: int, unicode: bool = True) -> str:
    r"""The visible form of a text, cut to at most `max_width`.

    >>> fit("attention", 6), fit("注意力", 5), fit("注意力", 4), fit("cafe\u0301s", 4)
    ('atten…', '注意…', '注…', 'caf…')
    """
    shown = visible(text, unicode)
    if display_width(shown) > max_width:
        ellipsis = "…" if unicode else "..."[: max(max_width, 0)]
        left = max_width - len(ellipsis)
        if left < 0:
            return ""
        shown = _take(shown, left, display_width) + ellipsis
    # Hebrew or Arabic would move the numbers after it to its other side; a mark prevents that.
    rtl = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in shown)
    return f"{shown}\u200e" if rtl else shown


def pad(
    text: str, width: int, align: Literal["left", "right"] = "left", unicode: bool = True
) -> str:
    """The visible form of a text, cut or padded to exactly `width`.

    >>> pad("注意", 6, "right") + "|", pad("é", 3) + "|", pad("long", 3) + "|"
    ('  注意|', 'é  |', 'lo…|')
    """
    shown = fit(text, width, unicode)
    missing = " " * (width - display_width(shown))
    return missing + shown if align == "right" else shown + missing


# ── pixels of an SVG ─────────────────────────────────────────────────────────────────────────────


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Estimated width in pixels at a font size; an upper estimate."""
    return size * (BOLD if bold else 1) * sum(map(_em, graphemes(text)))


def cut(text: str, size: float, max_width: float) -> str:
    """Text, or as much of its beginning as fits into `max_width` pixels, and an ellipsis."""
    if text_width(text, size) <= max_width:
        return text
    left = max_width - text_width("…", size)
    return _take(text, left, lambda grapheme: text_width(grapheme, size)) + "…"


def wrap_pixels(
    text: str, size: float, max_width: float, *, bold: bool = False, max_lines: int = 4
) -> list[str]:
    """Breaks text into at most `max_lines` lines of `max_width` pixels; cuts what does not fit."""
    size = size * BOLD if bold else size
    lines: list[str] = []
    for word in visible(text).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= max_width:
            lines[-1] = longer
        else:
            lines.append(word)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], " ".join(lines[max_lines - 1 :])]
    return [cut(line, size, max_width) for line in lines]


# ─────────────────────────────────────────────────────────────────────────────────────────────────


def _wcwidth() -> Any:
    with require("text pictures"):
        import wcwidth

    return wcwidth


def _take(text: str, left: float, measure: Any) -> str:
    """The first graphemes that fit."""
    taken = ""
    for grapheme in graphemes(text):
        left -= measure(grapheme)
        if left < 0:
            break
        taken += grapheme
    return taken


def _visible_grapheme(grapheme: str) -> str:
    first = grapheme[0]
    category = unicodedata.category(first)
    if category.startswith("M"):  # it would be drawn over the character before it
        return f"◌{grapheme}"
    unseen = (
        category in ("Cc", "Zl", "Zp")
        or (category == "Cf" and all(unicodedata.combining(c) for c in grapheme[1:]))
        or 0x1160 <= ord(first) < 0x1200  # a vowel or final consonant without a syllable
        or any(map(_is_forbidden, grapheme))
    )
    return "".join(map(_symbol, grapheme)) if unseen else grapheme


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    if code == 127:
        return "␡"
    return "�" if 0xD800 <= code < 0xE000 or _is_noncharacter(code) else f"<U+{code:04X}>"


def _is_forbidden(character: str) -> bool:
    code = ord(character)
    control = unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n"
    return control or code in _BIDI_CONTROLS or _is_noncharacter(code)


def _is_noncharacter(code: int) -> bool:
    return code & 0xFFFE == 0xFFFE


def _ascii(character: str) -> str:
    if " " <= character <= "~":
        return character
    return _ASCII.get(character) or ascii(character)[1:-1]


def _em(grapheme: str) -> float:
    """Estimated width of a grapheme relative to the font size."""
    first = grapheme[0]
    if ord(first) >= 0x1F000 or "\ufe0f" in grapheme:
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


_BIDI_CONTROLS: Final = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
_ASCII: Final = {
    **dict(zip("×−–·’", "x--.'", strict=True)),
    "…": "...",
    "∞": "inf",
    "√": "sqrt",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "ᵀ": "^T",
}
