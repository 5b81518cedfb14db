"""Arrays from files that people have: .npy, .npz, .safetensors, .json and .csv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.errors import ArgumentError, MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame

ENDINGS = (".npy", ".npz", ".safetensors", ".json", ".csv")


def is_file(text: str) -> bool:
    """Does the text name a file of an array, and is no expression?"""
    return text.lower().endswith(ENDINGS)


def read_mask(text: str) -> tuple[Mask, Frame | None]:
    """The mask that an expression spells, or that a file holds; a file tells its sizes too."""
    from maskwright import parse, recognize

    if not is_file(text):
        return parse(text), None
    found = recognize(read_array(Path(text)))
    return found.mask, found.frame


def read_array(path: Path, name: str | None = None) -> Any:
    """The array in a file; `name` says which, where it holds several."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ArgumentError(
            f"{path} has no ending that tells of an array. Use one of {' '.join(ENDINGS)}."
        )
    if not path.is_file():
        raise ArgumentError(f"{path} is not there. Check the name.")
    try:
        return _READERS[ending](path, name)
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, ArgumentError):
            raise
        told = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise ArgumentError(
            f"{path} can't be read as {ending}: {told}. Save the array anew, in this format."
        ) from error


def _npy(path: Path, name: str | None) -> Any:
    _refuse_name(path, name)
    return np.load(path, allow_pickle=False)


def _npz(path: Path, name: str | None) -> Any:
    with np.load(path, allow_pickle=False) as held:
        return held[_choose(path, held.files, name)]


def _safetensors(path: Path, name: str | None) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        fix = "Run: pip install safetensors"
        raise MissingError(f"{path}: safetensors is not installed. {fix}") from error
    try:
        with safe_open(path, framework="numpy") as held:
            return held.get_tensor(_choose(path, list(held.keys()), name))
    except (SafetensorError, TypeError) as error:
        raise ArgumentError(
            f"{path} can't be read: {error}. Save a mask of bool or float32."
        ) from error


def _json(path: Path, name: str | None) -> Any:
    held = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(held, dict):
        held = _named(held, path, name)
    else:
        _refuse_name(path, name)
    return np.array(held)


def _csv(path: Path, name: str | None) -> Any:
    _refuse_name(path, name)
    rows = [
        line.split(",") for line in path.read_text(encoding="utf-8").split("\n") if line.strip()
    ]
    words = {"true": 1.0, "false": 0.0}
    cells = [[words.get(cell.strip().lower(), cell.strip()) for cell in row] for row in rows]
    if len({len(row) for row in cells}) > 1:
        raise ArgumentError(
            f"{path}: its lines have different lengths. Give as many cells in each."
        )
    values = np.array(cells, np.float64)
    whole = np.isfinite(values).all() and (values == values.round()).all()
    return values.astype(np.int64) if whole else values


def _named(held: Mapping[str, Any], path: Path, name: str | None) -> Any:
    return held[_choose(path, list(held), name)]


def _choose(path: Path, names: list[str], name: str | None) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return name
    there = ", ".join(sorted(names)[:20]) or "nothing"
    asked = f"there is no {name}" if name is not None else "it holds several arrays"
    raise ArgumentError(f"{path}: {asked}. Pass --name with one of: {there}.")


def _refuse_name(path: Path, name: str | None) -> None:
    if name is not None:
        raise ArgumentError(f"{path} holds one array without a name. Leave --name out.")


_READERS = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".json": _json,
    ".csv": _csv,
}
