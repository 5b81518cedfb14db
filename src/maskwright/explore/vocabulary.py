"""What may be written in the expression box: the atoms, and the recipes as expressions of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from maskwright._version import __version__
from maskwright.core.atoms import ATOMS
from maskwright.core.expr import by_batch, by_head
from maskwright.explore import requests as limits
from maskwright.explore.fields import MAX_BYTES
from maskwright.recipes.registry import EXAMPLES as EXAMPLES_OF_RECIPES
from maskwright.recipes.registry import RECIPES, example_masks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maskwright.core.expr import Mask

EXAMPLES: Final[Mapping[str, str]] = {
    "everything": "everything()",
    "nothing": "nothing()",
    "causal": "causal()",
    "window": "window(back=3)",
    "padding": "padding(lengths=[5, 8])",
    "documents": "documents(lengths=[[3, 5]])",
    "prefix": "prefix(3)",
    "chunks": "chunks(4)",
    "stride": "stride(2)",
    "keys": "keys([0, 1])",
    "queries": "queries([0])",
    "tree": "tree([-1, 0, 0, 1, 1, 2, 2, 3])",
    "graph": "graph([[0, 1], [1, 2], [2, 5]])",
    "image": "image(2, 4, radius=1)",
    "blocks": "blocks([[1, 0], [1, 1]], size=4)",
    "dense": "dense([[1, 0], [1, 1]])",
    "by_head": "by_head([causal(), window(back=2)])",
    "by_batch": "by_batch([causal(), everything()])",
}
# Examples that hold data fit only one number of tokens, or need at least so many.
SIZES: Final[Mapping[str, int]] = {"tree": 8, "image": 8, "blocks": 8, "dense": 2}
LEAST: Final[Mapping[str, int]] = {"padding": 8, "documents": 8, "graph": 6}
# Examples of all recipes: name, mask, and the only number of tokens that it fits, if any.
RECIPE_EXAMPLES: Final[tuple[tuple[str, Mask, int | None], ...]] = tuple(
    (name, mask, EXAMPLES_OF_RECIPES[recipe].size)
    for recipe in RECIPES
    for name, mask in example_masks(recipe)
)


def vocabulary() -> dict[str, Any]:
    """Atoms and recipes with what they do, the version, and the limits of requests.

    >>> words = vocabulary()
    >>> words["atoms"][3]["signature"]
    'window(back, ahead=0)'
    >>> words["recipes"][8]["expression"]
    'window(back=3)'
    """
    atoms = {**ATOMS, "by_head": by_head, "by_batch": by_batch}
    return {
        "atoms": [_atom(name, atom) for name, atom in atoms.items()],
        "recipes": [
            {
                "name": name,
                "summary": _summary(RECIPES[name.partition(".")[0]]),
                "expression": repr(mask),
                "size": size,
            }
            for name, mask, size in RECIPE_EXAMPLES
        ],
        "version": __version__,
        "limits": {
            "characters": limits.MOST_LETTERS,
            "sequences": limits.MOST_SEQUENCES,
            "tokens": limits.MOST_TOKENS,
            "token_characters": limits.LONGEST_TOKEN,
            "size": limits.MOST_SIZE,
            "planes": limits.MOST_PLANES,
            "signs": limits.MOST_SIGNS,
            "steps": limits.MOST_STEPS,
            "bytes": MAX_BYTES,
        },
    }


def _atom(name: str, atom: Callable[..., Mask]) -> dict[str, Any]:
    return {
        "name": name,
        "signature": name + bare_signature(atom),
        "summary": _summary(atom),
        "example": EXAMPLES[name],
        "size": SIZES.get(name),
        "least": LEAST.get(name),
    }


def bare_signature(function: Callable[..., Any]) -> str:
    """The arguments without their types."""
    taken = inspect.signature(function)
    bare = [
        given.replace(annotation=inspect.Parameter.empty) for given in taken.parameters.values()
    ]
    return str(inspect.Signature(bare))


def _summary(function: object) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
