"""What a request can be refused for: a status, a sentence, and where in the expression it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from maskwright.errors import MaskError, SizeError

ADVICE = "Take fewer tokens, or zoom in."
REPORT = "Report it, with what you asked."


class Reply(NamedTuple):
    """The response of a worker."""

    status: int
    kind: str
    body: bytes


class Fault(Exception):  # noqa: N818 - most are the user's, not the program's
    """A refusal, as it is sent.

    >>> Fault(413, "Too large.").as_dict()
    {'error': {'message': 'Too large.', 'kind': 'Refused', 'at': None}}
    """

    def __init__(
        self, status: int, message: str, kind: str = "Refused", at: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.at = status, message, kind, at

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        at = None if self.at is None else list(self.at)
        return {"error": {"message": self.message, "kind": self.kind, "at": at}}


def wrong(message: str) -> Fault:
    """The request is not of the form that is asked for."""
    return Fault(400, message, "RequestError")


def too_large(message: str) -> Fault:
    """What is asked would take too much memory or time."""
    return Fault(413, message, "SizeError")


def fault_of(error: Exception) -> Fault:
    """An error of the library as a refusal; what nobody thought of is the server's own fault.

    >>> import maskwright as mw
    >>> fault_of(mw.TextError("No.")).status, fault_of(ZeroDivisionError()).status
    (422, 500)
    """
    if isinstance(error, Fault):
        return error
    if isinstance(error, MemoryError):
        return too_large(f"This needs more memory than the explorer takes. {ADVICE}")
    if isinstance(error, RecursionError):
        return Fault(422, "The expression nests too deep. Flatten it.", "TextError")
    kind = type(error).__name__
    if isinstance(error, MaskError):
        status = 413 if isinstance(error, SizeError) else 422
        return Fault(status, str(error), kind, _place(error))
    message = f"This failed with {kind}, which is a fault of maskwright's. {REPORT}"
    return Fault(500, message, "Unexpected")


def _place(error: MaskError) -> tuple[int, int] | None:
    at = getattr(error, "at", None)
    return None if at is None else (int(at[0]), int(at[1]))
