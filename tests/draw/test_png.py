"""PNG: the pixels of cells, the file's own words, and fonts that are not there."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maskwright.draw import png
from maskwright.draw.palette import DARK, LIGHT, Theme
from maskwright.draw.scene import Grid, Kind, Outline, Scene, legend_of
from maskwright.errors import ArgumentError
from tests.draw.scenes import SCENES

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

NOWHERE = "\ue123"  # for private use, so no two fonts agree on it
PLAIN = [name for name in SCENES if name != "causal"]


def opened(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


def pixels(scene: Scene, **named: Any) -> np.ndarray:
    return np.asarray(opened(png.render(scene, **named)).convert("RGB"))


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def corner(picture: np.ndarray, colour: str) -> tuple[int, int]:
    """The first pixel of that colour, from above and from the left."""
    found = np.argwhere((picture == rgb(colour)).all(-1))
    assert found.size, f"{colour} is not in the picture"
    return int(found[:, 0].min()), int(found[:, 1].min())


def cells(picture: np.ndarray, theme: Theme, size: int, shape: tuple[int, int]) -> list[list[Any]]:
    """The pixels of every cell, without the lines between them; the first cell must be seen."""
    top, left = corner(picture, theme.kinds[Kind.SEEN])
    return [
        [
            picture[top + r * size : top + (r + 1) * size - 1, left + c * size :][:, : size - 1]
            for c in range(shape[1])
        ]
        for r in range(shape[0])
    ]


def main_colour(cell: np.ndarray) -> tuple[int, ...]:
    colours, counts = np.unique(cell.reshape(-1, 3), axis=0, return_counts=True)
    return tuple(colours[counts.argmax()].tolist())


def causal(size: int) -> Scene:
    grid = Grid((np.tri(size) * Kind.SEEN).astype(np.uint8))
    return Scene("causal()", (grid,), legend=legend_of((grid,)))


@pytest.mark.parametrize(("name", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_every_cell_has_the_colour_of_its_kind(name: Any, theme: Theme) -> None:
    kinds = np.array([[2, 0, 3], [4, 5, 1]], np.uint8)
    shades = np.array([[1, 0, 1], [1, 1, 0.4]])
    picture = pixels(Scene("", (Grid(kinds, shades=shades),)), theme=name)
    found = cells(picture, theme, 52, (2, 3))
    for row, column in np.ndindex(2, 3):
        fill = theme.fill(Kind(int(kinds[row, column])), shades[row, column])
        assert np.abs(np.subtract(main_colour(found[row][column]), rgb(fill))).max() <= 1
    assert tuple(picture[0, 0]) == rgb(theme.ground)


def test_kinds_differ_by_pattern_too() -> None:
    kinds = np.array([[2, 0, 3, 4, 5, 1]], np.uint8)
    shades = np.array([[1, 0, 1, 1, 1, 0.5]])
    (row,) = cells(pixels(Scene("", (Grid(kinds, shades=shades),))), LIGHT, 52, (1, 6))
    inked = [(cell != main_colour(cell)).any(-1) for cell in row]
    shares = [float(ink.mean()) for ink in inked]
    assert shares[0] == 0
    assert all(0.02 < share < 0.4 for share in shares[1:])
    hidden, first, second = inked[1:4]
    assert not hidden.all(0).any()  # slanted
    assert not hidden.all(1).any()
    assert first.all(0).any()  # upright
    assert not first.all(1).any()
    assert second.all(1).any()  # level
    assert not second.all(0).any()


def test_a_large_grid_is_exact() -> None:
    scene = SCENES["large"]()
    picture = pixels(scene, scale=1)
    top, left = corner(picture[:-60], LIGHT.kinds[Kind.SEEN])
    part = picture[top : top + 512 : 2, left : left + 512 : 2]
    seen = (part == rgb(LIGHT.kinds[Kind.SEEN])).all(-1)
    assert (seen == (scene.grids[0].kinds == Kind.SEEN)).all()


@pytest.mark.parametrize("rows", [5, 13, 14, 15])  # 323 / 72 inches of 72 × 3 dots are 968.99…
def test_a_scale_is_pixels_of_a_point(rows: int) -> None:
    scene = Scene("", (Grid(np.full((rows, 1), Kind.SEEN, np.uint8)),))
    one, two, three = (opened(png.render(scene, scale=scale)).size for scale in (1, 2, 3))
    assert two == tuple(2 * n for n in one)
    assert three == tuple(3 * n for n in one)


def test_nothing_is_cut_off_at_the_edges() -> None:
    for name in PLAIN:
        picture = pixels(SCENES[name](), scale=1)
        edge = np.concatenate([picture[:8].reshape(-1, 3), picture[-8:].reshape(-1, 3)])
        sides = np.concatenate([picture[:, :8].reshape(-1, 3), picture[:, -8:].reshape(-1, 3)])
        assert (edge == rgb(LIGHT.ground)).all(), name
        assert (sides == rgb(LIGHT.ground)).all(), name


def test_the_file_says_what_it_shows_and_nothing_else() -> None:
    scene = replace(causal(3), description="Queries see no later keys – 注意.")
    assert opened(png.render(scene)).info.keys() == {"Title", "Description", "dpi"}
    assert opened(png.render(scene)).text == {
        "Title": "causal()",
        "Description": "Queries see no later keys – 注意.",
    }
    assert opened(png.render(replace(scene, title="", description=""))).text == {}
    odd = replace(scene, title="\ud800", description="\x00")  # that no file may hold
    assert opened(png.render(odd)).text == {"Title": "�", "Description": "␀"}


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_scene_gives_the_same_bytes(name: str) -> None:
    scene = SCENES[name]()
    assert png.render(scene) == png.render(scene)


def test_a_frame_is_drawn_around_its_cells() -> None:
    grid = replace(causal(6).grids[0], outlines=(Outline(1, 1, 2, 3),))
    picture = pixels(Scene("", (grid,)))
    top, left = corner(picture, LIGHT.kinds[Kind.SEEN])
    ink = rgb(LIGHT.outline)
    middle = round(top + 2 * 52)
    for edge in (1, 4):
        stretch = picture[middle, left + edge * 52 - 4 : left + edge * 52 + 4]
        assert (stretch == ink).all(-1).any()
    assert not (picture[middle, left + 5 * 52 - 4 : left + 5 * 52 + 4] == ink).all(-1).any()


def test_numbers_are_written_into_their_cells() -> None:
    kinds = np.full((2, 2), Kind.SEEN, np.uint8)
    blank = pixels(Scene("", (Grid(kinds, texts=(("", ""), ("", ""))),)))
    written = pixels(Scene("", (Grid(kinds, texts=(("", ""), ("", "7"))),)))
    changed = np.argwhere((blank != written).any(-1))
    top, left = corner(blank, LIGHT.kinds[Kind.SEEN])
    low, right = changed.min(0)
    assert low > top + 48
    assert right > left + 72


def test_signs_of_formulas_are_only_signs() -> None:
    tokens = ("$\\frac$", "$", "%", "_")  # the first would be an error in a formula
    scene = Scene("$\\frac$", (Grid(np.eye(4, dtype=np.uint8) * 2, rows=tokens),))
    wide, _ = opened(png.render(scene, scale=1)).size
    bare, _ = opened(png.render(replace(scene, grids=(Grid(scene.grids[0].kinds),)), scale=1)).size
    assert wide > bare


def test_what_no_font_has_is_written_as_its_number() -> None:
    tokens = ("a", f"{NOWHERE}{NOWHERE}b")
    scene = Scene("", (Grid(np.eye(2, dtype=np.uint8) * 2, rows=tokens, columns=tokens),))
    with pytest.warns(UserWarning, match=r"^png: no installed font can draw .* such as ") as caught:
        data = png.render(scene)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    spelled = ("a", "U+E123 U+E123b")
    same = Scene("", (replace(scene.grids[0], rows=spelled, columns=spelled),))
    assert data == png.render(same)


def test_tokens_of_any_script_are_drawn() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="png: no installed font")
        first = png.render(SCENES["causal"]())
        assert first == png.render(SCENES["causal"]())
    assert opened(first).text["Title"] == "causal()"


def test_pyplot_is_not_loaded_and_no_setting_changed() -> None:
    code = (
        "import sys, numpy as np, matplotlib\n"
        "from maskwright.draw import png\n"
        "from maskwright.draw.scene import Grid, Scene\n"
        "before = matplotlib.rcParams.copy()\n"
        "png.render(Scene('', (Grid(np.ones((2, 2), np.uint8)),)))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "after = matplotlib.rcParams.copy()\n"
        "assert all(after[name] == before[name] for name in before if name != 'backend')\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_without_matplotlib_the_extra_is_named() -> None:
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from maskwright.draw import png\n"
        "from maskwright.draw.scene import Scene\n"
        "png.render(Scene('', ()))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stderr.strip().split("\n")[-1] == (
        "maskwright.errors.MissingError: png: matplotlib is not installed. "
        "Run: pip install 'maskwright[draw]'"
    )


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"theme": "auto"}, "png: there is no theme 'auto'. Give 'light' or 'dark'."),
        ({"scale": 0}, "png: scale=0 is not a whole number of 1 or more. Give 2."),
        ({"scale": 1.5}, "png: scale=1.5 is not a whole number of 1 or more. Give 2."),
    ],
)
def test_what_cannot_be_drawn_is_refused(named: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}$"):
        png.render(causal(2), **named)
