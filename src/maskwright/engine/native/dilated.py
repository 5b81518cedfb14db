"""Masks whose keys lie evenly apart, as masks without gaps over every so manieth row and key.

The kernel takes strides as they come, so each of these is a call of its own on the same tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from maskwright.engine.dilation import dilation, thinned
from maskwright.engine.native.spans import Held, held_of, held_spans
from maskwright.engine.problem import Problem

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask


class Thin(NamedTuple):
    """The rows and keys of one such mask, and its spans."""

    rows: slice
    keys: slice
    held: Held

    @property
    def whole(self) -> bool:
        """Are these all rows and keys?"""
        return self.rows == slice(None)


def thin_masks(bound: BoundMask) -> list[Thin]:
    """What a bound mask is computed as: mostly itself.

    >>> import maskwright as mw
    >>> len(thin_masks(mw.causal().on(8))), len(thin_masks(mw.stride(2).on(8)))
    (1, 2)
    """
    found: list[Thin] | None = bound.__dict__.get("_thin")
    if found is None:
        found = bound.__dict__["_thin"] = _taken_apart(bound)
    return found


def _taken_apart(bound: BoundMask) -> list[Thin]:
    held = held_spans(bound)
    batch, heads, rows, keys = bound.shape
    whole = [Thin(slice(None), slice(None), held)]
    if batch * heads != 1 or not held.starts.size:
        return whole
    problem = Problem(held.offsets, held.starts, held.stops, keys)
    step = dilation(problem)
    if step == 1:
        return whole
    parts: dict[int, Thin] = {}
    for row in range(min(step, rows)):
        thin, key = thinned(problem, row, step)
        if not thin.starts.size:
            continue
        if key in parts:  # two of them would write the same gradients
            return whole
        own = held_of((1, 1, thin.rows), thin.kv_len, thin.offsets, thin.starts, thin.stops)
        parts[key] = Thin(slice(row, None, step), slice(key, None, step), own)
    return list(parts.values())
