"""The registry of recipes is complete, and each recipe has an example."""

from __future__ import annotations

import inspect

import pytest

import maskwright as mw
from maskwright import recipes
from maskwright.recipes.registry import EXAMPLES, RECIPES, example_masks


def test_all_exported_functions_are_registered() -> None:
    functions = {name for name in recipes.__all__ if inspect.isfunction(getattr(recipes, name))}
    assert set(RECIPES) == set(EXAMPLES) == functions
    for name, recipe in RECIPES.items():
        assert recipe is getattr(recipes, name)


@pytest.mark.parametrize("name", RECIPES)
def test_examples_can_be_bound_and_parsed(name: str) -> None:
    size = EXAMPLES[name].size
    masks = dict(example_masks(name))
    assert masks
    for mask in masks.values():
        assert mw.parse(repr(mask)) == mask
        assert mask.on(size or 8).count() > 0


def test_unknown_recipes_are_rejected_with_suggestion() -> None:
    with pytest.raises(mw.ArgumentError, match=r"longfromer.*longformer"):
        RECIPES.resolve("longfromer", "recipes")
