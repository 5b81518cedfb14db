"""additive: numpy floats that are added to the scores, 0 keeps and the fill hides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.targets.code import fill_code, mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows
from maskwright.targets.fills import read_fill
from maskwright.targets.target import Target

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="additive",
    gives="a float array",
    says="every mask",
    polarity="0 keeps, -inf hides",
    shape="(B or 1, H or 1, T, S)",
    alignment="the frame's",
    empty_rows="left to the softmax: NaN with -inf, uniform with a finite fill",
    reads="additive",
)


def lower(
    bound: BoundMask, *, dtype: Any = np.float32, fill: Any = None, empty_rows: EmptyRows = "native"
) -> npt.NDArray[Any]:
    """0 where a key may be seen, else the fill: one select, never a sum."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    kind = _float_dtype(dtype)
    hides = read_fill(fill, float(np.finfo(kind).min), kind.name)
    bias: npt.NDArray[Any] = np.where(bound.dense(), kind.type(0), kind.type(hides))
    return bias


def usage(bound: BoundMask, given: npt.NDArray[Any]) -> list[str]:
    """The lines that make it by hand."""
    least, finfo = float(given.min(initial=0)), f'np.finfo("{given.dtype}")'
    hides = fill_code(least, float(np.finfo(given.dtype).min), finfo)
    return [
        *mask_code(bound, "np"),
        f'bias = np.where(mask, 0, {hides}).astype("{given.dtype}")  # add: 0 keeps, the fill hides',
    ]


def _float_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind != "f":
        given = kind if kind.kind != "O" else describe_type(dtype)
        raise ArgumentError(
            f"lower: dtype is {given}. Give a floating-point dtype of numpy, such as 'float32'."
        )
    return kind
