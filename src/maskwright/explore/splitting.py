"""Sentences to tokens, for looking at masks: words by spaces, Chinese and Japanese letter by letter.

No model cuts text like this. It is what a reader takes for a word, and never cuts a character.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from maskwright.explore.faults import too_large
from maskwright.explore.requests import LONGEST_TOKEN, MOST_SEQUENCES, MOST_TOKENS, PAD

JOINER: Final = "\u200d"
SINGLE: Final = (  # letters that are tokens by themselves
    (0x1100, 0x11FF), (0x2E80, 0x303F), (0x3040, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0xFF01, 0xFFEF), (0x20000, 0x3FFFF),
)  # fmt: skip


def split_text(text: str, side: str = "right") -> tuple[list[list[str]], list[int]]:
    r"""The tokens of every line, padded to one length at that side, and how many are real.

    >>> split_text("I like 猫\nyou")
    ([['I', 'like', '猫'], ['you', '<PAD>', '<PAD>']], [3, 1])
    """
    rows = [tokens for line in text.splitlines() if (tokens := _tokens(line))]
    if len(rows) > MOST_SEQUENCES:
        raise too_large(f"There are {len(rows)} sentences, more than {MOST_SEQUENCES}. Send fewer.")
    most = max((len(row) for row in rows), default=0)
    if most > MOST_TOKENS:
        raise too_large(
            f"A sentence has {most} tokens, more than {MOST_TOKENS}. Send a shorter one."
        )
    longest = max((len(token) for row in rows for token in row), default=0)
    if longest > LONGEST_TOKEN:
        raise too_large(
            f"A word has {longest} characters, more than {LONGEST_TOKEN}. Put a space into it."
        )
    fills = [[PAD] * (most - len(row)) for row in rows]
    padded = [
        row + fill if side == "right" else fill + row for row, fill in zip(rows, fills, strict=True)
    ]
    return padded, [sum(token != PAD for token in row) for row in rows]


def _tokens(line: str) -> list[str]:
    found: list[str] = []
    for word in line.split():
        held = ""
        for cluster in _clusters(word):
            if _single(cluster):
                found += [held, cluster] if held else [cluster]
                held = ""
            else:
                held += cluster
        found += [held] if held else []
    return found


def _clusters(word: str) -> list[str]:
    """Characters as a reader sees them: with their accents, and emoji with all they are made of."""
    found: list[str] = []
    for letter in word:
        if found and (_joins(letter) or found[-1].endswith(JOINER) or _flag(found[-1], letter)):
            found[-1] += letter
        else:
            found.append(letter)
    return found


def _joins(letter: str) -> bool:
    """Does it belong to the character before: an accent, a skin colour, a tag, a vowel of Hangul?"""
    code = ord(letter)
    return (
        letter == JOINER
        or unicodedata.category(letter) in ("Mn", "Mc", "Me")
        or 0x1F3FB <= code <= 0x1F3FF
        or 0xE0020 <= code <= 0xE007F
        or 0x1160 <= code <= 0x11FF
    )


def _flag(before: str, letter: str) -> bool:
    """A flag is two letters of its own alphabet."""
    return len(before) == 1 and all(0x1F1E6 <= ord(x) <= 0x1F1FF for x in (before, letter))


def _single(cluster: str) -> bool:
    code = ord(cluster[0])
    return any(first <= code <= last for first, last in SINGLE)
