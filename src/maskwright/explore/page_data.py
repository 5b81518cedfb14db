"""Data that the page loads once: atoms, recipes and limits, and the lessons.

`page_data.json` has an example of each atom, and the state of the page that every lesson starts
from, so that nothing remains of the one before. A lesson is a JSON file in `lessons/`, shown in the
order of the file names: its title, paragraphs and what to look at, in English and Chinese, and the
state of the page that shows it.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maskwright import __version__
from maskwright.core.atoms import ATOMS
from maskwright.core.operators import by_batch, by_head
from maskwright.explore import schema
from maskwright.recipes.registry import recipe_table, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maskwright.core.expr import Mask

_DATA: Final = json.loads(Path(__file__).with_name("page_data.json").read_text(encoding="utf-8"))
EXAMPLES: Final[Mapping[str, str]] = _DATA["examples"]


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
    entries = []
    for path in sorted((Path(__file__).parent / "lessons").glob("*.json")):
        lesson = json.loads(path.read_text(encoding="utf-8"))
        name = path.stem.partition("-")[2]  # 01-why.json
        entries.append(
            {**lesson, "id": name, "state": {**_DATA["default_state"], **lesson["state"]}}
        )
    return entries


def _atom(name: str, atom: Callable[..., Mask]) -> dict[str, Any]:
    return {
        "name": name,
        "signature": name + _signature(atom),
        "summary": summary(atom),
        "example": EXAMPLES.get(name, f"{name}()"),
        "size": _DATA["sizes"].get(name),  # the only number of tokens that the example fits
        "least": _DATA["min_sizes"].get(name),
    }


def _signature(function: Callable[..., Any]) -> str:
    """The signature of a function without annotations."""
    parameters = inspect.signature(function).parameters.values()
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))
