"""Responses to requests that fail: a status, a message, and the position in the expression."""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from maskwright.errors import MaskError, SizeError

ADVICE: Final = "Use fewer tokens, or zoom in."
JSON: Final = "application/json"
PYTHON_ADVICE: Final = (  # what the page has no use for, or calls otherwise
    (re.compile(r" See help\(maskwright\.[\w.]+\)\."), ""),
    (re.compile(r"\bkv_len=(\d+)"), r"\1 keys"),
    (re.compile(r"\bq_len=(\d+)"), r"\1 queries"),
)
ALLOCATION_FAILED: Final = re.compile(r"alloc|out of memory", re.IGNORECASE)


class Response(NamedTuple):
    """The response of a handler, as a worker sends it."""

    status: int
    media_type: str
    body: bytes


class HTTPError(Exception):
    """A request that is refused.

    Attributes:
        status: The HTTP status.
        message: What is wrong, and what to do.
        kind: The name of the error class for the page.
        at: Start and stop of the faulty text in the expression, if known.

    >>> HTTPError(413, "Too large.").response().body
    b'{"error":{"message":"Too large.","kind":"Refused","at":null}}'
    """

    def __init__(
        self, status: int, message: str, kind: str = "Refused", at: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.at = status, message, kind, at

    def response(self) -> Response:
        """The error as a JSON response."""
        error = {"message": self.message, "kind": self.kind, "at": self.at}
        return Response(self.status, JSON, encode_json({"error": error}))


def bad_request(message: str) -> HTTPError:
    """The request is malformed."""
    return HTTPError(400, message, "RequestError")


def too_large(message: str) -> HTTPError:
    """The request would take too much memory or time."""
    return HTTPError(413, message, "SizeError")


def to_http_error(error: Exception) -> HTTPError:
    """Converts an exception; one that is not expected becomes status 500.

    >>> import maskwright as mw
    >>> to_http_error(mw.TextError("No.")).status, to_http_error(ZeroDivisionError()).status
    (422, 500)
    """
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, MemoryError) or (  # torch and jax raise RuntimeError
        isinstance(error, RuntimeError) and ALLOCATION_FAILED.search(str(error))
    ):
        return too_large(f"The result is too large for the memory of a worker. {ADVICE}")
    if isinstance(error, RecursionError):
        return HTTPError(422, "The expression is nested too deeply. Flatten it.", "TextError")
    kind = type(error).__name__
    if isinstance(error, MaskError):
        status = 413 if isinstance(error, SizeError) else 422
        message = str(error)
        for advice, replacement in PYTHON_ADVICE:
            message = advice.sub(replacement, message)
        return HTTPError(status, message, kind, error.at)
    message = f"Internal error ({kind}). Please report it, with the expression."
    return HTTPError(500, message, "Unexpected")


def encode_json(data: Any) -> bytes:
    """Encodes data as JSON, with numbers that are not finite as "nan", "inf" and "-inf".

    >>> encode_json({"row": [0.5, -math.inf]})
    b'{"row":[0.5,"-inf"]}'
    """
    return msgspec.json.encode(_finite(data))


def _finite(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
