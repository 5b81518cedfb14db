"""Data that the page loads once: atoms, recipes and lessons."""

from __future__ import annotations

import inspect

import pytest

import maskwright as mw
from maskwright import recipes
from maskwright.core.atoms import ATOMS
from maskwright.explore.page_data import lessons, vocabulary
from maskwright.recipes.registry import RecipeRow, recipe_table
from tests._helpers.explore_requests import on, post


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


RECIPES = recipe_table()


@pytest.mark.parametrize("recipe", RECIPES, ids=[row.name for row in RECIPES])
def test_every_recipe_is_an_expression_that_the_page_can_show(recipe: RecipeRow) -> None:
    assert repr(mw.parse(recipe.expression)) == recipe.expression
    assert post("mask", subject=on(recipe.expression, size=recipe.size or 8))["count"] > 0


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
        tokens = post("tokens", text=state["text"], side=state["side"])["tokens"]
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
    assert post("mask", subject=subject)["empty_rows"] == 0
    if "query" in state:
        assert post("why", subject=subject, query=state["query"], key=state["key"])["sentence_zh"]
