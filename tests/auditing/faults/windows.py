"""Sliding windows that are off by one, lost on a fast path, or ignored."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable


SIZE = 5
EXPECTS = mw.window(back=SIZE - 1)


def sides(each: int, length: int) -> Tensor:
    """(q, k): `each` keys on each side of the query."""
    place = torch.arange(length)
    return (place - place[:, None]).abs() <= each


# ── one backend counts the query itself, the other does not ───────────────────────────────────

BACKENDS = Family(
    "window counted two ways",
    after="transformers#29623, transformers#39408",
    checks="X",
    causes="window-off-by-one path-differs",
)


def flash(q: Tensor, k: Tensor, v: Tensor, back: int, ahead: int = 0) -> Tensor:
    """A window of `back` keys before the query and `ahead` keys after it."""
    place = torch.arange(q.shape[2])
    apart = place - place[:, None]
    return F.scaled_dot_product_attention(q, k, v, (apart >= -back) & (apart <= ahead))


def eager_or_flash(back: int, default: str = "eager") -> Callable[..., Tensor]:
    """Eager attention with `SIZE` keys, or flash with `back` keys before the query."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = default) -> Tensor:
        if route == "flash":
            return flash(q, k, v, back)
        return tiny.eager(q, k, v, tiny.window(SIZE, q.shape[2]))

    return attend


@BACKENDS.fault("other path sees one key more")
def _(faulty: bool) -> Case:
    attend = eager_or_flash(SIZE if faulty else SIZE - 1)
    return tiny.case(attend, tiny.random_ids(2, 18), EXPECTS, mask_args=tiny.no_args, route="flash")


@BACKENDS.fault("default path sees one key more, layer 1", "P X", layer=1)
def _(faulty: bool) -> Case:
    right = eager_or_flash(SIZE - 1, "flash")
    attends = [right, eager_or_flash(SIZE, "flash") if faulty else right]
    return tiny.case(
        attends, tiny.random_ids(2, 20), EXPECTS, mask_args=tiny.no_args, route="eager"
    )


def two_sided(each: int) -> Callable[..., Tensor]:
    """Eager attention with 3 keys on each side, or flash with `each`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "eager") -> Tensor:
        if route == "flash":
            return flash(q, k, v, each, each)
        return tiny.eager(q, k, v, sides(3, q.shape[2]))

    return attend


@BACKENDS.fault(
    "encoder, one key less on each side", causes="window-off-by-one path-differs too-narrow"
)
def _(faulty: bool) -> Case:
    expects = mw.window(back=3, ahead=3)
    attend = two_sided(2 if faulty else 3)
    return tiny.case(attend, tiny.random_ids(2, 18), expects, mask_args=tiny.no_args, route="flash")


def rolling(max_len: int) -> Callable[..., Tensor]:
    """Prefill with the window; later chunks see `max_len` cached keys and their own."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        size = SIZE if start == 0 else max_len + 1
        keep = tiny.window(size, q.shape[2], k.shape[2], k.shape[2] - q.shape[2])
        return tiny.eager(q, k, v, keep & real[:, None, None, -k.shape[2] :])

    return attend


@BACKENDS.fault("rolling cache keeps one key more", "PC", "window-off-by-one step-differs")
def _(faulty: bool) -> Case:
    max_len = SIZE if faulty else SIZE - 1
    return tiny.cached_case(rolling(max_len), tiny.random_ids(2, 18), EXPECTS, max_len=max_len)


# ── triu ──────────────────────────────────────────────────────────────────────────────────────

TRIU = Family(
    "window's triu off by one", after="transformers#26792", checks="P", causes="window-off-by-one"
)


def banded(diagonal: int) -> Callable[..., Tensor]:
    """A band down to a diagonal."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        band = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril().triu(diagonal)
        return tiny.sdpa(q, k, v, band)

    return attend


@TRIU.fault("one key too many, one layer of two", layer=0)
def _(faulty: bool) -> Case:
    attends = [banded(-SIZE if faulty else 1 - SIZE), banded(1 - SIZE)]
    return tiny.case(attends, tiny.random_ids(2, 18), EXPECTS, mask_args=tiny.no_args)


@TRIU.fault("one key too few", "R", "window-off-by-one too-narrow")
def _(faulty: bool) -> Case:
    attend = banded(2 - SIZE if faulty else 1 - SIZE)
    return tiny.case(attend, tiny.random_ids(2, 16), EXPECTS, mask_args=tiny.no_args)


def logarithm(diagonal: int) -> Callable[..., Tensor]:
    """Adds the logarithm of the band to the scores, with padding."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        band = torch.ones(q.shape[2], k.shape[2], dtype=q.dtype).tril(0).triu(diagonal)
        scores = (tiny.scores(q, k) + torch.log(band)).clamp(min=-1e4)
        weights = scores.masked_fill(~keep, -1e4).softmax(-1)
        return (weights * band * keep) @ v

    return attend


@TRIU.fault("one key too many, logarithm of a band, padding")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(18, 13)
    attend = logarithm(-SIZE if faulty else 1 - SIZE)
    expects = EXPECTS & mw.padding(ids=ids, pad_id=0)
    return tiny.case(attend, ids, expects, mask_args=tiny.padding_args, layers=1)


