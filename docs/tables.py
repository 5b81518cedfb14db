"""Tables of atoms, recipes and targets, from their signatures, docstrings and capabilities."""

from __future__ import annotations

import inspect

import maskwright as mw
from maskwright.core.atoms import ATOMS
from maskwright.recipes.registry import RECIPES


def atoms() -> str:
    """A row for each atom."""
    names = [*ATOMS, "where", "by_head", "by_batch"]
    return _calls({name: getattr(mw, name) for name in names})


def recipes() -> str:
    """A row for each recipe."""
    return _calls({f"recipes.{name}": recipe for name, recipe in sorted(RECIPES.items())})


def targets() -> str:
    """A row for each target: which masks it supports, and in which format."""
    head = ["to", "returns", "supports", "polarity", "shape", "alignment", "a fully masked row"]
    rows = [f"| {' | '.join([*head, 'tested'])} |", "|---" * (len(head) + 1) + "|"]
    for name, it in mw.capabilities().items():
        cells = [f"`{name}`", it.returns, it.supports, it.polarity, it.shape, it.alignment]
        rows.append(f"| {' | '.join([*cells, it.empty_rows, it.tested])} |")
    return "\n".join(rows)


def _calls(functions: dict[str, object]) -> str:
    """A row for each function: how it is called, and the first line of its docstring."""
    rows = ["| say | a query sees |", "|---|---|"]
    for name, function in functions.items():
        assert callable(function)
        given = ", ".join(
            name if kind.default is inspect.Parameter.empty else f"{name}={_default(kind)}"
            for name, kind in inspect.signature(function).parameters.items()
        )
        first = (inspect.getdoc(function) or "").splitlines()[0]
        rows.append(f"| `{name}({given})` | {first} |")
    return "\n".join(rows)


def _default(parameter: inspect.Parameter) -> str:
    """What stands for an argument that is left out."""
    return "…" if parameter.default is None else repr(parameter.default)
