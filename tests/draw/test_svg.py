"""SVG: cells, labels, tooltips, themes and text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as st_numpy

import maskwright as mw
from maskwright.draw import svg
from maskwright.draw.masks import scene_of
from maskwright.draw.palette import DARK, LIGHT
from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.draw.svg import SPARSE
from maskwright.draw.text import text_width
from tests._helpers.draw_scenes import SCENES
from tests._helpers.snapshots import check

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    "]]>",
    "\"'&amp;",
    "\x00\x1b\x7f\ufffe",
    "\ud800",
    "\u202eabc",
    "👩🏽‍🚀",
    "e\u0301\u0302",
    "שלום",
    " \t\n",
    "",
    "x" * 500,
)
RECTANGLE = re.compile(r"M(\S+) (\S+?)h([^v]+)v([^h]+)h[^z]+z")


def causal_scene(tokens: tuple[str, ...]) -> Scene:
    size = len(tokens)
    kinds = np.where(np.tri(size, dtype=bool), Kind.VISIBLE, Kind.MASKED).astype(np.uint8)
    grid = Grid(kinds, tokens[0], rows=tokens, columns=tokens, extent=(size, size))
    text = " ".join(tokens)
    return Scene(text, (grid,), text, legend_of((grid,), {Kind.VISIBLE: text}), text)


def cells_of(picture: svg.Picture, number: int, shape: tuple[int, int]) -> np.ndarray:
    """The kinds of a grid, read back from what is painted; 9 where nothing or more is."""
    root = ET.fromstring(picture.text)
    place = picture.places[number]
    group = [g for g in root.findall(f"{SVG}g") if g.get("transform")][number]
    painted = np.full(shape, 9)
    times = np.zeros(shape, int)
    paths = [(int(p.get("class", "")[1:]), p) for p in group.findall(f"{SVG}g/{SVG}path[@class]")]
    hatch = f"url(#{picture.name}-{Kind.MASKED:d})"
    paths += [(0, p) for p in group.findall(f"{SVG}path") if p.get("fill") == hatch]
    for kind, path in paths:
        for found in RECTANGLE.finditer(path.get("d", "")):
            x, y, width, height = map(float, found.groups())
            edges = (y / place.tall, height / place.tall, x / place.wide, width / place.wide)
            row, rows, column, columns = (round(edge) for edge in edges)
            assert edges == pytest.approx((row, rows, column, columns))
            painted[row : row + rows, column : column + columns] = kind
            times[row : row + rows, column : column + columns] += 1
    painted[times != 1] = 9
    return painted


def texts_of(text: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(text).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", SCENES)
def test_scenes_are_drawn_as_before(name):
    check(f"{name}.svg", svg.render(SCENES[name]()))


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
@pytest.mark.parametrize("name", SCENES)
def test_is_well_formed_and_has_a_text_alternative(name, theme):
    scene = SCENES[name]()
    root = ET.fromstring(svg.render(scene, theme))
    ids = {node.get("id"): node for node in root.iter() if node.get("id")}
    title, words = (ids[name] for name in root.get("aria-labelledby", "").split())
    assert (root.get("role"), title.tag, words.tag) == ("img", f"{SVG}title", f"{SVG}desc")
    assert (title.text, words.text) == (scene.title, scene.description)
    assert root.find(f".//{SVG}script") is None
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"


@given(st.data())
def test_cells_of_any_grid_are_those_of_the_scene(data):
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    kinds = data.draw(st_numpy.arrays(np.uint8, shape, elements=st.integers(0, len(Kind) - 1)))
    shares = st_numpy.arrays(np.float64, shape, elements=st.floats(0, 1))
    grid = Grid(kinds, shades=data.draw(st.none() | shares), extent=shape)
    picture = svg.draw(Scene("any", (grid, grid)))
    for number in (0, 1):
        assert np.array_equal(cells_of(picture, number, shape), kinds)


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (131, 70)])
def test_cells_of_large_grids_are_those_of_the_scene(shape):
    kinds = np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)
    picture = svg.draw(Scene("large", (Grid(kinds, extent=shape),)))
    assert np.array_equal(cells_of(picture, 0, shape), kinds)


def test_a_large_causal_mask_stays_small():
    assert len(svg.render(scene_of(mw.causal().on(256))).encode()) < 25_000


def test_small_grids_have_tooltips_and_large_ones_none():
    small, large = (scene_of(mw.causal().on(size)) for size in (32, 33))
    said = [node.text for node in ET.fromstring(svg.render(small)).iter(f"{SVG}title")]
    assert said.count("query 3, key 4: masked") == 1
    assert len(said) == 1 + 32 * 32
    assert len(list(ET.fromstring(svg.render(large)).iter(f"{SVG}title"))) == 1


def test_every_kind_but_visible_has_its_own_pattern():
    picture = svg.draw(SCENES["difference"]())
    root = ET.fromstring(picture.text)
    drawn = {node.get("id"): ET.tostring(node[0]) for node in root.iter(f"{SVG}pattern")}
    kinds = set(Kind) - {Kind.VISIBLE}
    assert set(drawn) == {f"{picture.name}-{kind:d}" for kind in kinds}
    assert len(set(drawn.values())) == len(kinds)
    legend = [node.get("fill") for node in root.findall(f"{SVG}rect")]
    assert {f"url(#{name})" for name in drawn} <= set(legend)


def test_a_sparse_block_has_dark_dots():
    kinds = np.full((1, 2), Kind.PARTIAL, np.uint8)
    grid = Grid(kinds, shades=np.array([[0.1, 0.9]]), block=(4, 4), extent=(4, 8))
    picture = svg.draw(Scene("tiles", (grid,)))
    assert f"url(#{picture.name}-{SPARSE})" in picture.text
    assert f"url(#{picture.name}-{Kind.PARTIAL:d})" in picture.text
    assert 'fill-opacity=".1"' in picture.text


def test_themes_are_fixed_or_follow_the_system():
    scene = SCENES["causal"]()
    auto, light, dark = (svg.render(scene, theme) for theme in ("auto", "light", "dark"))
    seen = [theme.kinds[Kind.VISIBLE] for theme in (LIGHT, DARK)]
    found = [[colour in text for colour in seen] for text in (auto, light, dark)]
    assert found == [[True, True], [True, False], [False, True]]
    assert "prefers-color-scheme" in auto
    assert "prefers-color-scheme" not in light + dark
    with pytest.raises(mw.ArgumentError, match=r"theme.*'blue'"):
        svg.render(scene, "blue")  # type: ignore[arg-type]


def test_ids_differ_between_pictures_and_styles_are_scoped():
    one, other = (svg.draw(SCENES[name]()) for name in ("causal", "pair"))
    assert one.name != other.name
    (style,) = re.findall("<style>(.*?)</style>", one.text)
    for rule in re.findall(r"([^{}]+)\{[^{}]*\}", style.replace("@media", "{}@media")):
        assert f"#{one.name}" in rule


def test_hostile_tokens_stay_text():
    text = svg.render(causal_scene(HOSTILE))
    root = ET.fromstring(text.encode())
    plain = ET.fromstring(svg.render(causal_scene(("a",) * len(HOSTILE))))
    assert {node.tag for node in root.iter()} == {node.tag for node in plain.iter()}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ufffe]", text)
    said = texts_of(text)
    for shown in ("]]>", "\"'&amp;", "👩🏽‍🚀", "e\u0301\u0302", "שלום", "∅", "␣␉␊", "�"):
        assert said.count(shown) == 2, shown
    assert any(label.startswith("<U+202E>") for label in said)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4).map(tuple))
def test_any_token_is_well_formed(tokens):
    ET.fromstring(svg.render(causal_scene(tokens)).encode())


def test_long_labels_are_cut_and_have_tooltips():
    root = ET.fromstring(svg.render(causal_scene(("a", "y" * 60))))
    cut = [node for node in root.iter(f"{SVG}text") if node.findtext(f"{SVG}title") == "y" * 60]
    assert cut
    for node in cut:
        assert re.fullmatch("y{10,25}…", node[0].tail or "")


@pytest.mark.parametrize("size", [3, 12, 40, 100, 256])
@pytest.mark.parametrize("start", [0, 1_000_000])
def test_numbers_along_the_axes_do_not_overlap(size, start):
    kinds = np.zeros((size, size), np.uint8)
    grid = Grid(kinds, start=(start, start), extent=(size, size))
    root = ET.fromstring(svg.render(Scene("numbers", (grid,))))
    columns, rows = root.findall(f"{SVG}g/{SVG}g[@font-size='11']")
    places = [(float(node.get("x", "")), node.text or "") for node in columns]
    for (x, text), (after, following) in pairwise(places):
        assert x + text_width(text, 11) / 2 < after - text_width(following, 11) / 2
    heights = [float(node.get("y", "")) for node in rows]
    assert all(np.diff(heights) >= 13)
    assert len(places) >= 2
    assert len(heights) >= 3


def test_wide_column_labels_are_turned():
    turned = [
        'rotate(-90)">注' in svg.render(scene_of(mw.causal().on(2), tokens=tokens))
        for tokens in (["注", "意"], ["注意力机制", "意"])
    ]
    assert turned == [False, True]


def test_numbers_in_cells_are_readable_in_both_themes():
    kinds = np.full((1, 2), Kind.VISIBLE, np.uint8)
    grid = Grid(kinds, shades=np.array([[0.0, 1.0]]), texts=(("0.0", "1.0"),), extent=(1, 2))
    root = ET.fromstring(svg.render(Scene("numbers", (grid,))))
    roles = {node.text: node.get("class") for node in root.iter(f"{SVG}text") if node.get("class")}
    # Dark letters on a pale cell of the light theme, light ones in the dark; and the other way.
    assert (roles["0.0"], roles["1.0"]) == ("on10", "on01")


def test_grids_stand_in_rows_that_wrap():
    grid = scene_of(mw.causal().on(12)).grids[0]
    places = svg.draw(Scene("many", (grid,) * 5)).places
    assert len({place.y for place in places}) > 1
    assert places[0].y == places[1].y
    assert places[0].x < places[1].x


def test_a_long_title_is_wrapped_inside_the_picture():
    scene = replace(SCENES["pair"](), title="causal() & padding(lengths=[1, 2]) " * 9)
    picture = svg.draw(scene)
    root = ET.fromstring(picture.text)
    lines = [node.text or "" for node in root.findall(f"{SVG}text[@font-size='15']")]
    assert len(lines) == 4
    assert all(text_width(line, 15) < picture.width - 2 * svg.MARGIN for line in lines)
