"""numpy: a bool array; additive: a float array that is added to the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets.base import Target, invalid_dtype, mask_value
from maskwright.targets.codegen import fill_code, mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray


class Bool:
    """The target "numpy"."""

    TARGET = Target(
        name="numpy",
        returns="a bool array",
        supports="every mask",
        polarity="True keeps",
        shape="(B or 1, H or 1, T, S)",
        alignment="the frame's",
        empty_rows="left to the softmax",
        encoding="keep",
    )

    @staticmethod
    def lower(bound: BoundMask, *, empty_rows: EmptyRows = "native") -> BoolArray:
        """Returns the dense mask."""
        check_empty_rows(bound, empty_rows, returns_zero=False)
        return bound.dense()

    @staticmethod
    def usage(bound: BoundMask, lowered: object) -> list[str]:  # noqa: ARG004 - one format only
        """Lines that build it."""
        return mask_code(bound, "np")


class Additive:
    """The target "additive"."""

    TARGET = Target(
        name="additive",
        returns="a float array",
        supports="every mask",
        polarity="0 keeps, -inf hides",
        shape="(B or 1, H or 1, T, S)",
        alignment="the frame's",
        empty_rows="left to the softmax: NaN with -inf, uniform with a finite fill",
        encoding="additive",
    )

    @staticmethod
    def lower(
        bound: BoundMask,
        *,
        dtype: Any = np.float32,
        fill: Any = None,
        empty_rows: EmptyRows = "native",
    ) -> npt.NDArray[Any]:
        """Returns 0 for visible keys, else `fill`. One select, never a sum."""
        check_empty_rows(bound, empty_rows, returns_zero=False)
        kind = parse_dtype(dtype)
        value = mask_value(fill, float(np.finfo(kind).min), kind.name)
        bias: npt.NDArray[Any] = np.where(bound.dense(), kind.type(0), kind.type(value))
        return bias

    @staticmethod
    def usage(bound: BoundMask, lowered: npt.NDArray[Any]) -> list[str]:
        """Lines that build it."""
        dtype_min, finfo = float(np.finfo(lowered.dtype).min), f'np.finfo("{lowered.dtype}")'
        value = fill_code(float(lowered.min(initial=0)), dtype_min, finfo)
        return [
            *mask_code(bound, "np"),
            f'bias = np.where(mask, 0, {value}).astype("{lowered.dtype}")  # added: 0 keeps',
        ]


def parse_dtype(dtype: Any) -> np.dtype[Any]:
    """Returns a floating-point dtype of numpy."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError as error:
        raise invalid_dtype(dtype, "'float32'") from error
    if kind.kind != "f":
        raise invalid_dtype(dtype if kind.kind == "O" else kind.name, "'float32'")
    return kind
