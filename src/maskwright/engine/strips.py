"""Runs a plan on PyTorch's fused CPU kernel, forward and backward.

Each piece is one call, on views of q, k and v: strips that repeat evenly are folded into the batch
axis by strides alone. Rows that several pieces share are merged by their logsumexp. The backward
pass takes each piece by itself with the whole row's output and logsumexp, which is exact, however
the rows are cut; so it has a plan of its own.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from maskwright.engine.pieces import Bundle, Piece, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.engine.pieces import Stencil, Table
    from maskwright.engine.plan import Plan

MOST_KEPT = 2**29  # bytes of stencils that a plan keeps as tensors
MOST_COPIED = 2**22  # bytes of keys that are gathered or cast at a time: they stay in the cache
FEW_ROWS = 4  # so few rows read every key once: memory is what they wait for
CHUNK = 512  # keys that such rows read at a time
LEAST_RANGE = 16  # keys in a row that are worth being added as one

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Part(NamedTuple):
    """One call: which batch rows and heads, which strips of a folded piece, and its mask."""

    piece: Piece
    batch: slice
    heads: slice
    kv_heads: slice
    first: int  # strip number, of a folded piece
    times: int
    every: int
    mask: torch.Tensor | None
    empty: torch.Tensor | None  # (…, rows, 1), rows of the stencil that see nothing

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of this part, of a tensor (batch, heads, queries, …)."""
        piece = self.piece
        start = piece.rows.start + self.first * piece.row_shift
        return self._view(
            x[self.batch, self.heads], piece.rows._replace(start=start), piece.row_shift
        )

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        """The keys of this part, of a tensor (batch, kv_heads, keys, head_dim)."""
        piece, held = self.piece, x[self.batch, self.kv_heads]
        if isinstance(piece.keys, Steps):
            start = piece.keys.start + self.first * piece.key_shift
            return self._view(held, piece.keys._replace(start=start), piece.key_shift)
        return gathered(piece, held)

    def add_to_keys(self, total: torch.Tensor, part: torch.Tensor) -> None:
        """Add a gradient of the keys of this part to the whole gradient."""
        piece = self.piece
        if isinstance(piece.keys, Steps):
            self.keys(total).add_(part)
            return
        held = total[self.batch, self.kv_heads]
        if len(piece.ranges) * LEAST_RANGE > piece.width:
            held.index_add_(2, _index(piece), part)
            return
        done = 0
        for start, stop in piece.ranges:
            held[:, :, start:stop].add_(part[:, :, done : done + stop - start])
            done += stop - start

    def _view(self, x: torch.Tensor, steps: Steps, shift: int) -> torch.Tensor:
        if self.times == 1:
            return x[:, :, steps.start : steps.stop : steps.step]
        _, heads, _, *rest = x.shape
        _, by_head, by_row, *others = x.stride()
        return x.as_strided(
            (self.times, heads, steps.size, *rest),
            (self.every * shift * by_row, by_head, steps.step * by_row, *others),
            x.storage_offset() + steps.start * by_row,
        )


