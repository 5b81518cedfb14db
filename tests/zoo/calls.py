"""Masks that do not fit the call: on another device, or longer than the keys."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.zoo.case import Subject
from tests.zoo.layers_b import (
    Attention,
    Transformer,
    by_hand,
    decoding,
    grown,
    lowest,
    near,
    past,
    planted,
    ragged,
    scores_of,
    sentences,
    subject,
    tell_nothing,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# ── a mask on another device ──────────────────────────────────────────────────────────────────

DEVICE = "mask on another device"

META = torch.device("meta")  # a second device that every machine has


def made_elsewhere(attend: Any, expects: Any) -> Subject:
    """A model that is made without memory first, and gets it on the CPU."""
    with META:
        model = Transformer(attend, tell_nothing)
    return Subject(grown(model.to_empty(device="cpu")), sentences(2, 12), expects)


class Kept(Attention):
    """Makes its mask when it is made itself; as it is no buffer, it stays where it was."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.seen = torch.ones(64, 64, dtype=torch.bool).tril()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_hand(q, k, v, self.seen[: q.shape[2], : k.shape[2]])


class Made(Attention):
    """Makes its mask when it is called."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_hand(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril())


@planted(
    DEVICE,
    "a mask that is no buffer",
    after="transformers#28369",
    causes="raises",
    checks="L",
)
def device_of_a_tensor(sick: bool) -> Subject:
    return made_elsewhere(Kept if sick else Made, mw.causal())


class Remembers(Attention):
    """Notes the device of its weights when it is made, and makes masks there."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.device = self.out.weight.device

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=self.device)
        return by_hand(q, k, v, (place <= place[:, None]) & (place > place[:, None] - 4))


class Asks(Attention):
    """Makes masks where the queries are."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        return by_hand(q, k, v, (place <= place[:, None]) & (place > place[:, None] - 4))


@planted(
    DEVICE,
    "a device noted when the model was made, one layer",
    after="transformers#28369",
    causes="raises",
    checks="L",
    layer="layers.1.attention",
)
def device_noted(sick: bool) -> Subject:
    return made_elsewhere([Asks, Remembers if sick else Asks], mw.window(back=3))


def helper(by_device: bool) -> Callable[..., Tensor]:
    """Makes a mask for each length once; for each device, or for the first one that asks."""

    @lru_cache(maxsize=8)
    def kept(size: int, device: torch.device) -> Tensor:
        return torch.ones(size, size, dtype=torch.bool, device=device).tril()

    first: dict[int, torch.device] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        size = q.shape[2]
        device = q.device if by_device else first.setdefault(size, q.device)
        return by_hand(q, k, v, kept(size, device))

    return attend


@planted(
    DEVICE,
    "a helper that keeps masks by length, after a dry run",
    after="transformers#28369",
    causes="raises",
    checks="L",
)
def device_of_the_first_call(sick: bool) -> Subject:
    built = subject(helper(by_device=not sick), sentences(2, 14), mw.causal())
    with META:
        copy.deepcopy(built.model).to(META)(built.inputs.to(META))
    return built


# ── a bias longer than the keys ───────────────────────────────────────────────────────────────

LONGER = "bias longer than the keys"

FUTURE = torch.zeros(64, 64).masked_fill(~past(64), -torch.inf)  # made once, for the longest text


def first_rows(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """Takes the first rows of the bias, wherever the queries are."""
    bias = FUTURE[: q.shape[2], : k.shape[2]].to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def own_rows(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """Takes the queries' rows of the bias."""
    bias = FUTURE[start : start + q.shape[2], : k.shape[2]].to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


@planted(
    LONGER,
    "its first rows are taken with a cache",
    after="xformers#1122",
    causes="aligned-upper-left step-differs",
    checks="PC",
)
def longer_with_a_cache(sick: bool) -> Subject:
    return decoding(first_rows if sick else own_rows, sentences(2, 14), mw.causal())


SIZE = 6


def first_flags(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """A rolling cache dropped the oldest keys; of the flags the newest ones are cut off."""
    seen = near(SIZE, q.shape[2], k.shape[2], k.shape[2] - q.shape[2])
    return by_hand(q, k, v, seen & keep[:, None, None, : k.shape[2]])


def last_flags(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """The oldest flags are cut off with the oldest keys."""
    seen = near(SIZE, q.shape[2], k.shape[2], k.shape[2] - q.shape[2])
    return by_hand(q, k, v, seen & keep[:, None, None, -k.shape[2] :])


@planted(
    LONGER,
    "padding of a rolling cache is cut at the wrong end, one layer",
    after="xformers#1122",
    causes="step-differs too-narrow",
    checks="PC",
    layer="layers.0.attention",
)
def longer_than_a_rolling_cache(sick: bool) -> Subject:
    ids = ragged(11, 18, left=True)
    expects = mw.window(back=SIZE - 1) & mw.padding(ids=ids, pad_id=0)
    attends = [first_flags if sick else last_flags, last_flags]
    return decoding(attends, ids, expects, most=SIZE - 1)


def in_a_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Reads the bias number by number, as if its rows were as long as the keys."""
    scores = scores_of(q, k)
    bias = FUTURE.clamp(min=lowest(scores)).flatten()[: q.shape[2] * k.shape[2]]
    return (scores + bias.view(q.shape[2], k.shape[2]).to(q.dtype)).softmax(-1) @ v


def row_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Reads the beginning of each of its rows."""
    scores = scores_of(q, k)
    bias = FUTURE.clamp(min=lowest(scores))[: q.shape[2], : k.shape[2]]
    return (scores + bias.to(q.dtype)).softmax(-1) @ v


@planted(
    LONGER,
    "its rows are read as if they were shorter",
    after="xformers#1122",
    causes="future-visible too-narrow",
    checks="P R",
)
def longer_rows(sick: bool) -> Subject:
    attend = in_a_row if sick else row_by_row
    return subject(attend, sentences(2, 20), mw.causal(), tell=tell_nothing)
