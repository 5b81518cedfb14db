"""Attention that chooses its keys: the choice must not depend on masked keys either."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

TOP_K = Family(
    "keys chosen before the mask",
    after="top-k sparse attention",
    checks="P",
    causes="future-visible mask-missing too-narrow empty-row-nan padding-visible",
)


def kept(chosen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to the chosen keys and to the query itself."""
    own = torch.eye(q.shape[2], dtype=torch.bool)
    return tiny.eager(q, k, v, chosen | own)


def top(scores: Tensor, count: int) -> Tensor:
    """True at the largest scores of each row."""
    best = scores.topk(min(count, scores.shape[-1]), -1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


@TOP_K.fault("top 5 of all keys, then causal")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores = tiny.scores(q, k)
        ranked = scores if faulty else scores.masked_fill(~keep, -torch.inf)
        return kept(top(ranked, 5) & keep, q, k, v)

    return tiny.case(attend, tiny.random_ids(2, 16), tiny.some(mw.causal()))


@TOP_K.fault("one set of keys for all queries")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        norm = k.norm(dim=-1)[:, :, None].expand(-1, -1, q.shape[2], -1)
        ranked = norm if faulty else norm.masked_fill(~keep, -torch.inf)
        return kept(top(ranked, 6) & keep, q, k, v)

    return tiny.case(attend, tiny.random_ids(2, 16), tiny.some(mw.causal()))


@TOP_K.fault("padding takes part in the choice", "PI P")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores = tiny.scores(q, k)
        ranked = scores if faulty else scores.masked_fill(~keep, -torch.inf)
        return kept(top(ranked, 4) & keep, q, k, v)

    ids = tiny.right_padded(16, 11)
    expects = tiny.some(tiny.expected_mask(ids, causal=False))
    return tiny.case(attend, ids, expects, mask_args=tiny.padding_args)


BLOCKS = Family(
    "blocks chosen by summaries that include the future",
    after="native sparse attention",
    checks="P",
    causes="future-visible mask-missing",
)


def by_blocks(faulty: bool, size: int, count: int = 2) -> Any:
    """Chooses blocks of keys by the mean key of each: complete blocks only, if healthy."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        length = k.shape[2]
        block = torch.arange(length) // size
        one_hot = (block[:, None] == torch.arange(int(block[-1]) + 1)).to(k.dtype)
        means = (k.mT @ one_hot / one_hot.sum(0)).mT  # (B, H, blocks, D)
        scores = tiny.scores(q, means)
        last = torch.arange(int(block[-1]) + 1) * size + size - 1
        complete = last <= torch.arange(length)[:, None]
        begun = last - size + 1 <= torch.arange(length)[:, None]
        scores = scores.masked_fill(~(begun if faulty else complete), -torch.inf)
        chosen = top(scores, count)[..., block]
        if not faulty:
            chosen = chosen & complete[:, block]
        return kept(chosen & keep, q, k, v)

    return attend


@BLOCKS.fault("the current block is summarised")
def _(faulty: bool) -> Case:
    return tiny.case(by_blocks(faulty, 4), tiny.random_ids(2, 18), tiny.some(mw.causal()))


@BLOCKS.fault("blocks of 3, layer 1", layer=1)
def _(faulty: bool) -> Case:
    attends = [tiny.eager, by_blocks(faulty, 3)]
    return tiny.case(attends, tiny.random_ids(2, 17), tiny.some(mw.causal()))


@BLOCKS.fault("compressed keys of unfinished blocks are visible")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        length, size = k.shape[2], 4
        count = length // size
        short = [x[:, :, : count * size].unflatten(2, (count, size)).mean(3) for x in (k, v)]
        first = torch.arange(count) * size
        seen = (first if faulty else first + size - 1) <= torch.arange(length)[:, None]
        both = torch.cat([seen, keep.expand(length, length)], 1)
        return tiny.eager(q, torch.cat([short[0], k], 2), torch.cat([short[1], v], 2), both)

    return tiny.case(attend, tiny.random_ids(2, 18), mw.causal())
