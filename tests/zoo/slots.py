"""Caches and arguments that are asked in the wrong way, so that a mask is made without them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.case import plant
from tests.zoo.layers import (
    PAD,
    Attention,
    Base,
    Decoder,
    Model,
    Slot,
    bidirectional,
    by_hand,
    by_sdpa,
    causal,
    counted,
    lowest,
    masked,
    past,
    right,
    scores_of,
    step,
    writing,
)

PLAIN = right(14, 14)  # no padding

# ── the list of caches instead of one ─────────────────────────────────────────────────────────

LISTED = "list of caches asked instead of one of them"
SIZE = 5  # keys that a query sees, where there is a window


class Padded(Slot):
    """A cache that knows of its padding."""

    def make_mask(self, new: int) -> Tensor:
        return causal(self.real, new)


class Rolling(Slot):
    """A cache that knows of a window."""

    def make_mask(self, new: int) -> Tensor:
        keys = torch.arange(self.real.size(1))
        return past(self.real, new) & (keys > keys[-new:, None] - SIZE)


def mask_for(new: int, cache: Any) -> Any:
    """The mask that the cache makes; if it makes none, one token sees all, and several the past."""
    if hasattr(cache, "make_mask"):
        return cache.make_mask(new)
    return None if new == 1 else "causal"


def by_name(q: Tensor, k: Tensor, v: Tensor, keep: Any) -> Tensor:
    """Attention that takes "causal" for a mask."""
    if isinstance(keep, str):
        keep = torch.ones(q.size(2), k.size(2)).tril(k.size(2) - q.size(2)).bool()
    return by_sdpa(q, k, v, keep)


class Asking(Decoder):
    """Asks for the mask of every pass: the list of caches, or the first in it."""

    slot = Padded

    def __init__(self, of_list: bool) -> None:
        super().__init__([by_name] * 2)
        self.of_list = of_list

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        keep = mask_for(ids.size(1), cache if self.of_list else cache[0])
        return [keep for _ in self.layers]


class AskingLater(Asking):
    """Asks only after the first pass, whose mask is made of the cache that was begun."""

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        if cache[0].k is None:
            return [mask_for(ids.size(1), slot) for slot in cache]
        return super().keeps(ids, cache)


class RollingLater(AskingLater):
    """The same with a window."""

    slot = Rolling


class FromZero(Decoder):
    """Asks for the length of the past, and takes 0 where there is none to be had."""

    def __init__(self, of_list: bool) -> None:
        super().__init__()
        self.of_list = of_list

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        k = getattr(cache if self.of_list else cache[0], "k", None)
        start = 0 if k is None else k.size(2)
        keys = torch.arange(cache[0].real.size(1))
        return [keys <= torch.arange(start, start + ids.size(1))[:, None] for _ in self.layers]


class Unasked(Decoder):
    """Makes no mask where there is a past; a list of empty caches is taken for one."""

    def __init__(self, of_list: bool) -> None:
        super().__init__()
        self.of_list = of_list

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        begun = bool(cache) if self.of_list else cache[0].k is not None and ids.size(1) == 1
        return [None for _ in self.layers] if begun else super().keeps(ids, cache)


plant(
    LISTED,
    "padding is lost in every pass",
    writing(lambda: Asking(of_list=True), step=step),
    writing(lambda: Asking(of_list=False), step=step),
    after="mlx-lm#1906",
    causes=("padding-visible",),
    checks="BI PI P L",
)
plant(
    LISTED,
    "padding is lost after the first pass",
    writing(lambda: AskingLater(of_list=True), step=step),
    writing(lambda: AskingLater(of_list=False), step=step),
    after="mlx-lm#1906",
    causes=("padding-visible", "step-differs"),
    checks="PC",
)
plant(
    LISTED,
    "the window is lost after the first pass",
    writing(
        lambda: RollingLater(of_list=True),
        PLAIN,
        mw.causal() & mw.window(back=SIZE - 1),
        step=step,
    ),
    writing(
        lambda: RollingLater(of_list=False),
        PLAIN,
        mw.causal() & mw.window(back=SIZE - 1),
        step=step,
    ),
    after="mlx-lm#1906",
    causes=("window-missing", "step-differs"),
    checks="PC",
)
plant(
    LISTED,
    "the past has no length, so that queries begin at 0",
    writing(lambda: FromZero(of_list=True), PLAIN, mw.causal(), step=step),
    writing(lambda: FromZero(of_list=False), PLAIN, mw.causal(), step=step),
    after="mlx-lm#1906",
    causes=("aligned-upper-left", "step-differs"),
    checks="PC",
)
plant(
    LISTED,
    "a list of empty caches is taken for a past",
    writing(lambda: Unasked(of_list=True), PLAIN, mw.causal(), step=step),
    writing(lambda: Unasked(of_list=False), PLAIN, mw.causal(), step=step),
    after="mlx-lm#1906",
    causes=("mask-missing", "future-visible"),
    checks="P G PC",
)

# ── an ignored name, and a causal mask that forgets the cache ─────────────────────────────────

IGNORED = "padding under an ignored name, causal from the first key"


class Swallowing(Model):
    """Its mask is called `mask`; whatever else is given is for others."""

    def forward(self, ids: Tensor, mask: Tensor | None = None, **_others: Any) -> Tensor:  # type: ignore[override]
        return super().forward(ids, torch.ones_like(ids) if mask is None else mask)


class Context(Attention):
    """Causal attention on itself, or on a context: each has a mask of its own."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        real = mask if context is None else context_mask
        every = torch.ones(x.shape[:2]).bool() if real is None else real
        return super().forward(x, causal(every, x.size(1)), context)


