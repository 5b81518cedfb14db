"""The expression of a request: parsed and bound, with its cost estimated before it is evaluated.

Also the integers in the text of an expression, for which the page shows sliders.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from maskwright.core.atoms import ATOMS, padding
from maskwright.core.expr import brief, data_size
from maskwright.core.parser import parse
from maskwright.core.simplify import simplify
from maskwright.draw import masks as pictures
from maskwright.errors import FrameError, MaskError
from maskwright.explore.error_responses import ADVICE, HTTPError, to_http_error, too_large
from maskwright.explore.schema import MAX_PLANES, PAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.explore.schema import Subject, View

MAX_INTERVALS: Final = 2**23  # that are read for one response
MAX_SIMPLIFIED_NODES: Final = 200
MAX_SHOWN_DATA: Final = 20_000  # values in a text
MAX_RANGE: Final = 2**21  # integers in all ranges of an expression
MAX_SLIDERS: Final = 24
MAX_SLIDERS_PER_LIST: Final = 16
NO_SLIDERS: Final = ("array", "map", "keep", "ids", "edges", "parents", "shape", "pad_id")


# ── binding ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BoundSubject:
    """A mask, bound to its sizes, and the tokens of each sequence if there are any."""

    mask: Mask
    bound: BoundMask
    tokens: tuple[tuple[str, ...], ...] | None

    @cached_property
    def max_intervals(self) -> int:
        """An estimate of the intervals that are read for the whole mask."""
        return max_intervals(self.bound, self.bound.shape[2], self.bound.shape[3])

    @property
    def countable(self) -> bool:
        """Whether the whole mask may be read."""
        return self.max_intervals <= MAX_INTERVALS

    def labels(self, batch: int) -> tuple[str, ...] | None:
        """The tokens of one sequence."""
        return None if self.tokens is None else self.tokens[batch if len(self.tokens) > 1 else 0]


def bind(
    subject: Subject,
    expression: str | None = None,
    batch: int | None = None,
    heads: int | None = None,
) -> BoundSubject:
    """Binds the subject's expression, or another one, to the subject's sizes."""
    text = subject.expression if expression is None else expression
    check_ranges(text)
    mask = parse(text)
    tokens = subject.tokens
    if tokens is None:
        bound = mask.on(
            subject.size,
            subject.keys,
            batch or subject.batch,
            heads or subject.heads,
            subject.q_start,
        )
        return BoundSubject(mask, _check_num_planes(bound), None)
    keep = [[token != PAD for token in row] for row in tokens]
    if subject.padding and not all(map(all, keep)):
        mask = mask & padding(keep=keep)
    num_sequences = len(tokens) if len(tokens) > 1 else batch
    bound = mask.on(len(tokens[0]), None, num_sequences, heads)
    return BoundSubject(mask, _check_num_planes(bound), tokens)


def bind_together(subject: Subject, expressions: tuple[str, ...]) -> list[BoundSubject]:
    """Binds the subject's mask and others to one frame, with the largest batch and heads of all."""
    subjects = [bind(subject), *(_bind_other(subject, expression) for expression in expressions)]
    frames = [bound_subject.bound.frame for bound_subject in subjects]
    batch, heads = max(f.batch for f in frames), max(f.heads for f in frames)
    if all((f.batch, f.heads) == (batch, heads) for f in frames):
        return subjects
    return [
        bind(subject, None, batch, heads),
        *(_bind_other(subject, expression, batch, heads) for expression in expressions),
    ]


def _bind_other(subject: Subject, text: str, *planes: int) -> BoundSubject:
    """Binds a mask to compare with; an error names it."""
    try:
        return bind(subject, text, *planes)
    except MaskError as error:
        http_error = to_http_error(error)
        message = f"In {text:.60}: {http_error.message}"
        raise HTTPError(http_error.status, message, http_error.kind, http_error.at) from None


def _check_num_planes(bound: BoundMask) -> BoundMask:
    frame = bound.frame
    for name, size in (("sequences", frame.batch), ("heads", frame.heads)):
        if size > MAX_PLANES:
            raise too_large(f"The mask has {size} {name}, expected at most {MAX_PLANES}.")
    return bound


def check_plane(bound: BoundMask, batch: int, head: int) -> None:
    """Raises FrameError if the mask has no such batch row or head."""
    frame = bound.frame
    for name, index, size in (("batch", batch, frame.batch), ("head", head, frame.heads)):
        if index >= size:
            raise FrameError(
                f"{name} {index} does not exist. Choose a number from 0 to {size - 1}."
            )


