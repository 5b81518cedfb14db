"""What a target consists of, how it refuses a mask, and the checks of options that several share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.recognition.encoding import MAX_MASK_VALUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.bound import BoundMask

    EncDecMasks = tuple[BoundMask, BoundMask, BoundMask]  # encoder, decoder, cross-attention


@dataclass(frozen=True, kw_only=True)
class Target:
    """Which masks a target can represent, and in which format.

    Attributes:
        name: The name that `lower` takes.
        returns: What `lower` returns.
        supports: Which masks it can represent.
        polarity: Which value keeps a key visible.
        shape: The shape of the format: B batch, H heads, T queries, S keys.
        alignment: Where the format itself places the first query.
        empty_rows: The output of a fully masked row.
        encoding: How the framework interprets a dense array: "keep" or "drop" for True, or
            "additive"; "" if it takes no dense array.
        accepts_additive: Whether it takes a float mask, added to the scores, besides a bool one.
        dtypes: The kinds of dtypes of a dense array, "bool" or "float", if it raises for others.
        axes: The axes of a dense array, where they are not aligned at the last one.
        num_masks: The number of masks that it takes.
        requires: The package that must be installed.
        tested: Whether the tests run the framework's kernel, or check the format only.
        alternatives: Targets for the masks that this one cannot represent.
        scores: How it takes "bias", "softcap" and "sinks"; the others are refused.
        score_call: Code that passes them: what `lower` returned is `lowered`.

    >>> import maskwright as mw
    >>> mw.capabilities()["torch.mha"].polarity
    'True masks'
    """

    name: str
    returns: str
    supports: str = "every mask"
    polarity: str
    shape: str = "(B or 1, H or 1, T, S)"
    alignment: str = "the frame's"
    empty_rows: str
    encoding: str = ""
    accepts_additive: bool = False
    dtypes: tuple[str, ...] = ()
    axes: str = ""
    num_masks: int = 1
    requires: str = ""
    tested: str = "kernel run"
    alternatives: tuple[str, ...] = ()
    scores: dict[str, str] = field(default_factory=dict)
    score_call: str = ""


FORMAT_ONLY = "format only, kernel not run"  # of `Target.tested`


class TargetModule(Protocol):
    """What an entry in the table of targets refers to: a module, or a class in it."""

    TARGET: Target
    lower: Callable[..., Any]  # (bound, *, options) -> the framework's format
    usage: Callable[..., list[str]]  # (bound, what lower returned) -> lines of code


class Unrepresentable(Exception):  # noqa: N818 - internal: `lower` turns it into Unsupported
    """The target has no format for this mask; the message is the reason, or empty."""


class EmptyRow(Unrepresentable):
    """The target would not return zero for the fully masked row (batch, head, query)."""

    def __init__(self, batch: int, head: int, query: int) -> None:
        super().__init__()
        self.row = batch, head, query


def mask_value(fill: object, dtype_min: float, dtype: str) -> float:
    """Returns the value of masked cells in an additive mask.

    Args:
        fill: None or "-inf", "min" for the lowest number of the dtype, or a number.
        dtype_min: The lowest finite number of the dtype.
        dtype: The name of the dtype, for messages.

    Raises:
        ArgumentError: If `fill` is not such a value, or not low enough to mask keys, or lower
            than the dtype can hold.
    """
    if fill is None or (isinstance(fill, str) and fill == "-inf"):
        return -math.inf
    if isinstance(fill, str) and fill == "min":
        return dtype_min
    value = _as_float(fill)
    if math.isnan(value):
        shown = repr(fill) if isinstance(fill, (str, float)) else describe_type(fill)
        raise ArgumentError(f"lower: fill is {shown}. Expected '-inf', 'min' or a number.")
    if value > MAX_MASK_VALUE:
        raise ArgumentError(
            f"lower: fill={value:g} is too high to mask a key reliably. "
            f"Pass {MAX_MASK_VALUE:g} or less, 'min' or '-inf'."
        )
    if dtype_min > value and not (value == -math.inf == fill):
        raise ArgumentError(
            f"lower: fill={value:g} does not fit {dtype}, whose minimum is {dtype_min:g}. "
            "Pass fill='min' or fill='-inf'."
        )
    return value


def invalid_dtype(dtype: object, example: str) -> ArgumentError:
    """The error for a dtype that is not a floating-point dtype of the framework."""
    shown = dtype if isinstance(dtype, str) else describe_type(dtype)
    return ArgumentError(
        f"lower: dtype is {shown}. Expected a floating-point dtype, such as {example}."
    )


def parse_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns a floating-point dtype of numpy."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise invalid_dtype(dtype, "'float32'") from error
    if kind.kind != "f":
        raise invalid_dtype(dtype if kind.kind == "O" else kind.name, "'float32'")
    return kind


def invalid_device(device: object, framework: str, examples: str) -> ArgumentError:
    """The error for a device that the framework does not have."""
    return ArgumentError(
        f"lower: device={device!r} is not a {framework} device. Pass a device such as {examples}."
    )


def _as_float(value: object) -> float:
    """A number of any kind; NaN for anything else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf
