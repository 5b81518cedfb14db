"""Masks read at a wrong offset: wrong strides, rows or slices of a block mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── read at a wrong offset ─────────────────────────────────────────────────────────────────────────

OFFSET = Family(
    "mask read at a wrong offset",
    after="pytorch#184180",
    checks="X",
    causes="path-differs too-narrow",
)
MAX_LEN = 32  # size of a mask buffer


class Fused(tiny.Model):
    """Eager attention, and a fused kernel that reads the memory of the mask by `read`."""

    fused = False

    def __init__(self, read: Any, layers: int = 2, **options: Any) -> None:
        super().__init__([self.mix] * layers, **options)
        self.read = read

    def mix(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        if not self.takes_fused():
            return tiny.eager(q, k, v, keep)
        wide = keep.expand(q.size(0), 1, q.size(2), k.size(2))
        return tiny.eager(q, k, v, self.read(wide, q.size(1)))

    def takes_fused(self) -> bool:
        return self.fused


def run_fused(model: Fused, ids: Tensor) -> Tensor:
    """Runs the model with the fused kernel."""
    model.fused = True
    try:
        return model(ids)
    finally:
        model.fused = False


class FusedInEval(Fused):
    """Uses the fused kernel in eval mode."""

    def takes_fused(self) -> bool:
        return not self.training


class FusedWithoutGrad(Fused):
    """Uses the fused kernel without gradients."""

    def takes_fused(self) -> bool:
        return not torch.is_grad_enabled()


def by_own_strides(mask: Tensor, heads: int) -> Tensor:
    """Reads (B, H, T, K) with head stride 0."""
    return mask.expand(-1, heads, -1, -1)


def one_plane_per_head(mask: Tensor, heads: int) -> Tensor:
    """Reads (B, 1, T, K) as if it had one plane per head."""
    batch, _, queries, keys = mask.shape
    planes = mask.contiguous().view(-1, queries, keys)
    return planes[torch.arange(batch * heads) % batch].view(batch, heads, queries, keys)


def batch_stride_zero(mask: Tensor, heads: int) -> Tensor:
    """Reads the mask of the first sequence for all."""
    batch, _, queries, keys = mask.shape
    plain = mask.contiguous()
    return plain.as_strided((batch, heads, queries, keys), (0, 0, keys, 1))


def strided(contiguous: bool) -> Any:
    """Reads a view of a larger buffer, with its own row stride or as if it were contiguous."""

    def read(mask: Tensor, heads: int) -> Tensor:
        batch, _, queries, keys = mask.shape
        buffer = torch.zeros(batch, 1, MAX_LEN, MAX_LEN, dtype=torch.bool)
        buffer[:, :, :queries, :keys] = mask
        strides = buffer.stride(0), 0, keys if contiguous else buffer.stride(2), 1
        cells = buffer.as_strided((batch, heads, queries, keys), strides)
        return cells | torch.eye(queries, dtype=torch.bool)

    return read


def in_chunks(first: bool) -> Any:
    """Reads the mask in chunks of 4 rows; with `first` always the first rows."""

    def read(mask: Tensor, heads: int) -> Tensor:
        return torch.cat([mask[:, :, : x.size(2)] if first else x for x in mask.split(4, 2)], 2)

    return read


@OFFSET.fault("one plane per head, fused path", causes="path-differs batch-on-heads order-of-batch")
def _(faulty: bool) -> Case:
    read = one_plane_per_head if faulty else by_own_strides
    return tiny.encoder_case(Fused(read, mask=tiny.padding_mask), paths={"fused": run_fused})


@OFFSET.fault("batch stride 0, in eval mode", "X P BI", "path-differs order-of-batch")
def _(faulty: bool) -> Case:
    read = batch_stride_zero if faulty else by_own_strides
    model = FusedInEval(read, mask=tiny.padding_mask)
    return tiny.encoder_case(model, tiny.right_padded(16, 9, 12))


@OFFSET.fault("view of a larger buffer read as contiguous, without gradients", "X R")
def _(faulty: bool) -> Case:
    model = FusedWithoutGrad(strided(contiguous=faulty), mask=tiny.causal_mask)
    return tiny.decoder_case(model, tiny.random_ids(2, 16))


@OFFSET.fault("every query chunk reads the first rows, fused path")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(
        Fused(in_chunks(first=faulty), mask=tiny.causal_mask),
        tiny.random_ids(2, 16),
        paths={"fused": run_fused},
    )


# ── a bias longer than the keys ────────────────────────────────────────────────────────────────────

LONGER = Family("bias longer than the keys", after="xformers#1122", checks="PC")

FUTURE = torch.zeros(64, 64).masked_fill(
    ~tiny.causal(64), -torch.inf
)  # made once, for the longest text


@LONGER.fault("first rows read with a cache", causes="aligned-upper-left step-differs")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        first = 0 if faulty else start
        return tiny.sdpa(q, k, v, FUTURE[first : first + q.shape[2], : k.shape[2]].to(q.dtype))

    return tiny.cached_case(attend, tiny.random_ids(2, 14))


SIZE = 6


def rolling(oldest: bool) -> Any:
    """A rolling cache dropped the oldest keys; `oldest` keeps their padding flags instead."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        size = k.shape[2]
        keep = tiny.window(SIZE, q.shape[2], size, size - q.shape[2])
        real = real[:, :size] if oldest else real[:, -size:]
        return tiny.eager(q, k, v, keep & real[:, None, None])

    return attend


