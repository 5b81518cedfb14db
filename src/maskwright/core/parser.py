"""Text to expression, in a subset of Python's grammar: masks here, biases in `bias.text`.

Nothing is evaluated. `ast` parses the text, each node is checked, and everything that is not part
of the grammar is refused by name. Limits are checked before anything large is created.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import warnings
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from maskwright.core.expression import MAX_DEPTH
from maskwright.core.grammar import MASKS
from maskwright.core.mask_registry import outside_graphs
from maskwright.core.validate import MAX_INT
from maskwright.errors import MaskError, TextError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.core.grammar import Grammar

ExpressionT = TypeVar("ExpressionT")
MAX_CHARACTERS: Final = 200_000
MAX_OPERATORS: Final = 1_000
MAX_VALUES: Final = 100_000  # in one list
MAX_FLOAT: Final = 1e300
MAX_DATA: Final = 2**25  # bytes of all arrays of one expression
MAX_SHOWN: Final = 50  # nodes of a syntax tree that a message shows
_UNEXPANDED: Final = ("keys", "queries")  # atoms that store a range of step 1 as two numbers


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
    return parse_text(text, MASKS)


outside_graphs(parse)


def parse_text(text: str, grammar: Grammar[ExpressionT]) -> ExpressionT:
    """The expression that a text describes in a grammar, within the limits of size and depth."""
    if not isinstance(text, str):
        raise TextError(
            f"{grammar.module}parse: expected a string, got {type(text).__name__}. "
            f"Pass text such as {grammar.example!r}."
        )
    _check_limits(text)
    line = re.sub(r"[\r\n\f\v]", " ", text)  # so that a position in it is a column
    lead = len(line) - len(line.lstrip())
    try:
        return _Parser(grammar).expression(_tree(line.strip(), grammar.example))
    except (RecursionError, MemoryError):
        raise TextError("The text is nested too deeply. Flatten it.") from None
    except MaskError as error:
        if error.at is not None:
            source = line.strip().encode()  # ast counts columns in bytes
            first, stop = (lead + len(source[:byte].decode(errors="ignore")) for byte in error.at)
            error.at = (first, stop)
        raise


def call_atom(
    grammar: Grammar[ExpressionT], name: str, arguments: list[Any], named: dict[str, Any]
) -> ExpressionT:
    """Calls the atom of that name, with a clear message for arguments that it does not have."""
    atom = grammar.atoms[name]
    signature = _signature(atom)
    for key in named:
        if key not in signature.parameters:
            known = ", ".join(signature.parameters)
            fix = f"Expected one of {known}." if known else f"Write {name}()."
            raise TextError(f"{name} has no argument {key:.50}. {fix}")
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        fix = f"See help(maskwright.{grammar.module}{name})."
        raise TextError(f"{name}: {str(error)[:100]}. {fix}") from None
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
    result = TextError(
        f"The text is not an expression: {error.args[0]} at {around!r}. Check brackets and commas."
    )
    first, stop = (len(text[:end].encode()) for end in (place - 1, place))
    result.at = (first, stop)
    return result


class _Parser(Generic[ExpressionT]):
    """Builds the expression of a syntax tree."""

    def __init__(self, grammar: Grammar[ExpressionT]) -> None:
        self.grammar = grammar
        self.budget = DataBudget()

    def expression(self, node: ast.expr) -> ExpressionT:
        """The expression of a node; an error gets the node's position."""
        try:
            return self._expression(node)
        except MaskError as error:
            raise _located(error, node) from error.__cause__

    def _expression(self, node: ast.expr) -> ExpressionT:
        grammar = self.grammar
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp) and type(node.op) in grammar.unary:
            return grammar.unary[type(node.op)](self.expression(node.operand))
        if isinstance(node, ast.Attribute) and node.attr in grammar.attributes:
            expression: ExpressionT = getattr(self.expression(node.value), node.attr)
            return expression
        if isinstance(node, ast.Call):
            return self._call(node)
        logical = isinstance(node, ast.BoolOp) or isinstance(getattr(node, "op", None), ast.Not)
        if logical and ast.BitAnd in grammar.binary:
            raise TextError("`and`, `or` and `not` do not combine masks. Write &, | and ~.")
        if isinstance(node, ast.Name):
            if node.id in grammar.atoms or node.id in grammar.lists:
                raise TextError(f"{node.id} is not called. Write {node.id}(...).")
            raise self._unknown(node.id)
        raise self._refusal(node)

    def _binary(self, node: ast.BinOp) -> ExpressionT:
        # A chain a & b & c is nested to the left: a loop instead of recursion, since it may be long.
        chain: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            chain.append(left)
            left = left.left
        operands = [part.right for part in chain]
        if self.grammar.scaling and isinstance(chain[-1].op, ast.Mult) and _is_number(left):
            left, operands[-1] = operands[-1], left  # 2 * a is a * 2
        expression = self.expression(left)
        for part, operand in zip(reversed(chain), reversed(operands), strict=True):
            expression = self._combine(part, expression, operand)
        return expression

    def _combine(self, node: ast.BinOp, expression: ExpressionT, operand: ast.expr) -> ExpressionT:
        """The expression, combined with the other operand of a node."""
        combine = self.grammar.binary.get(type(node.op))
        try:
            if combine is None:
                raise TextError(
                    f"{type(node.op).__name__} is not an operator of {self.grammar.plural}. "
                    f"Write {self.grammar.symbols}."
                )
            if type(node.op) not in self.grammar.scaling:
                return combine(expression, self.expression(operand))
            if not _is_number(operand):
                raise _located(self._refusal(operand), operand)
            return combine(expression, self._argument(operand, ""))
        except MaskError as error:
            raise _located(error, node) from error.__cause__

    def _call(self, node: ast.Call) -> ExpressionT:
        atoms, lists = self.grammar.atoms, self.grammar.lists
        if isinstance(node.func, ast.Attribute) and node.func.attr in atoms:
            name = node.func.attr
            raise TextError(f"{name}(...) follows a dot. Write it without one, as {name}(...).")
        if not isinstance(node.func, ast.Name):
            raise self._refusal(node.func)
        name = node.func.id
        if name in lists:
            if len(node.args) != 1 or node.keywords or not isinstance(node.args[0], ast.List):
                raise TextError(f"{name} takes one list of masks. Write {name}([a, b]).")
            return lists[name]([self.expression(member) for member in node.args[0].elts])
        if name not in atoms:
            raise _located(self._unknown(name), node.func)
        names = list(_signature(atoms[name]).parameters)
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
        return call_atom(self.grammar, name, arguments, named)

    def _argument(self, node: ast.expr, argument: str) -> Any:
        """A value, a range, or a list of ranges."""
        try:
            if self._is_range(node):
                return self._range(node, argument)
            if isinstance(node, ast.List) and node.elts and all(map(self._is_range, node.elts)):
                return [self._range(part, argument) for part in node.elts]
            return self._value(node)
        except MaskError as error:
            raise _located(error, node) from None

    def _is_range(self, node: ast.expr) -> bool:
        called = isinstance(node, ast.Call) and getattr(node.func, "id", None) == "range"
        return called and self.grammar.ranges

    def _range(self, node: ast.expr, argument: str) -> range:
        assert isinstance(node, ast.Call)
        ends = [self._value(argument) for argument in node.args]
        integers = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
        if node.keywords or not 1 <= len(ends) <= 3 or not integers or ends[2:] == [0]:
            raise TextError("range takes one to three integers. Write range(4) or range(0, 64, 8).")
        return self.budget.spend_range(range(*ends), argument)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and (
            node.value is None or isinstance(node.value, (bool, str, *self.grammar.numbers))
        ):
            for kind, limit, shown in ((int, MAX_INT, "2**62"), (float, MAX_FLOAT, "1e300")):
                if isinstance(node.value, kind) and node.value > limit:
                    raise TextError(f"A number is beyond {shown}. Pass a smaller one.")
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self._value(node.operand)
            if type(number) in self.grammar.numbers:
                return -number
        if isinstance(node, (ast.List, ast.Tuple)):
            if len(node.elts) > MAX_VALUES:
                raise TextError(
                    f"A list has {len(node.elts)} values, more than {MAX_VALUES}. "
                    f"Build the {self.grammar.kind} in Python."
                )
            return [self._value(item) for item in node.elts]
        raise self._refusal(node)

    def _unknown(self, name: str) -> TextError:
        if name == "where":
            return TextError("where(...) contains a Python function. Build that mask in Python.")
        names = [*sorted(self.grammar.atoms), *self.grammar.lists]
        close = difflib.get_close_matches(name[:50], names, n=1)
        shown = name if len(name) <= 50 else name[:50] + "…"
        fix = f"Did you mean {close[0]}?" if close else f"Pass one of {', '.join(names)}."
        return TextError(f"There is no atom {shown}. {fix}")

    def _refusal(self, node: ast.AST) -> TextError:
        if isinstance(node, ast.Attribute):
            shown = f"The attribute .{node.attr:.50}"
        elif isinstance(node, ast.Constant):
            huge = isinstance(node.value, int) and node.value > MAX_INT  # repr() limits digits
            shown = "A number beyond 2**62" if huge else f"The value {node.value!r:.50}"
        elif isinstance(node, ast.Name):
            shown = f"The name {node.id:.50}"
        elif sum(1 for _ in islice(ast.walk(node), MAX_SHOWN + 1)) <= MAX_SHOWN:
            shown = f"The part {ast.unparse(node):.50}"
        else:
            shown = f"A {type(node).__name__} expression"
        return TextError(f"{shown} is not allowed here. Use {self.grammar.allowed}.")


def _located(error: MaskError, node: ast.expr) -> MaskError:
    """The error with the position of the innermost part that caused it."""
    if error.at is None:
        error.at = (node.col_offset, node.end_col_offset or node.col_offset)
    return error


def _is_number(node: ast.expr) -> bool:
    """Whether a node is a number, with at most one sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
