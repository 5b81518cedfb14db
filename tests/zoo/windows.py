"""Windows that are off by one, lost on a fast path, or ignored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.zoo.layers_b import (
    Attention,
    Multihead,
    by,
    by_hand,
    by_sdpa,
    decoding,
    near,
    past,
    planted,
    ragged,
    real,
    scores_of,
    sentences,
    subject,
    tell_nothing,
    tell_real,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.zoo.case import Subject

SIZE = 5
EXPECTS = mw.window(back=SIZE - 1)


def sides(each: int, length: int) -> Tensor:
    """(q, k): so many keys on each side of the query."""
    place = torch.arange(length)
    return (place - place[:, None]).abs() <= each


# ── one backend counts the query itself, the other does not ───────────────────────────────────

BACKENDS = "window counted two ways"


def flash(q: Tensor, k: Tensor, v: Tensor, back: int, ahead: int = 0) -> Tensor:
    """Attention that counts `back` keys before the query, and so many after it, without itself."""
    place = torch.arange(q.shape[2])
    apart = place - place[:, None]
    return F.scaled_dot_product_attention(q, k, v, (apart >= -back) & (apart <= ahead))


def eager_or_flash(back: int, default: str = "eager") -> Callable[..., Tensor]:
    """A window of `SIZE` tokens by hand, and one of `back` beside the query."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = default) -> Tensor:
        if route == "flash":
            return flash(q, k, v, back)
        return by_hand(q, k, v, near(SIZE, q.shape[2]))

    return attend


@planted(
    BACKENDS,
    "the other route sees one more",
    after="transformers#29623",
    causes="window-off-by-one path-differs",
    checks="X",
)
def one_more_in_flash(sick: bool) -> Subject:
    attend = eager_or_flash(SIZE if sick else SIZE - 1)
    paths = {"flash": by("flash")}
    return subject(attend, sentences(2, 18), EXPECTS, tell=tell_nothing, paths=paths)


@planted(
    BACKENDS,
    "the usual route sees one more, one layer",
    after="transformers#39408",
    causes="window-off-by-one path-differs",
    checks="P X",
    layer="layers.1.attention",
)
def one_more_by_default(sick: bool) -> Subject:
    right = eager_or_flash(SIZE - 1, "flash")
    attends = [right, eager_or_flash(SIZE, "flash") if sick else right]
    paths = {"eager": by("eager")}
    return subject(attends, sentences(2, 20), EXPECTS, tell=tell_nothing, paths=paths)


def two_sided(each: int) -> Callable[..., Tensor]:
    """Half a window on each side by hand, and `each` in the other route."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "eager") -> Tensor:
        if route == "flash":
            return flash(q, k, v, each, each)
        return by_hand(q, k, v, sides(3, q.shape[2]))

    return attend


@planted(
    BACKENDS,
    "an encoder's other route sees one less on each side",
    after="transformers#39408",
    causes="window-off-by-one path-differs too-narrow",
    checks="X",
)
def one_less_on_each_side(sick: bool) -> Subject:
    paths = {"flash": by("flash")}
    expects = mw.window(back=3, ahead=3)
    attend = two_sided(2 if sick else 3)
    return subject(attend, sentences(2, 18), expects, tell=tell_nothing, paths=paths)


def rolling(most: int) -> Callable[..., Tensor]:
    """A first piece sees a window; later ones see as many keys as the cache keeps, and their own."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
        size = SIZE if start == 0 else most + 1
        seen = near(size, q.shape[2], k.shape[2], k.shape[2] - q.shape[2])
        return by_hand(q, k, v, seen & keep[:, None, None, -k.shape[2] :])

    return attend


@planted(
    BACKENDS,
    "a rolling cache keeps a window beside the query",
    after="transformers#29623",
    causes="window-off-by-one step-differs",
    checks="PC",
)
def rolling_cache_keeps_one_more(sick: bool) -> Subject:
    most = SIZE if sick else SIZE - 1
    return decoding(rolling(most), sentences(2, 18), EXPECTS, most=most)


# ── triu ──────────────────────────────────────────────────────────────────────────────────────

TRIU = "window's triu off by one"


