"""Masks as JSON, by a versioned schema.

    {"maskwright": 1, "mask": {"and": [{"atom": "causal"}, {"atom": "prefix", "lengths": [3]}]}}

An operator is an object of one key (`and`, `or`, `not`, `transpose`, `by_head`, `by_batch`). An
atom is an object of its name and its arguments, which are the fields of its class. Evenly spaced
integers are {"range": [start, stop, step]}, several ranges a list of such objects, and an array
with long runs of equal values is {"runs": [[value, count], …], "shape": […]}.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from maskwright.core.atoms import ATOMS
from maskwright.core.expr import (
    MAX_DEPTH,
    MAX_NODES,
    And,
    Atom,
    Composite,
    Mask,
    Or,
    by_batch,
    by_head,
)
from maskwright.core.parser import DataBudget, call
from maskwright.core.validate import MAX_INT, FrozenArray, plain
from maskwright.errors import TextError

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION: Final = 1
MAX_CHARACTERS: Final = 4_000_000
MIN_RUNS: Final = 64  # values from which an array may be written as runs
MAX_DIMS: Final = 4
# Arguments that store one byte per value
_BOOLEAN: Final = {"dense.array", "blocks.map", "padding.keep", "keys.where", "queries.where"}

_UNARY: Final[dict[str, Callable[[Mask], Mask]]] = {
    "not": lambda mask: ~mask,
    "transpose": lambda mask: mask.T,
}
_VARIADIC: Final[dict[str, Callable[[list[Mask]], Mask]]] = {
    "and": lambda parts: _chain(And, parts),
    "or": lambda parts: _chain(Or, parts),
    "by_head": by_head,
    "by_batch": by_batch,
}


def to_json(mask: Mask) -> str:
    """Writes a mask as JSON.

    Args:
        mask: An unbound mask.

    Returns:
        The text, which `from_json` reads.

    Raises:
        TextError: If the mask contains `where(...)`, or more data than `from_json` reads.

    >>> import maskwright as mw
    >>> mw.to_json(mw.causal() & ~mw.keys([1]))
    '{"maskwright": 1, "mask": {"and": [{"atom": "causal"}, {"not": {"atom": "keys", "where": [1]}}]}}'
    """
    if not isinstance(mask, Mask):
        raise TextError(
            f"to_json: expected a mask, got {type(mask).__name__}. Pass an unbound mask."
        )
    text = json.dumps({"maskwright": VERSION, "mask": _Writer().write(mask)})
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"to_json: the JSON would have {len(text)} characters, from_json reads at most "
            f"{MAX_CHARACTERS}. Store the data in an array file, and build the mask from it."
        )
    return text


def from_json(text: str) -> Mask:
    """Reads a mask that `to_json` wrote.

    Args:
        text: JSON text.

    Returns:
        The mask.

    Raises:
        TextError: If the text is not JSON of this schema, or describes too much data.
        ArgumentError: If an argument of an atom is invalid.

    >>> import maskwright as mw
    >>> mw.from_json('{"maskwright": 1, "mask": {"atom": "window", "back": 3}}')
    window(back=3)
    """
    if not isinstance(text, str):
        raise TextError(
            f"from_json: expected a string, got {type(text).__name__}. Pass what to_json returned."
        )
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"from_json: the JSON has {len(text)} characters, more than {MAX_CHARACTERS}. "
            "Build the mask in Python."
        )
    try:
        document = json.loads(text)
    except RecursionError:
        raise TextError("from_json: the JSON is nested too deeply. Flatten it.") from None
    except ValueError as error:
        raise TextError(f"from_json: invalid JSON: {error}. Pass what to_json returned.") from None
    if not isinstance(document, dict) or set(document) != {"maskwright", "mask"}:
        raise TextError(
            'from_json: expected an object with the keys "maskwright" and "mask". '
            "Pass what to_json returned."
        )
    if type(document["maskwright"]) is not int or document["maskwright"] != VERSION:
        raise TextError(
            f"from_json: the JSON has version {document['maskwright']!r:.50}, expected {VERSION}. "
            "Use the maskwright that wrote it."
        )
    return _Reader().read(document["mask"], 1)


class _Writer:
    """Writes a mask as a JSON document, within the limits of reading it."""

    def __init__(self) -> None:
        self.budget = DataBudget()

    def write(self, mask: Mask) -> dict[str, Any]:
        """The object of a mask."""
        if isinstance(mask, Composite):
            parts = [self.write(part) for part in mask._parts()]
            return {mask.operator: parts[0] if mask.operator in _UNARY else parts}
        atom = cast("Atom", mask)
        if not atom.serializable:
            raise TextError(
                f"to_json: {mask!r:.80} contains a Python function, which JSON cannot represent. "
                "Pass dense(...) instead."
            )
        name, arguments = atom._call()
        return {
            "atom": name,
            **{key: self._value(x, f"{name}.{key}") for key, x in arguments.items()},
        }

    def _value(self, value: Any, argument: str) -> Any:
        if isinstance(value, range):
            self.budget.spend_range(value, argument)
            return {"range": [value.start, value.stop, value.step]}
        if isinstance(value, tuple) and value and isinstance(value[0], range):
            return [self._value(part, argument) for part in value]
        if isinstance(value, FrozenArray) and value.data.size > MIN_RUNS:
            flat = value.data.ravel().astype(np.int64)
            begins = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))
            if 4 * begins.size < flat.size:
                if value.data.dtype == np.bool_:
                    self.budget.spend(flat.size)
                else:
                    self.budget.spend_integers(flat.size, argument)
                counts = np.diff(begins, append=flat.size)
                runs = np.stack([flat[begins], counts], axis=1).tolist()
                return {"runs": runs, "shape": list(value.data.shape)}
        return plain(value)


def _chain(kind: type[And | Or], parts: list[Mask]) -> Mask:
    terms = [term for part in parts for term in part._terms_of(kind)]
    return kind(tuple(terms)) if len(terms) > 1 else parts[0]


class _Reader:
    """Builds the mask of a JSON document, and limits the data that it describes."""

    def __init__(self) -> None:
        self.budget = DataBudget()

    def read(self, node: Any, depth: int) -> Mask:
        """The mask of an object."""
        if depth > MAX_DEPTH:
            raise TextError(f"from_json: nested deeper than {MAX_DEPTH} operators. Flatten it.")
        if not isinstance(node, dict):
            raise TextError(
                f"from_json: expected an object for a mask, got {type(node).__name__}. "
                "Pass what to_json returned."
            )
        if "atom" in node:
            return self._atom(dict(node))
        if len(node) == 1:
            ((operator, value),) = node.items()
            if operator in _UNARY:
                return _UNARY[operator](self.read(value, depth + 1))
            if operator in _VARIADIC and isinstance(value, list) and value:
                if len(value) > MAX_NODES:
                    raise TextError(
                        f'from_json: "{operator}" has more than {MAX_NODES} masks. Make it smaller.'
                    )
                return _VARIADIC[operator]([self.read(part, depth + 1) for part in value])
        raise TextError(
            f"from_json: {sorted(node)!r:.80} is not an operator with its masks. "
            "Pass what to_json returned."
        )

    def _atom(self, node: dict[str, Any]) -> Mask:
        name = node.pop("atom")
        if not isinstance(name, str) or name not in ATOMS:
            raise TextError(
                f"from_json: there is no atom {name!r:.50}. Pass what to_json returned."
            )
        return call(
            name, [], {key: self._value(value, f"{name}.{key}") for key, value in node.items()}
        )

    def _value(self, value: Any, argument: str) -> Any:
        """An argument, with ranges and runs expanded."""
        if isinstance(value, list) and value and all(_is_range(part) for part in value):
            return [self._range(part, argument) for part in value]
        if not isinstance(value, dict):
            return value
        if _is_range(value):
            return self._range(value, argument)
        if set(value) == {"runs", "shape"} and _are_integers(value["shape"], None):
            runs, shape = value["runs"], value["shape"]
            if (
                len(shape) <= MAX_DIMS
                and isinstance(runs, list)
                and all(_are_integers(run, 2) and run[1] > 0 for run in runs)
            ):
                total = sum(count for _, count in runs)
                if total == math.prod(shape) and min(shape, default=0) > 0:
                    return self._repeat(runs, shape, total, argument)
        raise TextError(
            'from_json: an argument is neither {"range": [start, stop, step]} nor {"runs": '
            '[[value, count], …], "shape": […]}. Pass what to_json returned.'
        )

    def _repeat(self, runs: list[list[int]], shape: list[int], total: int, argument: str) -> Any:
        values = np.array([value for value, _ in runs], np.int64)
        if argument in _BOOLEAN and bool(((values == 0) | (values == 1)).all()):
            self.budget.spend(total)
            values = values.astype(np.uint8)
        else:
            self.budget.spend_integers(total, argument)
        return np.repeat(values, [count for _, count in runs]).reshape(shape)

    def _range(self, value: dict[str, list[int]], argument: str) -> range:
        start, stop, step = value["range"]
        if step < 1:
            raise TextError(f"from_json: a range has step {step}. Expected 1 or more.")
        return self.budget.spend_range(range(start, stop, step), argument)


def _is_range(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"range"} and _are_integers(value["range"], 3)


def _are_integers(values: Any, count: int | None) -> bool:
    """Whether this is a list of `count` integers that an array can hold."""
    return (
        isinstance(values, list)
        and (count is None or len(values) == count)
        and all(type(value) is int and abs(value) <= MAX_INT for value in values)
    )
