"""`maskwright show`, `diff`, `explain` and `recipes`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw import terminal
from maskwright.draw.masks import scene_of
from tests.cli.conftest import RunCli, run

if TYPE_CHECKING:
    from pathlib import Path


def test_show_prints_the_picture() -> None:
    ran = run("show", "causal() & padding(lengths=[3, 4])", "--size", "4")
    scene = scene_of((mw.causal() & mw.padding(lengths=[3, 4])).on(4))
    assert ran == (0, f"{terminal.render(scene, 80, False)}\n", "")


def test_show_takes_all_sizes(cli: RunCli) -> None:
    ran = cli("show", "causal()", "-n", "2", "--kv-len", "4", "--q-start", "0", "--heads", "3")
    scene = scene_of(mw.causal().on(2, 4, heads=3, q_start=0))
    assert ran.out == f"{terminal.render(scene, 80, False)}\n"


def test_show_labels_the_axes_with_tokens(cli: RunCli) -> None:
    for tokens in ("我 喜欢 喝 茶", "我喝了茶"):
        ran = cli("show", "causal()", "--tokens", tokens)
        assert "4 queries × 4 keys" in ran.out
        assert all(token in ran.out for token in tokens.split())


def test_show_of_one_batch_row(cli: RunCli) -> None:
    ran = cli("show", "padding(lengths=[1, 2])", "-n", "2", "--batch-row", "1")
    assert "batch 1" in ran.out
    assert "batch 0" not in ran.out


def test_show_writes_the_format_of_the_suffix(cli: RunCli, tmp_path: Path) -> None:
    for name in ("mask.svg", "mask.html", "mask.png", "mask.json", "mask.txt"):
        ran = cli("show", "causal()", "-o", name)
        assert (ran.code, ran.out) == (0, "")
        assert name in ran.err
        assert len(ran.err.splitlines()) == 1
    assert ElementTree.parse(tmp_path / "mask.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "mask.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "mask.json").read_text())["count"] == 36
    assert "8 queries × 8 keys" in (tmp_path / "mask.txt").read_text()


def test_show_as_json_has_every_row(cli: RunCli) -> None:
    found = json.loads(cli("show", "window(back=1)", "-n", "3", "--format", "json").out)
    assert found["rows"] == [[[[[0, 1]], [[0, 2]], [[1, 3]]]]]
    assert found["mask"] == json.loads(mw.to_json(mw.window(back=1)))
    large = json.loads(cli("show", "causal()", "-n", "1000000", "-f", "json").out)
    assert "rows" not in large
    assert large["count"] == mw.causal().on(1_000_000).count()


def test_diff_of_different_masks_is_code_1(cli: RunCli) -> None:
    words = ("diff", "causal()", "window(back=2)", "-n", "5")
    ran = cli(*words)
    assert ran.code == 1
    last = ran.out.splitlines()[-1]
    assert all(part in last for part in ("query 3", "key 0", "causal()"))
    found = cli(*words, "-f", "json")
    assert (found.code, json.loads(found.out)["only_first"]) == (1, 3)


def test_diff_of_equal_masks_is_code_0_and_names_what_was_typed(cli: RunCli) -> None:
    ran = cli("diff", "causal()", "window(back=None)")
    assert ran.code == 0
    assert "causal()" in ran.out
    assert "window(back=None)" in ran.out


def test_diff_reads_files_and_takes_their_size(cli: RunCli, tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", mw.window(back=1).on(6).dense())
    ran = cli("diff", "causal()", "m.npy")
    assert ran.code == 1
    assert "6 queries × 6 keys" in ran.out
    assert cli("diff", "window(back=1)", "m.npy").code == 0


def test_diff_of_masks_for_different_batches(cli: RunCli) -> None:
    ran = cli("diff", "causal()", "causal() & padding(lengths=[2, 3])", "-n", "3")
    assert ran.code == 1
    assert "batch 1" in ran.out


def test_explain_a_cell(cli: RunCli) -> None:
    why = mw.causal().on(4).why(0, 2)
    words = ("explain", "causal()", "--cell", "0,2", "-n", "4")
    assert cli(*words) == (0, f"{why}\n", "")
    assert cli(*words, "--lang", "zh").out == why.text("zh") + "\n"
    found = json.loads(cli("explain", "causal()", "--cell", "2,0", "-f", "json").out)
    assert (found["query"], found["key"], found["visible"]) == (2, 0, True)


def test_explain_the_calculation(cli: RunCli) -> None:
    ran = cli("explain", "causal()", "--tokens", "I like tea", "--seed", "3")
    assert ran.out == f"{mw.walkthrough('I like tea', mw.causal(), seed=3)}\n"
    data = json.loads(cli("explain", "causal()", "-t", "a b", "-f", "json").out)
    assert data == mw.walkthrough("a b", mw.causal()).as_dict()


def test_explain_given_scores(cli: RunCli) -> None:
    scores = "[[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]"
    out = cli("explain", "-t", "I like it", "--scores", scores).out
    assert "0.49" in out
    assert "Output" not in out


def test_explain_compares_masks(cli: RunCli, tmp_path: Path) -> None:
    words = ("explain", "padding(lengths=[3])", "-t", "a b c D", "--compare")
    out = cli(*words).out
    for title in ("no mask", "padding(lengths=[3])", "causal mask"):
        assert title in out
    assert cli(*words, "-o", "weights.svg").code == 0
    assert (tmp_path / "weights.svg").read_text().startswith("<svg")


def test_explain_scaling(cli: RunCli) -> None:
    lines = cli("explain", "--scaling").out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["1", "4", "16", "64", "256"]
    assert len(json.loads(cli("explain", "--scaling", "-f", "json").out)) == 5


ENGLISH_WORDS = re.compile(
    r"\b(?:no mask|causal mask|mask(?:ed)?|visible|weights?|query|key|scores|darker|head size|"
    r"variance|sharpness|scaled|random)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("form", ["text", "svg", "html"])
@pytest.mark.parametrize("expression", ["causal()", "everything()"])
def test_explain_compares_masks_in_chinese(cli: RunCli, expression: str, form: str) -> None:
    words = ("explain", expression, "-t", "我 喜欢 茶", "--compare", "-f", form)
    chinese, english = cli(*words, "--lang", "zh").out, cli(*words).out
    for text in (
        "无掩码",
        "因果掩码",
        "注意力权重：",
        "同样的注意力分数",
        "查询",
        "键",
        "被屏蔽",
    ):
        assert text in chinese
    shown = re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", chinese, flags=re.DOTALL)
    shown = shown.replace(expression, "")
    if form != "html":  # its controls are in English
        assert ENGLISH_WORDS.findall(shown) == []
    assert ENGLISH_WORDS.search(english)
    numbers = re.compile(r"\d\.\d\d")
    assert sorted(numbers.findall(shown)) == sorted(
        numbers.findall(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", english, flags=re.DOTALL))
    )


def test_explain_scaling_in_chinese(cli: RunCli) -> None:
    chinese, english = (cli("explain", "--scaling", "--lang", lang).out for lang in ("zh", "en"))
    assert chinese.splitlines()[2].split() == [
        *("头维度", "方差", "缩放后的方差", "最大权重", "缩放后的最大权重"),
    ]
    assert ENGLISH_WORDS.findall(chinese) == []
    values = [[line.split() for line in text.splitlines()[3:]] for text in (chinese, english)]
    assert values[0] == values[1]


@pytest.mark.parametrize("words", [("--compare",), ("--scaling",), ()])
def test_data_of_explain_does_not_depend_on_the_language(
    cli: RunCli, words: tuple[str, ...]
) -> None:
    command = ("explain", "-t", "a b", *words, "-f", "json", "--lang")
    assert cli(*command, "zh").out == cli(*command, "en").out


def test_legend_of_the_calculation_is_in_the_language(cli: RunCli) -> None:
    out = cli("explain", "causal()", "-t", "我 喜欢", "--lang", "zh").out
    assert "(0) 被屏蔽" in out
    assert "(0) masked" not in out


def test_recipes_lists_all_and_draws_one(cli: RunCli) -> None:
    out = cli("recipes").out
    for name in mw.recipes.__all__:
        assert name in out or name == "TranslationMasks"
    one = cli("recipes", "sinks").out
    assert "StreamingLLM" in one
    assert repr(mw.recipes.sinks(3, sinks=2)) in one
    assert "8 queries × 8 keys" in one
    three = json.loads(cli("recipes", "translation", "-f", "json").out)
    names = ["translation.encoder", "translation.decoder", "translation.cross"]
    assert [entry["name"] for entry in three] == names
