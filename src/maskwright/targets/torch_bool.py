"""torch.bool: a bool tensor, as SDPA and most hand-written code take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.targets.code import mask_code
from maskwright.targets.facts import EmptyRows, check_empty_rows
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import tensor

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.bool",
    gives="a bool tensor",
    says="every mask",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S)",
    alignment="the frame's",
    empty_rows="left to the softmax",
    reads="keep",
    needs="torch",
)


def lower(
    bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native"
) -> torch.Tensor:
    """The dense mask as a tensor."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    return tensor(bound.dense(), device)


def usage(bound: BoundMask, given: object) -> list[str]:  # noqa: ARG001 - one form only
    """The lines that make it by hand."""
    return mask_code(bound, "torch")
