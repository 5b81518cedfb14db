"""Mask to JSON and back, by a versioned schema.

    {"maskwright": 1, "mask": {"and": [{"atom": "causal"}, {"atom": "prefix", "lengths": [3]}]}}

An operator is an object of one key (`and`, `or`, `not`, `transpose`, `by_head`, `by_batch`); an
atom is its name with the arguments that make it. Evenly spaced numbers are {"range": [start, stop,
step]}; an array with long runs of equal values is {"runs": [[value, count], …], "shape": […]}.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

import numpy as np

from maskwright.core.atoms import ATOMS
from maskwright.core.atoms.array import Where
from maskwright.core.expr import (
    MAX_DEPTH,
    MAX_NODES,
    And,
    Atom,
    Mask,
    Not,
    Or,
    PerAxis,
    Transpose,
    by_batch,
    by_head,
)
from maskwright.core.parser import MAX_RANGE, call
from maskwright.core.source_repr import plain
from maskwright.core.validate import MAX_INT, FrozenArray
from maskwright.errors import TextError

VERSION: Final = 1
MAX_CHARACTERS: Final = 4_000_000
MAX_CELLS: Final = 2**26  # of one array that is written as runs
SHORT: Final = 64  # values that are always written out
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
    text = json.dumps({"maskwright": VERSION, "mask": _write(mask)})
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"The JSON would have {len(text)} characters, more than the {MAX_CHARACTERS} that are read. "
            "Keep the data in an array file, and build the mask from that."
        )
    return text


def from_json(text: str) -> Mask:
    """The mask that `to_json` wrote.

    >>> import maskwright as mw
    >>> mw.from_json('{"maskwright": 1, "mask": {"atom": "window", "back": 3}}')
    window(back=3)
    """
    if not isinstance(text, str):
        raise TextError(f"from_json: got {type(text).__name__}. Give a text.")
    if len(text) > MAX_CHARACTERS:
        raise TextError(
            f"The JSON has {len(text)} characters, more than {MAX_CHARACTERS}. Build the mask in Python."
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
    if isinstance(mask, PerAxis):
        return {mask.name: [_write(member) for member in mask.masks]}
    if isinstance(mask, Where):
        raise TextError(f"{mask!r} holds Python code, which JSON can't. Give dense(...) instead.")
    assert isinstance(mask, Atom)
    name, arguments = mask._call()
    given = {key or _PLACE[name]: _write_value(value) for key, value in arguments.items()}
    return {"atom": name, **given}


def _read(node: Any, depth: int) -> Mask:
    if depth > MAX_DEPTH:
        raise TextError(f"The JSON nests deeper than {MAX_DEPTH} operators. Flatten it.")
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
            if len(of) > MAX_NODES:
                raise TextError(f'"{operator}" has more than {MAX_NODES} parts. Make it smaller.')
            parts = [_read(part, depth + 1) for part in of]
            return _combine(operator, parts)
    raise TextError(
        f"{sorted(node)!r:.80} is no operator with a list of masks. Give what to_json wrote."
    )


def _write_value(value: Any) -> Any:
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, FrozenArray) and value.data.size > SHORT:
        flat = value.data.ravel().astype(np.int64)
        begins = np.flatnonzero(np.append(True, flat[1:] != flat[:-1]))
        if 4 * begins.size < flat.size:
            counts = np.diff(begins, append=flat.size)
            runs = np.stack([flat[begins], counts], axis=1).tolist()
            return {"runs": runs, "shape": list(value.data.shape)}
    return plain(value)


def _value(value: Any) -> Any:
    """An argument, with ranges and runs written out."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"range"} and _are_whole(value["range"], 3):
        start, stop, step = value["range"]
        if step >= 1 and stop - start <= MAX_RANGE * step:
            return range(start, stop, step)
    if set(value) == {"runs", "shape"} and _are_whole(value["shape"], None):
        runs, shape = value["runs"], value["shape"]
        if isinstance(runs, list) and all(_are_whole(run, 2) and run[1] > 0 for run in runs):
            total = sum(count for _, count in runs)
            if total == math.prod(shape) <= MAX_CELLS and min(shape, default=0) > 0:
                numbers = [number for number, _ in runs]
                return np.repeat(numbers, [count for _, count in runs]).reshape(shape)
    raise TextError(
        'An argument is neither {"range": [start, stop, step]} nor {"runs": [[value, count], …], '
        '"shape": […]}. Give what to_json wrote.'
    )


def _are_whole(values: Any, count: int | None) -> bool:
    """A list of that many whole numbers, none beyond what an array holds."""
    return (
        isinstance(values, list)
        and (count is None or len(values) == count)
        and all(type(value) is int and abs(value) <= MAX_INT for value in values)
    )


def _combine(operator: str, parts: list[Mask]) -> Mask:
    if operator in ("by_head", "by_batch"):
        return by_head(parts) if operator == "by_head" else by_batch(parts)
    kind = And if operator == "and" else Or
    terms = [t for part in parts for t in (part.terms if isinstance(part, kind) else (part,))]
    return kind(tuple(terms)) if len(terms) > 1 else parts[0]
