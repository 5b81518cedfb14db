"""Biases, soft caps and sinks change scores: a trace does not report them as a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS, TOKENS = 4, 24
BIAS = 3 * mw.bias.alibi(HEADS) + mw.bias.t5(torch.linspace(-4, 4, 8 * HEADS).reshape(8, HEADS))


def scores_of(x: torch.Tensor) -> torch.Tensor:
    return 30.0 * torch.tanh(x @ x.mT / 8**0.5 / 30.0) + BIAS.on(TOKENS).dense()


def by_maskwright(x: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    return mw.attention(x, x, x, mw.causal(), softcap=30.0, bias=BIAS, sinks=sinks)


def by_sdpa(x: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    lowered = mw.lower(mw.causal(), "torch.sdpa", TOKENS, bias=BIAS)
    return scaled_dot_product_attention(x, x, x, **lowered)


def by_hand(x: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(TOKENS, TOKENS).triu(1).bool()
    return scores_of(x).masked_fill(hidden, float("-inf")).softmax(-1) @ x


def by_hand_with_sinks(x: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """As gpt-oss in transformers: the sink is one more column of the softmax."""
    hidden = torch.ones(TOKENS, TOKENS).triu(1).bool()
    scores = scores_of(x).masked_fill(hidden, float("-inf"))
    column = sinks.reshape(1, -1, 1, 1).expand(x.shape[0], -1, TOKENS, -1)
    weights = torch.cat([scores, column], dim=-1).softmax(-1)
    return weights[..., :-1] @ x


@pytest.mark.parametrize("attend", [by_maskwright, by_sdpa, by_hand, by_hand_with_sinks])
def test_trace_finds_the_mask_alone(attend: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x, sinks = torch.randn(2, HEADS, TOKENS, 8), torch.randn(HEADS)
    (call,) = mw.trace(attend, x, sinks)
    assert call.mask == mw.causal()


def test_bias_without_a_mask_is_everything() -> None:
    x = torch.randn(1, HEADS, TOKENS, 8)
    (call,) = mw.trace(lambda x: mw.attention(x, x, x, bias=50 * BIAS), x)
    assert call.mask == mw.everything()
    (call,) = mw.trace(lambda x: (scores_of(x) + 50 * BIAS.on(TOKENS).dense()).softmax(-1) @ x, x)
    assert call.mask == mw.everything()


def test_audit_reports_no_leak_of_a_model_with_bias() -> None:
    torch.manual_seed(0)
    sinks = torch.randn(HEADS)

    def model(x: torch.Tensor) -> torch.Tensor:  # (batch, tokens, heads * 8)
        split = x.reshape(*x.shape[:2], HEADS, 8).transpose(1, 2)
        n = x.shape[1]
        out = mw.attention(split, split, split, mw.causal(), bias=mw.bias.alibi(HEADS), sinks=sinks)
        return out.transpose(1, 2).reshape(x.shape[0], n, -1)

    assert mw.audit(model, torch.randn(2, 12, HEADS * 8), expects="causal").ok


@pytest.mark.parametrize("slope", [0.9, 50.0, 300.0])
@pytest.mark.parametrize("fill", [-1e4, -1e9, float("-inf"), torch.finfo(torch.float32).min])
def test_alibi_over_long_distances_is_no_window(slope: float, fill: float) -> None:
    """Its values fall below -1000, and the weights of distant keys to 0."""
    tokens = 1200 if slope < 1 else 40
    x = torch.randn(1, 1, tokens, 8)
    bias = torch.from_numpy(mw.bias.alibi([slope]).on(tokens).dense()).float()
    hidden = torch.ones(tokens, tokens).triu(1).bool()
    mask = torch.zeros(tokens, tokens).masked_fill(hidden, fill)
    (call,) = mw.trace(lambda x: (x @ x.mT + bias + mask).softmax(-1) @ x, x)
    assert call.mask == mw.causal()
    merged = torch.where(hidden, torch.tensor(fill), bias)
    if fill < 10 * bias.min():
        (call,) = mw.trace(lambda x: scaled_dot_product_attention(x, x, x, merged), x)
        assert call.mask == mw.causal()


def test_alibi_as_a_score_mod_is_no_window() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.randn(1, 2, 40, 8)
    lowered = mw.lower(mw.causal(), "torch.flex", 40, bias=mw.bias.alibi([100.0, 0.5]))
    (call,) = mw.trace(lambda x: flex_attention(x, x, x, **lowered), x)
    assert call.mask == mw.causal()

    def windowed(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return torch.where(q - k <= 3, score, -1e9)

    (call,) = mw.trace(lambda x: flex_attention(x, x, x, windowed), x)
    assert (call.visible == mw.window(back=3, ahead=None).on(40).dense()).all()
