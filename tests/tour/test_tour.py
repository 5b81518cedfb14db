"""The chapters run in both languages, with the same code; the page stands alone and is readable."""

from __future__ import annotations

import re
import shlex
import sys
from typing import TYPE_CHECKING, Final

import pytest

import maskwright as mw
from maskwright import tour
from maskwright._optional_deps import EXTRAS
from maskwright.errors import ArgumentError
from tests._helpers.browser import Visit, axe_violations, chromium, overflow  # noqa: F401
from tests.cli.conftest import cli  # noqa: F401

if TYPE_CHECKING:
    from pathlib import Path

    from tests._helpers.browser import Chromium
    from tests.cli.conftest import RunCli

CHAPTERS: Final = {lang: tour.read_chapters(lang) for lang in ("en", "zh")}
SHORTER: Final = {"tokens = 4096": "tokens = 64", "steps=300": "steps=2"}


def code_of(chapter: tour.Chapter) -> list[tour.Block]:
    return [block for block in chapter.blocks if block.is_code]


@pytest.fixture(scope="module")
def tours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """The printed text and the page of a tour with short computations, by language."""
    folder = tmp_path_factory.mktemp("chapters")
    for path in tour.FOLDER.iterdir():
        text = path.read_text()
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        (folder / path.name).write_text(text)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tour, "FOLDER", folder)
        for lang in CHAPTERS:
            page = folder / f"{lang}.html"
            with pytest.MonkeyPatch.context() as output, (folder / lang).open("w+") as file:
                output.setattr(sys, "stdout", file)
                tour.run_tour(None, lang, page)
                file.seek(0)
                found[lang] = (file.read(), page.read_text())
    return found


def test_chapters_have_the_same_code_in_both_languages() -> None:
    assert len(CHAPTERS["en"]) == len(CHAPTERS["zh"]) == 9
    for one, other in zip(*CHAPTERS.values(), strict=True):
        assert code_of(one) == code_of(other)
        assert [block.is_code for block in one.blocks] == [block.is_code for block in other.blocks]
        assert one.title != other.title


@pytest.mark.parametrize("chapter", CHAPTERS["en"], ids=lambda chapter: chapter.title)
def test_packages_that_a_chapter_imports_are_needed_by_its_blocks(chapter: tour.Chapter) -> None:
    known: set[str] = set()
    for block in code_of(chapter):
        known |= set(block.needs)
        assert known <= set(EXTRAS)
        imported = re.findall(r"^\s*(?:import|from) (\w+)", block.text, re.MULTILINE)
        assert set(imported) & set(EXTRAS) <= known
        assert max(map(len, block.text.splitlines())) <= 80


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_chapter_runs(tours: dict[str, tuple[str, str]], lang: str) -> None:
    printed, page = tours[lang]
    for chapter in CHAPTERS[lang]:
        assert f"{chapter.number}. {chapter.title}" in printed
        assert f'<h2 id="{chapter.number}">' in page
    assert "pip install" not in printed
    for text in ("0.2186", "cu_seqlens_q", "missing-in-layer", "everything()"):
        assert (text in printed, text in page) == (True, True)
    assert mw.causal().on(4).why(0, 2).text(lang)[:6] in printed
    differences = re.findall(r"(?:differs by|difference is) (\d\S+)", printed)
    assert len(differences) == 3
    assert max(map(float, differences)) < 1e-5
    assert page.count("<svg") == 4


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_page_loads_nothing(tours: dict[str, tuple[str, str]], lang: str) -> None:
    page = tours[lang][1].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|@import|<script|<link|<img|<iframe|\son\w+=", page)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(names)


def test_the_page_is_accessible(
    tours: dict[str, tuple[str, str]],
    chromium: Chromium,  # noqa: F811
    tmp_path: Path,
) -> None:
    with chromium.running_loop():
        visit = Visit(chromium.browser, "http://nowhere/")
        for lang, theme, width in (("en", "light", 360), ("zh", "dark", 1280)):
            file = tmp_path / f"{lang}.html"
            file.write_text(tours[lang][1])
            page = visit.blank(screen=(width, 900), color_scheme=theme)
            page.goto(file.as_uri())
            assert axe_violations(page) == []
            assert overflow(page) == 0
        assert visit.console_errors == []
        visit.close()


def test_without_packages_blocks_are_skipped(
    cli: RunCli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("torch", "jax", "keras"):
        monkeypatch.setitem(sys.modules, name, None)
    ran = cli("tour", "--chapter", "5")
    assert (ran.code, ran.err) == (0, "")
    for extra in ("torch", "jax", "keras,torch"):
        assert f"pip install 'maskwright[{extra}]'" in ran.out
    assert "[[1, 0, 0, 0], [1, 1, 0, 0]" in ran.out  # the block without requirements
    assert not list(tmp_path.iterdir())


def test_a_new_file_is_a_chapter_and_an_error_keeps_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tour, "FOLDER", tmp_path)
    page = tmp_path / "page.html"
    (tmp_path / "01-new.md").write_text("# New\n\n```python\n1 + 1\n```\n")
    tour.run_tour(output=page)
    written = page.read_text()
    assert "1. New" in capsys.readouterr().out
    (tmp_path / "02-raises.md").write_text("# Raises\n\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        tour.run_tour(output=page)
    assert page.read_text() == written


@pytest.mark.parametrize(("lang", "text"), [("en", "cannot be written"), ("zh", "无法写入")])
def test_a_page_that_cannot_be_written_is_refused_first(
    tmp_path: Path, lang: str, text: str
) -> None:
    for output in (tmp_path, tmp_path / "missing" / "page.html"):
        with pytest.raises(ArgumentError, match=text) as error:
            tour.run_tour(output=output, lang=lang)
        assert str(output) in str(error.value)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_commands_of_the_last_chapter_exist(cli: RunCli, lang: str) -> None:  # noqa: F811
    commands = re.findall(r"`maskwright (.*?)`", CHAPTERS[lang][-1].blocks[0].text)
    assert len(commands) == 10
    for command in commands:
        name, *words = shlex.split(command)
        told = cli(*([name] if name == "--help" else [name, "--help"]))
        unknown = [word for word in words if word.startswith("--") and word not in told.out]
        assert (told.code, unknown) == (0, [])
