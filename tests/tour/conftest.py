"""The whole walk, made short: fewer tokens, fewer steps of training, a smaller model."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

from maskwright.tour.chapters import CHAPTERS
from maskwright.tour.run import walk
from tests.cli.conftest import here  # noqa: F401

if find_spec("playwright") is not None:  # else the test of the page skips by itself
    from tests.explore.browser import chromium  # noqa: F401

if TYPE_CHECKING:
    from maskwright.tour.chapter import Chapter
    from maskwright.tour.steps import Step

SHORTER: Final = {
    "tokens = 4096": "tokens = 64",
    "steps=300": "steps=2",
    "warmup=20": "warmup=1",
    "evaluate_every=300": "evaluate_every=2",
}


def shortened() -> tuple[Chapter, ...]:
    """The chapters, with nothing in them that takes long."""
    found = set()
    chapters = []
    for chapter in CHAPTERS:
        cells = []
        for cell in chapter.cells:
            code = cell.code
            for long, short in SHORTER.items():
                found |= {long} & {long if long in code else ""}
                code = code.replace(long, short)
            cells.append(replace(cell, code=code))
        chapters.append(replace(chapter, cells=tuple(cells)))
    assert found == set(SHORTER), "nothing is left to be made shorter"
    return tuple(chapters)


@pytest.fixture(scope="session")
def whole() -> list[Step]:
    """All steps of all chapters, run once."""
    from maskwright.apps import language
    from maskwright.models.gpt import GPTConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "CONTEXT", 16)
        patch.setattr(language, "JUDGED", 2)
        patch.setattr(language, "SIZES", {"v3": GPTConfig(0, 16, width=16, heads=1, layers=1)})
        return list(walk(chapters=shortened()))
