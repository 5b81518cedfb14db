"""numpy: a plain bool array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.targets.code import mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows
from maskwright.targets.target import Target

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray

TARGET = Target(
    name="numpy",
    gives="a bool array",
    says="every mask",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S)",
    alignment="the frame's",
    empty_rows="left to the softmax",
    reads="keep",
)


def lower(bound: BoundMask, *, empty_rows: EmptyRows = "native") -> BoolArray:
    """The dense mask itself."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    return bound.dense()


def usage(bound: BoundMask, given: object) -> list[str]:  # noqa: ARG001 - one form only
    """The lines that make it by hand."""
    return mask_code(bound, "np")
