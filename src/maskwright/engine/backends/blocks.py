"""Attention in blocks of query rows, on PyTorch operators: the fallback of the C kernel.

Each block of rows reads only the keys that some of its rows attends to. It runs on PyTorch's fused
CPU kernel with a small additive mask, or step by step where that kernel does not apply: with
dropout, a soft cap, a bias, another head_dim for values, a gradient of the logsumexp, or on other
devices. Sinks scale the output, and its gradient in the backward pass. The fused
kernel lets NaN and infinity in masked cells through; if a result is not finite, the kernel runs
again without the non-finite rows, and the rows that attend to them are computed step by step. Half
precision is computed in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from maskwright.bias.scores import sink_factor, sink_row_gradient
from maskwright.bias.terms import Positions
from maskwright.core.interval_ops import CSR
from maskwright.core.spans import Spans
from maskwright.engine.block_bias import BlockBias
from maskwright.engine.dropout import dropout_keep
from maskwright.engine.layout import empty_out
from maskwright.engine.softmax import (
    masked_matmul,
    masked_scores,
    masked_softmax,
    weights_from_lse,
)
from maskwright.engine.support import Support

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray
    from maskwright.engine.call import Call

BLOCK_Q: Final = 128  # query rows per block
MAX_SCORES: Final = 2**26  # scores of one block, over all batch rows and heads
MAX_KEY_RUNS: Final = 64  # runs of keys that a block gathers

# PyTorch's fused CPU kernel reads past the KV heads of grouped-query attention before this version.
FUSED_GQA: Final = torch.__version__ >= (2, 9, 1)

Gradients = tuple[torch.Tensor, ...]


SUPPORT = Support()  # no limits


def forward(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in the dtype and layout of q, and the logsumexp in float32, or float64 for float64."""
    q, sinks = call.q, call.scores.sinks
    dtype = compute_dtype(q.dtype)
    out = empty_out(q, call.shape.v_head_dim).zero_()
    lse = torch.full(q.shape[:3], -math.inf, dtype=dtype, device=q.device)
    for block in _blocks(call):
        compute = _fused_forward if block.is_fusible and not call.dropout_p else _forward
        block_out, block_lse = compute(block, call)
        if sinks is not None:
            block_out = block_out * sink_factor(block_lse, sinks).unsqueeze(-1)
        out[:, :, block.rows] = block_out.to(out.dtype)
        lse[:, :, block.rows] = block_lse
    return out, lse


def backward(
    call: Call,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None,
) -> Gradients:
    """Gradients of q, k and v, then of the values of each bias term, then of the sinks.

    `out` and `lse` may be over further keys than those of the call: then these are the summands of the
    gradients that belong to these keys. The gradient of a term that does not require one is empty.
    """
    q, k, v, scores = call.q, call.k, call.v, call.scores
    dtype = compute_dtype(q.dtype)
    dq, dk, dv = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (q, k, v))
    values = [
        torch.zeros(x.values.shape if learnable else 0, dtype=dtype, device=q.device)
        for x, learnable in zip(scores.terms, scores.learnable, strict=True)
    ]
    sinks: list[torch.Tensor] = []
    if scores.sinks is not None:
        weighted = (lse.to(dtype), scores.sinks, grad_out.to(dtype), out.to(dtype))
        sinks = [sink_row_gradient(*weighted).sum((0, 2)).to(scores.sinks.dtype)]
        grad_out = grad_out.to(dtype) * sink_factor(lse.to(dtype), scores.sinks).unsqueeze(-1)
    for block in _blocks(call):
        rows = block.rows
        grads = RowGrads(
            grad_out[:, :, rows].to(dtype),
            None if grad_lse is None else grad_lse[:, :, rows].to(dtype),
            out[:, :, rows].to(dtype),
            lse[:, :, rows].to(dtype),
        )
        fused = block.is_fusible and not call.dropout_p and grad_lse is None
        block_grads = (_fused_backward if fused else _backward)(block, grads, call)
        dq[:, :, rows] = block_grads[0]
        if block.cells is not None and values:
            block.cells.add_gradients(block_grads[3], values)
        for total, part in zip((dk, dv), block_grads[1:3], strict=True):
            if isinstance(block.keys, slice):
                total[:, :, block.keys] += part
            else:
                total.index_add_(2, block.keys, part)
    value_grads = [x.to(term.values.dtype) for x, term in zip(values, scores.terms, strict=True)]
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *value_grads, *sinks


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# ── blocks ────────────────────────────────────────────────────────────────────────────────────────


class KeyRanges(NamedTuple):
    """The rows of a block, and the key ranges that they attend to, ascending and disjoint."""

    rows: slice
    starts: IntArray
    stops: IntArray


class Block(NamedTuple):
    """The operands of one block of rows, in the dtype that is computed in."""

    rows: slice
    keys: slice | torch.Tensor  # of k and v: a range, or indices
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    visible: torch.Tensor  # (batch or 1, heads or 1, rows, keys)
    cells: BlockBias | None = None  # with a soft cap or a bias
    bias: torch.Tensor | float = 0.0  # the sum of the bias terms

    @property
    def is_fusible(self) -> bool:
        """Whether PyTorch's fused CPU kernel takes these operands."""
        plain = self.cells is None and self.q.device.type == "cpu"
        return bool(plain and 0 < self.q.shape[3] == self.v.shape[3])

    @property
    def additive_mask(self) -> torch.Tensor | None:
        """The additive mask, 0 or -inf; None if no cell is masked."""
        if bool(self.visible.all()):
            return None
        zeros = torch.zeros(self.visible.shape, dtype=self.q.dtype, device=self.q.device)
        return zeros.masked_fill_(~self.visible, -math.inf)

    def row_indices(self) -> IntArray:
        """The indices of the block's rows among all rows."""
        return np.arange(self.rows.start, self.rows.stop)

    def key_indices(self) -> IntArray:
        """The indices of the block's keys among all keys."""
        if isinstance(self.keys, slice):
            return np.arange(self.keys.start, self.keys.stop)
        return np.asarray(self.keys.cpu().numpy())


