"""Schemas of the requests: msgspec decodes them in linear time and checks every type and limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from maskwright.explore.error_responses import HTTPError, bad_request, too_large

if TYPE_CHECKING:
    from collections.abc import Mapping

PAD: Final = "<PAD>"
MAX_BODY: Final = 2**20  # bytes
MAX_TEXT: Final = 20_000  # characters of an expression, or of the sentences
MAX_SEQUENCES: Final = 8
MAX_TOKENS: Final = 256
MAX_TOKEN_LENGTH: Final = 64
MAX_SIZE: Final = 2**20  # queries, and keys
MAX_PLANES: Final = 64  # batch size, and number of heads
MAX_GRID_CELLS: Final = 512  # along one side
MAX_OTHERS: Final = 2  # masks to compare with
MAX_WIDTH: Final = 64  # columns of a matrix
MAX_STEPS: Final = 32  # tokens of a computation
MAX_VALUE: Final = 1e6  # of an element of a matrix
MAX_HEAD_SIZES: Final = 16
MAX_HEAD_SIZE: Final = 1024

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Size = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
Position = Annotated[int, Meta(ge=0, le=MAX_SIZE - 1)]
PlaneCount = Annotated[int, Meta(ge=1, le=MAX_PLANES)]
PlaneIndex = Annotated[int, Meta(ge=0, le=MAX_PLANES - 1)]
GridCells = Annotated[int, Meta(ge=1, le=MAX_GRID_CELLS)]
Width = Annotated[int, Meta(ge=1, le=MAX_WIDTH)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]

Token = Annotated[str, Meta(max_length=MAX_TOKEN_LENGTH)]
Sequence = Annotated[tuple[Token, ...], Meta(min_length=1, max_length=MAX_TOKENS)]
Sequences = Annotated[tuple[Sequence, ...], Meta(min_length=1, max_length=MAX_SEQUENCES)]

Value = Annotated[float, Meta(ge=-MAX_VALUE, le=MAX_VALUE)]
Row = Annotated[tuple[Value, ...], Meta(min_length=1, max_length=MAX_WIDTH)]
Matrix = Annotated[tuple[Row, ...], Meta(min_length=1, max_length=MAX_WIDTH)]

Cell = bool | Annotated[int, Meta(ge=-(2**53), le=2**53)] | float | Literal["-inf", "inf", "nan"]
Array = list[Cell | list[Cell | list[Cell | list[Cell]]]]  # rectangular, which numpy checks


def _check_lengths(rows: tuple[tuple[Any, ...], ...] | None, what: str) -> None:
    if rows is not None and len({len(row) for row in rows}) > 1:
        raise ValueError(f"Expected rows of equal length in {what}")


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class: unknown fields are errors."""


class View(Request, frozen=True):
    """A part of a mask: first row, number of rows, first key, number of keys."""

    row: Position
    rows: Size
    key: Position
    keys: Size


class Subject(Request, frozen=True):
    """An expression, and the tokens or sizes that it is bound to."""

    expression: Text
    tokens: Sequences | None = None
    padding: bool = True  # mask the padding of `tokens`
    size: Size = 8
    keys: Size | None = None
    q_start: Annotated[int, Meta(ge=-MAX_SIZE, le=MAX_SIZE)] | None = None
    batch: PlaneCount | None = None
    heads: PlaneCount | None = None

    def __post_init__(self) -> None:
        _check_lengths(self.tokens, f"tokens; pad them with {PAD}")


class Values(Request, frozen=True):
    """Matrices of an attention layer: random, or given."""

    seed: Seed = 0
    width: Width = 3
    head_size: Width = 2
    scores: Matrix | None = None
    x: Matrix | None = None
    wq: Matrix | None = None
    wk: Matrix | None = None
    wv: Matrix | None = None

    def __post_init__(self) -> None:
        for name in ("scores", "x", "wq", "wk", "wv"):
            _check_lengths(getattr(self, name), name)
        if self.scores is not None and any((self.x, self.wq, self.wk, self.wv)):
            raise ValueError("Expected scores or other matrices, got both")


