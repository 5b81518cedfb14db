"""Masks in `F.scaled_dot_product_attention`, against the same code with tensors as masks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw
from tests._helpers.torch_masks import (
    MASKS,
    B,
    D,
    H,
    S,
    T,
    as_tensor,
    assert_same,
    randoms,
    spy,
)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("bound", [False, True])
def test_sdpa_takes_mask(name: str, bound: bool) -> None:
    q, k, v = randoms((B, H, T, D), (B, H, S, D), (B, H, S, 3))
    mask = MASKS[name].on(T, S, B, H) if bound else MASKS[name]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    right = F.scaled_dot_product_attention(q, k, v, as_tensor(MASKS[name]))
    assert_same(out, right, (q, k, v))
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, mask), right)


@pytest.mark.parametrize("lead", [(), (3,), (3, 2), (2, 3, 2), (1, 1), (0, 2)])
def test_sdpa_takes_any_axes_before_length(lead: tuple[int, ...]) -> None:
    q, k, v = randoms((*lead, 4, D), (*lead, 6, D), (*lead, 6, D))
    mask = mw.window(back=2)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    right = F.scaled_dot_product_attention(q, k, v, mw.lower(mask, "torch.bool", 4, 6)[0, 0])
    assert out.shape == right.shape
    torch.testing.assert_close(out, right)


def test_one_axis_before_length_is_batch() -> None:
    q, k, v = randoms(*[(2, 5, D)] * 3)
    mask = mw.padding(lengths=[2, 4])
    right = F.scaled_dot_product_attention(q, k, v, mw.lower(mask, "torch.bool", 5)[:, 0])
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), right)


def test_sdpa_broadcasts_batch_and_heads() -> None:
    q, k, v = randoms((B, H, T, D), (1, H, S, D), (B, 1, S, D))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal())
    right = F.scaled_dot_product_attention(q, k, v, as_tensor(mw.causal()))
    assert_same(out, right, (q, k, v))


LEADS = [(), (1,), (H,), (B, H), (1, H), (B, 1), (3, B, H)]


@pytest.mark.parametrize("leads", list(itertools.product(LEADS, LEADS)))
def test_sdpa_broadcasts_tensors_of_other_ranks(leads: tuple[tuple[int, ...], ...]) -> None:
    first, second = leads
    for q_lead, k_lead, v_lead in ((first, second, second), (first, first, second)):
        q, k, v = randoms((*q_lead, T, D), (*k_lead, T, D), (*v_lead, T, D))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal())
        right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert out.shape == right.shape
        assert_same(out, right, (q, k, v))


@pytest.mark.parametrize("lead", [(B,), ()])
def test_sdpa_takes_groups_of_heads_and_scale(lead: tuple[int, ...]) -> None:
    q, k, v = randoms((*lead, 4, T, D), (*lead, 2, S, D), (*lead, 2, S, D))
    options: dict[str, Any] = {"scale": 0.3, "enable_gqa": True}
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.window(1), **options)
    seen = mw.lower(mw.window(1), "torch.bool", T)
    right = F.scaled_dot_product_attention(q, k, v, seen if lead else seen[0], **options)
    assert_same(out, right, (q, k, v))
    by_head = mw.by_head([mw.causal()] * 3 + [mw.window(back=0)])
    last = F.scaled_dot_product_attention(q, k, v, attn_mask=by_head, **options)[..., 3, :, :]
    torch.testing.assert_close(last, v[..., 1, :, :])


def test_last_query_sits_at_last_key_unless_bound_otherwise() -> None:
    q, k, v = randoms((1, 1, 2, D), (1, 1, 5, D), (1, 1, 5, D))
    lower_right = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal())
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, lower_right))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal().on(2, 5, q_start=0))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_row_that_is_fully_masked_is_zero() -> None:
    q, k, v = randoms(*[(1, 1, 3, D)] * 3)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.keys([0]) & ~mw.queries([1]))
    assert out[0, 0, 1].eq(0).all()
    assert out[0, 0, 0].ne(0).all()


def test_sdpa_drops_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.zeros(1, 1, 64, 4), torch.zeros(1, 1, 64, 4), torch.eye(64)[None, None]
    torch.manual_seed(0)
    calls = spy(monkeypatch)
    weights = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.everything(), dropout_p=0.5)
    assert calls[0]["dropout_p"] == 0.5
    assert 0.4 < float((weights == 0).float().mean()) < 0.6
    torch.testing.assert_close(weights.max(), torch.tensor(2 / 64))


X = torch.ones(1, 1, 3, 3)
MHA = nn.MultiheadAttention(8, 2)
TOKENS = torch.ones(3, 1, 8)
REFUSED_CALLS = {
    "causal too": (
        lambda mask: F.scaled_dot_product_attention(X, X, X, mask, is_causal=True),
        r"is_causal=True.*mask & mw.causal\(\)",
    ),
    "wrong place": (lambda mask: F.scaled_dot_product_attention(X, mask, X), "attn_mask=mask"),
    "one axis": (lambda mask: F.scaled_dot_product_attention(*[X[0, 0, 0]] * 3, mask), r"\(3,\)"),
    "heads": (
        lambda mask: F.scaled_dot_product_attention(
            X.expand(1, 3, 3, 3), X.expand(1, 2, 3, 3), X.expand(1, 2, 3, 3), mask
        ),
        "incompatible shapes",
    ),
    "where": (lambda mask: torch.where(mask, X, X), r"torch.where.*mw.lower\(mask, \"torch.bool\""),
    "masked_fill": (lambda mask: X.masked_fill(mask, 0.0), "torch.Tensor.masked_fill"),
    "masked_fill_": (lambda mask: X.clone().masked_fill_(mask, 0.0), "masked_fill_"),
    "plus": (lambda mask: X + mask, "torch.Tensor.add"),
    "times": (lambda mask: X * mask, "torch.Tensor.mul"),
    "and": (lambda mask: X.bool() & mask, "Tensor.__and__"),
    "index": (lambda mask: X[mask], "__getitem__"),
    "softmax": (lambda mask: F.softmax(mask, -1), "softmax"),
    "linear": (lambda mask: F.linear(mask, X[0, 0]), "linear"),
    "stack": (lambda mask: torch.stack([X, mask]), "torch.stack"),
    "nn": (
        lambda mask: MHA(TOKENS, TOKENS, TOKENS, attn_mask=mask),
        "integrations.MultiheadAttention",
    ),
    "nn padding": (
        lambda mask: MHA(TOKENS, TOKENS, TOKENS, key_padding_mask=mask),
        "integrations.MultiheadAttention",
    ),
}


@pytest.mark.parametrize("name", REFUSED_CALLS)
@pytest.mark.parametrize("bound", [False, True])
def test_other_calls_are_rejected(name: str, bound: bool) -> None:
    call, words = REFUSED_CALLS[name]
    with pytest.raises(mw.ArgumentError, match=words) as caught:
        call(mw.causal().on(3) if bound else mw.causal())
    assert len(str(caught.value)) < 250


def test_functions_without_override_are_rejected() -> None:
    weights = (MHA.in_proj_weight, MHA.in_proj_bias, None, None, False, 0.0)
    out = (MHA.out_proj.weight, MHA.out_proj.bias)
    with pytest.raises(AttributeError, match="no attribute"):
        F.multi_head_attention_forward(
            TOKENS, TOKENS, TOKENS, 8, 2, *weights, *out, attn_mask=mw.causal()
        )


@pytest.mark.parametrize("bound", [False, True])
def test_compiled_code_takes_mask_without_break(bound: bool) -> None:
    q, k, v = randoms(*[(1, 2, 9, 8)] * 3)
    mask = mw.window(back=3).on(9, 9, 1, 2) if bound else mw.window(back=3)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    torch._dynamo.reset()
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    assert_same(compiled(q, k, v), plain(q, k, v), (q, k, v))


X4 = torch.ones(2, 2, 3, 4)
CALLS_THAT_SDPA_REFUSES: dict[str, dict[str, Any]] = {
    "one dimension": {"tensors": [torch.ones(4)] * 3},
    "dtypes": {"tensors": [X4, X4.double(), X4]},
    "integers": {"tensors": [X4.int()] * 3},
    "devices": {"tensors": [X4, X4.to("meta"), X4]},
    "head_dim": {"tensors": [X4, X4[..., :3], X4]},
    "heads": {"tensors": [X4.repeat(1, 2, 1, 1), X4.repeat(1, 3, 1, 1), X4]},
    "batch": {"tensors": [X4, X4.repeat(2, 1, 1, 1), X4]},
    "groups": {"tensors": [X4.repeat(1, 2, 1, 1), *[X4.repeat(1, 2, 1, 1)[:, :3]] * 2], "enable_gqa": True},
    "negative dropout": {"dropout_p": -0.5},
    "dropout above 1": {"dropout_p": 1.5},
    "size of mask": {"attn_mask": (mw.causal().on(4), torch.ones(4, 4).tril().bool())},
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS_THAT_SDPA_REFUSES)
def test_errors_can_be_caught_as_those_of_sdpa(name: str) -> None:
    call = dict(CALLS_THAT_SDPA_REFUSES[name])
    tensors = call.pop("tensors", [X4] * 3)
    ours, theirs = call.pop("attn_mask", (mw.causal(), torch.ones(3, 3).tril().bool()))
    for mask in (ours, theirs):
        with pytest.raises(RuntimeError) as error:
            F.scaled_dot_product_attention(*tensors, attn_mask=mask, **call)
        assert isinstance(error.value, mw.MaskError) == (mask is ours)
    with pytest.raises(RuntimeError):
        mw.attention(*tensors, ours, **call)


def test_second_derivative_raises_runtime_error() -> None:
    x = torch.ones(1, 1, 2, 8, requires_grad=True)
    for out in (mw.attention(x, x, x), F.scaled_dot_product_attention(x, x, x)):
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        with pytest.raises(RuntimeError):
            grad.sum().backward()
