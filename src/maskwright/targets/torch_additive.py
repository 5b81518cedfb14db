"""torch.additive: a float tensor that is added to the scores, 0 keeps and the fill hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.targets.code import fill_code, mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import additive, least

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.additive",
    gives="a float tensor",
    says="every mask",
    polarity="0 keeps, -inf hides",
    shape="(B or 1, H or 1, T, S)",
    alignment="the frame's",
    empty_rows="left to the softmax: NaN with -inf, uniform with a finite fill",
    reads="additive",
    needs="torch",
)


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    dtype: object = None,
    fill: object = None,
    empty_rows: EmptyRows = "native",
) -> torch.Tensor:
    """0 where a key may be seen, else the fill."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    return additive(bound.dense(), dtype, fill, device)


def usage(bound: BoundMask, given: torch.Tensor) -> list[str]:
    """The lines that make it by hand."""
    make, finfo = f"torch.zeros(mask.shape, dtype={given.dtype})", f"torch.finfo({given.dtype})"
    hides = fill_code(*least(given), finfo)
    return [
        *mask_code(bound, "torch"),
        f"bias = {make}.masked_fill(~mask, {hides})  # add: 0 keeps, the fill hides",
    ]
