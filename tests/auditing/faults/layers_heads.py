"""Leaks in one layer or head, and weak leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

# ── one layer of many ─────────────────────────────────────────────────────────────────────────

ONE_LAYER = Family(
    "one layer of six without a mask",
    after="layers that build their own mask",
    checks="P",
    causes="missing-in-layer future-visible window-missing",
)


def unmasked(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Ignores its mask."""
    return tiny.eager(q, k, v, torch.ones_like(keep))


def six(wrong: int, faulty: bool, attend: Any = unmasked) -> list[Any]:
    """Six layers, one of which is wrong."""
    return [attend if faulty and n == wrong else tiny.eager for n in range(6)]


@ONE_LAYER.fault("the last", layer=5)
def _(faulty: bool) -> Case:
    return tiny.case(six(5, faulty), tiny.random_ids(2, 14))


@ONE_LAYER.fault("the fourth, right padding", layer=3)
def _(faulty: bool) -> Case:
    def no_causal(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return tiny.eager(q, k, v, keep.any(-2, keepdim=True))

    return tiny.case(six(3, faulty, no_causal), tiny.right_padded(14, 9))


@ONE_LAYER.fault("one layer of six looks one position ahead", layer=2)
def _(faulty: bool) -> Case:
    def ahead(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return tiny.eager(q, k, v, tiny.causal(q.shape[2], start=1))

    return tiny.case(six(2, faulty, ahead), tiny.random_ids(2, 14))


@ONE_LAYER.fault("full attention instead of a window", layer=1)
def _(faulty: bool) -> Case:
    def full(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return tiny.eager(q, k, v, tiny.causal(q.shape[2]))

    return tiny.case(
        six(1, faulty, full),
        tiny.random_ids(2, 24),
        mw.window(back=2),
        mask_args=tiny.window_args(3),
    )


# ── one head ──────────────────────────────────────────────────────────────────────────────────

ONE_HEAD = Family(
    "one head without a mask",
    after="masks per head",
    checks="P",
    causes="future-visible missing-in-layer mask-missing",
)


def heads_unmasked(faulty: bool, *heads: int) -> Callable[..., Tensor]:
    """Attention in which some heads ignore the mask."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        per_head = keep.expand(len(q), q.shape[1], *keep.shape[-2:]).clone()
        if faulty:
            per_head[:, list(heads)] = True
        return tiny.eager(q, k, v, per_head)

    return attend


@ONE_HEAD.fault("the last of eight")
def _(faulty: bool) -> Case:
    return tiny.case(heads_unmasked(faulty, 7), tiny.random_ids(2, 14), heads=8)


@ONE_HEAD.fault("the first of eight, one layer", layer=1)
def _(faulty: bool) -> Case:
    attends = [tiny.eager, heads_unmasked(faulty, 0)]
    return tiny.case(attends, tiny.random_ids(2, 14), heads=8)


@ONE_HEAD.fault("the second half, as a KV head of grouped queries")
def _(faulty: bool) -> Case:
    return tiny.case(heads_unmasked(faulty, 2, 3), tiny.random_ids(3, 13), heads=4)


@ONE_HEAD.fault("padding visible to one head", "PI", "padding-visible")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(14, 9)
    attend = heads_unmasked(faulty, 3)
    expects = tiny.expected_mask(ids, causal=False)
    return tiny.case(attend, ids, expects, mask_args=tiny.padding_args, heads=4)


# ── weak leaks ────────────────────────────────────────────────────────────────────────────────

WEAK = Family(
    "weak leak",
    after="random initialisation hides leaks",
    checks="W",
    causes="future-visible fill-too-weak not-through-attention mask-missing padding-visible",
)


def soft(fill: float) -> Callable[..., Tensor]:
    """Additive mask with this fill: masked keys keep a weight of about exp(fill)."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return (tiny.scores(q, k) + tiny.additive(keep, q, fill)).softmax(-1) @ v

    return attend


@WEAK.fault("fill of -7")
def _(faulty: bool) -> Case:
    return tiny.case(soft(-7.0 if faulty else -1e4), tiny.random_ids(2, 14))


@WEAK.fault("fill of -10, one layer", layer=1)
def _(faulty: bool) -> Case:
    return tiny.case([tiny.eager, soft(-10.0 if faulty else -1e4)], tiny.random_ids(2, 14))


@WEAK.fault("fill of -9, padding")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(14, 9)
    attend = soft(-9.0 if faulty else -1e4)
    expects = tiny.expected_mask(ids, causal=False)
    return tiny.case(attend, ids, expects, mask_args=tiny.padding_args)


def mixed(strength: float, faulty: bool) -> Callable[..., Tensor]:
    """Adds a share of the mean over all values, or over the visible ones."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        size = torch.arange(1, v.shape[2] + 1, dtype=v.dtype)[:, None]
        mean = v.mean(2, keepdim=True) if faulty else v.cumsum(2) / size
        return tiny.eager(q, k, v, keep) + strength * mean

    return attend


@WEAK.fault("mean of all values, times 1e-3")
def _(faulty: bool) -> Case:
    return tiny.case(mixed(1e-3, faulty), tiny.random_ids(2, 14))


@WEAK.fault("mean of all values, times 1e-4, one layer of three")
def _(faulty: bool) -> Case:
    attends = [tiny.eager, mixed(1e-4, faulty), tiny.eager]
    return tiny.case(attends, tiny.random_ids(2, 14))


@WEAK.fault("one head of eight, fill of -6")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        fill = tiny.additive(keep, q, -1e4).expand(len(q), q.shape[1], -1, -1).clone()
        if faulty:
            fill[:, 5] = fill[:, 5].clamp(min=-6)
        return (tiny.scores(q, k) + fill).softmax(-1) @ v

    return tiny.case(attend, tiny.random_ids(2, 14), heads=8)
