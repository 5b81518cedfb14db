"""HTML pages: the texts of cells, the content security policy, escaping."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw import html, svg
from maskwright.draw.masks import scene_of
from maskwright.draw.scene import Grid, Scene
from maskwright.draw.svg import Place
from maskwright.draw.text import clean
from tests._helpers.draw_scenes import SCENES
from tests._helpers.html_page import Page
from tests._helpers.snapshots import check
from tests.draw.test_svg import HOSTILE, causal_scene


def data_of(text: str) -> list[dict]:
    """The data of the grids in a page."""
    return json.loads(Page(text).raw("script")[0])


def text_of(data: dict, row: int, column: int) -> str:
    """The text of a cell, as the page's script builds it."""
    runs, left, at = data["runs"][row], column, 0
    while left >= runs[at]:
        left -= runs[at]
        at += 2
    return f"{data['rows'][row]}, {data['columns'][column]}: {data['kinds'][runs[at + 1]]}"


def test_a_page_is_written_as_before():
    check("causal.html", html.render(SCENES["causal"]()))


@pytest.mark.parametrize("name", SCENES)
def test_the_texts_of_cells_are_those_of_the_grid(name):
    scene = SCENES[name]()
    for grid, data in zip(scene.grids, data_of(html.render(scene)), strict=True):
        step = max(1, max(grid.shape) // 40)
        for row in range(0, grid.shape[0], step):
            for column in range(0, grid.shape[1], step):
                assert text_of(data, row, column) == clean(grid.describe_cell(row, column))


def test_cells_are_where_the_picture_has_them():
    scene = SCENES["pair"]()
    places = svg.draw(scene, tooltips=False).places
    found = [tuple(grid[key] for key in Place._fields) for grid in data_of(html.render(scene))]
    assert found == [tuple(place) for place in places]


@pytest.mark.parametrize("name", SCENES)
def test_only_its_own_script_may_run_and_nothing_is_loaded(name):
    text = html.render(SCENES[name]())
    page = Page(text)
    ((policy, _),) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.strip().split(" ", 1) for rule in policy["content"].split(";"))
    assert rules["default-src"] == "'none'"
    scripts = [attributes for attributes, _ in page.all("script")]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    digest = hashlib.sha256(page.raw("script")[1].encode()).digest()
    assert rules["script-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    names = {name for _, attributes, _ in page.elements for name in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]
    assert not {"src", "href", "srcset", "action", "xlink:href"} & names
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_hostile_tokens_stay_text():
    plain, hostile = (
        html.render(causal_scene(tokens)) for tokens in (("t",) * len(HOSTILE), HOSTILE)
    )
    tags = [{tag for tag, *_ in Page(text).elements} for text in (plain, hostile)]
    assert tags[0] == tags[1]
    scripts = Page(hostile).raw("script")
    assert len(scripts) == 2
    assert "<" not in scripts[0]
    assert data_of(hostile)[0]["rows"][0] == f"query 0 {HOSTILE[0]}"
    hostile.encode()


def test_a_page_has_buttons_and_a_text_alternative():
    scene = scene_of(mw.causal().on(4))
    page = Page(html.render(scene))
    assert [attributes["id"] for attributes, _ in page.all("button")] == ["copy", "save"]
    assert page.all("div", id="picture", tabindex="0")
    assert scene.description in page.words("details")[0]
    assert page.all("meta", name="viewport")
    assert page.all("meta", name="color-scheme", content="light dark")


def test_large_pages_stay_small():
    assert len(html.render(scene_of(mw.causal().on(256))).encode()) < 60_000


def test_shades_have_texts():
    kinds, shades = np.array([[1, 1, 2]], np.uint8), np.array([[0.25, 0.5, 1.0]])
    grid = Grid(kinds, shades=shades, block=(2, 2), extent=(2, 6))
    assert html.data_of(grid)["kinds"] == ["25% visible", "50% visible", "visible"]
    page = html.render(Scene("shades", (grid,)))
    assert text_of(data_of(page)[0], 0, 1) == "query 0 … 1, key 2 … 3: 50% visible"
