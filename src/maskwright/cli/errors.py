"""Errors of the commands that have `--lang`, as data, so that they are printed in that language.

Errors of the library, and those of typer about options, are in English.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from maskwright.errors import ArgumentError
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LANGUAGE: Final = ContextVar("LANGUAGE", default="en")  # of the running command


class UsageError(ArgumentError):
    """An invalid argument of a command; `cli.<code>` is its text in `maskwright.messages`.

    >>> str(UsageError("tokens_empty"))
    '--tokens is empty. Pass a sentence.'
    """

    def __init__(self, code: str, **params: Any) -> None:
        self.reason = Reason(f"cli.{code}", params)
        super().__init__(render(self.reason))

    def translated(self) -> str:
        """The text in the language of the running command."""
        return render(self.reason, LANGUAGE.get())


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Turns an OSError of the block, which writes this file, into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError("not_writable", output=output, error=error.strerror) from error
