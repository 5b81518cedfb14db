"""The walk: what is shown is what is run, and what is missing is said in one line."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.tour.chapter import Cell, Chapter, Text
from maskwright.tour.chapters import CHAPTERS
from maskwright.tour.run import walk
from maskwright.tour.steps import Code, Commands, Heading, Missing, Output, Picture, Words
from tests.tour.conftest import shortened

if TYPE_CHECKING:
    from maskwright.tour.steps import Step

NEEDED = ("torch", "jax", "keras", "tokenizers", "safetensors")


def chapter_of(steps: list[Step], number: int) -> list[Step]:
    starts = [at for at, step in enumerate(steps) if isinstance(step, Heading)]
    return steps[starts[number - 1] : [*starts, len(steps)][number]]


def outputs(steps: list[Step]) -> str:
    return "\n".join(step.text for step in steps if isinstance(step, Output))


def test_every_cell_is_shown_and_run(whole: list[Step]) -> None:
    shown = [step.source for step in whole if isinstance(step, Code)]
    assert shown == [cell.code.strip() for part in shortened() for cell in part.cells]
    for step, after in pairwise(whole):
        if isinstance(step, Code):
            assert isinstance(after, (Output, Picture))
    assert not any(isinstance(step, Missing) for step in whole)


def test_the_worked_example_has_its_numbers(whole: list[Step]) -> None:
    steps = chapter_of(whole, 4)
    [picture] = [step for step in steps if isinstance(step, Picture)]
    weights = picture.scene.grids[-1].texts
    assert weights is not None
    assert weights[-1] == ("0.2186", "0.4864", "0.2950")
    assert "[0.2186, 0.4864, 0.295]" in outputs(steps)


def test_five_frameworks_get_the_mask(whole: list[Step]) -> None:
    told = outputs(chapter_of(whole, 5))
    for said in ("SDPA gets", "attention_mask", "cu_seqlens_q", "JAX gets", "Keras gets"):
        assert said in told
    assert "cannot represent prefix(lengths=[3])" in told
    differences = [float(line.split()[-1]) for line in told.splitlines() if "differs by" in line]
    assert len(differences) == 2
    assert max(differences) < 1e-5


def test_attention_is_timed_beside_sdpa(whole: list[Step]) -> None:
    told = outputs(chapter_of(whole, 6))
    assert "the largest difference is" in told
    assert told.count("times as fast") == 3


def test_the_broken_model_is_found_and_the_correct_one_passes(whole: list[Step]) -> None:
    steps = chapter_of(whole, 7)
    told = outputs(steps)
    assert "missing-in-layer" in told
    assert "first in layer layers.2" in told
    assert "Decoder respects causal()" in told
    [picture] = [step for step in steps if isinstance(step, Picture)]
    future = picture.scene.grids[0].kinds[0, 1:]
    assert set(future.tolist()) == {3}  # only what was measured sees it


def test_both_trainings_are_told(whole: list[Step]) -> None:
    told = outputs(chapter_of(whole, 8))
    assert "causal()" in told
    assert "The training loss under everything() is" in told


def test_the_last_chapter_names_commands(whole: list[Step]) -> None:
    assert isinstance(whole[-1], Commands)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 9])
def test_a_chapter_stands_alone_in_chinese_with_the_same_code(number: int) -> None:
    english, chinese = list(walk(number)), list(walk(number, "zh"))
    assert [type(step) for step in english] == [type(step) for step in chinese]
    for one, other in zip(english, chinese, strict=True):
        if isinstance(one, (Heading, Words)):
            assert one != other
        elif isinstance(one, (Code, Output)):
            assert one == other


def test_what_is_missing_is_said_once_and_the_walk_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDED:
        monkeypatch.setitem(sys.modules, name, None)
    steps = list(walk())
    assert [step.number for step in steps if isinstance(step, Heading)] == [*range(1, 10)]
    missing = [step.text for step in steps if isinstance(step, Missing)]
    assert missing == [
        f"Left out, for {names} not installed. Run: pip install 'maskwright[{extras}]'"
        for names, extras in (
            ("torch is", "torch"),
            ("jax is", "jax"),
            ("keras, torch are", "keras,torch"),
            ("torch is", "torch"),
            ("torch is", "torch"),
            ("torch, tokenizers, safetensors are", "apps,torch"),
        )
    ]
    # Without any framework the mask is still handed over as an array.
    assert "[[1, 0, 0, 0], [1, 1, 0, 0]" in outputs(chapter_of(steps, 5))


def test_what_is_missing_is_said_in_chinese_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    [told] = [step.text for step in walk(7, "zh") if isinstance(step, Missing)]
    assert told.endswith("请运行：pip install 'maskwright[torch]'")
    assert "没有安装 torch" in told


@pytest.mark.parametrize("number", [0, len(CHAPTERS) + 1, -1])
def test_no_such_chapter(number: int) -> None:
    with pytest.raises(mw.ArgumentError, match=f"no chapter {number}"):
        list(walk(number))


def test_code_is_shown_before_it_runs() -> None:
    chapter = Chapter(Text("t", "题"), Text("w", "话"), (Cell("1 / 0"),))
    steps = walk(chapters=(chapter,))
    assert [next(steps) for _ in range(3)][-1] == Code("1 / 0")
    with pytest.raises(ZeroDivisionError):
        next(steps)
