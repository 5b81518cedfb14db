"""Manual attention is found in all its forms: matmul, einsum, bmm, transposed operands, views."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.tracing import recording, trace
from tests._helpers.traced_modules import (
    CAUSAL,
    FUTURE,
    INF,
    MASKS,
    B,
    C,
    D,
    H,
    ManualAttention,
    ResidualStack,
    T,
    assert_visible,
    cells,
    tensors,
    tokens,
    trace_unchanged,
)

FORMS = ["matmul", "einsum", "einsum, heads last", "bmm", "transposed", "queries first"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["causal", "window", "causal and padding"])
def test_forms_of_manual_attention(name: str, form: str) -> None:
    keep = torch.from_numpy(cells(MASKS[name])).expand(B, H, T, T)
    model = nn.Sequential(ManualAttention(lambda s: s.masked_fill(~keep, -INF), form=form))
    [call] = trace_unchanged(model.eval(), tokens())
    assert (call.layer, call.kernel) == ("0", "softmax")
    assert_visible(call, MASKS[name])
    assert call.convention == "bool, True masks"
    assert call.q_shape == call.k_shape == call.v_shape == (B, H, T, D)
    assert call.shapes == ((B, T, C), (B, H, T, D), (B, H, T, T), (B, H, T, D), (B, T, C))
    assert torch.equal(call.mask_argument, ~keep)
    assert not call.after_softmax
    assert not call.cross


def test_baddbmm() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(1, T, T).masked_fill(FUTURE, -1e4)
        return torch.bmm(torch.baddbmm(mask, q, q.transpose(1, 2)).softmax(-1), q)

    [call] = trace(attend, tensors()[0][0])
    assert (call.mask, call.convention) == (CAUSAL, "added")
    assert call.mask_argument.shape == (1, T, T)


def test_inference_mode() -> None:
    model = ManualAttention(lambda s: s.masked_fill(FUTURE, -INF)).eval()
    with torch.inference_mode(), recording(model) as recorder:
        model(tokens())
    [call] = recorder.calls
    assert call.mask == CAUSAL


def test_one_head_and_multi_query() -> None:
    def one_head(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).masked_fill(FUTURE, -INF).softmax(-1) @ x

    [call] = trace(one_head, tokens())
    assert (call.mask, call.q_shape) == (CAUSAL, (B, 1, T, C))

    def shared(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bhqd,bkd->bhqk", q, k).masked_fill(FUTURE, -INF)
        return torch.einsum("bhqk,bkd->bhqd", scores.softmax(-1), k)

    q, k, _ = tensors()
    [call] = trace(shared, q, k[:, 0])
    assert (call.mask, call.q_shape, call.k_shape) == (CAUSAL, (B, H, T, D), (B, 1, T, D))


def test_decode_step_with_kv_cache() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(C, 3 * C)

        def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                x.view(B, -1, H, D).transpose(1, 2) for x in self.project(x).chunk(3, dim=-1)
            )
            k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
            return (q @ k.mT).softmax(-1) @ v

    [call] = trace(Cached(), tokens(1), tensors(5)[0])
    assert call.mask == mw.everything()
    assert (call.q_shape, call.k_shape) == ((B, H, 1, D), (B, H, 6, D))
    assert not call.cross


def test_sinks_are_not_keys() -> None:
    def sink(scores: torch.Tensor) -> torch.Tensor:
        scores = scores.masked_fill(FUTURE, -INF)
        wide = torch.cat([scores, torch.zeros(B, H, T, 1)], -1)
        return wide.softmax(-1)[..., :-1]

    [call] = trace(ManualAttention(softmax=sink), tokens())
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_weight_norm_parameters_are_not_activations() -> None:
    model = ManualAttention(lambda s: s.masked_fill(FUTURE, -INF))
    nn.utils.parametrizations.weight_norm(model.project)
    [call] = trace(model, tokens())
    assert (call.mask, call.cross) == (CAUSAL, False)


def test_layers_that_share_buffer() -> None:
    buffer = torch.empty(B, H, T, T)

    def through(scores: torch.Tensor) -> torch.Tensor:
        return buffer.copy_(scores).masked_fill_(FUTURE, -INF)

    for call in trace(ResidualStack(ManualAttention(through), ManualAttention(through)), tokens()):
        assert (call.mask, call.convention) == (CAUSAL, "bool, True masks")


class MixtureOfExperts(nn.Module):
    """A router over experts and an output distribution: softmaxes that are not attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ManualAttention(lambda s: s.masked_fill(FUTURE, -INF))
        self.router, self.words = nn.Linear(C, 3), nn.Linear(C, 9)
        self.experts = nn.Parameter(torch.randn(3, C, C))
        self.embedding = nn.Parameter(torch.randn(9, C))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        share = self.router(x).softmax(-1)
        each = torch.einsum("btc,ecd->bted", x, self.experts)
        x = torch.einsum("bte,bted->btd", share, each)
        return self.words(x).softmax(-1) @ self.embedding


def test_routers_and_output_distributions_are_not_attention() -> None:
    calls = trace(MixtureOfExperts(), tokens())
    assert [call.layer for call in calls] == ["attention"]
