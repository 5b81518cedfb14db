"""Expressions as JSON, by a versioned schema: masks here, biases in `bias.text`.

    {"maskwright": 1, "mask": {"and": [{"atom": "causal"}, {"atom": "prefix", "lengths": [3]}]}}

An operator is an object of one key (`and`, `or`, `not`, `transpose`, `by_head`, `by_batch`). An
atom is an object of its name and its arguments, which are the fields of its class. Evenly spaced
integers are {"range": [start, stop, step]}, several ranges a list of such objects, and an array
with long runs of equal values is {"runs": [[value, count], …], "shape": […]}.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import numpy as np

from maskwright.core.expr import MAX_NODES
from maskwright.core.expression import MAX_DEPTH, CompositeExpression
from maskwright.core.grammar import MASKS
from maskwright.core.parser import DataBudget, call_atom
from maskwright.core.validate import MAX_INT, FrozenArray, plain
from maskwright.errors import TextError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.core.expression import AtomExpression, Expression
    from maskwright.core.grammar import Grammar

ExpressionT = TypeVar("ExpressionT")
VERSION: Final = 1
MAX_CHARACTERS: Final = 4_000_000
MIN_RUNS: Final = 64  # values from which an array may be written as runs
MAX_DIMS: Final = 4
# Arguments that store one byte per value
_BOOLEAN: Final = {"dense.array", "blocks.map", "padding.keep", "keys.where", "queries.where"}


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
    return write_json(mask, MASKS)


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
    return read_json(text, MASKS)


def write_json(expression: Expression, grammar: Grammar[Any]) -> str:
    """The expression as JSON; `to_json` for any grammar."""
    function = f"{grammar.module}to_json"
    if not isinstance(expression, grammar.base):
        raise TextError(
            f"{function}: expected a {grammar.kind}, got {type(expression).__name__}. "
            f"Pass an unbound {grammar.kind}."
        )
    text = json.dumps({"maskwright": VERSION, grammar.kind: _Writer().write(expression)})
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"{function}: the JSON would have {len(text)} characters, from_json reads at most "
            f"{MAX_CHARACTERS}. Store the data in an array file, and build the {grammar.kind} from it."
        )
    return text


def read_json(text: str, grammar: Grammar[ExpressionT]) -> ExpressionT:
    """The expression of a JSON text; `from_json` for any grammar."""
    reader = _Reader(grammar)
    if not isinstance(text, str):
        raise reader.invalid(f"expected a string, got {type(text).__name__}")
    if len(text) > MAX_CHARACTERS:
        raise reader.invalid(
            f"the JSON has {len(text)} characters, more than {MAX_CHARACTERS}",
            f"Build the {grammar.kind} in Python.",
        )
    try:
        document = json.loads(text)
    except RecursionError:
        raise reader.invalid("the JSON is nested too deeply", "Flatten it.") from None
    except ValueError as error:
        raise reader.invalid(f"invalid JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != {"maskwright", grammar.kind}:
        raise reader.invalid(f'expected an object with the keys "maskwright" and "{grammar.kind}"')
    version = document["maskwright"]
    if type(version) is not int or version != VERSION:
        raise reader.invalid(
            f"the JSON has version {version!r:.50}, expected {VERSION}",
            "Use the maskwright that wrote it.",
        )
    return reader.read(document[grammar.kind])


class _Writer:
    """Writes an expression as a JSON document, within the limits of reading it."""

    def __init__(self) -> None:
        self.budget = DataBudget()

    def write(self, expression: Expression) -> dict[str, Any]:
        """The object of an expression."""
        if isinstance(expression, CompositeExpression):
            parts = [self.write(part) for part in expression._parts()]
            return {expression.operator: expression._operands(parts)}
        atom = cast("AtomExpression", expression)
        if not atom.serializable:
            raise TextError(
                f"to_json: {atom!r:.80} contains a Python function, which JSON cannot represent. "
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


class _Reader(Generic[ExpressionT]):
    """Builds the expression of a JSON document, and limits the data that it describes."""

    def __init__(self, grammar: Grammar[ExpressionT]) -> None:
        self.grammar = grammar
        self.budget = DataBudget()
        self.depth = 0

    def invalid(self, reason: str, fix: str = "") -> TextError:
        """The error for a document that `to_json` does not write."""
        module = self.grammar.module
        fix = fix or f"Pass what {module}to_json returned."
        return TextError(f"{module}from_json: {reason}. {fix}")

    def read(self, node: Any) -> ExpressionT:
        """The expression of an object."""
        if not isinstance(node, dict):
            kind = self.grammar.kind
            raise self.invalid(f"expected an object for a {kind}, got {type(node).__name__}")
        if "atom" in node:
            return self._atom(dict(node))
        self.depth += 1
        if self.depth >= MAX_DEPTH:
            raise self.invalid(f"nested deeper than {MAX_DEPTH} operators", "Flatten it.")
        name = next(iter(node), "")
        if len(node) != 1 or name not in self.grammar.operators:
            raise self.invalid(
                f"{sorted(node)!r:.80} is not an operator with its {self.grammar.plural}"
            )
        expression = self.grammar.operators[name](self, node[name])
        self.depth -= 1
        return expression

    def read_list(self, values: Any) -> list[ExpressionT]:
        """The expressions of a list of objects, which is the value of an operator."""
        if not isinstance(values, list) or not values:
            raise self.invalid(f"an operator has no list of {self.grammar.plural}")
        if len(values) > MAX_NODES:
            many = f"an operator has more than {MAX_NODES} {self.grammar.plural}"
            raise self.invalid(many, "Make it smaller.")
        return [self.read(value) for value in values]

    def _atom(self, node: dict[str, Any]) -> ExpressionT:
        name = node.pop("atom")
        if not isinstance(name, str) or name not in self.grammar.atoms:
            raise self.invalid(f"there is no atom {name!r:.50}")
        arguments = {key: self._value(value, f"{name}.{key}") for key, value in node.items()}
        return call_atom(self.grammar, name, [], arguments)

    def _value(self, value: Any, argument: str) -> Any:
        """An argument, with ranges and runs expanded."""
        if not self.grammar.ranges:
            return value
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
        raise self.invalid(
            'an argument is neither {"range": [start, stop, step]} nor {"runs": '
            '[[value, count], …], "shape": […]}'
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
            raise self.invalid(f"a range has step {step}", "Expected 1 or more.")
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
