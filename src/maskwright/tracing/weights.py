"""Weights × values: the last step of attention that is written by hand, read back to its softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from maskwright.recognition.encoding import LEAST_FILL
from maskwright.tracing.nodes import Found, origin_cells, place_of, steps_on

if TYPE_CHECKING:
    from maskwright.tracing.nodes import Path, Step

SLACK: Final = 1e-3  # by which weights that sum to one may miss it


def weigh(path: Path, w: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> Found | None:
    """Attention, if the rows of w (count, rows, keys) are what the softmax gave that it came from."""
    soft = path[0].softmax
    assert soft is not None
    if soft.used or soft.routes:
        return None
    index, dropped = origin_cells(*path)
    cells = index.as_strided(*place_of(w))
    stride = math.prod(soft.shape[soft.dim + 1 :])
    keys = (cells // stride) % soft.shape[soft.dim]
    rows = cells - keys * stride
    one_key = bool((keys == keys[:1, :1]).all()) and bool((rows == rows[..., :1]).all())
    if bool((cells < 0).any()) or not one_key:
        return None
    soft.used = True
    flat, final = cells.flatten().to(w.device), w.detach().flatten()
    gave = soft.weights.flatten()[flat]
    masked = soft.hidden.flatten()[flat]
    steps, later = soft.steps, steps_on(path)
    zero = final == 0
    lost = zero & (gave.to(final.dtype) != 0) & ~gave.isnan() & ~masked
    lost = lost & ~dropped.to(w.device)[flat]
    hidden = (masked & (zero | final.isnan())) | lost
    filled = _filled(later, soft.weights.shape).flatten().to(w.device)[flat]
    taken = (lost | (filled & (final != gave) & ~zero)).view_as(w)
    taken = taken & (final.view_as(w) != 0).any(-1, keepdim=True)  # of rows that are left
    after = soft.sums and _no_longer_sum(final.view_as(w), gave.view_as(w), taken)
    seen = torch.zeros(soft.weights.numel(), dtype=torch.bool, device="cpu")
    seen[flat[~hidden].cpu()] = True
    planes = _planes(seen.view(soft.shape), soft.dim, rows[..., 0], keys[0, 0])
    if planes is None:
        planes = ~hidden.view_as(w).cpu()
    if not soft.sums:
        steps = [*steps, *later]
    convention = " + ".join(dict.fromkeys(step.text for step in steps)) or "none"
    if after or (soft.sums and bool(taken.any())):
        steps = later
        convention = "after the softmax" if after else "after the softmax, rescaled"
    elif convention == "none" and bool(hidden.any()):
        convention = "after the softmax, whole rows" if bool(lost.any()) else "before the softmax"
    return Found(planes, v, out, soft.product, soft.flipped, after, steps, convention)


def hidden_cells(x: torch.Tensor, weights: torch.Tensor, steps: list[Step]) -> torch.Tensor:
    """The cells that a mask left no weight: by -inf, or by a fill that was met on the way.

    Weights that vanish though no mask is near, such as ALiBi's far away, are not hidden.
    """
    low = _filled(steps, x.shape).to(x.device)
    if not bool(low.any()):  # it may have come by a way that is not known
        low = x <= LEAST_FILL / 2
    return (x == -torch.inf) | ((weights == 0) & low)


def _filled(steps: list[Step], shape: Any) -> torch.Tensor:
    """The cells that these masks are meant to hide."""
    cells = torch.zeros(tuple(shape), dtype=torch.bool, device="cpu")
    for step in steps:
        fill = step.drops()
        if fill is not None and math.prod(step.shape) == cells.numel():
            cells = cells | fill.reshape(cells.shape).cpu()
    return cells


def _no_longer_sum(final: torch.Tensor, gave: torch.Tensor, taken: torch.Tensor) -> bool:
    """Has a row of which weights were taken another sum than the softmax gave it?"""
    off = (final.to(torch.float64).sum(-1) - gave.to(torch.float64).sum(-1)).abs()
    return bool((taken.any(-1) & ~(off <= SLACK)).any())


def _planes(
    seen: torch.Tensor, dim: int, rows: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor | None:
    """The cells of a softmax as (…, queries, keys), of those keys that are used.

    `rows` are the first cells of the rows as they were multiplied, (count, rows). The axis that
    they run along is that of the queries. None if only some of the rows were multiplied.
    """
    shape = seen.shape
    if rows.unique().numel() * shape[dim] != seen.numel():
        return None
    others = [axis for axis in range(len(shape)) if axis != dim]
    strides = seen.stride()
    places = {axis: (rows[0] // strides[axis]) % shape[axis] for axis in others}
    runs = [axis for axis in others if bool((places[axis] != places[axis][0]).any())]
    single = [axis for axis in others if shape[axis] == 1]
    if not runs and not single:
        return seen.movedim(dim, -1).unsqueeze(-2)[..., keys]
    axis = (runs or single)[-1]
    lead = [other for other in others if other != axis]
    return seen.permute(*lead, axis, dim)[..., keys]
