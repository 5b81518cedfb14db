"""The site in Chromium: quiet, complete without the network, and readable for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests._helpers.browser import axe_violations, expect, overflow
from tests._helpers.sampling import subset_of_cases

if TYPE_CHECKING:
    from pathlib import Path

    from tests._helpers.browser import Visit

# One page of every kind: axe takes its time, and what differs between others is text.
SAMPLES = [
    ("light", 1280, ("index.html", "guide/pad-a-batch.html", "comparison.html")),
    ("dark", 360, ("index.html", "reference/errors.html", "lessons/zh/01-why.html")),
]


def test_pages_have_no_console_output_or_external_requests(reader: Visit, site: Path) -> None:
    """The first page of every folder, and every fourth at the top; test_site.py reads the others."""
    page = reader.blank()
    folders = {path.parent for path in site.rglob("*.html")}
    for folder in sorted(folders):
        paths = sorted(folder.glob("*.html"))
        for path in subset_of_cases(paths, 4 if folder == site else len(paths)):
            if path.name != "404.html":
                page.goto(f"{reader.address}{path.relative_to(site)}")
                expect(page.locator("h1")).to_have_count(1)
    assert any(url.endswith(".js") for url in reader.requests)


@pytest.mark.parametrize(("scheme", "width", "names"), SAMPLES)
def test_axe_finds_nothing(reader: Visit, scheme: str, width: int, names: list[str]) -> None:
    page = reader.blank(screen=(width, 900), color_scheme=scheme)
    for name in names:
        page.goto(reader.address + name)
        expect(page.locator("body")).to_have_attribute(
            "data-md-color-scheme", "slate" if scheme == "dark" else "default"
        )
        assert axe_violations(page, None if name == "index.html" else "article") == [], name
        assert overflow(page) == 0, name


@pytest.mark.parametrize(("word", "found"), [("sinks", "recipes"), ("填充", "zh/02-padding")])
def test_word_is_found(reader: Visit, word: str, found: str) -> None:
    page = reader.blank()
    page.goto(reader.address)
    page.get_by_role("textbox", name="Search").fill(word)
    expect(page.locator(f".md-search-result__link[href*='{found}']").first).to_be_visible()
