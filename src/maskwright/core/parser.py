"""Text to mask: Python's own grammar, of which only a short list of forms is allowed.

Nothing is ever evaluated. The text is parsed by `ast`, each node is looked at, and whatever is not
on the list is refused with its name. Limits are checked before anything large is made.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from maskwright.core.atoms import ATOMS
from maskwright.core.expr import MAX_DEPTH, by_batch, by_head
from maskwright.core.validate import MAX_INT
from maskwright.errors import MaskError, TextError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

MAX_CHARACTERS: Final = 200_000
MAX_OPERATORS: Final = 1_000
MAX_VALUES: Final = 100_000  # in one list
MAX_RANGE: Final = 2**22
_BY: Final = {"by_head": by_head, "by_batch": by_batch}


def parse(text: str) -> Mask:
    """The mask that a text spells: atoms, & | ~ -, brackets and .T.

    >>> import maskwright as mw
    >>> mw.parse("causal() & padding(lengths=[3, 4])")
    causal() & padding(lengths=[3, 4])
    >>> mw.parse("__import__('os')")
    Traceback (most recent call last):
    maskwright.errors.TextError: There is no atom named __import__. Give one of blocks, causal, \
chunks, dense, documents, everything, graph, image, keys, nothing, padding, prefix, queries, \
stride, tree, window, by_head, by_batch.
    """
    if not isinstance(text, str):
        raise TextError(f"parse: got {type(text).__name__}. Give a text.")
    _check_limits(text)
    line = re.sub(r"[\r\n\f\v]", " ", text)  # so that every place in it is a column
    lead = len(line) - len(line.lstrip())
    try:
        return _mask(_tree(line.strip()))
    except (RecursionError, MemoryError):
        raise TextError("The text nests too deep. Flatten it.") from None
    except MaskError as error:
        if error.at is not None:
            held = line.strip().encode()  # Python counts columns in bytes
            first, stop = (lead + len(held[:byte].decode(errors="ignore")) for byte in error.at)
            error.at = (first, stop)
        raise


def _check_limits(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"The text has {len(text)} characters, more than {MAX_CHARACTERS}. "
            "Build the mask in Python, or give arrays as JSON."
        )
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)  # what stands in quotes nests nothing
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]]", bare):
        depth += 1 if bracket in "([" else -1
        deepest = max(deepest, depth)
    operators = len(re.findall(r"[&|~+*/%^@<>.]|-(?!\d)|\b(?:not|and|or|if|lambda)\b", bare))
    if deepest > MAX_DEPTH or operators > MAX_OPERATORS:
        raise TextError(
            f"The text has more than {MAX_DEPTH} nested brackets or {MAX_OPERATORS} operators. "
            "Split it, or give dense(...)."
        )


def _tree(text: str) -> ast.expr:
    if not text:
        raise TextError("The text is empty. Write for example causal() & window(back=3).")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's hints on odd code: ours is the error below
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise _syntax_error(text, error) from None


def _syntax_error(text: str, error: SyntaxError | ValueError) -> TextError:
    if not isinstance(error, SyntaxError) or error.offset is None:
        return TextError(
            f"The text is no expression ({error}). Write for example causal() & window(back=3)."
        )
    place = error.offset or len(text)  # 0 is Python's word for the end
    around = text[max(0, place - 20) : place + 20]
    found = TextError(
        f"The text is no expression: {error.args[0]} at {around!r}. Check brackets and commas."
    )
    first, stop = (len(text[:end].encode()) for end in (place - 1, place))
    found.at = (first, stop)
    return found


def _mask(node: ast.expr) -> Mask:
    try:
        return _read(node)
    except MaskError as error:
        raise _blamed(error, node) from error.__cause__


def _blamed(error: MaskError, node: ast.expr) -> MaskError:
    """The error, with the innermost part of the text that is at fault."""
    if error.at is None:
        error.at = (node.col_offset, node.end_col_offset or node.col_offset)
    return error


def _read(node: ast.expr) -> Mask:
    if isinstance(node, ast.BinOp):
        return _binary(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return ~_mask(node.operand)
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return _mask(node.value).T
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    ):
        raise TextError("`and`, `or` and `not` do not combine masks. Write &, | and ~.")
    if isinstance(node, ast.Name):
        known = node.id in ATOMS or node.id in _BY
        raise TextError(
            f"{node.id} is not called. Write {node.id}(...)." if known else _unknown(node.id)
        )
    raise _refusal(node)


def _binary(node: ast.BinOp) -> Mask:
    # A chain a & b & c leans left: walk down it instead of recursing, so that it may be long.
    right: list[tuple[ast.operator, ast.expr]] = []
    left: ast.expr = node
    while isinstance(left, ast.BinOp):
        right.append((left.op, left.right))
        left = left.left
    mask = _mask(left)
    for operator, term in reversed(right):
        if isinstance(operator, ast.BitAnd):
            mask = mask & _mask(term)
        elif isinstance(operator, ast.BitOr):
            mask = mask | _mask(term)
        elif isinstance(operator, ast.Sub):
            mask = mask - _mask(term)
        else:
            raise TextError(
                f"{type(operator).__name__} is no operator of masks. Write &, |, ~ or -."
            )
    return mask


def _call(node: ast.Call) -> Mask:
    if isinstance(node.func, ast.Attribute) and node.func.attr in ATOMS:
        raise TextError(
            f"{node.func.attr}(...) stands behind a dot. Write it alone, as {node.func.attr}(...)."
        )
    if not isinstance(node.func, ast.Name):
        raise _refusal(node.func)
    name = node.func.id
    if name in _BY:
        if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.List):
            raise TextError(f"{name} takes one list of masks. Write {name}([a, b]).")
        return _BY[name]([_mask(member) for member in node.args[0].elts])
    if name not in ATOMS:
        raise _blamed(TextError(_unknown(name)), node.func)
    arguments = [_argument(argument) for argument in node.args]
    named: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise TextError(f"{name}: ** is not allowed. Write the arguments out.")
        if keyword.arg in named:
            raise TextError(f"{name}: {keyword.arg:.50} is given twice. Give it once.")
        named[keyword.arg] = _argument(keyword.value)
    return call(name, arguments, named)


def call(name: str, arguments: list[Any], named: dict[str, Any]) -> Mask:
    """The atom of that name, with Python's own complaint about arguments turned into ours."""
    atom = ATOMS[name]
    takes = inspect.signature(atom)
    for given in named:
        if given not in takes.parameters:
            known = ", ".join(takes.parameters) or "none"
            raise TextError(f"{name} has no argument named {given:.50}. Give one of {known}.")
    try:
        takes.bind(*arguments, **named)
    except TypeError as error:
        raise TextError(f"{name}: {str(error)[:100]}. See help(maskwright.{name}).") from None
    return atom(*arguments, **named)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, (bool, int, str))
    ):
        if isinstance(node.value, int) and node.value > MAX_INT:
            raise TextError("A number is beyond 2**62. Give a smaller one.")
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand)
        if isinstance(number, int) and not isinstance(number, bool):
            return -number
    if isinstance(node, (ast.List, ast.Tuple)):
        if len(node.elts) > MAX_VALUES:
            raise TextError(
                f"A list has {len(node.elts)} values, more than {MAX_VALUES}. Build it in Python."
            )
        return [_value(item) for item in node.elts]
    raise _refusal(node)


