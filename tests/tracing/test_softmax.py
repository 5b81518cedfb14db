"""Masks of manual attention, wherever they are applied: before or after the softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import maskwright as mw
from maskwright.tracing import recording, trace
from tests._helpers.traced_modules import (
    CAUSAL,
    FUTURE,
    INF,
    ManualAttention,
    T,
    cells,
    tokens,
    trace_unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable


KEEP = ~FUTURE


BEFORE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill -inf": lambda s, keep: s.masked_fill(~keep, -INF),
    "masked_fill -1e9": lambda s, keep: s.masked_fill(~keep, -1e9),
    "masked_fill min": lambda s, keep: s.masked_fill(~keep, torch.finfo(s.dtype).min),
    "masked_fill_": lambda s, keep: s.masked_fill_(~keep, -INF),
    "masked_fill -200": lambda s, keep: s.masked_fill(~keep, -200.0),
    "where": lambda s, keep: torch.where(keep, s, -1e9),
    "where, inverted": lambda s, keep: torch.where(~keep, torch.tensor(-INF), s),
    "add": lambda s, keep: s + torch.zeros(keep.shape).masked_fill(~keep, -INF),
    "add_": lambda s, keep: s.add_((1.0 - keep.float()) * -1e4),
    "sub": lambda s, keep: s - (~keep).float() * 1e9,
    "index": lambda s, keep: s.index_put((~keep.expand_as(s),), torch.tensor(-INF)),
    "before the scale": lambda s, keep: s.masked_fill(~keep, -1e3) / 8,
}


@pytest.mark.parametrize("how", BEFORE)
def test_masks_before_softmax(how: str) -> None:
    [call] = trace_unchanged(ManualAttention(lambda s: BEFORE[how](s, KEEP)).eval(), tokens())
    assert call.mask == CAUSAL
    assert call.mask_argument is not None or how == "index"
    words = {"where": "bool, True keeps", "add": "added", "add_": "added", "sub": "added"}
    if how != "index":
        assert call.convention == words.get(how, "bool, True masks")


NOT_MASKING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda s: s,
    "0 and 1 added": lambda s: s + KEEP.float(),
    "1 and 0 added": lambda s: s + FUTURE.float(),
    "multiplied": lambda s: s * KEEP,
    "tril": lambda s: s.tril(),
    "-1": lambda s: s.masked_fill(FUTURE, -1.0),
    "-10 added": lambda s: s + FUTURE * -10.0,
    "capped afterwards": lambda s: torch.tanh(s.masked_fill(FUTURE, -1e9) / 5) * 5,
}


@pytest.mark.parametrize("how", NOT_MASKING)
def test_operations_that_mask_nothing(how: str) -> None:
    [call] = trace_unchanged(ManualAttention(NOT_MASKING[how]).eval(), tokens())
    assert call.mask == mw.everything()
    assert not call.after_softmax
    assert (call.convention == "none") == (how in ("nothing", "tril"))


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda w: w.masked_fill(FUTURE, 0.0),
    "masked_fill_": lambda w: w.masked_fill_(FUTURE, 0.0),
    "multiplied": lambda w: w * KEEP,
    "multiplied by floats": lambda w: w * KEEP.float(),
    "where": lambda w: torch.where(KEEP, w, 0.0),
    "tril": lambda w: w.tril(),
}


WRONG_AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "-1e9": lambda w: w.masked_fill(FUTURE, -1e9),
    "added": lambda w: w + torch.zeros(T, T).masked_fill(FUTURE, -1e4),
}


@pytest.mark.parametrize("how", WRONG_AFTER)
def test_mask_values_after_softmax_mask_nothing(how: str) -> None:
    [call] = trace_unchanged(ManualAttention(after=WRONG_AFTER[how]).eval(), tokens())
    assert call.mask == mw.everything()
    assert call.after_softmax
    assert call.mask_argument.shape == (T, T)


@pytest.mark.parametrize("form", ["matmul", "bmm", "einsum"])
@pytest.mark.parametrize("how", AFTER)
def test_masks_after_softmax(how: str, form: str) -> None:
    [call] = trace_unchanged(ManualAttention(after=AFTER[how], form=form).eval(), tokens())
    assert call.mask == CAUSAL
    assert call.after_softmax
    assert call.convention == "after the softmax"


def test_weights_rescaled_after_masking() -> None:
    def rescaled(w: torch.Tensor) -> torch.Tensor:
        w = w * KEEP
        return w / w.sum(-1, keepdim=True)

    [call] = trace(ManualAttention(after=rescaled), tokens())
    assert call.mask == CAUSAL
    assert not call.after_softmax
    assert call.convention == "after the softmax, rescaled"


def test_fully_masked_rows() -> None:
    keep = torch.from_numpy(cells(~CAUSAL)[0, 0])
    [call] = trace(
        ManualAttention(lambda s: s.masked_fill(~keep, -INF), lambda w: w.nan_to_num(0.0)), tokens()
    )
    assert call.mask == ~CAUSAL or (call.visible == keep.numpy()).all()
    assert not call.after_softmax
    [call] = trace(
        ManualAttention(lambda s: s.masked_fill(~keep, -1e9), lambda w: w.masked_fill(~keep, 0.0)),
        tokens(),
    )
    assert (call.visible == keep.numpy()).all()
    assert not call.after_softmax
    assert call.convention == "bool, True masks"
    [call] = trace(
        ManualAttention(lambda s: s.masked_fill(~keep, -INF)), tokens()
    )  # the row is NaN
    assert (call.visible == keep.numpy()).all()


SOFTMAXES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F.softmax": lambda s: F.softmax(s, dim=-1),
    "torch.softmax": lambda s: torch.softmax(s, -1),
    "nn.Softmax": nn.Softmax(dim=-1),
    "in single precision": lambda s: F.softmax(s, dim=-1, dtype=torch.float32).to(s.dtype),
    "special": lambda s: torch.special.softmax(s, -1),
    "safe": lambda s: torch._safe_softmax(s, -1),
    "exp": lambda s: (s - s.amax(-1, keepdim=True)).exp() / s.exp().sum(-1, keepdim=True),
    "exp_": lambda s: s.exp_().div_(s.sum(-1, keepdim=True)),
}


@pytest.mark.parametrize("how", SOFTMAXES)
def test_softmaxes(how: str) -> None:
    model = ManualAttention(lambda s: s.masked_fill(FUTURE, -INF), softmax=SOFTMAXES[how])
    [call] = trace(model, tokens())
    assert call.mask == CAUSAL
    assert call.layer == ""


def test_underflow_in_half_precision_is_not_masking() -> None:
    model = ManualAttention(lambda s: (s * 100).masked_fill(FUTURE, -INF)).half()
    model.softmax = SOFTMAXES["in single precision"]
    [call] = trace(model, tokens().half() * 4)
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_dropout_is_not_masking() -> None:
    model = ManualAttention(lambda s: s.masked_fill(FUTURE, -INF))
    with recording(model) as recorder:
        model.train()(tokens())
    [call] = recorder.calls
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_alibi() -> None:
    far = torch.arange(300)[None] - torch.arange(300)[:, None]
    model = ManualAttention(lambda s: (s + far).masked_fill(far > 0, -INF))
    [call] = trace(model, tokens(300))
    assert call.mask == CAUSAL
