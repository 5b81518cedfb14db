"""The fill of an additive mask: what hides, and whether the dtype can hold it."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.recognition.encoding import LEAST_FILL


def read_fill(fill: object, least: float, dtype: str) -> float:
    """-inf by default, "min" for the dtype's least number, or a number that the dtype can hold."""
    if fill is None or (isinstance(fill, str) and fill == "-inf"):
        return -math.inf
    if isinstance(fill, str) and fill == "min":
        return least
    number = _number(fill)
    if math.isnan(number):
        given = repr(fill) if isinstance(fill, (str, float)) else describe_type(fill)
        raise ArgumentError(f"lower: fill is {given}. Give '-inf', 'min' or a number.")
    if number > LEAST_FILL:
        raise ArgumentError(
            f"lower: fill={number:g} does not hide a key for sure. "
            f"Give {LEAST_FILL:g} or less, 'min' or '-inf'."
        )
    if least > number and not (number == -math.inf == fill):
        raise ArgumentError(
            f"lower: fill={number:g} does not fit {dtype}, whose least number is {least:g}. "
            "Pass fill='min' or fill='-inf'."
        )
    return number


def _number(fill: object) -> float:
    """A number of any kind, NaN for what is none."""
    if isinstance(fill, (bool, np.bool_)) or not isinstance(fill, Real):
        return math.nan
    try:
        return float(fill)
    except OverflowError:
        return -math.inf if fill < 0 else math.inf