def banded(diagonal: int) -> Callable[..., Tensor]:
    """A lower triangle cut off below a diagonal."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        band = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril().triu(diagonal)
        return by_sdpa(q, k, v, band)

    return attend


@planted(
    TRIU,
    "one key too many, one layer of two",
    after="transformers#26792",
    causes="window-off-by-one",
    checks="P",
    layer="layers.0.attention",
)
def one_key_too_many(sick: bool) -> Subject:
    attends = [banded(-SIZE if sick else 1 - SIZE), banded(1 - SIZE)]
    return subject(attends, sentences(2, 18), EXPECTS, tell=tell_nothing)


@planted(
    TRIU,
    "one key too few",
    after="transformers#26792",
    causes="window-off-by-one too-narrow",
    checks="R",
)
def one_key_too_few(sick: bool) -> Subject:
    attend = banded(2 - SIZE if sick else 1 - SIZE)
    return subject(attend, sentences(2, 16), EXPECTS, tell=tell_nothing)


def logarithm(diagonal: int) -> Callable[..., Tensor]:
    """The band as ones, whose logarithm is added to scores, and padding."""

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        band = torch.ones(q.shape[2], k.shape[2], dtype=q.dtype).tril(0).triu(diagonal)
        scores = (scores_of(q, k) + torch.log(band)).clamp(min=-1e4)
        weights = scores.masked_fill(~seen, -1e4).softmax(-1)
        return (weights * band * seen) @ v

    return attend


@planted(
    TRIU,
    "one key too many, logarithm of a band, padding",
    after="transformers#26792",
    causes="window-off-by-one",
    checks="P",
)
def logarithm_of_a_band(sick: bool) -> Subject:
    ids = ragged(18, 13)
    attend = logarithm(-SIZE if sick else 1 - SIZE)
    expects = EXPECTS & mw.padding(ids=ids, pad_id=0)
    return subject(attend, ids, expects, tell=tell_real, layers=1, pad_id=0)


class Banded(Multihead):
    """nn.MultiheadAttention hides what lies below a diagonal, and the future."""

    below = -SIZE

    def masks(self, size: int) -> dict[str, Any]:
        whole = torch.ones(size, size, dtype=torch.bool)
        return {"attn_mask": whole.triu(1) | whole.tril(self.below)}


class BandedLater(Banded):
    """One diagonal too low, so that one key more is seen."""

    below = -SIZE - 1


@planted(
    TRIU,
    "one key too many, nn.MultiheadAttention",
    after="transformers#26792",
    causes="window-off-by-one",
    checks="P",
)
def one_key_too_many_in_multihead(sick: bool) -> Subject:
    attend = BandedLater if sick else Banded
    return subject(attend, sentences(2, 20), EXPECTS, tell=lambda ids: {"size": ids.shape[1]})


# ── lost on the fast path ─────────────────────────────────────────────────────────────────────

FAST = "window lost on the fast path"


def flag_if_full(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Without padding the flag seems to be enough."""
    if keep.all():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return by_sdpa(q, k, v, near(SIZE, q.shape[2]) & keep)


