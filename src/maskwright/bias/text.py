"""Text and JSON of biases, in the manner of those of masks.

Text is a subset of Python's grammar: functions of `maskwright.bias`, `+`, `-`, `*`, numbers and
lists. JSON has a versioned schema:

    {"maskwright": 1, "bias": {"sum": [{"atom": "alibi", "slopes": 8}, …]}}

A multiple is {"multiple": [factor, bias]}. An atom is an object of its name and its arguments.
Tensors are written as lists of their current values, and read as arrays.
"""

from __future__ import annotations

import ast
import operator
from typing import Any, Final

from maskwright.bias.atoms import BIASES
from maskwright.bias.expr import Bias, Multiple, Sum
from maskwright.bias.values import parse_factor
from maskwright.core.grammar import Grammar
from maskwright.core.parser import parse_text
from maskwright.core.serialize import read_json, write_json


def _sum(parts: list[Bias]) -> Bias:
    terms = tuple(term for part in parts for term in part._terms())
    return Sum(terms) if len(terms) > 1 else parts[0]


def _multiple(reader: Any, operands: Any) -> Bias:
    match operands:
        case [factor, term]:
            return Multiple(parse_factor(factor, "bias.from_json: the factor"), reader.read(term))
    raise reader.invalid("a multiple has no list of a number and a bias")


GRAMMAR: Final[Grammar[Bias]] = Grammar(
    base=Bias,
    kind="bias",
    plural="biases",
    module="bias.",
    example="alibi(8) + 0.5 * per_key([0.0, 1.0])",
    symbols="+, -, * or /",
    allowed="functions of maskwright.bias, +, -, *, /, numbers and lists",
    atoms=BIASES,
    operators={
        "sum": lambda reader, value: _sum(reader.read_list(value)),
        "multiple": _multiple,
    },
    unary={ast.USub: operator.neg},
    binary={
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
    },
    scaling=(ast.Mult, ast.Div),
    numbers=(int, float),
)


def parse(text: str) -> Bias:
    """The bias that a text describes: functions of `maskwright.bias`, `+`, `-`, `*` and brackets.

    Args:
        text: A bias, as `repr(bias)` shows it.

    Returns:
        The bias, with arrays in place of tensors.

    Raises:
        TextError: If the text is not a bias, or too large. `error.at` is the position of the part
            at fault.
        ArgumentError: If an argument is invalid.

    >>> import maskwright as mw
    >>> mw.bias.parse("alibi(8) - 0.5 * relative([[0, 1, 2]])")
    alibi(8) - 0.5 * relative([[0.0, 1.0, 2.0]])
    """
    return parse_text(text, GRAMMAR)


def to_json(bias: Bias) -> str:
    """The bias as JSON text.

    Args:
        bias: An unbound bias. Tensors are written as their current values.

    Returns:
        The text, which `from_json` reads.

    Raises:
        TextError: If there is more data than `from_json` reads.

    >>> import maskwright as mw
    >>> mw.bias.to_json(0.5 * mw.bias.alibi(8))
    '{"maskwright": 1, "bias": {"multiple": [0.5, {"atom": "alibi", "slopes": 8}]}}'
    """
    return write_json(bias, GRAMMAR)


def from_json(text: str) -> Bias:
    """The bias that `to_json` wrote.

    Args:
        text: JSON text.

    Returns:
        The bias, with arrays in place of tensors.

    Raises:
        TextError: If the text is not JSON of this schema, or too large.
        ArgumentError: If an argument is invalid.

    >>> import maskwright as mw
    >>> mw.bias.from_json('{"maskwright": 1, "bias": {"atom": "alibi", "slopes": [0.5, 0.25]}}')
    alibi([0.5, 0.25])
    """
    return read_json(text, GRAMMAR)