class Handing(Base):
    """Hands the padding mask to each layer under one of its names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.layers = nn.ModuleList(Context(by_sdpa) for _ in names)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in names)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        x = self.start(ids, counted(real))
        for layer, norm, name in zip(self.layers, self.norms, self.names, strict=True):
            x = x + layer(norm(x), **{name: real})
        return self.finish(x)


def causal_by_flag(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """is_causal lines up the first query with the first key, also where there is a past."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_by_flag_if_square(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """is_causal where there is no past, and the mask where there is."""
    square = q.size(2) == k.size(2)
    return F.scaled_dot_product_attention(q, k, v, None if square else keep, is_causal=square)


def triangle(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Makes its own triangle, from the first key on."""
    scores = scores_of(q, k)
    hidden = torch.ones(q.size(2), k.size(2)).triu(1).bool()
    return scores.masked_fill(hidden, lowest(scores)).softmax(-1) @ v


class OnlyNew(Decoder):
    """Knows which of the new tokens are real, and takes all of the past for real."""

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        before = cache[0].real.size(1) - ids.size(1)
        real = F.pad(ids != PAD, (before, 0), value=True)
        return [causal(real, ids.size(1)) for _ in self.layers]


plant(
    IGNORED,
    "attention_mask among other arguments, in both directions",
    masked(lambda: Swallowing([by_sdpa] * 2, bidirectional)),
    masked(lambda: Model([by_sdpa] * 2, bidirectional)),
    after="x-transformers#187",
    causes=("mask-missing", "padding-visible"),
    checks="L PI BI P",
)
plant(
    IGNORED,
    "context_mask without a context, second layer of two",
    writing(lambda: Handing("mask", "context_mask")),
    writing(lambda: Handing("mask", "mask")),
    after="x-transformers#187",
    causes=("missing-in-layer", "padding-visible"),
    layer="layers.1",
    checks="PI BI P",
)
plant(
    IGNORED,
    "is_causal with a cache, all layers",
    writing(lambda: Decoder([causal_by_flag] * 2), PLAIN, mw.causal(), step=step),
    writing(lambda: Decoder([causal_by_flag_if_square] * 2), PLAIN, mw.causal(), step=step),
    after="x-transformers#187",
    causes=("aligned-upper-left", "step-differs"),
    checks="PC",
)
plant(
    IGNORED,
    "a triangle by hand with a cache, first layer of three",
    writing(lambda: Decoder([triangle, by_hand, by_hand]), PLAIN, mw.causal(), step=step),
    writing(lambda: Decoder([by_hand] * 3), PLAIN, mw.causal(), step=step),
    after="x-transformers#187",
    causes=("aligned-upper-left", "step-differs"),
    layer="layers.0.attention",
    checks="PC",
)
plant(
    IGNORED,
    "the past of a cache taken for real",
    writing(lambda: OnlyNew(), step=step),
    writing(lambda: Decoder(), step=step),
    after="x-transformers#187",
    causes=("padding-visible", "step-differs"),
    checks="PC",
)
