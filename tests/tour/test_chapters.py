"""What every chapter must have: both languages, code that can be read, and commands that exist."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from maskwright._optional_deps import EXTRAS
from maskwright.tour import run, words
from maskwright.tour.chapter import NOTHING, Chapter, Text
from maskwright.tour.chapters import CHAPTERS
from maskwright.tour.onward import ONWARD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Here

CHINESE = re.compile(r"[\u4e00-\u9fff]")


def texts_of(chapter: Chapter) -> Iterator[Text]:
    yield chapter.title
    yield chapter.words
    for cell in chapter.cells:
        yield from (cell.before, cell.after)
    yield from (text for _, text in chapter.commands)


TEXTS = [text for chapter in CHAPTERS for text in texts_of(chapter) if text != NOTHING]
TEXTS += [text for module in (words, run) for text in vars(module).values() if type(text) is Text]


def test_there_are_nine_chapters_with_titles_of_their_own() -> None:
    assert len(CHAPTERS) == 9
    for language in ("en", "zh"):
        assert len({chapter.title.in_language(language) for chapter in CHAPTERS}) == 9


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.en[:30])
def test_every_text_is_there_in_both_languages(text: Text) -> None:
    assert text.en
    assert not CHINESE.search(text.en)
    assert CHINESE.search(text.zh)
    fields = [set(re.findall(r"{\w+", said)) for said in text]
    assert fields[0] == fields[1]
    assert not re.search(r"[\u4e00-\u9fff][,;:?!.]", text.zh), "Chinese has its own punctuation"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.title.en)
def test_code_is_short_and_needs_what_can_be_installed(chapter: Chapter) -> None:
    assert chapter.cells or chapter.commands
    for cell in chapter.cells:
        lines = cell.code.strip().splitlines()
        assert len(lines) <= 30
        assert max(map(len, lines)) <= 96  # wider ones would be broken by a terminal
        assert set(cell.needs) <= set(EXTRAS)


def test_a_chapter_that_needs_something_is_not_first_to_say_so_in_an_error() -> None:
    """What a cell imports is among what it needs, so that it is left out and does not fail."""
    for chapter in CHAPTERS:
        known: set[str] = set()
        for cell in chapter.cells:
            found = re.findall(r"^\s*(?:import|from) (\w+)", cell.code, re.MULTILINE)
            known |= set(cell.needs)
            assert set(found) & set(EXTRAS) <= known


@pytest.mark.parametrize("command", [command for command, _ in ONWARD.commands])
def test_commands_exist_with_their_options(here: Here, command: str) -> None:
    program, verb, *rest = shlex.split(command)
    assert program == "maskwright"
    told = here(*([verb] if verb == "--help" else [verb, "--help"]))
    assert told.code == 0
    for option in (word for word in rest if word.startswith("--")):
        assert option in told.out
