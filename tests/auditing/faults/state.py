"""Models with a state: masks kept from an earlier call, inputs changed in place, randomness."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

STALE = Family(
    "mask kept from an earlier call",
    after="masks cached by length",
    checks="ND",
    causes="not-deterministic order-of-batch padding-visible too-narrow",
)


class Kept(tiny.Transformer):
    """Keeps its mask by some key of the ids."""

    def __init__(self, faulty: bool) -> None:
        super().__init__(tiny.eager, tiny.causal_padding_args, tiny.real_positions)
        self.faulty, self.kept = faulty, {}

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        key = (len(ids), ids.shape[1]) if self.faulty else ids.numpy().tobytes()
        if key not in self.kept:
            self.kept[key] = self.mask_args(ids)
        x = self.embed(ids, self.positions(ids))
        for layer in self.layers:
            x = layer(x, **self.kept[key])
        return self.logits(x)


@STALE.fault("by batch size and length, right padding")
def _(faulty: bool) -> Case:
    ids = tiny.right_padded(14, 9, 12)
    return Case(tiny.initialize(Kept(faulty)), ids, tiny.expected_mask(ids), {"pad_id": 0})


@STALE.fault("by batch size and length, left padding")
def _(faulty: bool) -> Case:
    ids = tiny.left_padded(9, 14)
    return Case(tiny.initialize(Kept(faulty)), ids, tiny.expected_mask(ids), {"pad_id": 0})


IN_PLACE = Family(
    "input mask changed in place",
    after="attention_mask modified by the model",
    checks="ND",
    causes="not-deterministic padding-visible too-narrow",
)


class InPlace(tiny.Model):
    """Hides the last real token of its mask, in place or in a copy that is used once."""

    def __init__(self, faulty: bool) -> None:
        super().__init__(mask=tiny.padding_mask)
        self.faulty = faulty

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        mask = attention_mask if self.faulty else attention_mask.clone()
        x = self.embed(ids, self.positions(mask))
        out = self.logits(self.run_layers(x, mask.bool()))
        mask[:, 1:] *= mask[:, :-1].clone() * F.pad(mask[:, 2:], (0, 1))  # eroded for the next step
        return out


@IN_PLACE.fault("eroded by one token per call")
def _(faulty: bool) -> Case:
    return tiny.masked_case(InPlace(faulty))


RANDOM = Family(
    "random in eval mode",
    after="dropout that ignores eval",
    checks="ND",
    causes="not-deterministic",
)


@RANDOM.fault("dropout of attention weights")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        weights = tiny.scores(q, k).masked_fill(~keep, tiny.min_value(q)).softmax(-1)
        return F.dropout(weights, 0.1, training=faulty) @ v

    return tiny.case(attend, tiny.random_ids(2, 14))


# ── cached decoding ───────────────────────────────────────────────────────────────────────────

SIZE = 4

EDGE = Family(
    "window off by one in one path",
    after="transformers#29623, vLLM#47332",
    checks="PC",
    causes="window-off-by-one window-missing step-differs too-narrow path-differs missing-in-layer",
)


def windowed(extra: Any) -> Any:
    """A sliding window over a cache, wider by `extra(q_len, start)`."""

    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        size = SIZE + extra(q.shape[2], start)
        keep = tiny.window(size, q.shape[2], k.shape[2], start)
        used = F.pad(real, (0, k.shape[2] - real.shape[1]))
        return tiny.eager(q, k, v, keep & used[:, None, None])

    return attend


def exact(q_len: int, start: int) -> int:
    """The right window."""
    return 0


@EDGE.fault("one key more in decode steps")
def _(faulty: bool) -> Case:
    attend = windowed((lambda q_len, start: int(q_len == 1 and start > 0)) if faulty else exact)
    return tiny.cached_case(attend, tiny.random_ids(2, 18), mw.window(back=SIZE - 1))


@EDGE.fault("one key less in chunks after the first, layer 1", layer=1)
def _(faulty: bool) -> Case:
    wrong = windowed((lambda q_len, start: -int(q_len > 1 and start > 0)) if faulty else exact)
    attends = [windowed(exact), wrong]
    return tiny.cached_case(attends, tiny.random_ids(2, 18), mw.window(back=SIZE - 1))


@EDGE.fault("one key more in the fused path", "X")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, route: str = "eager") -> Tensor:
        size = SIZE + int(faulty and route == "fused")
        return tiny.eager(q, k, v, tiny.window(size, q.shape[2]))

    expects = mw.window(back=SIZE - 1)
    return tiny.case(attend, tiny.random_ids(2, 16), expects, mask_args=tiny.no_args, route="fused")


STATIC = Family(
    "static cache in pieces",
    after="transformers#30437",
    checks="PC",
    causes="step-differs future-visible mask-missing padding-visible too-narrow",
)


@STATIC.fault("chunks aligned with the first slot")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        begin = 0 if faulty and 1 < q.shape[2] < k.shape[2] else start
        used = F.pad(real, (0, k.shape[2] - real.shape[1]))
        return tiny.eager(q, k, v, tiny.causal(q.shape[2], k.shape[2], begin) & used[:, None, None])

    return tiny.cached_case(attend, tiny.random_ids(2, 16), slots=64)


@STATIC.fault("unused slots visible in the second piece")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        unused = faulty and start > 0
        used = F.pad(real, (0, k.shape[2] - real.shape[1]), value=unused)
        keep = tiny.causal(q.shape[2], k.shape[2], start)
        keep = keep | (torch.arange(k.shape[2]) >= real.shape[1]) & unused
        return tiny.eager(q, k, v, keep & used[:, None, None])

    return tiny.cached_case(attend, tiny.random_ids(2, 15), slots=40)


@STATIC.fault("causal within a piece lost, layer 1", layer=1)
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
        ahead = q.shape[2] if faulty and start > 0 else 0
        used = F.pad(real, (0, k.shape[2] - real.shape[1]))
        keep = tiny.causal(q.shape[2], k.shape[2], start + ahead)
        return tiny.eager(q, k, v, keep & used[:, None, None])

    return tiny.cached_case([tiny.cached_eager, attend], tiny.random_ids(2, 17), slots=32)


# ── cross-attention ───────────────────────────────────────────────────────────────────────────

CROSS = Family(
    "cross-attention with the decoder's mask",
    after="masks passed to the wrong attention",
    checks="R",
    causes="too-narrow future-visible padding-visible",
)


class CausalCross(tiny.Seq2Seq):
    """Masks the source as if it were the target."""

    def __init__(self, faulty: bool) -> None:
        def cross(real: Tensor, q_len: int) -> Tensor:
            keep = tiny.real_keys(real)
            return keep & tiny.causal(q_len, real.size(1)) if faulty else keep

        super().__init__(encoder_masks=(), cross_masks=(cross, cross))


@CROSS.fault("causal over the source")
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(CausalCross(faulty), pad_id=0)


class TargetPadding(tiny.Seq2Seq):
    """Uses the batch's first padding mask for all sequences."""

    def __init__(self, faulty: bool) -> None:
        def cross(real: Tensor, q_len: int) -> Tensor:
            return tiny.real_keys(real[:1].expand_as(real) if faulty else real)

        super().__init__(cross_masks=(cross, cross))


@CROSS.fault("padding of the first sequence for all", "BI PI")
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(TargetPadding(faulty), pad_id=0)
