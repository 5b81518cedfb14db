"""`top_blocks`: block-sparse attention that selects key blocks by the scores of block means.

A key block is scored by the mean of its keys and the mean of the queries. The candidates depend on
the mask alone, so they are computed once per bound mask and cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright._optional_deps import require
from maskwright.core.atoms import blocks
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type, parse_int
from maskwright.engine.validate import EVERYTHING, bind
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans
    from maskwright.core.validate import BoolArray, IntArray


def top_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    size: int = 64,
    keep: int = 8,
    within: Mask | None = None,
    *,
    q_start: int | None = None,
) -> Mask:
    """Block-sparse mask of the `keep` key blocks with the highest scores for each query block.

    For each batch row, head and query block, among the key blocks with a visible cell in `within`:

    1. The key blocks at the positions of the queries themselves are kept: one, or two if the
       block boundaries are not aligned.
    2. The best others are added until there are `keep`. The score of a block is its mean key times
       the mean query. Of equal scores the first block wins, and NaN is the lowest score.
    3. A query that would become fully masked, although it is not in `within`, adds the best
       block that is visible to it. So the mask has no more fully masked rows than `within` has.

    The selection has no gradient.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim), where kv_heads divides heads.
        size: Rows and keys per block.
        keep: Number of key blocks per query block.
        within: The mask to select from, unbound. All keys by default.
        q_start: Position of the first query; pass the same to `attention`.

    Returns:
        An unbound mask.

    Raises:
        ArgumentError: An argument is invalid.

    >>> import torch, maskwright as mw
    >>> from maskwright.engine.block_selection import top_blocks
    >>> keys = torch.tensor([0.0, 0.0, 9.0, 9.0, 1.0, 1.0, 0.0, 0.0]).reshape(1, 1, 8, 1)
    >>> print(top_blocks(torch.ones(1, 1, 8, 1), keys, size=2, keep=2, within=mw.causal()).on(8))
    blocks([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]], size=2) & causal()
    8 queries × 8 keys, density 0.38
    ■ · · · · · · ·
    ■ ■ · · · · · ·
    ■ ■ ■ · · · · ·
    ■ ■ ■ ■ · · · ·
    · · ■ ■ ■ · · ·
    · · ■ ■ ■ ■ · ·
    · · ■ ■ · · ■ ·
    · · ■ ■ · · ■ ■
    """
    with require("top_blocks"):
        import torch
    side = parse_int(size, "top_blocks: size", minimum=1)
    num_kept = parse_int(keep, "top_blocks: keep", minimum=1)
    _check(q, k, within)
    mask = EVERYTHING if within is None else within
    choice = _choice(bind(mask, (*q.shape[:3], k.shape[2]), q_start), side)
    with torch.no_grad():
        # Means in at least float32: sums of half-precision numbers would round, or overflow.
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        scores = _scores(_means(q, side, dtype), _means(k, side, dtype))
        chosen = _best(scores, choice, num_kept)
        _fill(chosen, scores, choice)
    return blocks(chosen.cpu().numpy(), side) & mask


def _check(q: Any, k: Any, within: Any) -> None:
    """Raise for invalid arguments."""
    import torch

    for name, x in (("q", q), ("k", k)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or not x.is_floating_point():
            shown = (
                f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, torch.Tensor) else describe_type(x)
            )
            raise ArgumentError(
                f"top_blocks: {name} is {shown}. "
                "Expected a floating-point tensor of shape (batch, heads, length, head_dim)."
            )
    heads, shared = q.shape[1], k.shape[1]
    fits = heads == shared or (shared > 0 and heads % shared == 0)
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or not fits:
        raise ArgumentError(
            f"top_blocks: q {tuple(q.shape)} and k {tuple(k.shape)} do not match. Pass the "
            "same batch size and head_dim; the heads of q must be a multiple of those of k."
        )
    if q.device != k.device:
        raise ArgumentError(
            f"top_blocks: q is on {q.device} and k on {k.device}. Move both to one device."
        )
    if within is not None and not isinstance(within, Mask):
        raise ArgumentError(f"top_blocks: within is {describe_type(within)}. Pass an unbound mask.")


# ── candidates ──────────────────────────────────────────────────────────────


class Choice(NamedTuple):
    """The key blocks that may and must be selected, (batch or 1, heads or 1, query and key block).

    `line` has the (batch, head, query block) of rows without a visible key in the blocks at their
    own positions, and `seen` the blocks that are visible to them.
    """

    touched: BoolArray
    required: BoolArray
    line: tuple[IntArray, IntArray, IntArray]
    seen: BoolArray


def _choice(bound: BoundMask, size: int) -> Choice:
    """Computed once per bound mask and block size."""
    return bound.cached(("block choice", size), lambda: _make_choice(bound, size))


def _make_choice(bound: BoundMask, size: int) -> Choice:
    tiles = bound.tiles(size).touched
    touched = np.zeros((*tiles.shape, tiles.kv_len), np.bool_)
    tiles.write_dense(touched)
    frame = bound.frame
    first = np.arange(tiles.shape[2]) * size
    last = np.minimum(first + size, frame.q_len) - 1
    low, high = ((frame.q_start + row) // size for row in (first, last))
    column = np.arange(tiles.kv_len)
    required = touched & (column >= low[:, None]) & (column <= high[:, None])
    rows = bound.tiles(1, size).touched
    lost = _lost(rows, low.repeat(size)[: frame.q_len], high.repeat(size)[: frame.q_len])
    return Choice(touched, required, *_lines(rows, lost, size, (frame.batch, frame.heads)))


def _lost(rows: Spans, low: IntArray, high: IntArray) -> IntArray:
    """The flat numbers of rows that see something, but nothing in the blocks low … high."""
    offsets, starts, stops = rows.flat
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(counts.size), counts)
    place = owner % max(rows.shape[2], 1)
    is_near = (starts <= high[place]) & (stops > low[place])
    served = np.zeros(counts.size, np.bool_)
    served[owner[is_near]] = True
    return np.flatnonzero((counts > 0) & ~served)


def _lines(
    rows: Spans, lost: IntArray, size: int, planes: tuple[int, int]
) -> tuple[tuple[IntArray, IntArray, IntArray], BoolArray]:
    """For each of these rows its batch, head and query block, and the blocks that it sees."""
    lost_rows = rows.take(lost[None, None])
    seen = np.zeros((1, 1, lost.size, rows.kv_len), np.bool_)
    lost_rows.write_dense(seen)
    b, h, row = np.unravel_index(lost, rows.shape)
    line = np.stack([b, h, row // size], axis=1)
    # Rows of a block mostly see the same blocks: one of them speaks for all.
    told = np.concatenate([line, np.packbits(seen[0, 0], axis=1)], axis=1)
    once = np.sort(np.unique(told, axis=0, return_index=True)[1])
    line, distinct = line[once], seen[0, 0, once]
    for axis, number in enumerate(planes):
        if rows.shape[axis] == 1:  # the mask is the same there, but what is chosen is not
            plane = np.repeat(np.arange(number), len(line))
            line, distinct = np.tile(line, (number, 1)), np.tile(distinct, (number, 1))
            line[:, axis] = plane
    return (line[:, 0], line[:, 1], line[:, 2]), distinct


# ── selection ────────────────────────────────────────────────────────────────────────────


def _means(x: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The mean of every `size` rows, and of the fewer at the end."""
    import torch

    count = x.shape[2] // size
    parts = [x[:, :, : count * size].unflatten(2, (count, size)).mean(3, dtype=dtype)]
    if x.shape[2] > count * size:
        parts.append(x[:, :, count * size :].mean(2, keepdim=True, dtype=dtype))
    return torch.cat(parts, 2)


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Every block of queries times every block of keys, as finite numbers; NaN is the least."""
    import torch

    heads, shared = q.shape[1], k.shape[1]
    k = k.transpose(-2, -1)
    if heads == shared:
        scores = q @ k
    else:
        groups = q.unflatten(1, (shared, heads // shared))
        scores = (groups @ k.unsqueeze(2)).flatten(1, 2)
    return torch.nan_to_num(scores, nan=torch.finfo(scores.dtype).min)


def _best(scores: torch.Tensor, choice: Choice, keep: int) -> torch.Tensor:
    """The blocks at the queries' own positions, then the best until there are `keep`."""
    import torch

    touched, required = (torch.from_numpy(part).to(scores.device) for part in choice[:2])
    ranked = scores.masked_fill(~touched, -torch.inf).masked_fill(required, torch.inf)
    keep = min(keep, scores.shape[3])
    least = ranked.topk(keep, sorted=False).values.amin(-1, True) if keep else ranked
    # Of equal scores the first block wins: the order of topk is not specified.
    better, equal = ranked > least, ranked == least
    left = keep - better.sum(-1, keepdim=True)
    return ((better | (equal & (equal.cumsum(-1) <= left))) & touched) | required


def _fill(chosen: torch.Tensor, scores: torch.Tensor, choice: Choice) -> None:
    """Add the best visible block for each row that would be fully masked."""
    import torch

    if not choice.seen.size:
        return
    device = scores.device
    line = torch.from_numpy(np.stack(choice.line)).to(device)
    seen = torch.from_numpy(choice.seen).to(device)
    left = ~(chosen[tuple(line)] & seen).any(-1)
    line, seen = line[:, left], seen[left]
    if line.numel():
        best = scores[tuple(line)].masked_fill(~seen, -torch.inf).argmax(-1)
        batch, head, block = line
        chosen[batch, head, block, best] = True
