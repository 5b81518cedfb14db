"""What attention kernels hide, read from their arguments as the kernels read them.

Every function gives a bool tensor, true where a weight is really there. What is added to scores
hides a cell only if it leaves no weight at all, and is large enough to be meant so.
"""

from __future__ import annotations

from typing import Any

import torch

from maskwright.recognition.encoding import LEAST_FILL


def drops(added: torch.Tensor) -> torch.Tensor:
    """Where numbers that are added to scores are meant to hide: very low, or the lower of two."""
    lowest = added.amin() if added.numel() else added.sum()
    low = added <= LEAST_FILL
    if bool(lowest < 0) and bool(((added == lowest) | (added == added.amax())).all()):
        low = low | ((added == lowest) & (added < 0))
    return low


def hidden_by(added: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The cells that these numbers, added to these scores, leave no weight."""
    added = added.to(scores.dtype)
    weights = torch.softmax(scores + added, -1)
    return (added == -torch.inf) | ((weights == 0) & drops(added))


def scores_of(q: torch.Tensor, k: torch.Tensor, scale: float | None) -> torch.Tensor:
    """The scores as kernels have them: single precision at least; groups of heads share a key head."""
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    q, k = q.detach().to(kind), k.detach().to(kind)
    if q.dim() > 2 and q.shape[-3] != k.shape[-3] and k.shape[-3] > 1:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return (q @ k.transpose(-2, -1)) * factor


def by_sdpa(
    q: torch.Tensor, k: torch.Tensor, mask: Any, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Cells of scaled_dot_product_attention, (…, queries, keys). Causal is from the upper left."""
    if q.is_nested:
        cells = by_lengths(q, k)
        return cells.tril() if is_causal else cells
    size = (q.shape[-2], k.shape[-2])
    cells = torch.ones(size, dtype=torch.bool, device=q.device)
    if is_causal:
        cells = cells.tril()
    if mask is not None and hasattr(mask, "_materialize"):  # torch.nn.attention.bias
        mask = mask._materialize(q.device)
    if mask is not None:
        mask = mask.detach()
        seen = mask if mask.dtype == torch.bool else ~hidden_by(mask, scores_of(q, k, scale))
        cells = cells & seen
    lead = torch.broadcast_shapes(q.shape[:-2], cells.shape[:-2])
    return cells.expand(*lead, *size)


def by_lengths(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Cells of nested tensors: each sequence sees all of itself. (batch, 1, queries, keys)."""
    rows, keys = ([len_of(part) for part in x.unbind()] for x in (q, k))
    places = torch.arange(max(keys, default=0))
    real = places < torch.tensor(keys)[:, None]
    return real[:, None, None, :].expand(-1, 1, max(rows, default=0), -1)


def len_of(part: torch.Tensor) -> int:
    """How long one sequence of a nested tensor is: (length, dim) or (heads, length, dim)."""
    return int(part.shape[-2])


def by_native(mask: Any, kind: int | None, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Cells of the fused nn paths: whatever is not 0 in their mask is hidden, numbers too.

    `kind` is 0 for (queries, keys), 1 for (batch, keys), 2 for all four axes.
    """
    batch, _, queries, keys = shape
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    seen = ~mask.detach().to(torch.bool)
    if kind == 1:
        seen = seen.reshape(batch, 1, 1, keys)
    elif seen.dim() == 2:
        seen = seen.reshape(1, 1, queries, keys)
    return seen.expand(shape)


def by_flex(
    score_mod: Any, mask_mod: Any, shape: tuple[int, int, int, int], device: Any
) -> torch.Tensor:
    """Cells of flex_attention: what its two functions say of every cell."""
    from torch.nn.attention.flex_attention import create_mask

    def fallen(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        out = score_mod(score, b, h, q, k)
        return torch.where(out <= LEAST_FILL, -torch.inf, out)

    cells = create_mask(mask_mod, *shape, device=device)
    if score_mod is not None:
        cells = cells & create_mask(fallen, *shape, device=device)
    return cells.expand(shape)
