"""Dense masks: "numpy" and "torch.bool" in bool, "additive" and "torch.additive" to add to scores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.targets._torch import additive_mask, additive_range, to_tensor
from maskwright.targets.base import Target, mask_value, parse_dtype
from maskwright.targets.codegen import fill_code, mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows
from maskwright.targets.scores import additive_array, dense_bias

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray


class NumpyBool:
    """The target "numpy"."""

    TARGET = Target(
        name="numpy",
        returns="a bool array",
        polarity="True keeps",
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


class NumpyAdditive:
    """The target "additive"."""

    TARGET = Target(
        name="additive",
        returns="a float array",
        polarity="0 keeps, -inf masks",
        empty_rows="left to the softmax: NaN with -inf, uniform with a finite fill",
        encoding="additive",
        scores={"bias": "the value of visible cells"},
        score_call="weights = softmax(scores + lowered)",
    )

    @staticmethod
    def lower(
        bound: BoundMask,
        *,
        dtype: Any = np.float32,
        fill: Any = None,
        empty_rows: EmptyRows = "native",
        scores: Scores = NO_SCORES,
    ) -> npt.NDArray[Any]:
        """Returns the bias, or 0, of visible keys, else `fill`. One select, never a sum."""
        check_empty_rows(bound, empty_rows, returns_zero=False)
        kind = parse_dtype(dtype)
        value = mask_value(fill, float(np.finfo(kind).min), kind.name)
        mask: npt.NDArray[Any] = additive_array(scores, bound, value, kind)
        return mask

    @staticmethod
    def usage(bound: BoundMask, lowered: npt.NDArray[Any]) -> list[str]:
        """Lines that build it."""
        dtype_min, finfo = float(np.finfo(lowered.dtype).min), f'np.finfo("{lowered.dtype}")'
        value = fill_code(float(lowered.min(initial=0)), dtype_min, finfo)
        return [
            *mask_code(bound, "np"),
            f'bias = np.where(mask, 0, {value}).astype("{lowered.dtype}")  # added: 0 keeps',
        ]


class TorchBool:
    """The target "torch.bool"."""

    TARGET = replace(NumpyBool.TARGET, name="torch.bool", returns="a bool tensor", requires="torch")

    @staticmethod
    def lower(bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native") -> Any:
        """Returns the dense mask as a tensor."""
        return to_tensor(NumpyBool.lower(bound, empty_rows=empty_rows), device)

    @staticmethod
    def usage(bound: BoundMask, lowered: object) -> list[str]:  # noqa: ARG004 - one format only
        """Lines that build it."""
        return mask_code(bound, "torch")


class TorchAdditive:
    """The target "torch.additive"."""

    TARGET = replace(
        NumpyAdditive.TARGET, name="torch.additive", returns="a float tensor", requires="torch"
    )

    @staticmethod
    def lower(
        bound: BoundMask,
        *,
        device: object = None,
        dtype: object = None,
        fill: object = None,
        empty_rows: EmptyRows = "native",
        scores: Scores = NO_SCORES,
    ) -> Any:
        """Returns the bias, or 0, of visible keys, else `fill`."""
        visible = NumpyBool.lower(bound, empty_rows=empty_rows)
        return additive_mask(visible, dtype, fill, device, dense_bias(scores, bound))

    @staticmethod
    def usage(bound: BoundMask, lowered: Any) -> list[str]:
        """Lines that build it."""
        dtype = lowered.dtype
        value = fill_code(*additive_range(lowered), f"torch.finfo({dtype})")
        return [
            *mask_code(bound, "torch"),
            f"bias = torch.zeros(mask.shape, dtype={dtype}).masked_fill(~mask, {value})"
            "  # added: 0 keeps",
        ]
