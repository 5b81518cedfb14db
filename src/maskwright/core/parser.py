"""Text to mask, in a subset of Python's grammar.

Nothing is evaluated. `ast` parses the text, each node is checked, and everything that is not a mask
expression is refused by name. Limits are checked before anything large is created.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from maskwright.core.atoms import ATOMS
from maskwright.core.expr import MAX_DEPTH, by_batch, by_head
from maskwright.core.mask_registry import outside_graphs
from maskwright.core.validate import MAX_INT
from maskwright.errors import MaskError, TextError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask

ValueT = TypeVar("ValueT")
MAX_CHARACTERS: Final = 200_000
MAX_OPERATORS: Final = 1_000
MAX_VALUES: Final = 100_000  # in one list
MAX_DATA: Final = 2**25  # bytes of all arrays of one expression
MAX_SHOWN: Final = 50  # nodes of a syntax tree that a message shows
_UNEXPANDED: Final = ("keys", "queries")  # atoms that store a range of step 1 as two numbers
_BY: Final = {"by_head": by_head, "by_batch": by_batch}


class DataBudget:
    """Limits the data of one expression, so that a short text cannot describe gigabytes.

    >>> DataBudget().spend(2**40)
    Traceback (most recent call last):
    maskwright.errors.TextError: The arrays of the expression need more than 33.6 MB. \
Build the mask in Python.
    """

    def __init__(self) -> None:
        self.left = MAX_DATA

    def spend(self, size: int) -> None:
        """Takes `size` bytes from the budget."""
        self.left -= size
        if self.left < 0:
            raise TextError(
                f"The arrays of the expression need more than {MAX_DATA / 1e6:.1f} MB. "
                "Build the mask in Python."
            )

    def spend_range(self, values: range, argument: str) -> range:
        """Takes the size of a range from the budget; `argument` is "atom.argument"."""
        # len() of a huge range overflows.
        count = max(0, -((values.start - values.stop) // values.step))
        if values.step < 0:
            count = max(0, -((values.stop - values.start) // -values.step))
        if argument.partition(".")[0] in _UNEXPANDED:
            self.spend(16 if values.step == 1 else 16 * count)
        else:
            self.spend_integers(count, argument)
        return values

    def spend_integers(self, count: int, argument: str) -> None:
        """Takes `count` integers from the budget."""
        # Lengths of documents are stored as tuples, and parents of a tree are checked for cycles.
        self.spend(count * {"documents.lengths": 256, "tree.parents": 32}.get(argument, 8))


def parse(text: str) -> Mask:
    """Parses a mask expression: atoms, `&`, `|`, `~`, `-`, brackets and `.T`.

    Args:
        text: A mask expression, as `repr(mask)` shows it.

    Returns:
        The mask.

    Raises:
        TextError: If the text is not a mask expression, or too large. `error.at` is the position
            of the part at fault.
        ArgumentError: If an argument of an atom is invalid.

    >>> import maskwright as mw
    >>> mw.parse("causal() & padding(lengths=[3, 4])")
    causal() & padding(lengths=[3, 4])
    >>> mw.parse("__import__('os')")
    Traceback (most recent call last):
    maskwright.errors.TextError: There is no atom __import__. Pass one of blocks, causal, \