def _blocks(call: Call) -> Iterator[Block]:
    """The blocks of rows that attend to some key."""
    q, k, v = call.q, call.k, call.v
    shape, bound, scores = call.shape, call.mask, call.scores
    row_scores = shape.batch * shape.heads * max(shape.kv_len, 1)
    height = max(1, min(BLOCK_Q, MAX_SCORES // max(row_scores, 1)))
    dtype = compute_dtype(q.dtype)
    if not shape.batch * shape.heads:
        return
    positions = call.bias_positions()
    for ranges in bound.cached(("key_ranges", height), lambda: _key_ranges(bound, height)):
        keys: slice | torch.Tensor
        if ranges.starts.size == 1:
            keys = slice(int(ranges.starts[0]), int(ranges.stops[0]))
            operands = (k[:, :, keys], v[:, :, keys])
        else:
            lengths = ranges.stops - ranges.starts
            before = np.cumsum(lengths) - lengths
            index = np.repeat(ranges.starts - before, lengths) + np.arange(lengths.sum())
            keys = torch.from_numpy(index).to(k.device)
            operands = (k.index_select(2, keys), v.index_select(2, keys))
        rows, block_k, block_v = (_contiguous(x, dtype) for x in (q[:, :, ranges.rows], *operands))
        visible = torch.from_numpy(_visible(bound, ranges)).to(q.device)
        block = Block(ranges.rows, keys, rows, block_k, block_v, visible)
        if scores.terms or scores.softcap is not None:
            indices = Positions(block.row_indices(), block.key_indices())
            cells = BlockBias(scores, positions, indices, q.device)
            block = block._replace(cells=cells, bias=cells.sum(dtype))
        yield block


def _key_ranges(bound: BoundMask, height: int) -> list[KeyRanges]:
    ranges = []
    for first in range(0, bound.shape[2], height):
        rows = slice(first, min(first + height, bound.shape[2]))
        part = bound.spans.rows(rows.start, rows.stop)
        if reaches := part.reaches(MAX_KEY_RUNS):
            starts, stops = np.array(reaches).T
            ranges.append(KeyRanges(rows, starts, stops))
    return ranges


def _visible(bound: BoundMask, ranges: KeyRanges) -> np.ndarray:
    """The mask of a block over its own keys, boolean."""
    part = bound.spans.rows(ranges.rows.start, ranges.rows.stop)
    lengths = ranges.stops - ranges.starts
    shift = ranges.starts - (np.cumsum(lengths) - lengths)  # from keys to columns of the block
    offsets, starts, stops = part.flat
    nth = np.searchsorted(ranges.starts, starts, side="right") - 1
    flat = CSR(offsets, starts - shift[nth], stops - shift[nth])
    width = int(lengths.sum())
    out = np.empty((*part.shape, width), np.bool_)
    Spans(part.shape, width, flat=flat).write_dense(out)
    return out


def _contiguous(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


# ── one block ─────────────────────────────────────────────────────────────────────────────────────


class RowGrads(NamedTuple):
    """What the backward pass has of a block's rows: incoming gradients, and the forward's results."""

    grad_out: torch.Tensor
    grad_lse: torch.Tensor | None
    out: torch.Tensor
    lse: torch.Tensor


def _fused_forward(block: Block, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """By PyTorch's fused CPU kernel, except for rows with non-finite operands or scores."""
    out, lse = _fused_kernel(block, call.scale)
    empty = ~block.visible.any(-1)
    # The kernel's logsumexp is 0 where all scores are -inf, masked or not.
    if not bool(out.isfinite().all()) or bool(((lse == 0) & ~empty).any()):
        rows, keys = _non_finite(block)
        out, lse = _fused_kernel(_cleared(block, rows, keys), call.scale)
        exact_out, exact_lse = _forward(block, call)
        exact = _rows_attending_to(block, keys) | rows | (exact_lse == -math.inf)
        out = torch.where(exact.unsqueeze(-1), exact_out, out)
        lse = torch.where(exact, exact_lse, lse)
    return out, lse.masked_fill(empty, -math.inf)


def _fused_kernel(block: Block, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (block.k, block.v) if FUSED_GQA else _by_query_head(block)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # type: ignore[no-any-return]
        *(block.q, k, v), 0.0, False, attn_mask=block.additive_mask, scale=scale
    )


def _forward(block: Block, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Step by step."""
    k, v = _by_query_head(block)
    scores, _ = _scores(block, k, block.visible, call)
    weights, lse = masked_softmax(scores, block.visible)
    if call.dropout_p:
        weights = weights * _dropout_factor(block, call)
    visible = block.visible & (lse != -math.inf).unsqueeze(-1)
    return masked_matmul(weights, v, visible), lse


def _scores(
    block: Block, k: torch.Tensor, visible: torch.Tensor, call: Call
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The scores of the visible cells after soft cap and bias, and the derivative of the soft cap."""
    scores, slope = masked_scores(block.q, k, visible) * call.scale, None
    if call.scores.softcap is not None:
        capped = torch.tanh(scores / call.scores.softcap)
        scores, slope = call.scores.softcap * capped, 1 - capped * capped
    return scores + block.bias, slope


def _fused_backward(block: Block, grads: RowGrads, call: Call) -> Gradients:
    """By PyTorch's fused CPU kernel, except for rows and keys with non-finite operands."""
    fused = _fused_backward_kernel(block, grads, call.scale)
    if all(bool(x.isfinite().all()) for x in fused):
        return fused
    rows, keys = _non_finite(block)
    rows = rows | ~grads.grad_out.isfinite().all(-1) | ~grads.out.isfinite().all(-1)
    rows = (
        rows | _rows_attending_to(block, keys) | ~(grads.lse.isfinite() | (grads.lse == -math.inf))
    )
    empty = rows.unsqueeze(-1)
    cleared = RowGrads(
        grads.grad_out.masked_fill(empty, 0.0),
        None,
        grads.out.masked_fill(empty, 0.0),
        grads.lse.masked_fill(rows, 0.0),
    )
    fused = _fused_backward_kernel(_cleared(block, rows, keys), cleared, call.scale)
    exact = _backward(block, grads, call)
    seen = (block.visible & rows.unsqueeze(-1)).any(-2)
    seen = seen.expand(*block.q.shape[:2], -1).unflatten(1, (block.k.shape[1], -1)).any(2) | keys
    return (
        torch.where(empty, exact[0], fused[0]),
        torch.where(seen.unsqueeze(-1), exact[1], fused[1]),
        torch.where(seen.unsqueeze(-1), exact[2], fused[2]),
    )


def _fused_backward_kernel(block: Block, grads: RowGrads, scale: float) -> Gradients:
    k, v = _by_query_head(block)
    lse = grads.lse.masked_fill(grads.lse == -math.inf, 0.0)
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *(grads.grad_out, block.q, k, v, grads.out, lse),
        *(0.0, False),
        attn_mask=block.additive_mask,
        scale=scale,
    )
    return dq, _by_kv_head(dk, block), _by_kv_head(dv, block)


def _non_finite(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of q, (batch, heads, rows), and of k or v, (batch, kv_heads, keys), with such values."""
    keys = block.k.isfinite().all(-1) & block.v.isfinite().all(-1)
    return ~block.q.isfinite().all(-1), ~keys


def _cleared(block: Block, rows: torch.Tensor, keys: torch.Tensor) -> Block:
    """The block with zeros in some rows of q, and of k and v."""
    clear = keys.unsqueeze(-1)
    return block._replace(
        q=block.q.masked_fill(rows.unsqueeze(-1), 0.0),
        k=block.k.masked_fill(clear, 0.0),
        v=block.v.masked_fill(clear, 0.0),
    )


def _rows_attending_to(block: Block, keys: torch.Tensor) -> torch.Tensor:
    """The rows that attend to one of these keys, (batch, heads, rows)."""
    group = block.q.shape[1] // block.k.shape[1]
    return (block.visible & keys.repeat_interleave(group, 1).unsqueeze(-2)).any(-1)


def _backward(block: Block, grads: RowGrads, call: Call) -> Gradients:
    """Step by step; the softmax weights are recomputed from the logsumexp.

    The gradient of the scores after soft cap and bias comes last.
    """
    k, v = _by_query_head(block)
    empty = (grads.lse == -math.inf).unsqueeze(-1)
    visible = block.visible & ~empty
    scores, slope = _scores(block, k, visible, call)
    lse = grads.lse.masked_fill(empty.squeeze(-1), 0.0)
    weights = weights_from_lse(scores, lse, visible)
    dp = masked_scores(grads.grad_out, v, visible)
    dropped = weights
    if call.dropout_p:
        factor = _dropout_factor(block, call)
        dropped, dp = weights * factor, dp * factor
    delta = (grads.grad_out * grads.out).sum(-1, keepdim=True)
    if grads.grad_lse is not None:
        delta = delta - grads.grad_lse.unsqueeze(-1)
    after = (weights * (dp - delta)).masked_fill(~visible, 0.0)
    ds = after if slope is None else (after * slope).masked_fill(~visible, 0.0)
    dq = masked_matmul(ds, k, visible) * call.scale
    dk = masked_matmul(ds.mT, block.q, visible.mT) * call.scale
    dv = masked_matmul(dropped.mT, grads.grad_out, visible.mT)
    return dq, _by_kv_head(dk, block), _by_kv_head(dv, block), after


def _dropout_factor(block: Block, call: Call) -> torch.Tensor:
    """1 / (1 - p) where a weight is kept, and 0 where it is dropped."""
    batch, heads = block.q.shape[:2]
    cells = {"rows": block.row_indices(), "keys": block.key_indices()}
    keep = dropout_keep(call.seed, call.dropout_p, batch, heads, **cells)
    factor = torch.from_numpy(keep).to(block.q.device, block.q.dtype)
    return factor / (1 - call.dropout_p)


def _by_query_head(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat k and v over the query heads of a group."""
    group = block.q.shape[1] // block.k.shape[1]
    if group == 1:
        return block.k, block.v
    return block.k.repeat_interleave(group, 1), block.v.repeat_interleave(group, 1)


def _by_kv_head(grad: torch.Tensor, block: Block) -> torch.Tensor:
    """The gradient of a KV head: the sum over the query heads of its group."""
    if grad.shape[1] == block.k.shape[1]:
        return grad
    return grad.unflatten(1, (block.k.shape[1], -1)).sum(2)
