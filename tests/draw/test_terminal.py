"""The terminal: snapshots, and properties of every picture."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.draw.terminal import render
from maskwright.errors import ArgumentError
from tests._helpers.draw_scenes import SCENES
from tests._helpers.snapshots import check

COLOUR = "\x1b["


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "COLORTERM", "COLORFGBG", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def scene_of(kinds: object, **named: object) -> Scene:
    grid = Grid(np.array(kinds, np.uint8), **named)  # type: ignore[arg-type]
    return Scene("", (grid,), legend=legend_of((grid,)))


def causal(size: int) -> Scene:
    return scene_of(np.tri(size) * Kind.VISIBLE)


def fits(text: str, width: int) -> bool:
    return all(wcwidth.width(line) <= width for line in text.split("\n"))


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize(("width", "kind"), [(40, "40"), (80, "80"), (80, "ascii")])
def test_pictures(name: str, width: int, kind: str) -> None:
    text = render(SCENES[name](), width, colour=False, unicode=kind != "ascii")
    assert fits(text, width)
    assert kind != "ascii" or text.isascii()
    check(f"terminal_{name}_{kind}.txt", text + "\n")


@pytest.mark.parametrize("name", ["difference", "numbers", "tiles"])
def test_pictures_in_colour(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(f"terminal_{name}_256.txt", render(SCENES[name](), 60, colour=True) + "\n")
    monkeypatch.setenv("COLORTERM", "truecolor")
    check(f"terminal_{name}_24bit.txt", render(SCENES[name](), 60, colour=True) + "\n")


def test_cells_stand_below_their_columns() -> None:
    tokens = ("注", "e\u0301", "👩\u200d👩\u200d👧", "x")
    scene = scene_of(np.eye(4) * Kind.VISIBLE, rows=tokens, columns=tokens)
    lines = render(scene, 40, colour=False).split("\n")
    for token, line in zip(tokens, lines[2:], strict=False):
        above, sign = lines[1].index(token), line.index("█")
        assert wcwidth.width(lines[1][:above]) == wcwidth.width(line[:sign])


def test_long_column_labels_are_cut_and_listed() -> None:
    word = "internationalisation"
    scene = scene_of([[2, 0]], columns=("a", word))
    text = render(scene, 40, colour=False)
    assert f"key labels: 1 {word}" in text
    assert "…" in text.split(word)[0]


def test_two_columns_per_cell_then_one_then_joined() -> None:
    assert "████" in render(causal(30), 80, colour=False).split("\n")[3]
    one = render(causal(60), 80, colour=False)
    assert sum("█" in line or "▄" in line for line in one.split("\n\n")[1].split("\n")) == 30
    assert "1 character = 2 × 1 cells" in one
    assert "1 character = 4 × 2 cells" in render(causal(100), 80, colour=False)
    assert "1 character = 4 × 2 cells" in render(causal(100), 80, colour=True)


def test_tokens_are_kept_while_one_column_per_cell_fits() -> None:
    tokens = tuple(f"token{n}" for n in range(40))
    grid = replace(causal(40).grids[0], rows=tokens, columns=tokens)
    text = render(Scene("", (grid,)), 80, colour=False)
    assert "labels:" not in text  # the rows have them
    lines = text.split("\n")
    assert lines[2].strip() == "0 token0  █" + "·" * 39
    assert lines[41].strip() == "39 token39  " + "█" * 40


def test_keys_whose_tokens_do_not_fit_are_listed() -> None:
    columns = tuple(f"key{n}" for n in range(40))
    scene = scene_of(np.full((2, 40), Kind.VISIBLE), rows=tuple("ab"), columns=columns)
    assert "key labels: 0 key0, 1 key1," in render(scene, 80, colour=False)


def test_a_joined_character_shows_every_difference() -> None:
    kinds = np.zeros((200, 200), np.uint8)
    kinds[10, 10], kinds[100, 100], kinds[150, 0:2] = Kind.FIRST_ONLY, Kind.SECOND_ONLY, (3, 4)
    body, legend = render(scene_of(kinds), 60, colour=False).rsplit("\n\n", 1)
    assert all(body.count(sign) == 1 for sign in "▲▼◆")
    assert "◆ each has cells that the other masks" in legend


def test_a_few_long_rows_are_not_joined() -> None:
    kinds = np.full((3, 400), Kind.VISIBLE)
    kinds[1] = Kind.MASKED
    text = render(scene_of(kinds), 60, colour=False)
    assert "1 character = 1 × 8 cells" in text
    assert [line.split()[-1][0] for line in text.split("\n")[4:7]] == ["█", "·", "█"]


def test_two_rows_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = np.full((25, 50), Kind.VISIBLE)
    kinds[1::2] = Kind.MASKED
    kinds[2:4] = kinds[3:1:-1]
    lines = render(scene_of(kinds), 70, colour=False).split("\n")[2:]
    assert [lines[row][-50:] for row in (2, 3, 14)] == ["▀" * 50, "▄" * 50, "▀" * 50]
    monkeypatch.setenv("COLORTERM", "24bit")
    lines = render(scene_of(kinds), 70, colour=True).split("\n")[2:]
    visible, masked = "2;108;178;245", "2;27;34;43"
    assert f"\x1b[38;{visible};48;{masked}m{'▀' * 50}" in lines[2]
    assert f"\x1b[38;{visible}m{'▀' * 50}" in lines[14]  # the last row has none below it


def test_a_block_with_a_masked_cell_is_not_shown_as_visible() -> None:
    scene = scene_of([[1, 1]], shades=np.array([[0.999, 0.001]]))
    assert "▓▓░░" in render(scene, 40, colour=False)


def test_numbers_stand_in_tables_below_each_other() -> None:
    texts = tuple(tuple(f"{row}.{column:02}" for column in range(20)) for row in range(2))
    kinds = np.full((2, 20), Kind.VISIBLE)
    kinds[:, 1] = Kind.MASKED
    text = render(scene_of(kinds, texts=texts), 60, colour=False)
    assert text.count("key →") == 3
    assert "(1.01)" in text
    assert all(number in text for row in texts for number in row)
    assert fits(text, 60)


def test_the_legend_has_the_kinds_that_were_drawn() -> None:
    def legend(size: int) -> str:
        return render(causal(size), 60, colour=False).split("\n\n")[-1]

    assert legend(4) == "██ visible   ·· masked"
    assert legend(200) == "█ visible   ░▒▓ partly visible   · masked"


def test_a_plain_table_of_numbers_needs_no_legend() -> None:
    kinds = np.full((2, 2), Kind.VISIBLE, np.uint8)
    grid = Grid(kinds, texts=(("1", "2"), ("3", "4")))
    table = render(Scene("", (grid,)), 40, colour=False)
    assert "visible" not in table
    assert table.endswith("4")
    kinds[0, 1] = Kind.MASKED
    assert render(Scene("", (grid,)), 40, colour=False).endswith("\n\n(0) masked")
    legend = legend_of((grid,), {Kind.VISIBLE: "larger is darker"})
    text = render(Scene("", (grid,), legend=legend), 40, colour=False)
    assert text.endswith("\n\n0 larger is darker   (0) masked")
    both = render(Scene("", (grid, causal(2).grids[0])), 60, colour=False)
    assert both.endswith("\n\n██ visible   (0) ·· masked")


@pytest.mark.parametrize(
    ("name", "value", "coloured"),
    [
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
        ("TERM", "xterm", True),
    ],
)
def test_the_environment_decides_on_colour(
    name: str, value: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COLOUR not in render(causal(3), 40)  # standard output is no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv(name, value)
    assert (COLOUR in render(causal(3), 40)) == coloured
    assert COLOUR not in render(causal(3), 40, colour=False)


def test_a_light_background_has_colours_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("COLORFGBG", "0;15")
    assert "\x1b[38;2;43;108;176m" in render(causal(3), 40, colour=True)


def test_the_terminal_is_asked_for_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert render(causal(99)) == render(causal(99), 50)
    monkeypatch.setenv("COLUMNS", "5")
    assert render(causal(99)) == render(causal(99), 20)


def test_a_width_too_narrow_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"width.*at least 20, got 19"):
        render(causal(3), 19)


def test_grids_stand_side_by_side_where_they_fit() -> None:
    grids = tuple(replace(causal(4).grids[0], title=f"head {n}") for n in range(3))
    scene = Scene("", grids)
    assert "head 0               head 1               head 2" in render(scene, 80, colour=False)
    narrow = render(scene, 40, colour=False)
    assert "head 0               head 1\n" in narrow
    assert "\n\nhead 2\n" in narrow


def test_grids_with_labels_of_different_heights_align_at_the_first_row() -> None:
    grids = tuple(
        replace(causal(2).grids[0], title=title, columns=columns)
        for title, columns in (("batch 0", ("I", "like")), ("batch 1 " * 4, ("x", "y")))
    )
    lines = render(Scene("", grids), 60, colour=False).split("\n")
    assert [line.count("██") for line in lines if "█" in line][:2] == [2, 4]
    assert sum("query ↓" in line for line in lines) == 2  # above the labels of each grid


TOKEN = st.text(max_size=20) | st.sampled_from(["注意", "cafe\u0301", "👩\u200d👩\u200d👧", "שלום"])


@given(st.data(), st.integers(20, 90), st.booleans(), st.booleans())
def test_no_line_is_too_wide(data: st.DataObject, width: int, colour: bool, unicode: bool) -> None:
    shape = data.draw(st.tuples(st.integers(0, 30), st.integers(0, 90)))
    kinds = data.draw(arrays.arrays(np.uint8, shape, elements=st.integers(0, 5), fill=st.just(2)))
    rows, columns = (
        data.draw(st.none() | st.lists(TOKEN, min_size=n, max_size=n).map(tuple)) for n in shape
    )
    text = data.draw(TOKEN)
    texts = None
    if shape[1] < 12 and data.draw(st.booleans()):
        texts = tuple((text,) * shape[1] for _ in range(shape[0]))
    start = data.draw(st.tuples(*[st.integers(0, 10**9)] * 2))
    named = {"title": text, "texts": texts, "rows": rows, "columns": columns, "start": start}
    scene = replace(scene_of(kinds, **named), title=text, note=text)
    drawn = render(scene, width, colour, unicode)
    assert fits(drawn, width)
    assert unicode or drawn.isascii()
    drawn.encode("utf-8")