def check_view(bound: BoundMask, view: View | None) -> pictures.View | None:
    """The view as `maskwright.draw` takes it. Raises FrameError if it exceeds the mask."""
    if view is None:
        return None
    rows, keys = bound.shape[2:]
    if view.row + view.rows > rows or view.key + view.keys > keys:
        raise FrameError(
            f"The view ends at row {view.row + view.rows} and key {view.key + view.keys}, but the "
            f"mask has {rows} rows and {keys} keys. Choose a view within the mask."
        )
    return pictures.View(view.row, view.rows, view.key, view.keys)


def check_intervals(count: int, max_count: int = MAX_INTERVALS) -> None:
    """Raises HTTPError if it would take too long to read this number of intervals."""
    if count > max_count:
        raise too_large(
            f"This mask may have {count:,} intervals, expected at most {max_count:,}. {ADVICE}"
        )


def max_intervals(bound: BoundMask, rows: int, keys: int) -> int:
    """An upper estimate of the intervals that are read for some rows and keys."""
    planes = max(1, bound.shape[0] * bound.shape[1])
    return planes * rows * (max(1, bound.mask._width(keys)) + bound.mask._nodes - 1)


def text_of(mask: Mask) -> str:
    """The mask as text, without its data if that is very long."""
    return repr(mask) if data_size(mask) <= MAX_SHOWN_DATA else brief(mask)


def simplified_text(mask: Mask) -> str | None:
    """The text of the simplified mask if it is shorter."""
    if mask._nodes > MAX_SIMPLIFIED_NODES:
        return None
    text, simplified = text_of(mask), text_of(simplify(mask))
    return simplified if len(simplified) < len(text) else None


# ── integers in the text ──────────────────────────────────────────────────────────────────────


def sliders(expression: str, frame: Frame) -> list[dict[str, Any]]:
    """The integers that a slider can change, in the order of the text.

    >>> import maskwright as mw
    >>> sliders("causal() & window(back=3)", mw.causal().on(8).frame)
    [{'start': 23, 'stop': 24, 'value': 3, 'name': 'back', 'index': [], 'least': 0, 'most': 7}]
    """
    text = expression.strip()
    indent = len(expression) - len(expression.lstrip())
    result = []
    for node, name, index, step in _arguments(ast.parse(text, mode="eval").body):
        start, stop = _offset(text, node), _offset(text, node, end=True)
        if text[start:stop] != str(node.value):
            continue  # 0x10 or 1_000, which a slider would rewrite
        minimum, maximum = _bounds(name, frame, step)
        result.append(
            {
                "start": indent + start,
                "stop": indent + stop,
                "value": node.value,
                "name": name,
                "index": index,
                "least": min(minimum, node.value),
                "most": max(maximum, node.value),
            }
        )
    return sorted(result, key=lambda slider: slider["start"])[:MAX_SLIDERS]


def check_ranges(expression: str) -> None:
    """Raises HTTPError if ranges in the expression would make large arrays."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning
            tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # `parse` raises with a better message
    total = sum(_range_size(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
    if total > MAX_RANGE:
        raise too_large(
            f"The ranges in the expression have {total} integers, expected at most {MAX_RANGE}. "
            "Write shorter ranges."
        )


def _range_size(call: ast.Call) -> int:
    """The maximum length of a range; 0 for other calls."""
    if not isinstance(call.func, ast.Name) or call.func.id != "range":
        return 0
    ends = [_integer(end) for end in call.args]
    if not 1 <= len(ends) <= 3:
        return 0
    start, stop = (0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])
    return abs(stop - start) // (abs(ends[2]) or 1 if len(ends) == 3 else 1)


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_integer(node.operand)
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else 0


def _arguments(tree: ast.expr) -> Iterator[tuple[Any, str, list[int], int | None]]:
    """Integer arguments of atoms: node, name of the argument, index in it, and the atom's step."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in ATOMS:
            continue
        names = list(inspect.signature(ATOMS[node.func.id]).parameters)
        arguments = dict(zip(names, node.args, strict=False))
        arguments |= {word.arg: word.value for word in node.keywords if word.arg is not None}
        step = _integer(arguments["step"]) or None if "step" in arguments else None
        for name, value in arguments.items():
            if name not in NO_SLIDERS:
                for leaf, index in _leaves(value):
                    yield leaf, name, index, step


def _leaves(node: ast.expr) -> Iterator[tuple[ast.Constant, list[int]]]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, []
        return
    items: list[ast.expr] = []
    if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) <= MAX_SLIDERS_PER_LIST:
        items = node.elts
    elif isinstance(node, ast.Call):  # range()
        items = node.args
    for number, item in enumerate(items):
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
    return 0, max(keys - 1, 0)  # back, ahead, radius, and positions


def _offset(text: str, node: ast.Constant, *, end: bool = False) -> int:
    """The index of a node's start or end in characters; `ast` counts bytes in a line."""
    line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
    assert line is not None
    assert column is not None
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)  # the lines of Python's tokenizer
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