def mask_if_full(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Without padding the window is still needed."""
    return by_sdpa(q, k, v, near(SIZE, q.shape[2]) & keep)


def tell_keep(ids: Tensor) -> dict[str, Any]:
    """Which keys are real."""
    return {"keep": real(ids)}


@planted(
    FAST,
    "is_causal instead of a mask if there is no padding",
    after="transformers#30127",
    causes="window-missing",
    checks="P PI",
)
def fast_without_padding(sick: bool) -> Subject:
    attend = flag_if_full if sick else mask_if_full
    return subject(attend, sentences(2, 18), EXPECTS, tell=tell_keep, pad_id=0)


@planted(
    FAST,
    "is_causal instead of a mask for a sequence alone, one layer",
    after="transformers#30127",
    causes="window-missing",
    checks="BI",
    layer="layers.1.attention",
)
def fast_alone(sick: bool) -> Subject:
    ids = ragged(18, 13)
    expects = EXPECTS & mw.padding(ids=ids, pad_id=0)
    attends = [mask_if_full, flag_if_full if sick else mask_if_full]
    return subject(attends, ids, expects, tell=tell_keep, pad_id=0)


class FastInference(Attention):
    """The flag for inference, a mask for training."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.training:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return by_sdpa(q, k, v, near(SIZE, q.shape[2]))


class SameInference(Attention):
    """A mask for both."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_sdpa(q, k, v, near(SIZE, q.shape[2]))


@planted(
    FAST,
    "is_causal for inference",
    after="keras-hub#2186",
    causes="window-missing path-differs",
    checks="P X",
)
def fast_inference(sick: bool) -> Subject:
    attend = FastInference if sick else SameInference
    return subject(attend, sentences(2, 18), EXPECTS, tell=tell_nothing)


def fused(window: bool) -> Callable[..., Tensor]:
    """By hand with the window; the fused route has it or not."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "eager") -> Tensor:
        if route == "fused":
            return by_sdpa(q, k, v, near(SIZE, q.shape[2]) if window else past(q.shape[2]))
        return by_hand(q, k, v, near(SIZE, q.shape[2]))

    return attend


@planted(
    FAST,
    "the fused route is told of causality only",
    after="keras-hub#2186",
    causes="window-missing path-differs",
    checks="X",
)
def fused_without_window(sick: bool) -> Subject:
    paths = {"fused": by("fused")}
    attend = fused(window=not sick)
    return subject(attend, sentences(2, 16), EXPECTS, tell=tell_nothing, paths=paths)


# ── ignored if no mask is given ───────────────────────────────────────────────────────────────

IGNORED = "window ignored without a mask"


def narrows_a_mask(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, window: Tensor, causal: bool
) -> Tensor:
    """The window narrows a mask that is given; without one there is nothing to narrow."""
    if seen is not None:
        seen = seen & window
    if causal:
        ahead = past(q.shape[2])
        seen = ahead if seen is None else seen & ahead
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def narrows_anything(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, window: Tensor, causal: bool
) -> Tensor:
    """The window is a mask itself."""
    seen = window if seen is None else seen & window
    if causal:
        seen = seen & past(q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def tell_window(each: int, causal: bool) -> Callable[[Tensor], dict[str, Any]]:
    """A window, and a padding mask if there is padding."""

    def tell(ids: Tensor) -> dict[str, Any]:
        keep = real(ids)
        window = sides(each, ids.shape[1])
        return {"seen": None if keep.all() else keep, "window": window, "causal": causal}

    return tell


@planted(
    IGNORED,
    "a decoder without padding",
    after="jax#32300",
    causes="window-missing",
    checks="P PI",
)
def ignored_in_a_decoder(sick: bool) -> Subject:
    attend = narrows_a_mask if sick else narrows_anything
    tell = tell_window(SIZE - 1, causal=True)
    return subject(attend, sentences(2, 17), EXPECTS, tell=tell, pad_id=0)


@planted(
    IGNORED,
    "an encoder, which then sees all",
    after="jax#32300",
    causes="window-missing mask-missing",
    checks="P PI",
)
def ignored_in_an_encoder(sick: bool) -> Subject:
    attend = narrows_a_mask if sick else narrows_anything
    tell = tell_window(2, causal=False)
    return subject(attend, sentences(2, 16), mw.window(back=2, ahead=2), tell=tell, pad_id=0)


def adds_to_a_bias(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, window: Tensor, causal: bool
) -> Tensor:
    """The window is added to a bias, if there is one."""
    scores = scores_of(q, k)
    bias = None if seen is None else torch.zeros_like(scores).masked_fill(~seen, -1e4)
    if bias is not None:
        bias = bias.masked_fill(~window, -1e4)
    if causal:
        scores = scores.masked_fill(~past(q.shape[2]), -math.inf)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


def adds_to_scores(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, window: Tensor, causal: bool
) -> Tensor:
    """The window is added to scores, whether there is a bias or not."""
    scores = scores_of(q, k).masked_fill(~window, -1e4)
    bias = None if seen is None else torch.zeros_like(scores).masked_fill(~seen, -1e4)
    if causal:
        scores = scores.masked_fill(~past(q.shape[2]), -math.inf)
    return (scores if bias is None else scores + bias).softmax(-1) @ v


@planted(
    IGNORED,
    "the local layer of two, a bias by hand",
    after="jax#32300",
    causes="window-missing missing-in-layer",
    checks="P PI",
    layer="layers.1.attention",
)
def ignored_in_one_layer(sick: bool) -> Subject:
    attends = [adds_to_scores, adds_to_a_bias if sick else adds_to_scores]
    tell = tell_window(SIZE - 1, causal=True)
    return subject(attends, sentences(2, 18), EXPECTS, tell=tell, pad_id=0)