chunks, dense, documents, everything, graph, image, keys, nothing, padding, prefix, queries, \
stride, tree, window, by_head, by_batch.
    """
    if not isinstance(text, str):
        raise TextError(
            f"parse: expected a string, got {type(text).__name__}. Pass text such as 'causal()'."
        )
    return read_source(text, _Parser().mask, "causal() & window(back=3)")


outside_graphs(parse)


def read_source(text: str, build: Callable[[ast.expr], ValueT], example: str) -> ValueT:
    """What `build` makes of the syntax tree of a text, within the limits of size and depth.

    Args:
        text: The text.
        build: Makes the result; the error of a part has its position, by `located`.
        example: A valid text, for messages.
    """
    _check_limits(text)
    line = re.sub(r"[\r\n\f\v]", " ", text)  # so that a position in it is a column
    lead = len(line) - len(line.lstrip())
    try:
        return build(_tree(line.strip(), example))
    except (RecursionError, MemoryError):
        raise TextError("The text is nested too deeply. Flatten it.") from None
    except MaskError as error:
        if error.at is not None:
            source = line.strip().encode()  # ast counts columns in bytes
            first, stop = (lead + len(source[:byte].decode(errors="ignore")) for byte in error.at)
            error.at = (first, stop)
        raise


def call(name: str, arguments: list[Any], named: dict[str, Any]) -> Mask:
    """Calls the atom of that name, with a clear message for wrong arguments."""
    return checked_call(ATOMS[name], name, arguments, named)


def checked_call(
    atom: Callable[..., ValueT], name: str, arguments: list[Any], named: dict[str, Any]
) -> ValueT:
    """Calls a function, with a clear message for arguments that it does not have."""
    signature = _signature(atom)
    for key in named:
        if key not in signature.parameters:
            known = ", ".join(signature.parameters)
            fix = f"Expected one of {known}." if known else f"Write {name}()."
            raise TextError(f"{name} has no argument {key:.50}. {fix}")
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        raise TextError(f"{name}: {str(error)[:100]}. See help(maskwright.{name}).") from None
    return atom(*arguments, **named)


_signature = cache(inspect.signature)


def _check_limits(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"The text has {len(text)} characters, more than {MAX_CHARACTERS}. "
            "Build it in Python, or pass arrays as JSON."
        )
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)  # brackets in strings do not nest
    bare = re.sub(r"\b\d+\.\d*", "0", bare)  # the point of a number is no operator
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]]", bare):
        depth += 1 if bracket in "([" else -1
        deepest = max(deepest, depth)
    operators = len(re.findall(r"[&|~+*/%^@<>.]|-(?!\d)|\b(?:not|and|or|if|lambda)\b", bare))
    operators += text.count("{")  # of f-strings, which are slow to parse
    if deepest > MAX_DEPTH or operators > MAX_OPERATORS:
        raise TextError(
            f"The text has more than {MAX_DEPTH} nested brackets or {MAX_OPERATORS} operators. "
            "Split it, or use dense(...)."
        )


def _tree(text: str, example: str) -> ast.expr:
    if not text:
        raise TextError(f"The text is empty. Write for example {example}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of Python about unusual code; the error below replaces them
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise _syntax_error(text, error, example) from None


def _syntax_error(text: str, error: SyntaxError | ValueError, example: str) -> TextError:
    if not isinstance(error, SyntaxError) or error.offset is None:
        return TextError(f"The text is not an expression ({error}). Write for example {example}.")
    place = error.offset or len(text)  # 0 means the end
    around = text[max(0, place - 20) : place + 20]
    found = TextError(
        f"The text is not an expression: {error.args[0]} at {around!r}. Check brackets and commas."
    )
    first, stop = (len(text[:end].encode()) for end in (place - 1, place))
    found.at = (first, stop)
    return found


class _Parser:
    """Builds the mask of a syntax tree."""

    def __init__(self) -> None:
        self.budget = DataBudget()

    def mask(self, node: ast.expr) -> Mask:
        """The mask of a node; an error gets the node's position."""
        try:
            return self._mask(node)
        except MaskError as error:
            raise located(error, node) from error.__cause__

    def _mask(self, node: ast.expr) -> Mask:
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            return ~self.mask(node.operand)
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return self.mask(node.value).T
        if isinstance(node, ast.Call):
            return self._call(node)
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

    def _binary(self, node: ast.BinOp) -> Mask:
        # A chain a & b & c is nested to the left: a loop instead of recursion, since it may be long.
        right: list[tuple[ast.operator, ast.expr]] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            right.append((left.op, left.right))
            left = left.left
        mask = self.mask(left)
        for operator, term in reversed(right):
            if isinstance(operator, ast.BitAnd):
                mask = mask & self.mask(term)
            elif isinstance(operator, ast.BitOr):
                mask = mask | self.mask(term)
            elif isinstance(operator, ast.Sub):
                mask = mask - self.mask(term)
            else:
                raise TextError(
                    f"{type(operator).__name__} is not an operator of masks. Write &, |, ~ or -."
                )
        return mask

    def _call(self, node: ast.Call) -> Mask:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ATOMS:
            name = node.func.attr
            raise TextError(f"{name}(...) follows a dot. Write it without one, as {name}(...).")
        if not isinstance(node.func, ast.Name):
            raise _refusal(node.func)
        name = node.func.id
        if name in _BY:
            if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.List):
                raise TextError(f"{name} takes one list of masks. Write {name}([a, b]).")
            return _BY[name]([self.mask(member) for member in node.args[0].elts])
        if name not in ATOMS:
            raise located(TextError(_unknown(name)), node.func)
        names = list(_signature(ATOMS[name]).parameters)
        arguments = [
            self._argument(argument, f"{name}.{names[index] if index < len(names) else index}")
            for index, argument in enumerate(node.args)
        ]
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise TextError(f"{name}: ** is not supported. Write out the arguments.")
            if keyword.arg in named:
                raise TextError(f"{name}: {keyword.arg:.50} is passed twice. Pass it once.")
            named[keyword.arg] = self._argument(keyword.value, f"{name}.{keyword.arg}")
        return call(name, arguments, named)

    def _argument(self, node: ast.expr, argument: str) -> Any:
        """A value, a range, or a list of ranges."""
        try:
            if _is_range(node):
                return self._range(node, argument)
            if isinstance(node, ast.List) and node.elts and all(map(_is_range, node.elts)):
                return [self._range(part, argument) for part in node.elts]
            return _value(node)
        except MaskError as error:
            raise located(error, node) from None

    def _range(self, node: ast.expr, argument: str) -> range:
        assert isinstance(node, ast.Call)
        ends = [_value(argument) for argument in node.args]
        integers = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
        if node.keywords or not 1 <= len(ends) <= 3 or not integers or ends[2:] == [0]:
            raise TextError("range takes one to three integers. Write range(4) or range(0, 64, 8).")
        return self.budget.spend_range(range(*ends), argument)


