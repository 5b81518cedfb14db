"""The written lessons name the tests that hold them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = ROOT / "docs" / "lessons"
CHINESE = ENGLISH / "zh"
NAMES = sorted(path.name for path in ENGLISH.glob("*-*.md"))


def lesson_tests() -> set[str]:
    """Every test of a lesson, as pytest names it."""
    return {
        f"tests/lessons/{path.name}::{node.name}"
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and re.match(r"test_[a-e]\d+_", node.name)
    }


def named_in(text: str) -> list[str]:
    return re.findall(r"`(tests/[^`]*::[^`]*)`", text)


def table_of(index: Path) -> dict[str, list[str]]:
    """The tests that an index names for each page."""
    found: dict[str, list[str]] = {}
    for line in index.read_text(encoding="utf-8").splitlines():
        if tests := named_in(line):
            [page] = re.findall(r"\]\(([^)]*)\)", line)
            found.setdefault(page, []).extend(tests)
    return found


@pytest.mark.parametrize("folder", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_the_index_names_every_test_of_a_lesson_once(folder: Path) -> None:
    table = table_of(folder / "index.md")
    named = [test for tests in table.values() for test in tests]
    assert sorted(named) == sorted(lesson_tests())
    assert sorted(table) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("folder", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_a_page_names_its_tests_at_its_end(folder: Path, name: str) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    assert named_in(text) == table_of(folder / "index.md")[name]
    assert named_in(text[text.rindex("\n## ") :]) == named_in(text)