@TRIU.fault("one key too many, nn.MultiheadAttention")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        return {"attn_mask": ~tiny.window(SIZE + 1 if faulty else SIZE, ids.shape[1])}

    return tiny.case(tiny.MultiheadAttention, tiny.random_ids(2, 20), EXPECTS, mask_args=args)


# ── lost on the fast path ─────────────────────────────────────────────────────────────────────

FAST = Family(
    "window lost on the fast path",
    after="transformers#30127, keras-hub#2186",
    causes="window-missing",
)


def is_causal_if_full(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """is_causal without padding."""
    if keep.all():
        return tiny.is_causal(q, k, v)
    return tiny.sdpa(q, k, v, tiny.window(SIZE, q.shape[2]) & keep)


def mask_if_full(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """The window also without padding."""
    return tiny.sdpa(q, k, v, tiny.window(SIZE, q.shape[2]) & keep)


@FAST.fault("is_causal without padding", "P PI")
def _(faulty: bool) -> Case:
    attend = is_causal_if_full if faulty else mask_if_full
    return tiny.case(attend, tiny.random_ids(2, 18), EXPECTS, mask_args=tiny.padding_args, pad_id=0)


@FAST.fault("is_causal for a single sequence, layer 1", "BI", layer=1)
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(18, 13)
    expects = EXPECTS & mw.padding(ids=ids, pad_id=0)
    attends = [mask_if_full, is_causal_if_full if faulty else mask_if_full]
    return tiny.case(attends, ids, expects, mask_args=tiny.padding_args)


class FastInference(tiny.Attention):
    """is_causal for inference, a mask for training."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (windowed if self.training else tiny.is_causal)(q, k, v)


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sliding window."""
    return tiny.sdpa(q, k, v, tiny.window(SIZE, q.shape[2]))


@FAST.fault("is_causal for inference", "P X", "window-missing path-differs")
def _(faulty: bool) -> Case:
    attend = FastInference if faulty else windowed
    return tiny.case(attend, tiny.random_ids(2, 18), EXPECTS, mask_args=tiny.no_args)


def fused(window: bool) -> Callable[..., Tensor]:
    """Eager attention with the window; the fused path has it or not."""

    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "eager") -> Tensor:
        if route == "fused":
            size = SIZE if window else q.shape[2]
            return tiny.sdpa(q, k, v, tiny.window(size, q.shape[2]))
        return tiny.eager(q, k, v, tiny.window(SIZE, q.shape[2]))

    return attend


@FAST.fault("fused path without window", "X", "window-missing path-differs")
def _(faulty: bool) -> Case:
    attend = fused(window=not faulty)
    return tiny.case(attend, tiny.random_ids(2, 16), EXPECTS, mask_args=tiny.no_args, route="fused")


# ── ignored if no mask is given ───────────────────────────────────────────────────────────────

IGNORED = Family("window ignored without a mask", after="jax#32300", checks="P PI")


def narrowed(always: bool) -> Callable[..., Tensor]:
    """Combines the window with a given mask; `always` applies it without one, too."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, window: Tensor, causal: bool
    ) -> Tensor:
        if keep is not None or always:
            keep = window if keep is None else keep & window
        if causal:
            past = tiny.causal(q.shape[2])
            keep = past if keep is None else keep & past
        return tiny.sdpa(q, k, v, keep)

    return attend


def window_and_padding(each: int, causal: bool) -> Callable[[Tensor], dict[str, Any]]:
    """A window, and a padding mask if there is padding."""

    def args(ids: Tensor) -> dict[str, Any]:
        keep = tiny.real_keys(ids)
        window = sides(each, ids.shape[1])
        return {"keep": None if keep.all() else keep, "window": window, "causal": causal}

    return args


@IGNORED.fault("decoder without padding", causes="window-missing")
def _(faulty: bool) -> Case:
    attend = narrowed(always=not faulty)
    args = window_and_padding(SIZE - 1, causal=True)
    return tiny.case(attend, tiny.random_ids(2, 17), EXPECTS, mask_args=args, pad_id=0)


@IGNORED.fault("encoder without padding", causes="window-missing mask-missing")
def _(faulty: bool) -> Case:
    attend = narrowed(always=not faulty)
    args = window_and_padding(2, causal=False)
    return tiny.case(
        attend, tiny.random_ids(2, 16), mw.window(back=2, ahead=2), mask_args=args, pad_id=0
    )


def biased(always: bool) -> Callable[..., Tensor]:
    """Adds the window to a given bias; `always` applies it without one, too."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, window: Tensor, causal: bool
    ) -> Tensor:
        scores = tiny.scores(q, k)
        if keep is not None or always:
            scores = scores.masked_fill(~window, -1e4)
        if keep is not None:
            scores = scores + tiny.additive(keep, scores, -1e4)
        if causal:
            scores = scores.masked_fill(~tiny.causal(q.shape[2]), -math.inf)
        return scores.softmax(-1) @ v

    return attend


@IGNORED.fault("local layer, additive bias", causes="window-missing missing-in-layer", layer=1)
def _(faulty: bool) -> Case:
    attends = [biased(always=True), biased(always=not faulty)]
    args = window_and_padding(SIZE - 1, causal=True)
    return tiny.case(attends, tiny.random_ids(2, 18), EXPECTS, mask_args=args, pad_id=0)
