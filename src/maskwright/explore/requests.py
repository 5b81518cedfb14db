"""What the page may ask, each request a record whose fields are checked and bounded.

Reading one allocates nothing larger than the request itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maskwright.explore.faults import too_large, wrong
from maskwright.explore.fields import (
    WORDS,
    Fields,
    parse_float,
    parse_int,
    read_list,
    read_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAD: Final = "<PAD>"
MOST_LETTERS: Final = 20_000  # of an expression, or of the sentences
MOST_SEQUENCES: Final = 8
MOST_TOKENS: Final = 256
LONGEST_TOKEN: Final = 64
MOST_SIZE: Final = 2**20
MOST_PLANES: Final = 64  # batch rows, and heads
MOST_SIGNS: Final = 512  # of a grid, along one side
MOST_OTHERS: Final = 2
MOST_WIDTH: Final = 64  # columns of a matrix
MOST_STEPS: Final = 32  # tokens that are computed with
LARGEST: Final = 1e6  # of the numbers that are computed with
MOST_SIZES: Final = 16  # that variance is measured for
LARGEST_HEAD: Final = 1024
MOST_CELLS: Final = 2**20  # of an array to recognise
MOST_SEED: Final = 2**32 - 1

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class View:
    """A part of a mask."""

    row: int
    rows: int
    key: int
    keys: int


@dataclass(frozen=True)
class Subject:
    """The mask that a question is about, and the tokens or the sizes it is bound to."""

    expression: str
    tokens: tuple[tuple[str, ...], ...] | None = None
    padding: bool = True
    size: int = 8
    keys: int | None = None
    q_start: int | None = None
    batch: int | None = None
    heads: int | None = None


@dataclass(frozen=True)
class Values:
    """The numbers to compute with: drawn by a seed, or given."""

    seed: int = 0
    width: int = 3
    head_size: int = 2
    scores: Matrix | None = None
    x: Matrix | None = None
    wq: Matrix | None = None
    wk: Matrix | None = None
    wv: Matrix | None = None


@dataclass(frozen=True)
class AskTokens:
    """Sentences, one a line, to be cut into tokens."""

    text: str
    side: str


@dataclass(frozen=True)
class AskMask:
    """A picture of the mask, and its counts."""

    subject: Subject
    batch: int
    head: int
    view: View | None
    most: int


@dataclass(frozen=True)
class AskWhy:
    """Why a query sees a key."""

    subject: Subject
    query: int
    key: int
    batch: int
    head: int


@dataclass(frozen=True)
class AskSteps:
    """Attention computed step by step."""

    subject: Subject
    batch: int
    head: int
    values: Values
    scaled: bool
    fill: float
    rows_too: bool


@dataclass(frozen=True)
class AskGenerate:
    """Attention computed one token at a time, beside all at once."""

    subject: Subject
    batch: int
    head: int
    values: Values


@dataclass(frozen=True)
class AskCompare:
    """One mask beside one or two others."""

    subject: Subject
    others: tuple[str, ...]
    batch: int
    head: int
    view: View | None
    most: int


@dataclass(frozen=True)
class AskCode:
    """The mask as source for every framework."""

    subject: Subject


@dataclass(frozen=True)
class AskCost:
    """What the mask takes, and how attention under it would be computed."""

    subject: Subject


@dataclass(frozen=True)
class AskScaling:
    """Why scores are divided by the root of the head size."""

    sizes: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class AskRecognise:
    """An array, of which the mask is asked: nested lists, or a file in base64."""

    array: list[Any] | None
    npy: str | None
    causal: bool | None


@dataclass(frozen=True)
class AskPicture:
    """The picture of a mask as a file."""

    subject: Subject
    batch: int
    head: int
    view: View | None
    format: str
    theme: str


def read_request(name: str, data: Any) -> Any:
    """The request of that name, checked.

    >>> read_request("why", {"subject": {"expression": "causal()"}, "query": 1, "key": 0}).key
    0
    """
    fields = Fields(data)
    request = READERS[name](fields)
    fields.done()
    return request


def _tokens(fields: Fields) -> AskTokens:
    side = fields.choice("side", ("right", "left"), "right")
    return AskTokens(fields.text("text", MOST_LETTERS), side)


def _mask(fields: Fields) -> AskMask:
    return AskMask(_subject(fields), *_plane(fields), _view(fields), _most(fields))


def _why(fields: Fields) -> AskWhy:
    query, key = (fields.whole(name, 0, MOST_SIZE - 1) for name in ("query", "key"))
    return AskWhy(_subject(fields), query, key, *_plane(fields))


def _steps(fields: Fields) -> AskSteps:
    return AskSteps(
        _subject(fields),
        *_plane(fields),
        _values(fields),
        fields.truth("scaled", True),
        _fill(fields.take("fill", "-inf")),
        fields.truth("rows_too", False),
    )


def _generate(fields: Fields) -> AskGenerate:
    return AskGenerate(_subject(fields), *_plane(fields), _values(fields))


def _compare(fields: Fields) -> AskCompare:
    others = read_list(fields.take("others"), "others", MOST_OTHERS)
    if not others:
        raise wrong("others is empty. Send one expression or two.")
    said = tuple(read_text(other, "others", MOST_LETTERS) for other in others)
    return AskCompare(_subject(fields), said, *_plane(fields), _view(fields), _most(fields))


def _code(fields: Fields) -> AskCode:
    return AskCode(_subject(fields))


def _cost(fields: Fields) -> AskCost:
    return AskCost(_subject(fields))


def _scaling(fields: Fields) -> AskScaling:
    sizes = read_list(fields.take("sizes", [1, 4, 16, 64, 256]), "sizes", MOST_SIZES)
    if not sizes:
        raise wrong("sizes is empty. Send one head size or more.")
    read = tuple(parse_int(size, "sizes", 1, LARGEST_HEAD) for size in sizes)
    return AskScaling(read, fields.whole("seed", 0, MOST_SEED, 0))


def _recognise(fields: Fields) -> AskRecognise:
    array, npy = fields.take("array", None), fields.take("npy", None)
    causal = fields.take("causal", None)
    if (array is None) == (npy is None):
        raise wrong("Both or neither of array and npy are there. Send one of them.")
    if causal is not None and not isinstance(causal, bool):
        raise wrong("causal is neither true, false nor null. Send one of them.")
    if npy is not None:
        return AskRecognise(None, read_text(npy, "npy", 2**20), causal)
    return AskRecognise(_array(array), None, causal)


def _picture(fields: Fields) -> AskPicture:
    return AskPicture(
        _subject(fields),
        *_plane(fields),
        _view(fields),
        fields.choice("format", ("svg", "png"), "svg"),
        fields.choice("theme", ("light", "dark"), "light"),
    )


READERS: Final[Mapping[str, Callable[[Fields], Any]]] = {
    "tokens": _tokens,
    "mask": _mask,
    "why": _why,
    "steps": _steps,
    "generate": _generate,
    "compare": _compare,
    "code": _code,
    "cost": _cost,
    "scaling": _scaling,
    "recognise": _recognise,
    "picture": _picture,
}


# ── parts of requests ─────────────────────────────────────────────────────────────────────────


def _subject(fields: Fields) -> Subject:
    own = Fields(fields.take("subject"), "subject")
    subject = Subject(
        own.text("expression", MOST_LETTERS),
        _sequences(own.take("tokens", None)),
        own.truth("padding", True),
        own.whole("size", 1, MOST_SIZE, 8),
        own.whole_or_none("keys", 1, MOST_SIZE),
        own.whole_or_none("q_start", -MOST_SIZE, MOST_SIZE),
        own.whole_or_none("batch", 1, MOST_PLANES),
        own.whole_or_none("heads", 1, MOST_PLANES),
    )
    own.done()
    return subject


def _sequences(value: Any) -> tuple[tuple[str, ...], ...] | None:
    if value is None:
        return None
    rows = [
        read_list(row, "tokens", MOST_TOKENS) for row in read_list(value, "tokens", MOST_SEQUENCES)
    ]
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise wrong(f"tokens are sequences of no or of different length. Fill them with {PAD}.")
    return tuple(tuple(read_text(token, "tokens", LONGEST_TOKEN) for token in row) for row in rows)


def _plane(fields: Fields) -> tuple[int, int]:
    batch, head = (fields.whole(name, 0, MOST_PLANES - 1, 0) for name in ("batch", "head"))
    return batch, head


def _view(fields: Fields) -> View | None:
    value = fields.take("view", None)
    if value is None:
        return None
    own = Fields(value, "view")
    row, rows = own.whole("row", 0, MOST_SIZE - 1), own.whole("rows", 1, MOST_SIZE)
    key, keys = own.whole("key", 0, MOST_SIZE - 1), own.whole("keys", 1, MOST_SIZE)
    own.done()
    return View(row, rows, key, keys)


def _most(fields: Fields) -> int:
    return fields.whole("most", 1, MOST_SIGNS, 128)


def _values(fields: Fields) -> Values:
    own = Fields(fields.take("values", {"seed": 0}), "values")
    given = {name for name in ("scores", "x", "wq", "wk", "wv") if own.take(name, None) is not None}
    if "scores" in given and len(given) > 1:
        raise wrong("values hold scores and other matrices. Send one or the other.")
    matrices = {name: own.matrix(name, MOST_WIDTH, LARGEST) for name in given}
    values = Values(
        own.whole("seed", 0, MOST_SEED, 0),
        own.whole("width", 1, MOST_WIDTH, 3),
        own.whole("head_size", 1, MOST_WIDTH, 2),
        **matrices,
    )
    own.done()
    return values


def _fill(value: Any) -> float:
    return -math.inf if value == "-inf" else parse_float(value, "fill", 1e38)


def _array(value: Any) -> list[Any]:
    """Nested lists of numbers, truth values, and the words for numbers that JSON lacks."""
    cells, level, axes = 0, read_list(value, "array", MOST_CELLS), 1
    while level and isinstance(level[0], list):
        cells = sum(len(row) if isinstance(row, list) else 1 for row in level)
        if cells > MOST_CELLS:
            raise too_large(f"array has more than {MOST_CELLS} cells. Send a part of it.")
        if any(not isinstance(row, list) for row in level):
            raise wrong("array mixes lists and numbers. Send a rectangular array.")
        level, axes = [item for row in level for item in row], axes + 1
        if axes > 4:
            raise wrong("array has more than 4 axes. Send (batch, heads, queries, keys).")
    if any(isinstance(item, (list, dict)) for item in level):
        raise wrong("array mixes lists and numbers. Send a rectangular array.")
    for item in level:
        if item is None or (isinstance(item, str) and item not in WORDS):
            raise wrong(f'array holds {item!r:.40}. Send numbers, true, false or "-inf".')
        if isinstance(item, int) and abs(item) > 2**53:
            raise wrong("array holds a whole number beyond 2**53. Send smaller ones.")
    array: list[Any] = value
    return array
