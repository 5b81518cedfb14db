"""A token as it may be shown: in whole characters, and with a sign for what can't be seen.

A token may hold anything. What would move a cursor, turn the writing direction, break a file or
show nothing is replaced by a sign that can be seen. How wide a token is depends on where it
stands, so that is told elsewhere: in columns by `labels`, in pixels by `svg_text`.
"""

from __future__ import annotations

import unicodedata
from typing import Final


def shown(text: str) -> str:
    r"""The text with a sign for everything that can't be seen, and for spaces at its ends.

    >>> shown("a\nb"), shown("\u202eabc"), shown(" the"), shown("\u0301")
    ('a␊b', '<U+202E>abc', '␣the', '◌́')
    """
    parts = [_visible(part) for part in clusters(text)]
    for order in (range(len(parts)), reversed(range(len(parts)))):
        for index in order:  # " the" and "the" are two tokens, and look it
            if parts[index] not in (" ", "␣"):
                break
            parts[index] = "␣"
    return "".join(parts)


def clean(text: str) -> str:
    r"""The text with a sign for what a file may not hold or what turns its direction.

    Unlike `shown`, it keeps line ends, tabs and spaces as they are: it is for sentences.

    >>> clean("one\ntwo"), clean("\x00\x7f\ufffe"), clean("\u202eabc")
    ('one\ntwo', '␀␡�', '<U+202E>abc')
    """
    return "".join(_sign(sign) if _is_forbidden(sign) else sign for sign in text)


def clusters(text: str) -> list[str]:
    r"""What a reader sees as single characters: letters with their marks, syllables, joined emoji.

    These are the extended grapheme clusters of Unicode, as far as the standard library tells the
    properties of characters.

    >>> [len(part) for part in clusters("cafe\u0301👩‍👩‍👧")]
    [1, 1, 1, 2, 5]
    """
    parts: list[str] = []
    for sign in text:
        if parts and _joins(parts[-1], sign):
            parts[-1] += sign
        else:
            parts.append(sign)
    return parts


# ------------------------------------------------------------------------------ what can't be seen

_TURNS: Final = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
_IGNORED: Final = {  # without a meaning so far, but never to be drawn
    *(0x2065, *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE0020)),
    *(*range(0xE0080, 0xE0100), *range(0xE01F0, 0xE1000)),
}


def _visible(cluster: str) -> str:
    first = cluster[0]
    lone = unicodedata.category(first) == "Cf" and (len(cluster) == 1 or first not in _PREPENDED)
    if lone or _stands_alone(first) or _syllable(first) in ("V", "T"):
        return "".join(map(_sign, cluster))
    if unicodedata.category(first).startswith("M"):  # it would land on whatever stands before it
        return "◌" + cluster
    return cluster


def _sign(character: str) -> str:
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    if code == 127:
        return "␡"
    return "�" if 0xD800 <= code < 0xE000 or _is_no_character(code) else f"<U+{code:04X}>"


def _is_forbidden(sign: str) -> bool:
    code = ord(sign)
    control = unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\t\n"
    return control or code in _TURNS or _is_no_character(code)


def _is_no_character(code: int) -> bool:
    return code & 0xFFFE == 0xFFFE


# ---------------------------------------------------------------------------------- what is joined

_JOINER: Final = "\u200d"
_TONES: Final = range(0x1F3FB, 0x1F400)  # of skin
_FLAG_LETTERS: Final = range(0x1F1E6, 0x1F200)
_TAGS: Final = range(0xE0020, 0xE0080)
_MARKS: Final = "\u200c\u200d\uff9e\uff9f\u0e33\u0eb3"  # whose category is not that of a mark
_PREPENDED: Final = (  # written before what they belong to
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd"
)
_CONJOINING: Final = (  # what joins a consonant to the next one
    "\u094d\u09cd\u0acd\u0b4d\u0c4d\u0d4d\u1039\u17d2\u1a60\u1b44\u1bab\ua9c0\uaaf6"
)
_SYLLABLES: Final = {  # a part of a Korean syllable, and what may follow
    "L": ("L", "V", "LV", "LVT"),
    "V": ("V", "T"),
    "LV": ("V", "T"),
    "T": ("T",),
    "LVT": ("T",),
}


def _joins(held: str, sign: str) -> bool:
    """Whether a sign belongs to the cluster before it."""
    last = held[-1]
    if _stands_alone(last) or _stands_alone(sign):
        return last + sign == "\r\n"
    if _is_mark(sign) or last in _PREPENDED:
        return True
    if ord(sign) in _FLAG_LETTERS:
        return ord(last) in _FLAG_LETTERS and sum(ord(s) in _FLAG_LETTERS for s in held) == 1
    if _syllable(sign) in _SYLLABLES.get(_syllable(last), ()):
        return True
    base = next((s for s in reversed(held) if not _is_mark(s)), last)
    if last == _JOINER and _is_picture(base) and _is_picture(sign):
        return True
    conjoined = any(s in _CONJOINING for s in held[held.rindex(base) + 1 :])
    return conjoined and unicodedata.category(sign) == "Lo" and ord(base) >> 7 == ord(sign) >> 7


def _stands_alone(sign: str) -> bool:
    """Whether nothing joins a sign: controls, and what is not a character at all."""
    code = ord(sign)
    if code < 0x7F:
        return code < 0x20
    category = unicodedata.category(sign)
    if category == "Cf":
        return sign not in _MARKS and sign not in _PREPENDED and code not in _TAGS
    unseen = category in ("Cc", "Cs", "Zl", "Zp") or code in _IGNORED
    return unseen or _is_no_character(code)


def _is_mark(sign: str) -> bool:
    code = ord(sign)
    if code < 0x300:
        return False
    marked = unicodedata.category(sign).startswith("M") or sign in _MARKS
    return marked or code in _TONES or code in _TAGS


def _is_picture(sign: str) -> bool:
    code = ord(sign)
    if code in _FLAG_LETTERS:
        return False
    return 0x1F000 <= code < 0x20000 or unicodedata.category(sign) == "So"


def _syllable(sign: str) -> str:
    """Which part of a Korean syllable a sign is: first consonant, vowel, last one; or nothing."""
    code = ord(sign)
    if 0xAC00 <= code < 0xD7A4:
        return "LVT" if (code - 0xAC00) % 28 else "LV"
    if 0x1100 <= code < 0x1160 or 0xA960 <= code < 0xA97D:
        return "L"
    if 0x1160 <= code < 0x11A8 or 0xD7B0 <= code < 0xD7C7:
        return "V"
    return "T" if 0x11A8 <= code < 0x1200 or 0xD7CB <= code < 0xD7FC else ""
