"""PNG: colours of cells, sizes, fonts, and the texts in the file."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maskwright.draw import png, svg
from maskwright.draw.palette import DARK, LIGHT, Theme
from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.errors import ArgumentError
from tests._helpers.draw_scenes import SCENES

Image = pytest.importorskip("PIL.Image")

NO_GLYPH = "\ue123"  # a private character, which no font has
LATIN = [name for name in SCENES if name != "causal"]


def opened(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


def pixels(scene: Scene, **options: Any) -> np.ndarray:
    return np.asarray(opened(png.render(scene, **options)).convert("RGB")).astype(int)


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def cells(scene: Scene, theme: Any) -> list[list[np.ndarray]]:
    """The pixels of each cell of the first grid, without the lines between cells."""
    picture, scale = pixels(scene, theme=theme), 2
    place = svg.draw(scene).places[0]
    return [
        [
            picture[
                round((place.y + row * place.tall) * scale) + 2 :,
                round((place.x + column * place.wide) * scale) + 2 :,
            ][: round(place.tall * scale) - 4, : round(place.wide * scale) - 4]
            for column in range(scene.grids[0].shape[1])
        ]
        for row in range(scene.grids[0].shape[0])
    ]


def main_colour(cell: np.ndarray) -> tuple[int, ...]:
    colours, counts = np.unique(cell.reshape(-1, 3), axis=0, return_counts=True)
    return tuple(colours[counts.argmax()].tolist())


def causal(size: int, **labels: Any) -> Scene:
    grid = Grid((np.tri(size) * Kind.VISIBLE).astype(np.uint8), **labels)
    return Scene("causal()", (grid,), legend=legend_of((grid,)))


@pytest.mark.parametrize(("name", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_cells_have_the_colour_of_their_kind(name: str, theme: Theme) -> None:
    kinds = np.array([[2, 0, 3], [4, 5, 1]], np.uint8)
    shades = np.array([[1, 0, 1], [1, 1, 0.4]])
    scene = Scene("", (Grid(kinds, shades=shades),))
    found = cells(scene, name)
    for row, column in np.ndindex(2, 3):
        fill = theme.fill(Kind(int(kinds[row, column])), shades[row, column])
        assert np.abs(np.subtract(main_colour(found[row][column]), rgb(fill))).max() <= 1
    assert tuple(pixels(scene, theme=name)[20, 4]) == rgb(theme.ground)


def test_a_large_grid_is_exact() -> None:
    scene = SCENES["large"]()
    place = svg.draw(scene).places[0]
    rows = (2 * (place.y + (np.arange(256) + 0.5) * place.tall)).astype(int)
    columns = (2 * (place.x + (np.arange(256) + 0.5) * place.wide)).astype(int)
    part = pixels(scene, scale=2)[np.ix_(rows, columns)]
    visible = (part == rgb(LIGHT.kinds[Kind.VISIBLE])).all(-1)
    assert (visible == (scene.grids[0].kinds == Kind.VISIBLE)).all()


@pytest.mark.parametrize("name", LATIN)
def test_pictures_are_deterministic_and_scale(name: str) -> None:
    scene = SCENES[name]()
    assert png.render(scene) == png.render(scene)
    one, three = (opened(png.render(scene, scale=scale)).size for scale in (1, 3))
    assert three == tuple(3 * n for n in one)
    assert one[0] == svg.draw(scene).width


def test_text_is_drawn_without_installed_fonts() -> None:
    """The fonts of the package suffice: titles, labels and symbols are not empty."""
    empty = pixels(causal(3, rows=(" ",) * 3, columns=(" ",) * 3))
    labelled = pixels(causal(3, rows=("a\n", "−∞", "Ωж"), columns=(" x", "→", "√2")))
    assert (empty != labelled).any()
    for character in "AzΩж×−∞√→␣∅◌…ᵀ✓█▲":
        assert png._has_glyph(character, installed=False), character


def test_characters_without_a_font_are_boxes_and_warned_about() -> None:
    scene = causal(2, rows=("a", f"{NO_GLYPH}b"), columns=("c", NO_GLYPH))
    with pytest.warns(UserWarning, match=r"no installed font has .*U\+E123") as caught:
        data = png.render(scene)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    blank = causal(2, rows=("a", "b"), columns=("c", " "))
    assert data != png.render(blank)


def test_the_file_contains_title_and_description() -> None:
    scene = replace(causal(3), description="No query attends to a later key – 注意.")
    assert opened(png.render(scene)).text == {
        "Title": "causal()",
        "Description": "No query attends to a later key – 注意.",
    }
    assert opened(png.render(replace(scene, title="", description=""))).text == {}
    odd = replace(scene, title="\ud800", description="\x00")
    assert opened(png.render(odd)).text == {"Title": "�", "Description": "␀"}


@pytest.mark.parametrize("options", [{"theme": "auto"}, {"scale": 0}, {"scale": 1.5}])
def test_invalid_options_are_refused(options: Any) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(ArgumentError, match=f"{name}.*{value}"):
        png.render(causal(2), **options)