def _argument(node: ast.expr) -> Any:
    """A value, or a range: only here, so that a short text can't ask for many."""
    try:
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "range":
            return _range(node)
        return _value(node)
    except MaskError as error:
        raise _blamed(error, node) from None


def _range(node: ast.Call) -> range:
    ends = [_value(argument) for argument in node.args]
    whole = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
    if node.keywords or not 1 <= len(ends) <= 3 or not whole or (len(ends) == 3 and ends[2] == 0):
        raise TextError(
            "range takes one to three whole numbers. Write range(4) or range(0, 64, 8)."
        )
    steps = range(*ends)
    # len() of a huge range overflows, so its size is worked out by hand.
    size = max(
        0, (steps.stop - steps.start + steps.step - (1 if steps.step > 0 else -1)) // steps.step
    )
    if size > MAX_RANGE:
        raise TextError(f"A range has {size} values, more than {MAX_RANGE}. Build it in Python.")
    return steps


def _unknown(name: str) -> str:
    names = [*sorted(ATOMS), *_BY]
    if name == "where":
        return "where(...) holds Python code, which text can't. Build that mask in Python."
    close = difflib.get_close_matches(name[:50], names, n=1)
    shown = name if len(name) <= 50 else name[:50] + "…"
    if close:
        return f"There is no atom named {shown}. Did you mean {close[0]}?"
    return f"There is no atom named {shown}. Give one of {', '.join(names)}."


def _refusal(node: ast.AST) -> TextError:
    if isinstance(node, ast.Attribute):
        shown = f"The attribute .{node.attr:.50}"
    elif isinstance(node, ast.Constant):
        shown = f"The value {node.value!r:.50}"
    elif isinstance(node, ast.Name):
        shown = f"The name {node.id:.50}"
    else:
        shown = f"The part {ast.unparse(node):.50}"
    return TextError(
        f"{shown} is not allowed here. Use atoms, &, |, ~, -, .T, whole numbers, lists and range()."
    )