def located(error: MaskError, node: ast.expr) -> MaskError:
    """The error with the position of the innermost part that caused it."""
    if error.at is None:
        error.at = (node.col_offset, node.end_col_offset or node.col_offset)
    return error


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "range"


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, (bool, int, str))
    ):
        if isinstance(node.value, int) and node.value > MAX_INT:
            raise TextError("A number is beyond 2**62. Pass a smaller one.")
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand)
        if isinstance(number, int) and not isinstance(number, bool):
            return -number
    if isinstance(node, (ast.List, ast.Tuple)):
        if len(node.elts) > MAX_VALUES:
            raise TextError(
                f"A list has {len(node.elts)} values, more than {MAX_VALUES}. "
                "Build the mask in Python."
            )
        return [_value(item) for item in node.elts]
    raise _refusal(node)


def _unknown(name: str) -> str:
    names = [*sorted(ATOMS), *_BY]
    if name == "where":
        return "where(...) contains a Python function. Build that mask in Python."
    close = difflib.get_close_matches(name[:50], names, n=1)
    shown = name if len(name) <= 50 else name[:50] + "…"
    if close:
        return f"There is no atom {shown}. Did you mean {close[0]}?"
    return f"There is no atom {shown}. Pass one of {', '.join(names)}."


def _refusal(node: ast.AST) -> TextError:
    if isinstance(node, ast.Attribute):
        shown = f"The attribute .{node.attr:.50}"
    elif isinstance(node, ast.Constant):
        huge = isinstance(node.value, int) and node.value > MAX_INT  # repr() has a limit of digits
        shown = "A number beyond 2**62" if huge else f"The value {node.value!r:.50}"
    elif isinstance(node, ast.Name):
        shown = f"The name {node.id:.50}"
    elif sum(1 for _ in islice(ast.walk(node), MAX_SHOWN + 1)) <= MAX_SHOWN:
        shown = f"The part {ast.unparse(node):.50}"
    else:
        shown = f"A {type(node).__name__} expression"
    return TextError(
        f"{shown} is not allowed here. Use atoms, &, |, ~, -, .T, integers, lists and range()."
    )
