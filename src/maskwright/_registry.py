"""`Registry`: named entries that are imported on first use.

Targets, probes, recipes and applications are registered the same way: one entry in the registry of
their package.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Generic, TypeVar, cast

from maskwright.errors import ArgumentError

EntryT = TypeVar("EntryT")


class Registry(Mapping[str, EntryT], Generic[EntryT]):
    """A read-only mapping from names to modules or their attributes, imported on first use.

    Args:
        kind: What an entry is, for error messages: "target".
        package: The package that the paths are relative to.
        entries: For each name a path, `"module"` or `"module:attribute"`.
        aliases: Other spellings of names.

    >>> codecs = Registry("codec", "encodings", {"utf-8": "utf_8:encode"}, {"utf8": "utf-8"})
    >>> list(codecs), "utf8" in codecs
    (['utf-8'], False)
    >>> codecs.find("utf8", "decode")("a")
    (b'a', 1)
    >>> codecs.find("utf-9", "decode")
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: decode: there is no codec 'utf-9'. Did you mean 'utf-8'?
    """

    def __init__(
        self,
        kind: str,
        package: str,
        entries: Mapping[str, str],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.package = package
        self.entries = dict(entries)
        self.aliases = dict(aliases or {})

    def __getitem__(self, name: str) -> EntryT:
        module, _, attribute = self.entries[name].partition(":")
        found: Any = importlib.import_module(f"{self.package}.{module}")
        return cast("EntryT", getattr(found, attribute) if attribute else found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def resolve(self, name: object, caller: str) -> str:
        """Returns the registered name for `name` or its alias.

        Raises:
            ArgumentError: If it is not registered; the message suggests a similar name.
        """
        if isinstance(name, str):
            name = self.aliases.get(name, name)
            if name in self.entries:
                return name
        close = [one for one in self.entries if one.split(".")[-1] == name]
        close = close or get_close_matches(str(name)[:50], self.entries, n=1)
        fix = f"Did you mean {close[0]!r}?" if close else f"Pass one of {', '.join(self.entries)}."
        raise ArgumentError(f"{caller}: there is no {self.kind} {name!r:.50}. {fix}")

    def find(self, name: object, caller: str) -> EntryT:
        """Returns the entry of `name` or its alias, as `resolve` does its name."""
        return self[self.resolve(name, caller)]