def forward(
    plan: Plan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp. q, k, v have one head_dim, and a last axis without gaps.

    It is computed in the dtype of q: keys and values of another are cast where they are read.
    """
    batch, heads, q_len, width = q.shape
    if plan.covers and (plan.single or batch == 1):
        (piece,) = plan.pieces
        assert isinstance(piece, Piece)
        (part,) = parts(plan, piece, q, k)
        out, lse = _run(part, q, k, v, scale)
        if plan.single:
            return out, lse
        # The kernel's output lies in the order (strip, row, head, value): one long row order.
        out = out.transpose(1, 2).reshape(batch, q_len, heads, width).transpose(1, 2)
        return out, lse.transpose(1, 2).reshape(batch, q_len, heads).transpose(1, 2).contiguous()
    make = torch.empty if _every_row_written(plan) else torch.zeros
    out = make((batch, q_len, heads, width), dtype=q.dtype, device=q.device).transpose(1, 2)
    lse = torch.full((batch, heads, q_len), -math.inf, dtype=_lse_dtype(q), device=q.device)
    for piece in plan.pieces:
        if isinstance(piece, Bundle):
            run_bundle(plan, piece, (q, k, v), out, lse, scale)
            continue
        for part in parts(plan, piece, q, k):
            own, own_lse = _run(part, q, k, v, scale)
            if piece.first:
                part.queries(out).copy_(own)
                part.queries(lse).copy_(own_lse)
            else:
                merge(part.queries(out), part.queries(lse), own, own_lse)
    return out, lse


def one_strip(
    plan: Plan, piece: Piece, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A plan that is one strip of all rows, with just the keys that it reads."""
    mask = None if piece.stencil is None else _mask(plan, piece.stencil, piece.width, q)
    return kernel(q, k, v, mask, piece.causal, scale)


def kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One call of the kernel; few rows over many keys are some calls in one, side by side."""
    if mask is None and not causal and q.shape[2] <= FEW_ROWS and k.shape[2] >= 4 * CHUNK:
        if q.shape[0] == 1:
            return _in_chunks(q, k, v, scale)
        single = [slice(n, n + 1) for n in range(q.shape[0])]
        each = [_in_chunks(q[n], k[n], v[n], scale) for n in single]
        return torch.cat([out for out, _ in each]), torch.cat([lse for _, lse in each])
    out, lse = _forward(q, k.to(q.dtype), v.to(q.dtype), 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


def _in_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys some at a time, all heads of each: they are read in the order in which they lie."""
    length = k.shape[2]
    whole = length - length % CHUNK
    at_once = whole
    if k.dtype != q.dtype:
        at_once = MOST_COPIED // (CHUNK * k.shape[1] * k.shape[3] * q.element_size()) * CHUNK
    bounds = [*range(0, whole, max(at_once, CHUNK)), whole]
    found = [_chunks(q, k, v, *ends, scale) for ends in itertools.pairwise(bounds)]
    if whole < length:
        rest = (x[:, :, whole:].to(q.dtype) for x in (k, v))
        found.append(_forward(q, *rest, 0.0, False, scale=scale))
    out, lse = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    weights = lse.softmax(0)
    # The largest weight is exp(its logsumexp - the total's).
    total = lse.amax(0, keepdim=True) - weights.amax(0, keepdim=True).log_()
    return out.mul_(weights.unsqueeze(-1).to(out.dtype)).sum(0, keepdim=True), total


def _chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, stop: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each chunk of some keys by itself, the chunks side by side as a batch."""
    count = (stop - start) // CHUNK
    chunks = []
    for x in (k, v):
        own = x[:, :, start:stop].to(q.dtype)
        shape = (count, own.shape[1], CHUNK, own.shape[3])
        chunks.append(own.as_strided(shape, (CHUNK * own.stride(2), *own.stride()[1:])))
    out, lse = _forward(q.expand(count, -1, -1, -1), *chunks, 0.0, False, scale=scale)
    return out, lse


def backward(
    plan: Plan,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v; `out` and `lse` are the forward pass's."""
    lse = lse.masked_fill(lse == -math.inf, 0.0)  # of a row whose weights are zero anyway
    whole = plan.whole
    if whole is not None:
        (part,) = parts(plan, whole, q, k)
        return _gradients(part, (grad, q, k, v, out, lse), scale)
    grads = tuple(torch.zeros_like(x) for x in (q, k, v))
    for piece in plan.pieces:
        assert isinstance(piece, Piece)
        for part in parts(plan, piece, q, k, apart=True):
            _add_gradients(part, grads, (grad, q, k, v, out, lse), scale)
    return grads


def merge(
    out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor
) -> None:
    """Add what other keys gave to the same rows, in place."""
    both = torch.logaddexp(lse, other_lse)
    finite = both.masked_fill(both == -math.inf, 0.0)
    out.mul_((lse - finite).exp_().unsqueeze(-1).to(out.dtype))
    out.addcmul_(other, (other_lse - finite).exp_().unsqueeze(-1).to(out.dtype))
    lse.copy_(both)


def parts(
    plan: Plan, piece: Piece, q: torch.Tensor, k: torch.Tensor, apart: bool = False
) -> Iterator[Part]:
    """The calls of a piece: by key head where heads differ, and by sequence where it is folded.

    With `apart` no two strips of one call share a key, so that gradients can be added by views.
    """
    batch = slice(*piece.planes.slices[0].indices(q.shape[0]))
    mask = None if piece.stencil is None else _mask(plan, piece.stencil, piece.width, q)
    empty = None if piece.stencil is None else _empty(plan, piece.stencil, q.device)
    rows, folds = [batch], piece.times > 1
    every = 1
    if folds and batch.stop - batch.start > piece.times:
        every = piece.times  # fewer calls by the strip than by the sequence
    elif folds:
        rows = [slice(b, b + 1) for b in range(batch.start, batch.stop)]
    if apart and folds and every == 1:
        assert isinstance(piece.keys, Steps)
        reach = piece.keys.stop - piece.keys.start
        every = min(piece.times, -(-reach // piece.key_shift) if piece.key_shift else piece.times)
    for heads, kv_heads in _head_groups(piece, q.shape[1], k.shape[1]):
        for row in rows:
            for first in range(every):
                times = -(-(piece.times - first) // every)
                yield Part(piece, row, heads, kv_heads, first, times, every, mask, empty)


def run_bundle(
    plan: Plan,
    bundle: Bundle,
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
) -> None:
    """Compute a bundle's strips, as many at a time as the cache holds, and write them."""
    q, k, _ = given
    mask = None if bundle.stencil is None else _mask(plan, bundle.stencil, bundle.width, q)
    empty = None if bundle.stencil is None else _empty(plan, bundle.stencil, q.device)
    batch, heads = (torch.from_numpy(x)[:, None] for x in (bundle.batch, bundle.heads))
    steps = torch.arange(bundle.height) * bundle.step
    rows, keys = torch.from_numpy(bundle.rows)[:, None] + steps, torch.from_numpy(bundle.keys)
    kv_heads = heads // (q.shape[1] // k.shape[1])
    flat = [_Flat(x) for x in given]
    count = max(1, MOST_COPIED // (bundle.width * q.shape[-1] * q.element_size()))
    for n in range(0, rows.shape[0], count):
        part = slice(n, n + count)
        at = (batch[part], heads[part], rows[part])
        queries = flat[0].take(*at)
        if empty is not None:
            queries = queries.masked_fill(empty, 0.0)
        at_keys = (batch[part], kv_heads[part], keys[part])
        found = (flat[i].take(*at_keys).to(q.dtype) for i in (1, 2))
        own, own_lse = _forward(queries, *found, 0.0, False, attn_mask=mask, scale=scale)
        if empty is not None:
            own = own.masked_fill(empty, 0.0)
            own_lse = own_lse.masked_fill(empty[..., 0], -math.inf)
        own, own_lse = own[:, 0], own_lse[:, 0]
        if not bundle.first:
            before, before_lse = out[at], lse[at]
            merge(before, before_lse, own, own_lse)
            own, own_lse = before, before_lse
        out[at] = own
        lse[at] = own_lse


class _Flat:
    """A tensor (batch, heads, length, head_dim) as a list of rows, to take some from quickly."""

    def __init__(self, x: torch.Tensor) -> None:
        b, h, t, d = x.shape
        self.by_head = not x.transpose(1, 2).is_contiguous()
        self.sizes = (h, t) if self.by_head else (t, h)
        self.rows = (x if self.by_head else x.transpose(1, 2)).reshape(b * h * t, d)

    def take(self, batch: torch.Tensor, heads: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """(strips, 1, length, head_dim) of single planes."""
        outer, inner = (heads, at) if self.by_head else (at, heads)
        index = (batch * self.sizes[0] + outer) * self.sizes[1] + inner
        taken = self.rows.index_select(0, index.flatten())
        return taken.view(index.shape[0], 1, index.shape[1], -1)


def _run(
    part: Part, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = part.queries(q)
    if part.empty is not None:
        rows = rows.masked_fill(part.empty, 0.0)  # whatever it holds, it may not spread
    out, lse = kernel(rows, part.keys(k), part.keys(v), part.mask, part.piece.causal, scale)
    if part.empty is not None:
        out = out.masked_fill(part.empty, 0.0)
        lse = lse.masked_fill(part.empty[..., 0], -math.inf)  # the kernel says 0
    return out, lse


def _gradients(
    part: Part, given: tuple[torch.Tensor, ...], scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of a part's own queries, keys and values."""
    grad, rows, out = (part.queries(given[i]) for i in (0, 1, 4))
    k, v = part.keys(given[2]), part.keys(given[3])
    if part.empty is not None:
        grad, rows = grad.masked_fill(part.empty, 0.0), rows.masked_fill(part.empty, 0.0)
    shared = rows.shape[1] // k.shape[1]
    if shared > 1:
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    dq, dk, dv = _backward(
        grad,
        rows,
        k,
        v,
        out,
        part.queries(given[5]),
        0.0,
        part.piece.causal,
        attn_mask=part.mask,
        scale=scale,
    )
    if shared > 1:
        dk, dv = (x.unflatten(1, (-1, shared)).sum(2) for x in (dk, dv))
    return dq, dk, dv


def _add_gradients(
    part: Part,
    grads: tuple[torch.Tensor, ...],
    given: tuple[torch.Tensor, ...],
    scale: float,
) -> None:
    dq, dk, dv = _gradients(part, given, scale)
    part.queries(grads[0]).add_(dq)
    part.add_to_keys(grads[1], dk)
    part.add_to_keys(grads[2], dv)


def _head_groups(piece: Piece, heads: int, kv_heads: int) -> Iterator[tuple[slice, slice]]:
    """Query heads and the key heads that they read, in groups that the kernel can take at once."""
    own = piece.planes.heads or range(heads)
    shared = heads // kv_heads
    step = own.step // shared
    if own.step > 1 and own.step % shared == 0:  # each of them has a key head to itself
        first, last = own.start // shared, own[-1] // shared
        yield slice(own.start, own.stop, own.step), slice(first, last + 1, step)
    elif own.step > 1:
        for head in own:
            yield slice(head, head + 1), slice(head // shared, head // shared + 1)
    elif own.start % shared == 0 and own.stop % shared == 0:
        yield slice(own.start, own.stop), slice(own.start // shared, own.stop // shared)
    else:
        for key_head in range(own.start // shared, -(-own.stop // shared)):
            group = range(key_head * shared, (key_head + 1) * shared)
            part = slice(max(own.start, group.start), min(own.stop, group.stop))
            yield part, slice(key_head, key_head + 1)


def _every_row_written(plan: Plan) -> bool:
    written = sum(
        p.rows.size * p.height if isinstance(p, Bundle) else p.rows.size * p.times * plan.planes(p)
        for p in plan.pieces
        if p.first
    )
    return written == math.prod(plan.shape[:3])


def _lse_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def gathered(piece: Piece, x: torch.Tensor) -> torch.Tensor:
    """Keys that lie apart, side by side."""
    by_position = x.transpose(1, 2)
    if by_position.is_contiguous():  # then all heads of a key are copied at once
        return by_position.index_select(1, _index(piece)).transpose(1, 2)
    return x.index_select(2, _index(piece))


def _index(piece: Piece) -> torch.Tensor:
    assert not isinstance(piece.keys, Steps)
    return torch.from_numpy(piece.keys)


def _mask(plan: Plan, stencil: Stencil | Table, width: int, q: torch.Tensor) -> torch.Tensor:
    """The stencil as numbers to add: 0 where a key is seen, else -inf."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    key = ("mask", id(stencil), dtype, q.device)
    held: torch.Tensor | None = plan.made.get(key)
    if held is None:
        broad = max(p.width for p in plan.pieces if p.stencil is stencil)
        size = stencil.cells(broad) * dtype.itemsize
        keep = plan.made.get("bytes", 0) + size <= MOST_KEPT
        held = _painted(stencil, broad if keep else width, dtype, q.device)
        if keep:
            plan.made["bytes"] = plan.made.get("bytes", 0) + size
            plan.made[key] = held
    return held[..., held.shape[-1] - width :]


def _painted(
    stencil: Stencil | Table, width: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    hidden = torch.from_numpy(~stencil.paint(width)).to(device)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -math.inf)


def _empty(plan: Plan, stencil: Stencil | Table, device: torch.device) -> torch.Tensor | None:
    """(rows, 1), True for rows of the stencil that see nothing; None where there is none."""
    key = ("empty", id(stencil), device)
    if key not in plan.made:
        empty = stencil.empty
        plan.made[key] = torch.from_numpy(empty).to(device)[..., None] if empty.any() else None
    held: torch.Tensor | None = plan.made[key]
    return held
