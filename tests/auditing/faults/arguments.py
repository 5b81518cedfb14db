"""Masks lost because a cache or an argument is read in the wrong way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

PLAIN = tiny.random_ids(2, 14)  # no padding

# ── the list of caches instead of one ─────────────────────────────────────────────────────────

LISTED = Family("list of caches asked instead of one of them", after="mlx-lm#1906", checks="PC")
SIZE = 5  # keys that a query sees, where there is a window


class PaddedCache(tiny.LayerCache):
    """A cache that makes its own causal padding mask."""

    def make_mask(self, q_len: int) -> Tensor:
        return tiny.causal_padding_mask(self.real, q_len)


class WindowCache(tiny.LayerCache):
    """A cache that makes its own sliding-window mask."""

    def make_mask(self, q_len: int) -> Tensor:
        keys = torch.arange(self.real.size(1))
        return tiny.causal_mask(self.real, q_len) & (keys > keys[-q_len:, None] - SIZE)


def mask_for(q_len: int, cache: Any) -> Any:
    """The mask made by the cache; otherwise none for one token and "causal" for several."""
    if hasattr(cache, "make_mask"):
        return cache.make_mask(q_len)
    return None if q_len == 1 else "causal"


def named_mask(q: Tensor, k: Tensor, v: Tensor, keep: Any) -> Tensor:
    """Attention that accepts "causal" as a mask."""
    if isinstance(keep, str):
        keep = torch.ones(q.size(2), k.size(2)).tril(k.size(2) - q.size(2)).bool()
    return tiny.sdpa(q, k, v, keep)


class AsksList(tiny.CachedModel):
    """Makes the mask of every pass from the list of caches, or from its first element."""

    cache_type = PaddedCache

    def __init__(self, of_list: bool) -> None:
        super().__init__([named_mask] * 2)
        self.of_list = of_list

    def keeps(self, ids: Tensor, cache: list[tiny.LayerCache]) -> list[Any]:
        keep = mask_for(ids.size(1), cache if self.of_list else cache[0])
        return [keep for _ in self.layers]


class AsksListLater(AsksList):
    """The same, except in prefill, which uses each layer's cache."""

    def keeps(self, ids: Tensor, cache: list[tiny.LayerCache]) -> list[Any]:
        if cache[0].k is None:
            return [mask_for(ids.size(1), slot) for slot in cache]
        return super().keeps(ids, cache)


class WindowLater(AsksListLater):
    """The same with a sliding window."""

    cache_type = WindowCache


class LengthFromList(tiny.CachedModel):
    """Reads the past length, with 0 as the default."""

    def __init__(self, of_list: bool) -> None:
        super().__init__()
        self.of_list = of_list

    def keeps(self, ids: Tensor, cache: list[tiny.LayerCache]) -> list[Any]:
        k = getattr(cache if self.of_list else cache[0], "k", None)
        start = 0 if k is None else k.size(2)
        keys = torch.arange(cache[0].real.size(1))
        return [keys <= torch.arange(start, start + ids.size(1))[:, None] for _ in self.layers]


class NoMaskWithPast(tiny.CachedModel):
    """Uses no mask if there is a past; a list of empty caches counts as one."""

    def __init__(self, of_list: bool) -> None:
        super().__init__()
        self.of_list = of_list

    def keeps(self, ids: Tensor, cache: list[tiny.LayerCache]) -> list[Any]:
        begun = bool(cache) if self.of_list else cache[0].k is not None and ids.size(1) == 1
        return [None for _ in self.layers] if begun else super().keeps(ids, cache)


@LISTED.fault("padding lost in every pass", "BI PI P L", "padding-visible")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(AsksList(of_list=faulty), step=tiny.cached_step)


@LISTED.fault("padding lost after prefill", causes="padding-visible step-differs")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(AsksListLater(of_list=faulty), step=tiny.cached_step)


@LISTED.fault("window lost after prefill", causes="window-missing step-differs")
def _(faulty: bool) -> Case:
    model = WindowLater(of_list=faulty)
    return tiny.decoder_case(model, PLAIN, mw.window(back=SIZE - 1), step=tiny.cached_step)


