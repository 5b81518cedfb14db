"""The guide: walks, tells each step as it comes, and leaves the page behind."""

from __future__ import annotations

import os
import platform
import sys
import time
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from maskwright._atomic_write import write_atomic
from maskwright.errors import ArgumentError
from maskwright.tour import words
from maskwright.tour.page import page_of
from maskwright.tour.run import walk
from maskwright.tour.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maskwright.tour.chapter import Language

TOLD: Final = ("maskwright", "numpy", "torch", "jax", "keras")


def guide(
    say: Callable[[str], object],
    chapter: int | None = None,
    language: Language = "en",
    page: Path | None = None,
) -> None:
    """Tell one chapter, or all, line by line; then write the page, where one is asked for.

    >>> from maskwright.tour.guide import guide
    >>> lines = []
    >>> guide(lines.append, chapter=9)
    >>> "    maskwright explore" in lines
    True
    """
    if page is not None:
        _check(page)
    started, steps = time.perf_counter(), []
    terminal = Terminal(unicode=_is_wide(sys.stdout.encoding))
    for step in walk(chapter, language):
        steps.append(step)
        for line in terminal.lines(step):
            say(line)
    if chapter is None:
        seconds = time.perf_counter() - started
        say(words.TOOK.in_language(language).format(seconds=seconds))
    if page is not None:
        write_atomic(page, page_of(steps, language, _measured(language)))
        say(words.WRITTEN.in_language(language).format(path=page.resolve()))


def _check(page: Path) -> None:
    """Can the page be written? Better asked before the walk than after it."""
    folder = page.resolve().parent
    if page.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(f"tour: {page} can't be written. Pass --out with another file.")


def _is_wide(encoding: str | None) -> bool:
    return (encoding or "ascii").lower().replace("-", "").startswith("utf")


def _measured(language: Language) -> str:
    """Where the page was made, and with what."""
    there = [name for name in TOLD if find_spec(name) is not None]
    versions = [
        f"Python {platform.python_version()}",
        *(f"{name} {version(name)}" for name in there),
    ]
    return words.MEASURED.in_language(language).format(
        versions=", ".join(versions), cores=os.cpu_count(), when=date.today().isoformat()
    )
