"""Masks that are wrong with a KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable


# ── causal from the upper left corner ─────────────────────────────────────────────────────────

CORNER = Family(
    "causal from the upper left corner",
    after="pytorch#103082, pytorch#108108",
    checks="PC",
    causes="aligned-upper-left step-differs",
)


def is_causal_in_prefill(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """is_causal for the first chunk, a mask for later ones."""
    if start == 0:
        return tiny.is_causal(q, k, v)
    return tiny.sdpa(q, k, v, tiny.causal(q.shape[2], k.shape[2], start))


@CORNER.fault("is_causal with a cache")
def _(faulty: bool) -> Case:
    return tiny.cached_case(
        tiny.is_causal if faulty else is_causal_in_prefill, tiny.random_ids(2, 14)
    )


@CORNER.fault("tril without an offset, left padding")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        offset = 0 if faulty else k.shape[2] - q.shape[2]
        keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(offset)
        return tiny.eager(q, k, v, keep & real[:, None, None])

    return tiny.cached_case(attend, tiny.left_padded(16, 11))


def is_causal_if_several(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """is_causal for every chunk of several tokens."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


@CORNER.fault("is_causal for later chunks, layer 1", layer=1)
def _(faulty: bool) -> Case:
    attends = [is_causal_in_prefill, is_causal_if_several if faulty else is_causal_in_prefill]
    return tiny.cached_case(attends, tiny.random_ids(2, 15))


