"""Messages: reasons and findings as data, and their text in English and Chinese.

Code produces a `Reason`, a code and parameters. Only this package turns one into a sentence, by
the format strings in `en.json` and `zh.json`, which are grouped by the package that uses them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

LANGUAGES: Final = ("en", "zh")


@dataclass(frozen=True)
class Reason:
    """A message as data: a code, and the values that its text contains.

    A parameter may itself be a reason, or a tuple of reasons; it is rendered in the same language.

    >>> reason = Reason("padding.masked", {"key": 3, "sequence": 0})
    >>> render(reason)
    'key 3 is padding of sequence 0'
    >>> render(reason, "zh")
    '键 3 是序列 0 的填充'
    """

    code: str
    params: Mapping[str, Any] = field(default_factory=dict)  # a dict, so that it can be pickled

    def __str__(self) -> str:
        return render(self)

    def __hash__(self) -> int:
        return hash((self.code, tuple(self.params)))


@cache
def messages(lang: str) -> Mapping[str, str]:
    """The format strings of a language, by code."""
    if lang not in LANGUAGES:
        raise ArgumentError(f"lang is {lang!r:.20}. Pass one of {', '.join(LANGUAGES)}.")
    groups = json.loads(Path(__file__).with_name(f"{lang}.json").read_text(encoding="utf-8"))
    return MappingProxyType(
        {code: text for group in groups.values() for code, text in group.items()}
    )


def render(reason: Reason, lang: str = "en") -> str:
    """The text of a reason. A code without a text is shown with its parameters.

    Args:
        reason: What to say.
        lang: "en" or "zh".

    Raises:
        ArgumentError: If the language is not known.

    >>> render(Reason("toy.visible", {"key": 3}))
    'toy.visible (key=3)'
    """
    params = {name: _render_value(value, lang) for name, value in reason.params.items()}
    text = messages(lang).get(reason.code)
    if text is None:
        shown = ", ".join(f"{name}={value}" for name, value in params.items())
        return f"{reason.code} ({shown})" if shown else reason.code
    return text.format_map(params)


def _render_value(value: Any, lang: str) -> Any:
    if isinstance(value, Reason):
        return render(value, lang)
    if isinstance(value, tuple) and value and all(isinstance(part, Reason) for part in value):
        separator = messages(lang)["list.separator"]
        return separator.join(render(part, lang) for part in value)
    return value
