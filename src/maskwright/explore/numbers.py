"""The whole numbers in an expression: where they stand, what they are called, how far they may go.

Sliders are made of these. The text is parsed by `ast` and only looked at.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from maskwright.core.atoms import ATOMS
from maskwright.explore.faults import too_large

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.frame import Frame

MOST: Final = 24  # sliders
MOST_ITEMS: Final = 16  # of a list that gets sliders
MOST_RANGE: Final = 2**21  # numbers in all ranges together
DATA: Final = ("array", "map", "keep", "ids", "edges", "parents", "shape", "pad_id")


def numbers_in(expression: str, frame: Frame) -> list[dict[str, Any]]:
    """Every number that a slider could move, in the order of the text.

    >>> import maskwright as mw
    >>> frame = mw.causal().on(8).frame
    >>> numbers_in("causal() & window(back=3)", frame)
    [{'start': 23, 'stop': 24, 'value': 3, 'name': 'back', 'index': [], 'least': 0, 'most': 7}]
    """
    text = expression.strip()
    lead = len(expression) - len(expression.lstrip())
    found = []
    for node, name, index, step in _named(ast.parse(text, mode="eval").body):
        start, stop = _offset(text, node), _offset(text, node, end=True)
        if text[start:stop] != str(node.value):
            continue  # 0x10 or 1_000, which a slider would rewrite
        least, most = _bounds(name, frame, step)
        found.append(
            {
                "start": lead + start,
                "stop": lead + stop,
                "value": node.value,
                "name": name,
                "index": index,
                "least": min(least, node.value),
                "most": max(most, node.value),
            }
        )
    return sorted(found, key=lambda number: number["start"])[:MOST]


def check_ranges(expression: str) -> None:
    """Refuse ranges that would make large arrays, before they make them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's hints on odd code
            tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the library says what is wrong with it
    total = sum(_size(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
    if total > MOST_RANGE:
        raise too_large(
            f"The ranges in the expression have {total} numbers, more than {MOST_RANGE}. "
            "Write shorter ranges."
        )


def _size(call: ast.Call) -> int:
    """How many numbers a range has, at most; 0 for other calls."""
    if not isinstance(call.func, ast.Name) or call.func.id != "range":
        return 0
    ends = [_number(end) for end in call.args]
    if not 1 <= len(ends) <= 3:
        return 0
    start, stop = (0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])
    return abs(stop - start) // (abs(ends[2]) or 1 if len(ends) == 3 else 1)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else 0


def _named(tree: ast.expr) -> Iterator[tuple[Any, str, list[int], int | None]]:
    """The whole numbers that are arguments of atoms, with the argument's name and place."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in ATOMS:
            continue
        names = list(inspect.signature(ATOMS[node.func.id]).parameters)
        given = dict(zip(names, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg is not None}
        step = given.get("step")
        period = None if step is None else _number(step) or None
        for name, value in given.items():
            if name not in DATA:
                for leaf, index in _leaves(value):
                    yield leaf, name, index, period


def _leaves(node: ast.expr) -> Iterator[tuple[ast.Constant, list[int]]]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, []
    elif isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) <= MOST_ITEMS:
        for number, item in enumerate(node.elts):
            for leaf, index in _leaves(item):
                yield leaf, [number, *index]
    elif isinstance(node, ast.Call):  # a range
        for number, item in enumerate(node.args):
            for leaf, index in _leaves(item):
                yield leaf, [number, *index]


def _bounds(name: str, frame: Frame, step: int | None) -> tuple[int, int]:
    keys = frame.kv_len
    if name in ("size", "step", "height", "width"):
        return 1, keys
    if name == "phase":
        return 0, max((step or keys) - 1, 0)
    if name == "lengths":
        return 0, keys
    return 0, max(keys - 1, 0)  # back, ahead, radius, and chosen positions


def _offset(text: str, node: ast.Constant, *, end: bool = False) -> int:
    """Where a node starts or ends, in characters; `ast` counts bytes of a line."""
    line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
    assert line is not None
    assert column is not None
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)  # as Python's own reader cuts them
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
