"""The page stands alone, can be read by everybody, and shows the code that was run."""

from __future__ import annotations

import ast
import contextlib
import html
import io
import re
from typing import TYPE_CHECKING, Any

import pytest

from maskwright.tour.page import page_of
from maskwright.tour.run import walk
from maskwright.tour.steps import Code, Heading, Missing, Output, Words
from tests.explore.browser import Visit, lacking

try:
    from axe_playwright_python.sync_playwright import Axe
except ImportError:
    lacking("axe is not installed. Run: pip install axe-playwright-python")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maskwright.tour.steps import Step
    from tests.explore.browser import Chromium

MISSING = Missing("torch is not installed")


@pytest.fixture(scope="module")
def pages(whole: list[Step]) -> dict[str, str]:
    chinese = [step for number in (1, 2, 3, 4, 9) for step in walk(number, "zh")]
    return {
        "en": page_of([*whole, MISSING], "en", "Python 3"),
        "zh": page_of([*chinese, MISSING], "zh", "Python 3"),
    }


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_comes_from_elsewhere_and_nothing_is_a_script(
    pages: dict[str, str], language: str
) -> None:
    page = pages[language].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|<img|<iframe|\son\w+=", page)
    assert set(re.findall(r'(?:href|src)="([^"]*)"', page)) == {
        "#chapters",
        "#contents",
        *(f"#chapter-{number}" for number in re.findall(r'<section id="chapter-(\d)"', page)),
    }
    assert set(re.findall(r"url\(([^)]*?)\)", page)) <= {
        f"#{name}" for name in re.findall(r'id="([^"]+)"', page)
    }


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_id_is_there_once(pages: dict[str, str], language: str) -> None:
    names = re.findall(r'\bid="([^"]+)"', pages[language])
    assert len(names) == len(set(names))


def test_the_code_on_the_page_gives_the_output_on_the_page(pages: dict[str, str]) -> None:
    """As a reader would: copy the boxes of two chapters, and run them."""
    for number in (3, 4):
        section = pages["en"].split(f'<section id="chapter-{number}"')[1].split("</section>")[0]
        names: dict[str, Any] = {}
        printed = io.StringIO()
        for box in re.findall(r'<pre class="code".*?>(.*?)</pre>', section, re.DOTALL):
            code = ast.parse(html.unescape(re.sub(r"<[^>]+>", "", box)))
            with contextlib.redirect_stdout(printed):
                exec(compile(ast.Interactive(code.body), "<page>", "single"), names)
        for box in re.findall(r'<pre class="output".*?>(.*?)</pre>', section, re.DOTALL):
            assert html.unescape(re.sub(r"<[^>]+>", "", box)) in printed.getvalue()


def test_what_was_given_is_text_and_never_markup() -> None:
    steps = [
        *(Heading(1, "<b>"), Words("<b>"), Code("'<b>' & x"), Output("<b></pre>"), Missing("<b>")),
    ]
    page = page_of(steps, "en", "<b>")
    assert "<b>" not in page
    assert page.count("</pre>") == 2


@pytest.fixture
def visit(chromium: Chromium) -> Iterator[Visit]:
    with chromium.at_work():
        opened = Visit(chromium.browser, "http://nowhere/")
        try:
            yield opened
        finally:
            opened.close()


def test_everybody_can_read_it(visit: Visit, pages: dict[str, str], tmp_path: Path) -> None:
    """axe finds nothing, on a phone and a desk, light and dark; no sideways scroll, no complaint."""
    for language, theme, width in (("en", "light", 360), ("zh", "dark", 1280)):
        file = tmp_path / f"{language}.html"
        file.write_text(pages[language])
        page = visit.blank(screen=(width, 900), color_scheme=theme)
        page.goto(file.as_uri())
        found = Axe().run(page).response["violations"]
        assert [(fault["id"], fault["nodes"][0]["target"]) for fault in found] == []
        assert page.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(15, 20, 25)" if theme == "dark" else "rgb(255, 255, 255)")
    assert all(url.startswith("file:") for url in visit.requests)
    assert visit.complaints == []


def test_keys_reach_all_of_it(visit: Visit, pages: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tour.html").write_text(pages["en"])
    page = visit.blank(screen=(360, 700))
    page.goto((tmp_path / "tour.html").as_uri())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skips the contents
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "code"
    wide = page.locator("pre.code").filter(has_text="documents(lengths=[[2048] * 512])")
    wide.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("box => box.scrollLeft > 0", arg=wide.element_handle())
