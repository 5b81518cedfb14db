"""Verbs that show, as a person calls them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw import terminal
from maskwright.draw.masks import scene_of
from tests.cli.conftest import Here, run

if TYPE_CHECKING:
    from pathlib import Path

PNG = b"\x89PNG"


def test_show_prints_the_picture() -> None:
    ran = run("show", "causal() & padding(lengths=[3, 4])", "--size", "4")
    scene = scene_of((mw.causal() & mw.padding(lengths=[3, 4])).on(4))
    assert ran == (0, f"{terminal.render(scene, 80, False)}\n", "")


def test_show_takes_all_sizes(here: Here) -> None:
    ran = here("show", "causal()", "-n", "2", "--keys", "4", "--q-start", "0", "--heads", "3")
    scene = scene_of(mw.causal().on(2, 4, heads=3, q_start=0))
    assert ran.out == f"{terminal.render(scene, 80, False)}\n"


def test_show_takes_tokens_of_any_script_and_their_number(here: Here) -> None:
    ran = here("show", "causal()", "--tokens", "我 喜欢 喝 茶")
    assert "4 queries × 4 keys" in ran.out
    assert "喜欢" in ran.out


def test_show_of_one_plane(here: Here) -> None:
    ran = here("show", "padding(lengths=[1, 2])", "-n", "2", "--batch-row", "1")
    assert "batch 1" in ran.out
    assert "batch 0" not in ran.out


def test_show_writes_what_the_ending_says(here: Here, tmp_path: Path) -> None:
    for name in ("mask.svg", "mask.html", "mask.png", "mask.json", "mask.txt"):
        assert here("show", "causal()", "-o", name) == (0, "", "")
    assert ElementTree.parse(tmp_path / "mask.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "mask.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "mask.png").read_bytes().startswith(PNG)
    assert json.loads((tmp_path / "mask.json").read_text())["count"] == 36
    assert "8 queries × 8 keys" in (tmp_path / "mask.txt").read_text()


def test_show_as_json_has_every_row(here: Here) -> None:
    found = json.loads(here("show", "window(back=1)", "-n", "3", "--format", "json").out)
    assert found["rows"] == [[[[[0, 1]], [[0, 2]], [[1, 3]]]]]
    assert found["mask"] == json.loads(mw.to_json(mw.window(back=1)))
    large = json.loads(here("show", "causal()", "-n", "1000000", "-f", "json").out)
    assert "rows" not in large
    assert large["count"] == mw.causal().on(1_000_000).count()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "casual()"], "Did you mean causal?"),
        (["show", "causal("], "brackets"),
        (["show", "padding(lengths=[9])"], "Pass --keys 9 or more"),
        (["show", "causal()", "--size", "-1"], "--size -1 is less than 0"),
        (["show", "dense([[1, 0]])"], "Pass --size 1, --keys 2."),
        (["show", "causal()", "-o", "mask.gif"], "the ending .gif tells no format"),
        (["show", "causal()", "-o", "nowhere/mask.svg"], "nowhere/mask.svg can't be written"),
        (["show", "causal()", "-n", "3", "-t", "a b"], "a list has 2 tokens but the mask has 3"),
        (["show", "stride(2)", "-n", "1000000"], "Draw fewer rows"),
        (["diff", "causal()", "nothing.npy"], "nothing.npy is not there"),
        (["explain", "causal()", "--cell", "1"], "Write QUERY,KEY"),
        (["explain", "causal()", "--cell", "1,99"], "key 99"),
        (["explain", "--scores", "[1"], "is no table of numbers"),
        (["recipes", "longfromer"], "There is no recipe longfromer"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_code_2(here: Here, words: list[str], says: str) -> None:
    ran = here(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert says in ran.err
    assert ran.err.startswith("maskwright: ")
    assert len(ran.err.splitlines()) == 1


def test_diff_says_where_masks_differ_by_code_1(here: Here) -> None:
    ran = here("diff", "causal()", "window(back=2)", "-n", "5")
    assert ran.code == 1
    assert "only the first sees 3 cells" in ran.out
    assert ran.out.endswith("query 3, key 0: visible only in the left mask\n")
    found = here("diff", "causal()", "window(back=2)", "-n", "5", "-f", "json")
    assert (found.code, json.loads(found.out)["only_first"]) == (1, 3)


def test_diff_of_equal_masks_is_code_0(here: Here) -> None:
    ran = here("diff", "causal()", "window(back=None)")
    assert ran.code == 0
    assert ran.out.startswith("equal")


def test_diff_reads_files_and_takes_their_size(here: Here, tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", mw.window(back=1).on(6).dense())
    ran = here("diff", "causal()", "m.npy")
    assert ran.code == 1
    assert "6 queries × 6 keys" in ran.out
    assert here("diff", "window(back=1)", "m.npy").code == 0


def test_diff_of_masks_for_different_batches(here: Here) -> None:
    ran = here("diff", "causal()", "causal() & padding(lengths=[2, 3])", "-n", "3")
    assert ran.code == 1
    assert "batch 1" in ran.out


def test_explain_a_cell(here: Here) -> None:
    says = "query 0 does not attend to key 2: causal() masks it (2 > 0)\n"
    assert here("explain", "causal()", "--cell", "0,2", "-n", "4") == (0, says, "")
    found = json.loads(here("explain", "causal()", "--cell", "2,0", "-f", "json").out)
    assert found["visible"] is True
    ran = here("explain", "causal()", "--cell", "0,2", "-n", "4", "--lang", "zh")
    assert ran.out == mw.causal().on(4).why(0, 2).text("zh") + "\n"


def test_explain_the_calculation(here: Here) -> None:
    ran = here("explain", "causal()", "--tokens", "I like tea", "--seed", "3")
    assert ran.out == f"{mw.walkthrough('I like tea', mw.causal(), seed=3)}\n"
    data = json.loads(here("explain", "causal()", "-t", "a b", "-f", "json").out)
    assert data == mw.walkthrough("a b", mw.causal()).as_dict()


def test_explain_given_scores(here: Here) -> None:
    scores = "[[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]"
    out = here("explain", "-t", "I like it", "--scores", scores).out
    assert "0.49" in out
    assert "Output" not in out


def test_explain_masks_side_by_side(here: Here, tmp_path: Path) -> None:
    words = ("explain", "padding(lengths=[3])", "-t", "a b c D", "--beside")
    out = here(*words).out
    for title in ("no mask", "padding(lengths=[3])", "look-ahead mask"):
        assert title in out
    assert here(*words, "-o", "beside.svg").code == 0
    assert (tmp_path / "beside.svg").read_text().startswith("<svg")


def test_explain_scaling(here: Here) -> None:
    lines = here("explain", "--scaling").out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["1", "4", "16", "64", "256"]
    assert len(json.loads(here("explain", "--scaling", "-f", "json").out)) == 5


def test_recipes_lists_all_and_draws_one(here: Here) -> None:
    out = here("recipes").out
    for name in mw.recipes.__all__:
        assert name in out or name == "TranslationMasks"
    one = here("recipes", "sinks").out
    assert "StreamingLLM" in one
    assert "window(back=2) | (keys([0, 1]) & causal())" in one
    assert "8 queries × 8 keys" in one
    three = json.loads(here("recipes", "translation", "-f", "json").out)
    assert [entry["name"] for entry in three] == [
        "translation.encoder",
        "translation.decoder",
        "translation.cross",
    ]
