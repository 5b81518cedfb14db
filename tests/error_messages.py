"""Every message that an error of maskwright can carry, read from its source.

A message is turned into a template: what is filled in stands in braces, as the source spells it.
Names that hold a text, helpers that return one, and sentences that a caller passes are followed,
and every alternative is a template of its own.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import maskwright.errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# What is raised for people to read, and which of its arguments is the message.
ERRORS = {
    **dict.fromkeys(maskwright.errors.__all__, 0),
    "BadParameter": 0,  # of the command line
    "UsageError": 0,  # of pytest's
    "Fault": 1,  # of the explorer
    "AttributeError": 0,  # these three by rules of Python's
    "KeyError": 0,
    "MemoryError": 0,
}
MOST = 16  # alternatives of one text; what has more is left in braces
DEEPEST = 4  # names followed within names

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Message:
    """One thing that an error may say, and the file that says it."""

    file: str
    error: str
    text: str


def read_messages(files: Iterable[Path], root: Path) -> list[Message]:
    """All messages of these files, sorted by file, each once."""
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text()) for path in files}
    return sorted(set(Package(trees).messages()))


def bare(text: str, instead: str = "") -> str:
    """A template without what is filled in, or with the same word for all of it."""
    while (shorter := re.sub(r"\{[^{}]*\}", instead, text)) != text:
        text = shorter
    return text


@dataclass(frozen=True)
class Call:
    """A call, the function that it stands in, and the file."""

    node: ast.Call
    function: Function | None
    file: str

    def given(self, place: int, name: str = "") -> ast.expr | None:
        """What is passed there, or by that name."""
        named = [word.value for word in self.node.keywords if name and word.arg == name]
        return next(iter(named or self.node.args[place : place + 1]), None)


class Package:
    """All files: who calls whom, and what the names in them may hold."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.functions: dict[tuple[str, str], Function] = {}
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.constants = {file: _set_by(tree.body) for file, tree in trees.items()}
        self._sentences: dict[tuple[str, str], list[str]] = {}
        for file, tree in trees.items():
            for function, node in _inner(tree):
                if isinstance(node, Function):
                    self.functions[file, node.name] = node
                elif isinstance(node, ast.Call):
                    self.calls[_name_of(node.func)].append(Call(node, function, file))

    def messages(self) -> Iterator[Message]:
        """All that is said, where it is said: by an error, or by a helper that makes one."""
        makers = [(error, error, place) for error, place in ERRORS.items()]
        for error, made_by, place in makers:  # grows while it is read
            for call in self.calls[made_by]:
                node = call.given(place)
                if node is None or (made_by != error and not isinstance(call.node.func, ast.Name)):
                    continue
                if isinstance(node, ast.Name) and (maker := _passes_on(call.function, node.id)):
                    if (entry := (error, *maker)) not in makers:
                        makers.append(entry)
                    continue
                for text in self.texts(node, call.function, call.file):
                    yield Message(call.file, error, " ".join(text.split()))

    def texts(
        self, node: ast.expr, function: Function | None, file: str, depth: int = 0
    ) -> list[str]:
        """All texts that an expression may give; its source in braces where that is not known."""
        found = self._texts(node, function, file, depth)
        return found if found and len(found) <= MOST else ["{" + ast.unparse(node) + "}"]

    def _texts(self, node: ast.expr, function: Function | None, file: str, depth: int) -> list[str]:
        def inside(part: ast.expr) -> list[str]:
            return self.texts(part, function, file, depth)

        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [node.value]
        if isinstance(node, ast.JoinedStr):
            return ["".join(parts) for parts in product(*map(inside, node.values))]
        if isinstance(node, ast.FormattedValue):
            return inside(node.value)
        if isinstance(node, ast.BinOp) and _is_joined(node):
            return [a + b for a in inside(node.left) for b in inside(node.right)]
        if isinstance(node, ast.IfExp):
            return inside(node.body) + inside(node.orelse)
        return [] if depth == DEEPEST else self._followed(node, function, file, depth + 1)

    def _followed(
        self, node: ast.expr, function: Function | None, file: str, depth: int
    ) -> list[str]:
        """What a name was set to, what a helper returns, or what callers pass."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            helper = self.functions.get((file, node.func.id))
            given = [] if helper is None else _returned(helper)
            function = helper
        elif isinstance(node, ast.Name):
            given = [] if function is None else _set_in(function).get(node.id, [])
            if not given and function is not None and node.id in _parameters(function):
                return self._passed(function, node.id, depth)
            if not given and node.id.isupper():
                known = (self.constants[file], *self.constants.values())
                given = next((names[node.id] for names in known if node.id in names), [])
        else:
            return []
        found = [text for one in given for text in self.texts(one, function, file, depth)]
        return found if any(" " in bare(text) for text in found) else []

    def _passed(self, function: Function, name: str, depth: int) -> list[str]:
        """The sentences that callers pass; a word or a number stays in braces."""
        asked = function.name, name
        if asked not in self._sentences:
            self._sentences[asked] = []  # for a function that passes it on to itself
            place = _parameters(function).index(name)
            found = []
            for call in self.calls[function.name]:
                if (node := call.given(place, name)) is not None:
                    found += self.texts(node, call.function, call.file, depth)
            if all(not text or bare(text).endswith(".") for text in found):
                self._sentences[asked] = found
        return self._sentences[asked]


def _inner(tree: ast.Module) -> Iterator[tuple[Function | None, ast.AST]]:
    """Every node of a file, and the function that it stands in."""
    left: list[tuple[Function | None, ast.AST]] = [(None, tree)]
    while left:
        function, node = left.pop()
        yield function, node
        below = node if isinstance(node, Function) else function
        left += [(below, child) for child in ast.iter_child_nodes(node)]


def _passes_on(function: Function | None, name: str) -> tuple[str, int] | None:
    """Whether the message is a parameter of this function: its name, and which parameter."""
    if function is None or name not in _parameters(function):
        return None
    return function.name, _parameters(function).index(name)


def _parameters(function: Function) -> list[str]:
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _returned(function: Function) -> list[ast.expr]:
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]


@cache
def _set_in(function: Function) -> dict[str, list[ast.expr]]:
    return _set_by(ast.walk(function))


def _set_by(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """What every name is set to by these statements."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id].append(node.value)
    return found


def _is_joined(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Add) and any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        or (isinstance(side, ast.BinOp) and _is_joined(side))
        for side in (node.left, node.right)
    )


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
