"""The softmax of manually implemented attention, and the mask that its output shows.

A manual implementation is a matmul of queries and keys, a softmax, and a matmul with the values.
`maskwright.tracing.provenance` finds these operations; this module compares the weights that are
multiplied with the values with those that the softmax returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from maskwright.recognition.encoding import MAX_MASK_VALUE
from maskwright.tracing.kernels import is_low, is_mask_value

SUM_TOLERANCE: Final = 1e-3  # for the sum of a row of softmax weights


@dataclass(frozen=True)
class AppliedMask:
    """A mask tensor that an operation applied to scores or weights."""

    operation: str  # "masked_fill", "where", "add", "sub" or "mul"
    convention: str
    mask: Any
    shape: tuple[int, ...]  # of the scores or weights
    true_keeps: bool = False  # for a bool mask

    def masked(self) -> torch.Tensor | None:
        """The cells, in `shape`, that the mask is meant to mask; None if that is not known."""
        if self.operation == "mul":
            return None
        mask = self.mask.detach()
        if mask.dtype != torch.bool:
            mask = mask.to(torch.float64)
            mask = is_mask_value(-mask if self.operation == "sub" else mask)
        return (~mask if self.true_keeps else mask).expand(self.shape)


@dataclass(frozen=True)
class Matmul:
    """Sizes and operands of a batched matmul: (batch, rows, inner) × (batch, inner, columns)."""

    batch: int
    rows: int
    columns: int
    inner: int
    learned: tuple[bool, bool]  # whether an operand is computed from parameters alone
    origins: tuple[frozenset[object], frozenset[object]]


@dataclass(eq=False)
class Softmax:
    """A softmax, or the exp of a softmax whose normalization is a separate operation."""

    shape: tuple[int, ...]
    dim: int
    weights: torch.Tensor
    masked: torch.Tensor  # True where the mask left no weight
    masks: list[AppliedMask]  # applied to the scores
    matmul: Matmul | None  # of queries and keys
    keys_first: bool  # whether the keys are the matmul's first operand
    normalized: bool  # whether the rows sum to 1
    used: bool = False  # whether it was already matched with a matmul

    @property
    def is_router(self) -> bool:
        """Whether it chooses among parameters, as a mixture-of-experts router does, not tokens."""
        return self.matmul is not None and self.matmul.learned[0 if self.keys_first else 1]


class WeightOrigin(NamedTuple):
    """Where the elements of a weight matrix come from in the output of a softmax."""

    cells: torch.Tensor  # (batch, rows, keys): flat indices into the output, -1 if not from there
    dropped: torch.Tensor  # for each element of the output, whether dropout zeroed it
    masks: list[AppliedMask]  # applied after the softmax


@dataclass(frozen=True)
class ManualAttention:
    """Attention as matmul, softmax and matmul: the visible cells and what is known about it."""

    visible: torch.Tensor  # (…, queries, keys)
    values: torch.Tensor  # (batch, keys, dim)
    out: torch.Tensor  # (batch, rows, dim)
    matmul: Matmul | None
    after_softmax: bool
    masks: list[AppliedMask]
    convention: str


def match_attention(
    soft: Softmax, origin: WeightOrigin, w: torch.Tensor, v: torch.Tensor, out: torch.Tensor
) -> ManualAttention | None:
    """The attention that the matmul `w @ v` completes, where `w` comes from a softmax.

    Args:
        soft: The softmax. It is marked as used if the matmul completes it.
        origin: Which elements of its output the weights are.
        w: Softmax weights, (batch, rows, keys).
        v: Values, (batch, keys, dim).
        out: Their product, (batch, rows, dim).

    Returns:
        None if the rows of `w` are not rows of the softmax.
    """
    cells = origin.cells
    stride = math.prod(soft.shape[soft.dim + 1 :])
    keys = (cells // stride) % soft.shape[soft.dim]
    rows = cells - keys * stride
    are_rows = bool((keys == keys[:1, :1]).all()) and bool((rows == rows[..., :1]).all())
    if bool((cells < 0).any()) or not are_rows:
        return None
    soft.used = True
    flat, final = cells.flatten().to(w.device), w.detach().flatten()
    initial = soft.weights.flatten()[flat]
    masked_before = soft.masked.flatten()[flat]
    zero = final == 0
    zeroed = zero & (initial.to(final.dtype) != 0) & ~initial.isnan() & ~masked_before
    zeroed = zeroed & ~origin.dropped.to(w.device)[flat]
    masked = (masked_before & (zero | final.isnan())) | zeroed
    filled = _union(origin.masks, soft.weights.shape).flatten().to(w.device)[flat]
    changed = (zeroed | (filled & (final != initial) & ~zero)).view_as(w)
    changed = changed & (final.view_as(w) != 0).any(-1, keepdim=True)  # not in fully masked rows
    after = soft.normalized and _sums_changed(final.view_as(w), initial.view_as(w), changed)
    visible = torch.zeros(soft.weights.numel(), dtype=torch.bool, device="cpu")
    visible[flat[~masked].cpu()] = True
    planes = _to_planes(visible.view(soft.shape), soft.dim, rows[..., 0], keys[0, 0])
    if planes is None:
        planes = ~masked.view_as(w).cpu()
    masks = soft.masks if soft.normalized else [*soft.masks, *origin.masks]
    convention = " + ".join(dict.fromkeys(mask.convention for mask in masks)) or "none"
    if after or (soft.normalized and bool(changed.any())):
        masks = origin.masks
        convention = "after the softmax" if after else "after the softmax, rescaled"
    elif convention == "none" and bool(masked.any()):
        convention = "after the softmax, whole rows" if bool(zeroed.any()) else "before the softmax"
    return ManualAttention(planes, v, out, soft.matmul, after, masks, convention)


def masked_cells(
    scores: torch.Tensor, weights: torch.Tensor, masks: list[AppliedMask]
) -> torch.Tensor:
    """The cells that a mask left no weight: scores of -inf, or of a mask value if the weight is 0.

    Weights that underflow without a mask, such as those of distant keys under ALiBi, are visible.
    """
    low = _union(masks, scores.shape).to(scores.device)
    if not bool(low.any()):  # the mask may have been applied by an operation that is not known
        low = is_low(scores, MAX_MASK_VALUE / 2)
    return (scores == -torch.inf) | ((weights == 0) & low)


def masks_by_name(masks: list[AppliedMask]) -> dict[str, Any]:
    """Mask tensors by the operation that applied them, those that mask some cell first."""

    def masks_something(mask: AppliedMask) -> bool:
        masked = mask.masked()
        return masked is not None and bool(masked.any())

    named: dict[str, Any] = {}
    for mask in sorted(masks, key=masks_something, reverse=True):
        name, number = mask.operation, 2
        while name in named:
            name, number = f"{mask.operation} {number}", number + 1
        named[name] = mask.mask
    return named


def _union(masks: list[AppliedMask], shape: Any) -> torch.Tensor:
    """The cells that some of these masks is meant to mask."""
    cells = torch.zeros(tuple(shape), dtype=torch.bool, device="cpu")
    for mask in masks:
        masked = mask.masked()
        if masked is not None and math.prod(mask.shape) == cells.numel():
            cells = cells | masked.reshape(cells.shape).cpu()
    return cells


def _sums_changed(final: torch.Tensor, initial: torch.Tensor, changed: torch.Tensor) -> bool:
    """Whether a row with changed weights has another sum than the softmax returned."""
    error = (final.to(torch.float64).sum(-1) - initial.to(torch.float64).sum(-1)).abs()
    return bool((changed.any(-1) & ~(error <= SUM_TOLERANCE)).any())


def _to_planes(
    visible: torch.Tensor, dim: int, rows: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor | None:
    """The cells of a softmax as (…, queries, keys), with only the keys that are used.

    `rows`, (batch, rows), are the flat indices at which the rows of the matmul begin. The axis
    along which they vary is that of the queries. None if the matmul uses only some rows.
    """
    shape = visible.shape
    if rows.unique().numel() * shape[dim] != visible.numel():
        return None
    others = [axis for axis in range(len(shape)) if axis != dim]
    strides = visible.stride()
    indices = {axis: (rows[0] // strides[axis]) % shape[axis] for axis in others}
    varying = [axis for axis in others if bool((indices[axis] != indices[axis][0]).any())]
    single = [axis for axis in others if shape[axis] == 1]
    if not varying and not single:
        return visible.movedim(dim, -1).unsqueeze(-2)[..., keys]
    axis = (varying or single)[-1]
    lead = [other for other in others if other != axis]
    return visible.permute(*lead, axis, dim)[..., keys]