class Prefixed(tiny.Attention):
    """Learned keys and values precede those of the text; is_causal counts them as text."""

    size, start = 4, 0

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        shape = heads, self.size, tiny.DIM // heads
        self.prefix_k, self.prefix_v = (nn.Parameter(torch.zeros(shape)) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = torch.cat([self.prefix_k.expand(len(k), -1, -1, -1), k], 2)
        v = torch.cat([self.prefix_v.expand(len(v), -1, -1, -1), v], 2)
        return tiny.sdpa(q, k, v, tiny.causal(q.shape[2], k.shape[2], self.start))


class VisiblePrefix(Prefixed):
    """All tokens see the prefix."""

    start = Prefixed.size


@CORNER.fault("is_causal behind a learned prefix", "R", "aligned-upper-left too-narrow")
def _(faulty: bool) -> Case:
    attend = Prefixed if faulty else VisiblePrefix
    return tiny.case(attend, tiny.random_ids(2, 14), mask_args=tiny.no_args)


# ── a cache of fixed size ─────────────────────────────────────────────────────────────────────

STATIC = Family("mask lost in a static cache", after="transformers#30437", checks="PC")


def no_mask_for_one(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """No mask for a single query, so that unused slots are visible."""
    if q.shape[2] == 1:
        return F.scaled_dot_product_attention(q, k, v)
    return tiny.cached_eager(q, k, v, start, real)


@STATIC.fault("no mask for a single query", causes="step-differs mask-missing")
def _(faulty: bool) -> Case:
    attend = no_mask_for_one if faulty else tiny.cached_eager
    return tiny.cached_case(attend, tiny.random_ids(2, 13), slots=64)


@STATIC.fault(
    "no mask for a single query, layer 1", causes="step-differs missing-in-layer", layer=1
)
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(9, 14)
    return tiny.cached_case(
        [tiny.cached_eager, no_mask_for_one if faulty else tiny.cached_eager], ids, slots=48
    )


def to_the_last_slot(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """Aligns the last query with the last slot instead of the last used one."""
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    slots = F.pad(real, (0, k.shape[2] - real.shape[1]), value=True)
    return tiny.eager(q, k, v, keep & slots[:, None, None])


@STATIC.fault("causal up to the last slot", causes="aligned-lower-right step-differs")
def _(faulty: bool) -> Case:
    attend = to_the_last_slot if faulty else tiny.cached_eager
    return tiny.cached_case(attend, tiny.random_ids(2, 12), slots=40)


def padding_in_prefill(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """Applies the padding mask only in prefill."""
    if start == 0:
        return tiny.cached_eager(q, k, v, start, real)
    return tiny.eager(q, k, v, tiny.causal(q.shape[2], k.shape[2], start))


@STATIC.fault("padding lost after prefill", causes="padding-visible step-differs")
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(8, 14, 11)
    return tiny.cached_case(padding_in_prefill if faulty else tiny.cached_eager, ids, slots=64)


# ── a window and pieces ───────────────────────────────────────────────────────────────────────

PIECES = Family(
    "window in pieces", after="vLLM#47332", checks="PC", causes="window-missing step-differs"
)

SIZE = 4


def windowed(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """Sliding window over the cache."""
    keep = tiny.window(SIZE, q.shape[2], k.shape[2], start)
    return tiny.eager(q, k, v, keep & real[:, None, None])


def windowed_within_chunk(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """Counts the start of the window from the first query of the chunk."""
    keep = tiny.causal(q.shape[2], k.shape[2], start) & ~tiny.causal(q.shape[2], k.shape[2], -SIZE)
    return tiny.eager(q, k, v, keep & real[:, None, None])


@PIECES.fault("window start counted within the chunk")
def _(faulty: bool) -> Case:
    attend = windowed_within_chunk if faulty else windowed
    return tiny.cached_case(attend, tiny.random_ids(2, 18), mw.window(back=SIZE - 1))


def windowed_unless_one(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """No window for a single query."""
    if q.shape[2] > 1:
        return windowed(q, k, v, start, real)
    return tiny.eager(q, k, v, real[:, None, None])


@PIECES.fault("no window for a single query, layer 0", layer=0)
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(18, 13)
    expects = mw.window(back=SIZE - 1) & mw.padding(ids=ids, pad_id=0)
    return tiny.cached_case([windowed_unless_one if faulty else windowed, windowed], ids, expects)


def cut_to(extra: bool) -> Callable[..., Tensor]:
    """Reads only the last keys of the cache: one window, or one window per query of the chunk."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        if start == 0:
            return windowed(q, k, v, start, real)
        size = min(k.shape[2], SIZE - 1 + q.shape[2] if extra else max(SIZE, q.shape[2]))
        keep = tiny.window(SIZE, q.shape[2], k.shape[2], start) & real[:, None, None]
        return tiny.eager(q, k[:, :, -size:], v[:, :, -size:], keep[..., -size:])

    return attend


@PIECES.fault("cache cut to one window for a longer chunk", causes="too-narrow step-differs")
def _(faulty: bool) -> Case:
    return tiny.cached_case(
        cut_to(extra=not faulty), tiny.random_ids(2, 17), mw.window(back=SIZE - 1)
    )


def paged(q: Tensor, k: Tensor, v: Tensor, window: bool) -> Tensor:
    """Pages of 4 keys, merged by their logsumexp."""
    parts, sums = [], []
    for page in torch.arange(k.shape[2]).split(4):
        keep = tiny.window(SIZE, q.shape[2]) if window else tiny.causal(q.shape[2])
        scores = q @ k[:, :, page].mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~keep[:, page], torch.finfo(q.dtype).min)
        parts.append(scores.softmax(-1) @ v[:, :, page])
        sums.append(scores.logsumexp(-1))
    share = torch.stack(sums, -1).softmax(-1)
    return torch.stack(parts, -1).mul(share[..., None, :]).sum(-1)


def by_pages(window: bool) -> Callable[..., Tensor]:
    """Dense with the window, or paged with or without it."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "whole") -> Tensor:
        if route == "pages":
            return paged(q, k, v, window)
        return tiny.eager(q, k, v, tiny.window(SIZE, q.shape[2]))

    return attend


@PIECES.fault("no window in the paged path", "X", "window-missing path-differs")
def _(faulty: bool) -> Case:
    expects = mw.window(back=SIZE - 1)
    attend = by_pages(window=not faulty)
    return tiny.case(attend, tiny.random_ids(2, 16), expects, mask_args=tiny.no_args, route="pages")
