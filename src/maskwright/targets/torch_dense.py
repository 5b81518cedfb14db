"""torch.bool: a bool tensor; torch.additive: a float tensor that is added to the scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.targets._torch import additive_mask, additive_range, to_tensor
from maskwright.targets.base import Target
from maskwright.targets.codegen import fill_code, mask_code
from maskwright.targets.predicates import EmptyRows, check_empty_rows

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask


class Bool:
    """The target "torch.bool"."""

    TARGET = Target(
        name="torch.bool",
        returns="a bool tensor",
        supports="every mask",
        polarity="True keeps",
        shape="(B or 1, H or 1, T, S)",
        alignment="the frame's",
        empty_rows="left to the softmax",
        encoding="keep",
        requires="torch",
    )

    @staticmethod
    def lower(
        bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native"
    ) -> torch.Tensor:
        """Returns the dense mask as a tensor."""
        check_empty_rows(bound, empty_rows, returns_zero=False)
        return to_tensor(bound.dense(), device)

    @staticmethod
    def usage(bound: BoundMask, lowered: object) -> list[str]:  # noqa: ARG004 - one format only
        """Lines that build it."""
        return mask_code(bound, "torch")


class Additive:
    """The target "torch.additive"."""

    TARGET = Target(
        name="torch.additive",
        returns="a float tensor",
        supports="every mask",
        polarity="0 keeps, -inf hides",
        shape="(B or 1, H or 1, T, S)",
        alignment="the frame's",
        empty_rows="left to the softmax: NaN with -inf, uniform with a finite fill",
        encoding="additive",
        requires="torch",
    )

    @staticmethod
    def lower(
        bound: BoundMask,
        *,
        device: object = None,
        dtype: object = None,
        fill: object = None,
        empty_rows: EmptyRows = "native",
    ) -> torch.Tensor:
        """Returns 0 for visible keys, else `fill`."""
        check_empty_rows(bound, empty_rows, returns_zero=False)
        return additive_mask(bound.dense(), dtype, fill, device)

    @staticmethod
    def usage(bound: BoundMask, lowered: torch.Tensor) -> list[str]:
        """Lines that build it."""
        dtype = lowered.dtype
        value = fill_code(*additive_range(lowered), f"torch.finfo({dtype})")
        return [
            *mask_code(bound, "torch"),
            f"bias = torch.zeros(mask.shape, dtype={dtype}).masked_fill(~mask, {value})"
            "  # added: 0 keeps",
        ]
