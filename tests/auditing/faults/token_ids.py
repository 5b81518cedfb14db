"""Leaks that depend on ids: what is computed from the ids themselves, not from their embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

IMAGE, SEPARATOR = 40, 41  # ids with a meaning

# ── embeddings of neighbouring ids ────────────────────────────────────────────────────────────

GRAMS = Family(
    "embedding of n-grams with the next id",
    after="byte n-gram hash embeddings",
    checks="ID",
    causes="future-visible not-through-attention length-dependent",
)


class Hashed(tiny.Transformer):
    """Adds embeddings of pairs of ids, hashed into a table; `next_id` pairs with the next one."""

    def __init__(self, next_id: bool) -> None:
        super().__init__(tiny.eager)
        self.next_id = next_id
        self.grams = nn.Embedding(32, tiny.DIM)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        other = F.pad(ids[:, 1:], (0, 1)) if self.next_id else F.pad(ids[:, :-1], (1, 0))
        return super().embed(ids, positions) + self.grams((ids * 7 + other * 3) % 32)


@GRAMS.fault("bigrams")
def _(faulty: bool) -> Case:
    return Case(tiny.initialize(Hashed(faulty)), tiny.random_ids(2, 14), mw.causal())


class Routed(tiny.Transformer):
    """An MLP chosen by the id: its own, or that of the next position."""

    def __init__(self, next_id: bool) -> None:
        super().__init__(tiny.eager)
        self.next_id = next_id
        self.experts = nn.ModuleList(nn.Linear(tiny.DIM, tiny.DIM) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        x = self.embed(ids, tiny.column_positions(ids))
        for layer in self.layers:
            x = layer(x, keep=tiny.causal(ids.shape[1]))
        expert = (F.pad(ids[:, 1:], (0, 1)) if self.next_id else ids) % 4
        every = torch.stack([one(x) for one in self.experts], 2)
        chosen = expert[..., None, None].expand_as(every[:, :, :1])
        return self.logits(x + every.gather(2, chosen)[:, :, 0])


@GRAMS.fault("expert chosen by the hash of the next id")
def _(faulty: bool) -> Case:
    return Case(tiny.initialize(Routed(faulty)), tiny.random_ids(2, 14), mw.causal())


# ── ids that change the mask ──────────────────────────────────────────────────────────────────

SPECIAL = Family(
    "mask changed by an id",
    after="bidirectional image tokens",
    checks="ID",
    causes="future-visible length-dependent documents-leak",
)


def without(ids: Tensor, *special: int) -> Tensor:
    """The ids with these replaced."""
    for one in special:
        ids = torch.where(ids == one, 5, ids)
    return ids


@SPECIAL.fault("an image id anywhere makes attention bidirectional")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        image = (ids == IMAGE).any(1)[:, None, None, None]
        return {"keep": tiny.causal(ids.shape[1]) | (image & faulty)}

    return tiny.case(tiny.eager, without(tiny.random_ids(2, 16), IMAGE), mask_args=args)


@SPECIAL.fault("everything before the last separator is a prefix")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        columns = torch.arange(ids.shape[1])
        last = torch.where(ids == SEPARATOR, columns, -1).amax(1)
        prefix = (columns <= last[:, None])[:, None, None, :]
        return {"keep": tiny.causal(ids.shape[1]) | (prefix & faulty)}

    return tiny.case(tiny.eager, without(tiny.random_ids(2, 15), SEPARATOR), mask_args=args)


@SPECIAL.fault("keys of repeated ids hidden, later repetitions too")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        same = ids[:, :, None] == ids[:, None, :]
        later = same.triu(1).any(2)
        earlier = same.tril(-1).any(2)
        repeated = later if faulty else earlier
        keep = tiny.causal(ids.shape[1]) & ~repeated[:, None, None, :]
        return {"keep": keep | torch.eye(ids.shape[1], dtype=torch.bool)}

    ids = tiny.random_ids(2, 14) % 6 + 1
    return tiny.case(tiny.eager, ids, tiny.some(mw.causal()), mask_args=args)


# ── padding by id ─────────────────────────────────────────────────────────────────────────────

SHIFTED = Family(
    "padding read from the next id",
    after="shifted labels and masks",
    checks="PI",
    causes="padding-visible too-narrow future-visible length-dependent",
)


@SHIFTED.fault("the last real token is hidden", "R")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        real = ids != tiny.PAD
        if faulty:
            real = F.pad(real[:, 1:], (0, 1), value=False) | ~real.any(1, keepdim=True)
        return {"keep": real[:, None, None, :]}

    ids = tiny.right_padded(13, 9)
    return tiny.case(tiny.eager, ids, tiny.expected_mask(ids, causal=False), mask_args=args)


@SHIFTED.fault("the first padded key is visible")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        real = ids != tiny.PAD
        if faulty:
            real = real | F.pad(real[:, :-1], (1, 0), value=True)
        return {"keep": real[:, None, None, :]}

    ids = tiny.right_padded(14, 10)
    return tiny.case(tiny.eager, ids, tiny.expected_mask(ids, causal=False), mask_args=args)


@SHIFTED.fault("the mask is made from ids, and padding has the id of a token")
def _(faulty: bool) -> Case:
    class Own(tiny.Model):
        def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
            real = ids != tiny.PAD if faulty else attention_mask
            x = self.embed(ids, self.positions(attention_mask))
            return self.logits(self.run_layers(x, real))

    return tiny.masked_case(Own(mask=tiny.padding_mask))
