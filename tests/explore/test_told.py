"""What the page is told at once: the vocabulary, the recipes and the lessons."""

from __future__ import annotations

import inspect

import pytest

import maskwright as mw
from maskwright import recipes
from maskwright.core.atoms import ATOMS
from maskwright.explore.lessons import lessons
from maskwright.explore.vocabulary import RECIPE_EXAMPLES, vocabulary
from tests.explore.asking import ask, on


def test_the_vocabulary_has_every_atom_and_recipe() -> None:
    words = vocabulary()
    names = [atom["name"] for atom in words["atoms"]]
    assert names == [*ATOMS, "by_head", "by_batch"]
    for atom in words["atoms"]:
        assert atom["summary"].endswith(".")
        assert atom["signature"].startswith(atom["name"] + "(")
        mw.parse(atom["example"])
    own = {name for name in recipes.__all__ if inspect.isfunction(getattr(recipes, name))}
    assert {recipe["name"].split(".")[0] for recipe in words["recipes"]} == own
    assert words["version"] == mw.__version__


@pytest.mark.parametrize(
    ("name", "mask", "size"), RECIPE_EXAMPLES, ids=[e[0] for e in RECIPE_EXAMPLES]
)
def test_every_recipe_is_an_expression_that_the_page_can_show(
    name: str, mask: mw.Mask, size: int | None
) -> None:
    assert mw.parse(repr(mask)) == mask
    assert ask("mask", subject=on(repr(mask), size=size or 8))["count"] > 0


LESSONS = {lesson["id"]: lesson for lesson in lessons()}


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_can_be_shown(name: str) -> None:
    lesson = LESSONS[name]
    for part in ("title", "text", "look"):
        assert set(lesson[part]) == {"en", "zh"}
        assert all(lesson[part].values())
    assert len(lesson["text"]["en"]) == len(lesson["text"]["zh"])
    state = lesson["state"]
    tokens = None
    if state["text"] is not None:
        tokens = ask("tokens", text=state["text"], side=state["side"])["tokens"]
    subject = {
        "expression": state["expression"],
        "tokens": tokens,
        "padding": state["padding"],
        "size": state["size"],
        "keys": state["keys"],
        "q_start": state["q_start"],
        "batch": state["batches"],
        "heads": state["heads"],
    }
    shown = ask("mask", subject=subject)
    assert shown["empty_rows"] == 0
    if "query" in state:
        assert ask("why", subject=subject, query=state["query"], key=state["key"])["sentence_zh"]
    drawn = {name: state[name] for name in ("seed", "width", "head_size")}
    values = {"scores": state["scores"]} if state["scores"] else drawn
    rest = {name: state[name] for name in ("scaled", "fill", "rows_too")}
    if state["panel"] == "steps" and state["steps_view"] != "scaling":
        assert ask("steps", subject=subject, values=values, **rest)["steps"]
    elif state["panel"] == "generate":
        assert all(row["equal"] for row in ask("generate", subject=subject, values=values)["rows"])
    elif state["panel"] == "compare":
        assert ask("compare", subject=subject, others=state["others"])["others"]


def test_the_lessons_go_through_all_that_was_planned() -> None:
    assert list(LESSONS) == [
        "why", "causal-by-hand", "triu-or-tril", "padding", "column-not-row", "combined",
        "three-masks", "minus-infinity", "three-attentions", "scale", "shapes", "patterns",
        "one-pass",
    ]  # fmt: skip
    by_hand = LESSONS["causal-by-hand"]
    for number in ("0.2186", "0.4864", "0.2950"):
        assert all(number in " ".join(by_hand["text"][lang]) for lang in ("en", "zh"))
