"""Errors of the commands that have `--lang`, as data, so that they are printed in that language.

Errors of the library, and those of typer about options, are in English.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from maskwright.errors import ArgumentError
from maskwright.messages import Reason, render

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
