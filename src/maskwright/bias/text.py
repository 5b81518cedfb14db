"""Text and JSON of biases, in the manner of those of masks.

Text is a subset of Python's grammar: functions of `maskwright.bias`, `+`, `-`, `*`, numbers and
lists. JSON has a versioned schema:

    {"maskwright": 1, "bias": {"sum": [{"atom": "alibi", "slopes": 8}, …]}}

A multiple is {"multiple": [factor, bias]}. An atom is an object of its name and its arguments.
Tensors are written as lists of their current values, and read as arrays.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
from typing import TYPE_CHECKING, Any, Final

from maskwright.bias.atoms import BIASES
from maskwright.bias.expr import MAX_DEPTH, MAX_TERMS, Bias, BiasAtom, Multiple, Sum
from maskwright.bias.values import Values, parse_factor
from maskwright.core.parser import MAX_VALUES, checked_call, located, read_source
from maskwright.core.serialize import MAX_CHARACTERS, VERSION
from maskwright.errors import MaskError, TextError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE: Final = "alibi(8) + 0.5 * per_key([0.0, 1.0])"


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
    if not isinstance(text, str):
        raise TextError(
            f"bias.parse: expected a string, got {type(text).__name__}. Pass text such as 'alibi(8)'."
        )
    return read_source(text, _bias, EXAMPLE)


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
    if not isinstance(bias, Bias):
        raise TextError(
            f"bias.to_json: expected a bias, got {type(bias).__name__}. Pass an unbound bias."
        )
    text = json.dumps({"maskwright": VERSION, "bias": _write(bias)})
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"bias.to_json: the JSON would have {len(text)} characters, from_json reads at most "
            f"{MAX_CHARACTERS}. Store the values in an array file, and build the bias from it."
        )
    return text


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
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        given = type(text).__name__ if not isinstance(text, str) else f"{len(text)} characters"
        raise TextError(
            f"bias.from_json: expected a string of at most {MAX_CHARACTERS} characters, got {given}. "
            "Pass what bias.to_json returned."
        )
    try:
        document = json.loads(text)
    except RecursionError:
        raise TextError("bias.from_json: the JSON is nested too deeply. Flatten it.") from None
    except ValueError as error:
        raise _invalid(f"invalid JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != {"maskwright", "bias"}:
        raise _invalid('expected an object with the keys "maskwright" and "bias"')
    version = document["maskwright"]
    if type(version) is not int or version != VERSION:
        raise _invalid(f"the JSON has version {version!r:.50}, expected {VERSION}")
    return _read(document["bias"], 1)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────


def _write(bias: Bias) -> dict[str, Any]:
    if isinstance(bias, Sum):
        return {"sum": [_write(term) for term in bias.terms]}
    if isinstance(bias, Multiple):
        return {"multiple": [bias.factor, _write(bias.term)]}
    assert isinstance(bias, BiasAtom)
    name, arguments = bias._call()
    plain = {key: x.tolist() if isinstance(x, Values) else x for key, x in arguments.items()}
    return {"atom": name, **plain}


def _read(node: Any, depth: int) -> Bias:
    if depth > MAX_DEPTH:
        raise _invalid(f"nested deeper than {MAX_DEPTH} operators")
    if not isinstance(node, dict):
        raise _invalid(f"expected an object for a bias, got {type(node).__name__}")
    if "atom" in node:
        name = node["atom"]
        if not isinstance(name, str) or name not in BIASES:
            raise _invalid(f"there is no bias {name!r:.50}")
        named = {key: value for key, value in node.items() if key != "atom"}
        return checked_call(BIASES[name], name, [], named)
    match list(node.items()):
        case [("sum", [_, _, *_] as parts)] if len(parts) <= MAX_TERMS:
            terms = [_read(part, depth + 1) for part in parts]
            return Sum(tuple(term for part in terms for term in part._terms()))
        case [("multiple", [factor, part])]:
            return Multiple(
                parse_factor(factor, "bias.from_json: the factor"), _read(part, depth + 1)
            )
    raise _invalid(f"{sorted(node)!r:.80} is neither a sum, a multiple nor an atom")


def _invalid(reason: str) -> TextError:
    return TextError(f"bias.from_json: {reason}. Pass what bias.to_json returned.")


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def _bias(node: ast.expr) -> Bias:
    """The bias of a node; an error gets the node's position."""
    try:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            return _sum(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            return _multiple(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -_bias(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return _call(node, node.func.id)
    except MaskError as error:
        raise located(error, node) from error.__cause__
    raise located(_refusal(node), node)


def _sum(node: ast.BinOp) -> Bias:
    # A chain a + b + c is nested to the left: a loop instead of recursion, since it may be long.
    signed: list[tuple[bool, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp) and isinstance(left.op, (ast.Add, ast.Sub)):
        signed.append((isinstance(left.op, ast.Sub), left.right))
        left = left.left
    parts = [_bias(left)]
    for negative, term in reversed(signed):
        part = _bias(term)
        parts.append(-part if negative else part)
    return Sum(tuple(term for part in parts for term in part._terms()))


def _multiple(node: ast.BinOp) -> Bias:
    if isinstance(node.op, ast.Div):
        return _bias(node.left) / _number(node.right)
    number, term = (node.left, node.right)
    if _is_number(node.right) and not _is_number(node.left):
        number, term = term, number
    return _bias(term) * _number(number)


def _call(node: ast.Call, name: str) -> Bias:
    if name not in BIASES:
        raise located(TextError(_unknown(name)), node.func)
    known = list(inspect.signature(BIASES[name]).parameters)
    named: dict[str, Any] = {}
    for key, value in _arguments(node, name, known):
        if key in named:
            raise TextError(f"{name}: {key:.50} is passed twice. Pass it once.")
        named[key] = _value(value)
    return checked_call(BIASES[name], name, [], named)


def _arguments(node: ast.Call, name: str, known: list[str]) -> Iterator[tuple[str, ast.expr]]:
    if len(node.args) > len(known):
        raise TextError(f"{name} takes {len(known)} arguments, got {len(node.args)}.")
    yield from zip(known, node.args, strict=False)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise TextError(f"{name}: ** is not supported. Write out the arguments.")
        yield keyword.arg, keyword.value


def _value(node: ast.expr) -> Any:
    """A number, a boolean, a string, or nested lists of numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, str)):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        if len(node.elts) > MAX_VALUES:
            raise located(
                TextError(f"A list has more than {MAX_VALUES} values. Build the bias in Python."),
                node,
            )
        return [_value(item) for item in node.elts]
    if _is_number(node):
        return _number(node)
    raise located(_refusal(node), node)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _number(node: ast.expr) -> float:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if abs(value) > 1e300:
            raise located(TextError("A number is beyond 1e300. Pass a smaller one."), node)
        return sign * value
    raise located(_refusal(node), node)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name[:50], BIASES, n=1)
    fix = f"Did you mean {close[0]}?" if close else f"Pass one of {', '.join(BIASES)}."
    return f"There is no bias {name:.50}. {fix}"


def _refusal(node: ast.AST) -> TextError:
    kind = f"The name {node.id:.50}" if isinstance(node, ast.Name) else type(node).__name__
    return TextError(
        f"{kind} is not allowed here. Use functions of maskwright.bias, +, -, *, numbers and lists."
    )