class TokensRequest(Request, frozen=True):
    """Splits sentences, one per line, into tokens."""

    text: Text
    side: Literal["right", "left"] = "right"


class PlaneRequest(Request, frozen=True):
    """One batch row and head of a mask."""

    subject: Subject
    batch: PlaneIndex = 0
    head: PlaneIndex = 0


class MaskRequest(PlaneRequest, frozen=True):
    """A mask: grid, counts and sliders."""

    view: View | None = None
    max_cells: GridCells = msgspec.field(default=128, name="most")


class WhyRequest(PlaneRequest, frozen=True, kw_only=True):
    """The reason why one query attends to one key or not."""

    query: Position
    key: Position


class CompareRequest(MaskRequest, frozen=True, kw_only=True):
    """A mask and one or two others."""

    others: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=MAX_OTHERS)]


class GenerateRequest(PlaneRequest, frozen=True):
    """Attention for one token at a time, and in one pass."""

    values: Values = Values()


class StepsRequest(GenerateRequest, frozen=True):
    """Attention step by step."""

    scaled: bool = True
    fill: Annotated[float, Meta(ge=-1e38, le=1e38)] | Literal["-inf"] = "-inf"
    rows_too: bool = False
    softcap: Annotated[float, Meta(gt=0, le=MAX_VALUE)] | None = None
    bias: Text | None = None
    sink: Value | None = None

    @property
    def mask_value(self) -> float:
        """The value of masked scores."""
        return -math.inf if isinstance(self.fill, str) else self.fill


class CodeRequest(Request, frozen=True):
    """The mask as source code for every framework."""

    subject: Subject


class CostRequest(CodeRequest, frozen=True):
    """Memory and work of the mask."""


class ScalingRequest(Request, frozen=True):
    """The variance of scores by head size."""

    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MAX_HEAD_SIZE)], ...],
        Meta(min_length=1, max_length=MAX_HEAD_SIZES),
    ] = (1, 4, 16, 64, 256)
    seed: Seed = 0


class RecognizeRequest(Request, frozen=True):
    """An array whose mask is wanted: nested lists, or a file as base64."""

    array: Array | None = None
    npy: bytes | None = None
    causal: bool | None = None

    def __post_init__(self) -> None:
        if (self.array is None) == (self.npy is None):
            raise ValueError("Expected one of array and npy")


class PictureRequest(PlaneRequest, frozen=True):
    """The grid of a mask as an image."""

    view: View | None = None
    format: Literal["svg", "png"] = "svg"
    theme: Literal["light", "dark"] = "light"


REQUESTS: Final[Mapping[str, type[Request]]] = {
    "tokens": TokensRequest,
    "mask": MaskRequest,
    "why": WhyRequest,
    "steps": StepsRequest,
    "generate": GenerateRequest,
    "compare": CompareRequest,
    "code": CodeRequest,
    "cost": CostRequest,
    "scaling": ScalingRequest,
    "recognize": RecognizeRequest,
    "picture": PictureRequest,
}
_DECODERS: Final = {name: msgspec.json.Decoder(schema) for name, schema in REQUESTS.items()}


def decode(name: str, body: bytes) -> Any:
    """Decodes and validates the body of a request.

    Raises:
        HTTPError: Status 413 if a value exceeds its maximum, else 400.

    >>> decode("why", b'{"subject": {"expression": "causal()"}, "query": 1, "key": 0}').query
    1
    """
    if len(body) > MAX_BODY:
        raise body_too_large()
    try:
        return _DECODERS[name].decode(body)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        message = f"Invalid request: {str(error)[:200]}."
        raise too_large(message) if " <= " in message else bad_request(message) from None


def body_too_large() -> HTTPError:
    """The error for a body of more than `MAX_BODY` bytes."""
    return too_large(f"The request has more than {MAX_BODY} bytes. Send less.")
