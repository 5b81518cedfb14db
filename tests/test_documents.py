"""What README and docs show is run: prompts as doctests, commands as commands, tables as made."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path

import pytest

from docs import generate, pictures
from maskwright.__main__ import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_prompts_show_what_they_give(path: Path) -> None:
    examples = "\n".join(blocks(path, "pycon"))
    assert examples or path.name != "README.md"
    test = doctest.DocTestParser().get_doctest(examples, {}, path.name, str(path), 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in turn, in a folder of its own; trainings are cut to a step."""
    monkeypatch.chdir(tmp_path)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in "".join(blocks(path, "console")).splitlines():
        if not line.startswith("$ "):
            continue
        command, *words = shlex.split(line.removeprefix("$ "), comments=True)
        if command == "make":
            assert set(words) <= targets, line
        elif command == "maskwright":
            short = ["--steps", "1"] if words[0] in ("train", "compare-masks") else []
            monkeypatch.setattr(sys, "argv", ["maskwright", *words, *short])
            with pytest.raises(SystemExit) as stop:
                main()
            assert not stop.value.code, line
        else:
            assert command in ("git", "cd", "pip"), line


def test_generated_pages_are_current() -> None:
    for path, text in generate.pages().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"


def test_drawings_are_current() -> None:
    for path, text in pictures.drawings().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make pictures`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pictures_and_links_are_there(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert "://" in link or (path.parent / link).exists(), link
