"""The applications by name; each is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maskwright._optional_deps import require
from maskwright._registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.apps.app import App

APPS: Final[Registry[Callable[[], App]]] = Registry(
    "app",
    "maskwright.apps",
    {
        "language": "language:Language",
        "translation": "translation:Translation",
        "summarisation": "summarisation:Summarisation",
        "dialogue": "dialogue:Dialogue",
        "image": "image:Image",
        "graph": "graph:Graph",
        "masked-words": "masked_words:MaskedWords",
    },
)


def find_app(name: str) -> App:
    """Returns the application of that name.

    Args:
        name: A name in `APPS`.

    Raises:
        ArgumentError: If there is no application of that name.
        MissingError: If a package that it needs is not installed.

    >>> from maskwright.apps.registry import find_app
    >>> find_app("language").versions
    ('gpt', 'v4', 'v3')
    """
    known = APPS.resolve(name, "apps")
    with require(known, "apps"):
        make = APPS[known]
    return make()