@LONGER.fault("padding of a rolling cache, wrong end", causes="step-differs too-narrow", layer=0)
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(11, 18)
    expects = mw.window(back=SIZE - 1) & mw.padding(ids=ids, pad_id=0)
    attends = [rolling(oldest=faulty), rolling(oldest=False)]
    return tiny.cached_case(attends, ids, expects, max_len=SIZE - 1)


@LONGER.fault("rows read with the wrong stride", "P R", "future-visible too-narrow")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores, queries, keys = tiny.scores(q, k), q.shape[2], k.shape[2]
        bias = FUTURE.clamp(min=tiny.min_value(scores)).to(q.dtype)
        flat = bias.flatten()[: queries * keys].view(queries, keys)
        return (scores + (flat if faulty else bias[:queries, :keys])).softmax(-1) @ v

    return tiny.case(attend, tiny.random_ids(2, 20), mask_args=tiny.no_args)


# ── masks by blocks and a rule ─────────────────────────────────────────────────────────────────────

RULE = Family("mask rule lost in a slice", after="pytorch#163314", checks="PC")

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # head, query, key
BLOCK = 4


@dataclass
class Blocks:
    """A block mask: the blocks that are not empty, and mask_mod for their cells."""

    touched: Tensor  # (heads, blocks of queries, blocks of keys)
    rule: Rule

    def rows(self, start: int) -> Blocks:
        """The rows from `start`, with shifted mask_mod."""
        return Blocks(self.touched[:, start // BLOCK :], lambda h, q, k: self.rule(h, q + start, k))

    def rows_from_zero(self, start: int) -> Blocks:
        """The rows from `start`, with unshifted mask_mod."""
        return Blocks(self.touched[:, start // BLOCK :], self.rule)

    def rows_only(self, start: int) -> Blocks:
        """The rows from `start`, without mask_mod."""
        return Blocks(self.touched[:, start // BLOCK :], everything)

    def cells(self, heads: int, q_len: int, k_len: int) -> Tensor:
        """(heads, q, k): dense mask."""
        h, q, k = torch.arange(heads), torch.arange(q_len), torch.arange(k_len)
        inside = self.touched.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)
        return inside[:, :q_len, :k_len] & self.rule(h[:, None, None], q[:, None], k)


def everything(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A mask_mod that is always True."""
    return (h + q + k) >= 0


def causal_mod(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Causal mask_mod."""
    return (k <= q) & (h >= 0)


def blocks_of(rule: Rule, heads: int, q_len: int, k_len: int) -> Blocks:
    """The block mask of a mask_mod."""
    q, k = -(-q_len // BLOCK) * BLOCK, -(-k_len // BLOCK) * BLOCK
    h = torch.arange(heads)[:, None, None]
    cells = rule(h, torch.arange(q)[:, None], torch.arange(k))
    blocks = cells.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
    return Blocks(blocks.any(4).any(2), rule)


def sliced(slice_of: Callable[[Blocks, int], Blocks]) -> Callable[..., Tensor]:
    """With a cache, slices the block mask to the rows of the new tokens."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        mask = blocks_of(causal_mod, q.shape[1], k.shape[2], k.shape[2])
        early = start % BLOCK  # blocks begin at their own multiples
        if start:
            mask = slice_of(mask, start - early)
        keep = mask.cells(q.shape[1], early + q.shape[2], k.shape[2])[:, early:]
        return tiny.eager(q, k, v, keep & real[:, None, None])

    return attend


@RULE.fault("slice without mask_mod", causes="step-differs future-visible")
def _(faulty: bool) -> Case:
    attend = sliced(Blocks.rows_only if faulty else Blocks.rows)
    return tiny.cached_case(attend, tiny.random_ids(2, 14))


@RULE.fault("slice counts queries from 0", causes="aligned-upper-left step-differs", layer=1)
def _(faulty: bool) -> Case:
    attends = [sliced(Blocks.rows), sliced(Blocks.rows_from_zero if faulty else Blocks.rows)]
    return tiny.cached_case(attends, tiny.random_ids(2, 15))


def by_head(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Causal in even heads, a window of four tokens in odd heads."""
    return (k <= q) & ((h % 2 == 0) | (q - k < 4))


def by_half(h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A window of four tokens in the first two heads, causal in the others."""
    return (k <= q) & ((h >= 2) | (q - k < 4))


def dense_or_blocks(rule: Rule, heads: int | None) -> Callable[..., Tensor]:
    """Dense, or by a block mask made for `heads` heads."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "blocks") -> Tensor:
        count, size = q.shape[1], q.shape[2]
        if route == "dense":
            h = torch.arange(count)[:, None, None]
            place = torch.arange(size)
            return tiny.eager(q, k, v, rule(h, place[:, None], place))
        mask = blocks_of(rule, heads or count, size, size)
        return tiny.eager(q, k, v, mask.cells(heads or count, size, size))

    return attend


@RULE.fault("blocks of head 0 used for all heads", "X", "path-differs window-missing")
def _(faulty: bool) -> Case:
    attend = dense_or_blocks(by_head, 1 if faulty else None)
    return tiny.case(attend, tiny.random_ids(2, 14), mask_args=tiny.no_args, route="dense")


def halves(rule: Rule, shift: bool) -> Callable[..., Tensor]:
    """Two halves of the heads, as on two devices."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "halves") -> Tensor:
        if route == "dense":
            return dense_or_blocks(rule, None)(q, k, v, "dense")
        half, size = q.shape[1] // 2, q.shape[2]
        parts = []
        for first in (0, half):
            own = (lambda h, a, b, first=first: rule(h + first, a, b)) if shift else rule
            mask = blocks_of(own, half, size, size).cells(half, size, size)
            part = slice(first, first + half)
            parts.append(tiny.eager(q[:, part], k[:, part], v[:, part], mask))
        return torch.cat(parts, 1)

    return attend


@RULE.fault("heads of a shard counted from 0", "R X", "path-differs too-narrow")
def _(faulty: bool) -> Case:
    attend = halves(by_half, shift=not faulty)
    expects = mw.causal()
    return tiny.case(
        attend,
        tiny.random_ids(2, 18),
        expects,
        mask_args=tiny.no_args,
        heads=4,
        route="dense",
    )
