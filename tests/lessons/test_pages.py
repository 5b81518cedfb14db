"""The index of the lessons lists their tests, and the document map names code and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = ROOT / "docs" / "lessons"
CHINESE = ENGLISH / "zh"
FOLDERS = pytest.mark.parametrize("folder", [ENGLISH, CHINESE], ids=["English", "Chinese"])


@cache
def definitions(path: Path) -> set[str]:
    """Names of the functions and classes of a file; methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


@cache
def lesson_tests() -> set[str]:
    """Ids of all lesson tests, as pytest names them."""
    return {
        f"tests/lessons/{path.name}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        for name in definitions(path)
        if re.match(r"test_[a-e]\d+_", name)
    }


@FOLDERS
def test_index_lists_every_lesson_test_once(folder: Path) -> None:
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"`(tests/[^`]*::[^`]*)`", index)) == sorted(lesson_tests())


@FOLDERS
def test_index_links_every_page(folder: Path) -> None:
    index = (folder / "index.md").read_text(encoding="utf-8")
    linked = {link for link in re.findall(r"\]\(([^)#]*)\)", index) if "/" not in link}
    assert linked == {path.name for path in folder.glob("*-*.md")}


def test_both_languages_have_the_same_pages() -> None:
    english, chinese = (
        {path.name for path in folder.glob("*.md")} for folder in (ENGLISH, CHINESE)
    )
    assert english == chinese


@FOLDERS
def test_document_map_names_existing_code(folder: Path) -> None:
    """`path::name` is a definition below src/maskwright, or the beginning of a lesson test's name."""
    text = (folder / "13-document-map.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
    assert len(names) > 50
    for path, name in names:
        if path.startswith("tests/"):
            assert any(test.startswith(f"{path}::{name}_") for test in lesson_tests()), name
        else:
            assert name in definitions(ROOT / "src" / "maskwright" / path), f"{path}::{name}"
