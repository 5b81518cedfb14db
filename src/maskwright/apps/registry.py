"""All apps by their names; each is imported when it is asked for."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Final

from maskwright.core._optional_deps import require
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.apps.app import App

APPS: Final = {
    "language": "Language",
    "translation": "Translation",
    "summarisation": "Summarisation",
    "dialogue": "Dialogue",
    "image": "Image",
    "graph": "Graph",
    "masked-words": "MaskedWords",
}


def find_app(name: str) -> App:
    """The app of that name.

    >>> from maskwright.apps.registry import find_app
    >>> find_app("language").versions
    ('gpt', 'v4', 'v3')
    """
    if name not in APPS:
        close = difflib.get_close_matches(name, APPS, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Give one of {', '.join(APPS)}."
        raise ArgumentError(f"There is no app {name}. {hint}")
    with require(name, "apps"):
        module = import_module(f"maskwright.apps.{name.replace('-', '_')}")
    app: App = getattr(module, APPS[name])()
    return app
