"""The built site: its links lead somewhere, and it holds everything that its pages need."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import maskwright as mw
from docs.doctests import fenced
from tests.docs.conftest import ROOT, build

if TYPE_CHECKING:
    from pathlib import Path

FETCHED = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}


class Reading(HTMLParser):
    """The links of a page, what it fetches by itself, and the places that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if given.get(FETCHED.get(tag, "")):
            self.fetched.add(given[FETCHED[tag]])


@cache
def read(path: Path) -> Reading:
    return Reading(path.read_text())


def test_every_link_leads_to_file_and_place_in_it(site: Path) -> None:
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":  # its links begin at the root, wherever that will be
            continue
        for link in read(path).links | read(path).fetched:
            if urlsplit(link).scheme:
                continue
            target, place = urldefrag(link)
            held = (path.parent / unquote(target)).resolve() if target else path
            held = held / "index.html" if held.is_dir() else held
            assert held.is_file(), f"{path.relative_to(site)} links to {link}"
            if place and held.suffix == ".html":
                assert unquote(place) in read(held).places, f"{path.relative_to(site)}: {link}"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in sorted(site.rglob("*.html")):
        outside = [link for link in read(path).fetched if urlsplit(link).netloc]
        assert outside == [], path.relative_to(site)


def test_site_contains_only_pages_and_assets(site: Path) -> None:
    kinds = {path.suffix for path in site.rglob("*") if path.is_file()}
    assert kinds <= {".html", ".css", ".js", ".map", ".svg", ".png", ".json", ".gz", ".xml", ".inv"}


def test_broken_link_stops_build(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("# Home\n\n[gone](gone.md) [nowhere](#nowhere)\n")
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = settings.replace("docs_dir: docs", f"docs_dir: {pages}")
    settings = settings.partition("\nhooks:")[0] + "\nnav: [index.md]\n"
    config = tmp_path / "mkdocs.yml"
    config.write_text(settings)
    done = build(tmp_path / "out", "--config-file", str(config))
    assert done.returncode == 1
    assert "gone.md" in done.stdout
    assert "nowhere" in done.stdout


REFERENCE = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))


@pytest.mark.parametrize("name", [n for n in mw.__all__ if n not in ("__version__", "recipes")])
def test_every_public_name_is_in_reference_once(name: str) -> None:
    module = "maskwright.errors" if hasattr(mw.errors, name) else "maskwright"
    assert REFERENCE.splitlines().count(f"::: {module}.{name}") == 1


@pytest.mark.parametrize("name", mw.recipes.__all__)
def test_every_recipe_is_in_reference_once(name: str) -> None:
    assert REFERENCE.splitlines().count(f"::: maskwright.recipes.{name}") == 1


def test_prompts_in_docstrings_become_code() -> None:
    text = "Adds.\n\n>>> f()\n1\n\nThat is all.\n\n>>> g()"
    assert fenced(text) == (
        "Adds.\n\n```pycon\n>>> f()\n1\n```\n\nThat is all.\n\n```pycon\n>>> g()\n```"
    )


def test_readers_see_no_marks_for_machines(site: Path) -> None:
    for path in sorted(site.rglob("*.html")):
        text = path.read_text()
        for mark in ("&lt;BLANKLINE&gt;", "# doctest:", "\\|</code>", "<blockquote>\n<blockquote>"):
            assert mark not in text, path.relative_to(site)
