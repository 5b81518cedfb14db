"""Texts and pairs of texts: those that come with Python, and those in a user's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from pathlib import Path

LEAST_LETTERS = 1_000
LEAST_PAIRS = 20


def python_topics() -> str:
    """Python's own help on its topics: some 460,000 letters of prose and code.

    >>> from maskwright.apps.texts import python_topics
    >>> len(python_topics()) > 300_000
    True
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def read_text(path: Path) -> str:
    """A user's own text."""
    text = _read(path)
    if len(text) < LEAST_LETTERS:
        raise ArgumentError(
            f"{path} has {len(text)} letters, and {LEAST_LETTERS:,} are the least to learn from. "
            "Give a longer text."
        )
    return text


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """A user's own pairs, one a line, with a tab between."""
    pairs = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        left, tab, right = line.partition("\t")
        if not tab or not left.strip() or not right.strip():
            raise ArgumentError(
                f"{path}, line {number}: {line[:40]!r} is no pair. Put a tab between the two."
            )
        pairs.append((left.strip(), right.strip()))
    if len(pairs) < LEAST_PAIRS:
        raise ArgumentError(
            f"{path} has {len(pairs)} pairs, and {LEAST_PAIRS} are the least to learn from. Give more."
        )
    return pairs


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{path} can't be read: {error.strerror}. Check the name.") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path} is not UTF-8: byte {error.start} is no letter. Save it as UTF-8."
        ) from error
