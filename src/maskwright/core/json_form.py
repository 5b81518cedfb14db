"""Mask to JSON and back, by a versioned schema.

    {"maskwright": 1, "mask": {"and": [{"atom": "causal"}, {"atom": "prefix", "lengths": [3]}]}}

An operator is an object of one key (`and`, `or`, `not`, `transpose`, `by_head`, `by_batch`); an
atom is its name with the arguments that make it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from maskwright.core.atoms import ATOMS
from maskwright.core.atoms_array import Where
from maskwright.core.compose import (
    DEEPEST,
    LARGEST,
    And,
    By,
    Not,
    Or,
    Transpose,
    by_batch,
    by_head,
)
from maskwright.core.literal import plain
from maskwright.core.mask import Atom, Mask
from maskwright.core.text import LONGEST_RANGE, call
from maskwright.errors import TextError

VERSION: Final = 1
MOST_CHARACTERS: Final = 8_000_000
_PLACE: Final = {  # the argument that text gives by place, JSON gives by name
    "chunks": "size",
    "stride": "step",
    "keys": "where",
    "queries": "where",
    "tree": "parents",
    "graph": "edges",
    "dense": "array",
    "blocks": "map",
}


def to_json(mask: Mask) -> str:
    """The mask as JSON text.

    >>> import maskwright as mw
    >>> mw.to_json(mw.causal() & ~mw.keys([1]))
    '{"maskwright": 1, "mask": {"and": [{"atom": "causal"}, {"not": {"atom": "keys", "where": [1]}}]}}'
    """
    if not isinstance(mask, Mask):
        raise TextError(f"to_json: got {type(mask).__name__}. Give a mask.")
    return json.dumps({"maskwright": VERSION, "mask": _write(mask)})


def from_json(text: str) -> Mask:
    """The mask that `to_json` wrote.

    >>> import maskwright as mw
    >>> mw.from_json('{"maskwright": 1, "mask": {"atom": "window", "back": 3}}')
    window(back=3)
    """
    if not isinstance(text, str):
        raise TextError(f"from_json: got {type(text).__name__}. Give a text.")
    if len(text) > MOST_CHARACTERS:
        raise TextError(
            f"The JSON has {len(text)} characters, more than {MOST_CHARACTERS}. Build the mask in Python."
        )
    try:
        document = json.loads(text)
    except RecursionError:
        raise TextError("The JSON nests too deep. Flatten it.") from None
    except ValueError as error:
        raise TextError(f"This is no JSON: {error}. Give what to_json wrote.") from None
    if not isinstance(document, dict) or set(document) != {"maskwright", "mask"}:
        raise TextError(
            'The JSON has not the two keys "maskwright" and "mask". Give what to_json wrote.'
        )
    if type(document["maskwright"]) is not int or document["maskwright"] != VERSION:
        raise TextError(
            f"The JSON is of version {document['maskwright']!r:.50}, this is for version {VERSION}. "
            "Use the maskwright that wrote it."
        )
    return _read(document["mask"], 1)


def _write(mask: Mask) -> dict[str, Any]:
    if isinstance(mask, (And, Or)):
        return {"and" if isinstance(mask, And) else "or": [_write(term) for term in mask.terms]}
    if isinstance(mask, (Not, Transpose)):
        return {"not" if isinstance(mask, Not) else "transpose": _write(mask.term)}
    if isinstance(mask, By):
        return {mask.name: [_write(member) for member in mask.masks]}
    if isinstance(mask, Where):
        raise TextError(f"{mask!r} holds Python code, which JSON can't. Give dense(...) instead.")
    assert isinstance(mask, Atom)
    name, arguments = mask._call()
    given = {key or _PLACE[name]: plain(value) for key, value in arguments.items()}
    return {"atom": name, **given}


def _read(node: Any, depth: int) -> Mask:
    if depth > DEEPEST:
        raise TextError(f"The JSON nests deeper than {DEEPEST} operators. Flatten it.")
    if not isinstance(node, dict):
        raise TextError(
            f"A mask is a JSON object, not {type(node).__name__}. Give what to_json wrote."
        )
    if "atom" in node:
        name = node["atom"]
        if not isinstance(name, str) or name not in ATOMS:
            raise TextError(f"There is no atom named {name!r:.50}. Give what to_json wrote.")
        return call(name, [], {key: _value(of) for key, of in node.items() if key != "atom"})
    if len(node) == 1:
        (operator, of), *_ = node.items()
        if operator in ("not", "transpose"):
            part = _read(of, depth + 1)
            return ~part if operator == "not" else part.T
        if operator in ("and", "or", "by_head", "by_batch") and isinstance(of, list) and of:
            if len(of) > LARGEST:
                raise TextError(f'"{operator}" has more than {LARGEST} parts. Make it smaller.')
            parts = [_read(part, depth + 1) for part in of]
            return _combine(operator, parts)
    raise TextError(
        f"{sorted(node)!r:.80} is no operator with a list of masks. Give what to_json wrote."
    )


def _value(value: Any) -> Any:
    """An argument; {"range": [start, stop, step]} stands for evenly spaced numbers."""
    if not isinstance(value, dict):
        return value
    ends = value.get("range")
    if len(value) == 1 and isinstance(ends, list) and [type(end) for end in ends] == [int] * 3:
        start, stop, step = ends
        if step >= 1 and stop - start <= LONGEST_RANGE * step:
            return range(start, stop, step)
    raise TextError('An argument is no {"range": [start, stop, step]}. Give what to_json wrote.')


def _combine(operator: str, parts: list[Mask]) -> Mask:
    if operator in ("by_head", "by_batch"):
        return by_head(parts) if operator == "by_head" else by_batch(parts)
    kind = And if operator == "and" else Or
    terms = [t for part in parts for t in (part.terms if isinstance(part, kind) else (part,))]
    return kind(tuple(terms)) if len(terms) > 1 else parts[0]