@LISTED.fault("past length read as 0", causes="aligned-upper-left step-differs")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(LengthFromList(of_list=faulty), PLAIN, step=tiny.cached_step)


@LISTED.fault("list of empty caches read as a past", "P G PC", "mask-missing future-visible")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(NoMaskWithPast(of_list=faulty), PLAIN, step=tiny.cached_step)


# ── an ignored name, and a causal mask that forgets the cache ─────────────────────────────────

IGNORED = Family(
    "padding under an ignored name, causal from the first key",
    after="x-transformers#187",
    checks="PC",
    causes="aligned-upper-left step-differs",
)


class Swallowing(tiny.Model):
    """The argument is called `mask`; `attention_mask` goes to **kwargs."""

    def forward(self, ids: Tensor, mask: Tensor | None = None, **_others: Any) -> Tensor:  # type: ignore[override]
        return super().forward(ids, torch.ones_like(ids) if mask is None else mask)


class Context(tiny.Attention):
    """Causal self-attention or attention to a context, each with its own mask argument."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        real = mask if context is None else context_mask
        every = torch.ones(x.shape[:2]).bool() if real is None else real
        return super().forward(x, context, keep=tiny.causal_padding_mask(every, x.size(1)))


class MaskByName(tiny.Base):
    """Passes the padding mask to each layer under the given argument name."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.layers = nn.ModuleList(Context(attend=tiny.sdpa) for _ in names)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in names)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != tiny.PAD
        x = self.embed(ids, tiny.real_positions(real))
        for layer, norm, name in zip(self.layers, self.norms, self.names, strict=True):
            x = x + layer(norm(x), **{name: real})
        return self.logits(x)


def causal_by_flag(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """is_causal lines up the first query with the first key, also where there is a past."""
    return tiny.is_causal(q, k, v)


def is_causal_if_square(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """is_causal without a past, else the mask."""
    square = q.size(2) == k.size(2)
    return F.scaled_dot_product_attention(q, k, v, None if square else keep, is_causal=square)


def tril(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Causal mask aligned with the first key."""
    scores = tiny.scores(q, k)
    hidden = torch.ones(q.size(2), k.size(2)).triu(1).bool()
    return scores.masked_fill(hidden, tiny.min_value(scores)).softmax(-1) @ v


class OnlyNew(tiny.CachedModel):
    """Treats all tokens of the past as real."""

    def keeps(self, ids: Tensor, cache: list[tiny.LayerCache]) -> list[Any]:
        before = cache[0].real.size(1) - ids.size(1)
        real = F.pad(ids != tiny.PAD, (before, 0), value=True)
        return [tiny.causal_padding_mask(real, ids.size(1)) for _ in self.layers]


@IGNORED.fault("attention_mask swallowed by **kwargs", "L PI BI P", "mask-missing padding-visible")
def _(faulty: bool) -> Case:
    model = (
        Swallowing([tiny.sdpa] * 2, tiny.padding_mask)
        if faulty
        else tiny.Model([tiny.sdpa] * 2, tiny.padding_mask)
    )
    return tiny.masked_case(model)


@IGNORED.fault(
    "context_mask without context", "PI BI P", "missing-in-layer padding-visible", layer="layers.1"
)
def _(faulty: bool) -> Case:
    return tiny.decoder_case(MaskByName("mask", "context_mask" if faulty else "mask"))


@IGNORED.fault("is_causal with a cache, all layers")
def _(faulty: bool) -> Case:
    attend = causal_by_flag if faulty else is_causal_if_square
    return tiny.decoder_case(tiny.CachedModel([attend] * 2), PLAIN, step=tiny.cached_step)


@IGNORED.fault("tril with a cache, layer 0", layer=0)
def _(faulty: bool) -> Case:
    attend = tril if faulty else tiny.eager
    return tiny.decoder_case(
        tiny.CachedModel([attend, tiny.eager, tiny.eager]), PLAIN, step=tiny.cached_step
    )


@IGNORED.fault("past of the cache read as real tokens", causes="padding-visible step-differs")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(OnlyNew() if faulty else tiny.CachedModel(), step=tiny.cached_step)
