"""The registered recipes, and an example of each.

The command `maskwright recipes`, the explorer and the documentation list what is registered here.
To add a recipe, write its function, export it in `maskwright.recipes`, and add an entry to
`EXAMPLES`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from maskwright._registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maskwright.core.expr import Mask


class Example(NamedTuple):
    """Small arguments of a recipe, and the number of tokens they fit; None if any."""

    arguments: Mapping[str, Any]
    size: int | None = None


IDS: Final = [[5, 6, 7, 8, 9, 0, 0, 0]]
EXAMPLES: Final[Mapping[str, Example]] = {
    "bert": Example({"ids": IDS}, 8),
    "gpt": Example({"ids": IDS}, 8),
    "translation": Example(
        {"source": [[5, 6, 7, 8, 9, 3, 0, 0]], "target": [[1, 2, 3, 4, 5, 6, 7, 0]]}, 8
    ),
    "prefix_lm": Example({"lengths": 3}),
    "packed": Example({"lengths": [[3, 3, 2]]}, 8),
    "shared_prefix": Example({"prompt": 2, "lengths": [3, 3]}, 8),
    "sliding": Example({"size": 4}),
    "sinks": Example({"size": 3, "sinks": 2}),
    "longformer": Example({"each_side": 1, "global_tokens": [0]}),
    "bigbird": Example({"length": 8, "block": 1, "random_blocks": 1}, 8),
    "sparse_transformer": Example({"size": 3}),
    "chunked": Example({"size": 4}),
    "local_global": Example({"layers": 1, "size": 4}),
    "medusa": Example({"choices": [(0,), (1,), (0, 0), (0, 1), (1, 0)], "past": 3}, 8),
    "block_diffusion": Example({"length": 4, "block": 2}, 8),
    "natten": Example({"height": 4, "width": 4, "kernel": 3}, 16),
    "image_text": Example({"token_types": [0, 0, 1, 1, 1, 0, 0, 0]}, 8),
}

RECIPES: Final[Registry[Callable[..., Any]]] = Registry(
    "recipe", "maskwright", {name: f"recipes:{name}" for name in EXAMPLES}
)


def example_masks(recipe: str) -> Iterator[tuple[str, Mask]]:
    """Yields the masks of a recipe's example by name.

    The name is that of the recipe; where it returns several masks, "recipe.field".

    >>> dict(example_masks("sliding"))
    {'sliding': window(back=3)}
    >>> [name for name, _ in example_masks("translation")]
    ['translation.encoder', 'translation.decoder', 'translation.cross']
    """
    result = RECIPES[recipe](**EXAMPLES[recipe].arguments)
    if hasattr(result, "_fields"):
        yield from ((f"{recipe}.{field}", getattr(result, field)) for field in result._fields)
    else:
        yield recipe, result[0] if isinstance(result, tuple) else result


class RecipeRow(NamedTuple):
    """A mask of a recipe's example, as lists of recipes show it."""

    name: str
    summary: str
    expression: str
    size: int | None  # the only number of tokens that the example fits; None if any


def recipe_table() -> list[RecipeRow]:
    """All recipes with their examples as expressions.

    >>> [row.expression for row in recipe_table() if row.name == "sinks"]
    ['window(back=2) | (keys([0, 1]) & causal())']
    """
    return [
        RecipeRow(name, summary(RECIPES[recipe]), repr(mask), EXAMPLES[recipe].size)
        for recipe in RECIPES
        for name, mask in example_masks(recipe)
    ]


def summary(function: object) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]
