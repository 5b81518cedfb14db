"""JSON from outside, read strictly: every field has a type and bounds, and none is unknown.

Sizes are checked before anything of that size is made, and every refusal is a sentence.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

from maskwright.explore.faults import too_large, wrong

DEEPEST: Final = 16  # brackets within brackets
MAX_BYTES: Final = 2**20  # of a body
LONGEST_NUMBER: Final = 40  # digits
WORDS: Final = {"-inf": -math.inf, "inf": math.inf, "nan": math.nan}  # numbers that JSON lacks

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DIGITS = re.compile(rb"[0-9.eE+-]{%d,}" % (LONGEST_NUMBER + 1))


def read_json(body: bytes) -> Any:
    """The value that a body spells; refused if it is too long, too deep or no JSON.

    >>> read_json(b'{"size": 8}')
    {'size': 8}
    """
    if len(body) > MAX_BYTES:
        raise too_large(f"The request has more than {MAX_BYTES} bytes. Send less.")
    bare = _TEXT.sub(b"", body)  # what stands in quotes nests nothing
    if _DIGITS.search(bare):
        raise wrong(f"A number has more than {LONGEST_NUMBER} digits. Send a shorter one.")
    _check_depth(bare)
    try:
        return json.loads(body.decode(), parse_constant=_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise wrong(f"The request is no JSON ({str(error)[:80]}). Send JSON in UTF-8.") from None


def _check_depth(bare: bytes) -> None:
    depth = 0
    for bracket in re.findall(rb"[\[\]{}]", bare):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            raise wrong(f"The request nests deeper than {DEEPEST} brackets. Flatten it.")


def _constant(name: str) -> NoReturn:
    raise wrong(f'{name} is no JSON. Send "-inf" where the number may be that.')


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise wrong("An object names a field twice. Send it once.")
    return found


class Fields:
    """The fields of one JSON object, taken one by one; `done()` refuses what nobody took."""

    def __init__(self, data: Any, where: str = "The request") -> None:
        if not isinstance(data, dict):
            raise wrong(f"{where} is {_kind(data)}. Send an object.")
        self._data, self._where = data, where
        self._taken: set[str] = set()

    def take(self, name: str, default: Any = ...) -> Any:
        """The field as it came."""
        self._taken.add(name)
        if name in self._data:
            return self._data[name]
        if default is ...:
            raise wrong(f"{self._where} has no field {name}. Send it.")
        return default

    def done(self) -> None:
        """Refuse fields that were not asked for."""
        for name in self._data:
            if name not in self._taken:
                known = ", ".join(sorted(self._taken))
                raise wrong(
                    f"{self._where} has an unknown field {name!r:.40}. Send some of {known}."
                )

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number within bounds."""
        return parse_int(self.take(name, ... if default is None else default), name, least, most)

    def whole_or_none(self, name: str, least: int, most: int) -> int | None:
        """A whole number within bounds, or null."""
        value = self.take(name, None)
        return None if value is None else parse_int(value, name, least, most)

    def truth(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise wrong(f"{name} is {_kind(value)}. Send true or false.")
        return value

    def text(self, name: str, most: int, default: str | None = None) -> str:
        """A text of bounded length."""
        return read_text(self.take(name, ... if default is None else default), name, most)

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """One of a few words."""
        value = self.take(name, default)
        if not isinstance(value, str) or value not in allowed:
            shown = repr(value[:40]) if isinstance(value, str) else _kind(value)
            raise wrong(f"{name} is {shown}. Send {' or '.join(allowed)}.")
        return value

    def matrix(self, name: str, most: int, largest: float) -> tuple[tuple[float, ...], ...]:
        """Rows of equal length of finite numbers."""
        rows = [read_list(row, name, most) for row in read_list(self.take(name), name, most)]
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise wrong(f"{name} has rows of no or of different length. Send a full matrix.")
        return tuple(tuple(parse_float(x, name, largest) for x in row) for row in rows)


def parse_int(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within bounds; beyond the upper one it is too large, not wrong."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"{name} is {_kind(value)}. Send a whole number.")
    if value > most:
        raise too_large(f"{name} is {value}, more than {most}. Send a smaller number.")
    if value < least:
        raise wrong(f"{name} is {value}, less than {least}. Send a larger number.")
    return value


def parse_float(value: Any, name: str, largest: float) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(f"{name} holds {_kind(value)}. Send numbers.")
    if not abs(value) <= largest:
        raise wrong(f"{name} holds a number beyond {largest:g}. Send smaller numbers.")
    return float(value)


def read_text(value: Any, name: str, most: int) -> str:
    """A text of bounded length that can be written as UTF-8."""
    if not isinstance(value, str):
        raise wrong(f"{name} is {_kind(value)}. Send a text.")
    if len(value) > most:
        raise too_large(f"{name} has {len(value)} characters, more than {most}. Send fewer.")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise wrong(f"{name} holds half of a character (a lone surrogate). Send whole ones.")
    return value


def read_list(value: Any, name: str, most: int) -> list[Any]:
    """A list of bounded length."""
    if not isinstance(value, list):
        raise wrong(f"{name} holds {_kind(value)}. Send a list.")
    if len(value) > most:
        raise too_large(f"{name} has {len(value)} items, more than {most}. Send fewer.")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
