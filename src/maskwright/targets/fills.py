"""The fill of an additive mask: what hides, and whether the dtype can hold it."""

from __future__ import annotations

import math

from maskwright.core.arrays import kind_of
from maskwright.core.convention import LEAST_FILL
from maskwright.errors import ArgumentError


def read_fill(fill: object, least: float, dtype: str) -> float:
    """-inf by default, "min" for the dtype's least number, or a number that the dtype can hold."""
    if fill is None or fill == "-inf":
        return -math.inf
    if fill == "min":
        return least
    if isinstance(fill, bool) or not isinstance(fill, (int, float)) or math.isnan(fill):
        given = repr(fill) if isinstance(fill, str) else kind_of(fill)
        raise ArgumentError(f"lower: fill is {given}. Give '-inf', 'min' or a number.")
    if fill > LEAST_FILL:
        raise ArgumentError(
            f"lower: fill={fill:g} is too near to the scores to hide a key. "
            f"Give {LEAST_FILL:g} or less, 'min' or '-inf'."
        )
    if least > fill > -math.inf:
        raise ArgumentError(
            f"lower: fill={fill:g} does not fit {dtype}, whose least number is {least:g}. "
            "Pass fill='min' or fill='-inf'."
        )
    return float(fill)
