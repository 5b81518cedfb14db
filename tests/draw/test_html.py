from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw import html, svg
from maskwright.draw.masks import scene_of
from maskwright.draw.scene import Grid, Scene
from maskwright.draw.svg_grid import Place
from maskwright.draw.svg_text import escape
from maskwright.draw.tokens import clean
from tests.draw.scenes import SCENES
from tests.draw.snapshots import check
from tests.draw.test_svg import NASTY, causal_scene


class Page(HTMLParser):
    """The elements of a page: their tags and attributes, and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_data(self, data):
        tag = self.tags[-1][0] if self.tags else ""
        if tag in self.inside:
            self.inside[tag][-1] += data

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", {}))

    @property
    def data(self) -> list[dict]:
        return json.loads(self.inside["script"][0])


def said_by(data: dict, row: int, column: int) -> str:
    """As the page's script puts a sentence together."""
    runs, left, at = data["runs"][row], column, 0
    while left >= runs[at]:
        left -= runs[at]
        at += 2
    return f"{data['rows'][row]}, {data['columns'][column]}: {data['words'][runs[at + 1]]}"


@pytest.mark.parametrize("name", SCENES)
def test_scenes_are_written_as_before(name):
    check(f"{name}.html", html.render(SCENES[name]()))


@pytest.mark.parametrize("name", SCENES)
def test_every_cell_says_what_the_grid_says(name):
    scene = SCENES[name]()
    for grid, data in zip(scene.grids, Page(html.render(scene)).data, strict=True):
        step = max(1, max(grid.shape) // 40)
        for row in range(0, grid.shape[0], step):
            for column in range(0, grid.shape[1], step):
                assert said_by(data, row, column) == clean(grid.says(row, column))


def test_cells_are_where_the_picture_has_them():
    scene = SCENES["pair"]()
    places = svg.draw(scene, tooltips=False).places
    found = [tuple(grid[key] for key in Place._fields) for grid in Page(html.render(scene)).data]
    assert found == [tuple(place) for place in places]


@pytest.mark.parametrize("name", SCENES)
def test_only_its_own_script_and_style_may_run(name):
    page = Page(html.render(SCENES[name]()))
    policy = next(attrs["content"] for tag, attrs in page.tags if "http-equiv" in attrs) or ""
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    for kind, held in (("script", page.inside["script"][1:]), ("style", page.inside["style"])):
        hashes = [
            base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in held
        ]
        assert rules[f"{kind}-src"].split() == [f"'sha256-{value}'" for value in hashes]
    for _, attrs in page.tags:
        assert not [name for name in attrs if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("name", SCENES)
def test_asks_nobody_for_anything(name):
    text = html.render(SCENES[name]())
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) == {"http://www.w3.org/2000/svg"}
    asking = {"src", "href", "srcset", "action", "xlink:href"}
    assert not [tag for tag, attrs in Page(text).tags if asking & set(attrs)]
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_nasty_tokens_stay_text():
    plain, nasty = (
        Page(html.render(causal_scene(tokens)))
        for tokens in (tuple(f"t{i}" for i in range(len(NASTY))), NASTY)
    )
    assert {tag for tag, _ in nasty.tags} == {tag for tag, _ in plain.tags}
    assert len(nasty.inside["script"]) == 2
    assert "<" not in nasty.inside["script"][0]
    assert nasty.data[0]["rows"][0] == f"query 0 {NASTY[0]}"
    html.render(causal_scene(NASTY)).encode()


def test_has_words_buttons_and_keys():
    scene = scene_of(mw.causal().on(4))
    text = html.render(scene)
    tags = Page(text).tags
    assert [attrs["id"] for tag, attrs in tags if tag == "button"] == ["copy", "save"]
    picture = next(attrs for _, attrs in tags if attrs.get("id") == "picture")
    assert picture["tabindex"] == "0"
    details = text[text.index("<details>") : text.index("</details>")]
    assert escape(scene.description) in details
    assert {attrs["name"]: attrs["content"] for tag, attrs in tags if "name" in attrs} == {
        "viewport": "width=device-width, initial-scale=1",
        "color-scheme": "light dark",
    }


def test_large_pages_stay_small():
    assert len(html.render(scene_of(mw.causal().on(256))).encode()) < 60_000


def test_words_with_shades_and_texts_are_kept_apart():
    grid = Grid(
        np.array([[1, 1, 2]], np.uint8),
        shades=np.array([[0.25, 0.5, 1.0]]),
        block=(2, 2),
        extent=(2, 6),
    )
    assert html.data_of(grid)["words"] == ["25% seen", "50% seen", "seen"]
    page = html.render(Scene("shades", (grid,)))
    assert said_by(Page(page).data[0], 0, 1) == "query 0 … 1, key 2 … 3: 50% seen"
