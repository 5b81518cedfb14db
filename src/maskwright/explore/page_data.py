"""Data that the page loads once: atoms, recipes and limits, and the lessons.

A lesson is a JSON file in `lessons/`, shown in the order of the file names: its title, paragraphs
and what to look at, in English and Chinese, and the state of the page that shows it.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maskwright import __version__
from maskwright.core.atoms import ATOMS
from maskwright.core.expr import by_batch, by_head
from maskwright.explore import schema
from maskwright.recipes.registry import recipe_table, summary

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
SIZES: Final[Mapping[str, int]] = {"tree": 8, "image": 8, "blocks": 8, "dense": 2}
MIN_SIZES: Final[Mapping[str, int]] = {"padding": 8, "documents": 8, "graph": 6}

# Every lesson sets the whole state, so that nothing remains of the one before.
DEFAULT_STATE: Final[dict[str, Any]] = {
    "expression": "causal()",
    "text": None,
    "side": "right",
    "padding": True,
    "size": 8,
    "keys": None,
    "q_start": None,
    "batches": None,
    "heads": None,
    "others": [],
    "values": None,
    "scores": None,
    "seed": 0,
    "width": 3,
    "head_size": 2,
    "scaled": True,
    "fill": "-inf",
    "rows_too": False,
    "softcap": None,
    "bias": None,
    "sink": None,
    "steps_view": "steps",
    "panel": "steps",
}


def vocabulary() -> dict[str, Any]:
    """Atoms and recipes with their summaries and examples, the version, and the limits.

    >>> words = vocabulary()
    >>> words["atoms"][3]["signature"]
    'window(back, ahead=0)'
    >>> words["recipes"][8]["expression"]
    'window(back=3)'
    """
    atoms = {**ATOMS, "by_head": by_head, "by_batch": by_batch}
    return {
        "atoms": [_atom(name, atom) for name, atom in atoms.items()],
        "recipes": [row._asdict() for row in recipe_table()],
        "version": __version__,
        "limits": {
            "characters": schema.MAX_TEXT,
            "sequences": schema.MAX_SEQUENCES,
            "tokens": schema.MAX_TOKENS,
            "token_characters": schema.MAX_TOKEN_LENGTH,
            "size": schema.MAX_SIZE,
            "planes": schema.MAX_PLANES,
            "signs": schema.MAX_GRID_CELLS,
            "steps": schema.MAX_STEPS,
            "bytes": schema.MAX_BODY,
        },
    }


def lessons() -> list[dict[str, Any]]:
    """All lessons in order.

    >>> lessons()[1]["state"]["scores"]
    [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
    """
    found = []
    for path in sorted((Path(__file__).parent / "lessons").glob("*.json")):
        lesson = json.loads(path.read_text(encoding="utf-8"))
        name = path.stem.partition("-")[2]  # 01-why.json
        found.append({**lesson, "id": name, "state": {**DEFAULT_STATE, **lesson["state"]}})
    return found


def _atom(name: str, atom: Callable[..., Mask]) -> dict[str, Any]:
    return {
        "name": name,
        "signature": name + _signature(atom),
        "summary": summary(atom),
        "example": EXAMPLES.get(name, f"{name}()"),
        "size": SIZES.get(name),  # the only number of tokens that the example fits
        "least": MIN_SIZES.get(name),
    }


def _signature(function: Callable[..., Any]) -> str:
    """The signature of a function without annotations."""
    parameters = inspect.signature(function).parameters.values()
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))
