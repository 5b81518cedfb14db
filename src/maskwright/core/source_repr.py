"""Values as source: the literals in a mask's repr, which `parse` reads back."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskwright.core.validate import FrozenArray


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """`name(...)` with its arguments; the key "" marks the one that is given by place."""
    parts = [
        literal(value) if not key else f"{key}={literal(value)}" for key, value in arguments.items()
    ]
    return f"{name}({', '.join(parts)})"


def call_summary(name: str, arguments: dict[str, Any]) -> str:
    """`name(...)`, with the arguments left out where they are data."""
    data = any(isinstance(value, (FrozenArray, tuple)) for value in arguments.values())
    return f"{name}(...)" if data else call_text(name, arguments)


def literal(value: object) -> str:
    """Source of a number, a truth value, None, a name, a range or an array (truth as 1 and 0)."""
    if isinstance(value, range):
        return f"range({value.stop})" if value.start == 0 and value.step == 1 else repr(value)
    return repr(plain(value)) if isinstance(value, (FrozenArray, tuple)) else repr(value)


def plain(value: object) -> object:
    """The same value made of what JSON knows: lists, numbers, truth values and names."""
    if isinstance(value, FrozenArray):
        data = value.data
        return (data.astype(np.int64) if data.dtype == np.bool_ else data).tolist()
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value
