"""`trace` on attention that is written by hand: the mask is found wherever it is put."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import maskwright as mw
from maskwright.tracing.trace import recording, trace
from tests.tracing.attention_examples import (
    CAUSAL,
    INF,
    LATER,
    PLANES,
    B,
    ByHand,
    C,
    D,
    H,
    Stack,
    T,
    assert_sees,
    cells,
    same_as_untraced,
    tensors,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable


FORMS = ["matmul", "einsum", "einsum, heads last", "bmm", "transposed", "queries first"]
KEEP = ~LATER
APPLIED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill -inf": lambda s, keep: s.masked_fill(~keep, -INF),
    "masked_fill -1e9": lambda s, keep: s.masked_fill(~keep, -1e9),
    "masked_fill min": lambda s, keep: s.masked_fill(~keep, torch.finfo(s.dtype).min),
    "masked_fill_": lambda s, keep: s.masked_fill_(~keep, -INF),
    "masked_fill -200": lambda s, keep: s.masked_fill(~keep, -200.0),
    "where": lambda s, keep: torch.where(keep, s, -1e9),
    "where, turned": lambda s, keep: torch.where(~keep, torch.tensor(-INF), s),
    "add": lambda s, keep: s + torch.zeros(keep.shape).masked_fill(~keep, -INF),
    "add_": lambda s, keep: s.add_((1.0 - keep.float()) * -1e4),
    "sub": lambda s, keep: s - (~keep).float() * 1e9,
    "index": lambda s, keep: s.index_put((~keep.expand_as(s),), torch.tensor(-INF)),
    "before the scale": lambda s, keep: s.masked_fill(~keep, -1e3) / 8,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["causal", "window", "causal and padding"])
def test_by_hand(name: str, form: str) -> None:
    keep = torch.from_numpy(cells(PLANES[name])).expand(B, H, T, T)
    model = nn.Sequential(ByHand(lambda s: s.masked_fill(~keep, -INF), form=form))
    [call] = same_as_untraced(model.eval(), tokens())
    assert (call.layer, call.kernel) == ("0", "softmax")
    assert_sees(call, PLANES[name])
    assert call.convention == "bool, True drops"
    assert call.q_shape == call.k_shape == call.v_shape == (B, H, T, D)
    assert call.flow == ((B, T, C), (B, H, T, D), (B, H, T, T), (B, H, T, D), (B, T, C))
    assert torch.equal(call.given, ~keep)
    assert not call.after_softmax
    assert not call.cross


@pytest.mark.parametrize("how", APPLIED)
def test_masks_before_the_softmax(how: str) -> None:
    [call] = same_as_untraced(ByHand(lambda s: APPLIED[how](s, KEEP)).eval(), tokens())
    assert call.mask == CAUSAL
    assert call.given is not None or how == "index"
    words = {"where": "bool, True keeps", "add": "added", "add_": "added", "sub": "added"}
    if how != "index":
        assert call.convention == words.get(how, "bool, True drops")


NOT_HIDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda s: s,
    "0 and 1 added": lambda s: s + KEEP.float(),
    "1 and 0 added": lambda s: s + LATER.float(),
    "multiplied": lambda s: s * KEEP,
    "tril": lambda s: s.tril(),
    "-1": lambda s: s.masked_fill(LATER, -1.0),
    "-10 added": lambda s: s + LATER * -10.0,
    "capped afterwards": lambda s: torch.tanh(s.masked_fill(LATER, -1e9) / 5) * 5,
}


@pytest.mark.parametrize("how", NOT_HIDING)
def test_what_hides_nothing(how: str) -> None:
    [call] = same_as_untraced(ByHand(NOT_HIDING[how]).eval(), tokens())
    assert call.mask == mw.everything()
    assert not call.after_softmax
    assert (call.convention == "none") == (how in ("nothing", "tril"))


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda w: w.masked_fill(LATER, 0.0),
    "masked_fill_": lambda w: w.masked_fill_(LATER, 0.0),
    "multiplied": lambda w: w * KEEP,
    "multiplied by floats": lambda w: w * KEEP.float(),
    "where": lambda w: torch.where(KEEP, w, 0.0),
    "tril": lambda w: w.tril(),
}
WRONG_AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "-1e9": lambda w: w.masked_fill(LATER, -1e9),
    "added": lambda w: w + torch.zeros(T, T).masked_fill(LATER, -1e4),
}


@pytest.mark.parametrize("how", WRONG_AFTER)
def test_fills_after_the_softmax_hide_nothing(how: str) -> None:
    [call] = same_as_untraced(ByHand(after=WRONG_AFTER[how]).eval(), tokens())
    assert call.mask == mw.everything()
    assert call.after_softmax
    assert call.given.shape == (T, T)


@pytest.mark.parametrize("form", ["matmul", "bmm", "einsum"])
@pytest.mark.parametrize("how", AFTER)
def test_masks_after_the_softmax(how: str, form: str) -> None:
    [call] = same_as_untraced(ByHand(after=AFTER[how], form=form).eval(), tokens())
    assert call.mask == CAUSAL
    assert call.after_softmax
    assert call.convention == "after the softmax"


def test_weights_that_are_rescaled_sum_to_one() -> None:
    def rescaled(w: torch.Tensor) -> torch.Tensor:
        w = w * KEEP
        return w / w.sum(-1, keepdim=True)

    [call] = trace(ByHand(after=rescaled), tokens())
    assert call.mask == CAUSAL
    assert not call.after_softmax
    assert call.convention == "after the softmax, rescaled"


def test_empty_rows_that_are_cleared_afterwards() -> None:
    keep = torch.from_numpy(cells(~CAUSAL)[0, 0])
    [call] = trace(
        ByHand(lambda s: s.masked_fill(~keep, -INF), lambda w: w.nan_to_num(0.0)), tokens()
    )
    assert call.mask == ~CAUSAL or (call.seen == keep.numpy()).all()
    assert not call.after_softmax
    [call] = trace(
        ByHand(lambda s: s.masked_fill(~keep, -1e9), lambda w: w.masked_fill(~keep, 0.0)), tokens()
    )
    assert (call.seen == keep.numpy()).all()
    assert not call.after_softmax
    assert call.convention == "bool, True drops"
    [call] = trace(ByHand(lambda s: s.masked_fill(~keep, -INF)), tokens())  # the row is NaN
    assert (call.seen == keep.numpy()).all()


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
    model = ByHand(lambda s: s.masked_fill(LATER, -INF), softmax=SOFTMAXES[how])
    [call] = trace(model, tokens())
    assert call.mask == CAUSAL
    assert call.layer == ""


def test_half_precision_loses_weights_that_no_mask_took() -> None:
    model = ByHand(lambda s: (s * 100).masked_fill(LATER, -INF)).half()
    model.softmax = SOFTMAXES["in single precision"]
    [call] = trace(model, tokens().half() * 4)
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_dropout_is_no_mask() -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF))
    with recording(model) as recorder:
        model.train()(tokens())
    [call] = recorder.calls
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_alibi_by_hand() -> None:
    far = torch.arange(300)[None] - torch.arange(300)[:, None]
    model = ByHand(lambda s: (s + far).masked_fill(far > 0, -INF))
    [call] = trace(model, tokens(300))
    assert call.mask == CAUSAL


def test_baddbmm() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(1, T, T).masked_fill(LATER, -1e4)
        return torch.bmm(torch.baddbmm(mask, q, q.transpose(1, 2)).softmax(-1), q)

    [call] = trace(attend, tensors()[0][0])
    assert (call.mask, call.convention) == (CAUSAL, "added")
    assert call.given.shape == (1, T, T)


def test_inference_mode_by_hand() -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF)).eval()
    with torch.inference_mode(), recording(model) as recorder:
        model(tokens())
    [call] = recorder.calls
    assert call.mask == CAUSAL


def test_one_head_and_shared_keys() -> None:
    def one_head(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).masked_fill(LATER, -INF).softmax(-1) @ x

    [call] = trace(one_head, tokens())
    assert (call.mask, call.q_shape) == (CAUSAL, (B, 1, T, C))

    def shared(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bhqd,bkd->bhqk", q, k).masked_fill(LATER, -INF)
        return torch.einsum("bhqk,bkd->bhqd", scores.softmax(-1), k)

    q, k, _ = tensors()
    [call] = trace(shared, q, k[:, 0])
    assert (call.mask, call.q_shape, call.k_shape) == (CAUSAL, (B, H, T, D), (B, 1, T, D))


def test_one_query_and_a_cache() -> None:
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


def test_sinks_are_no_keys() -> None:
    def sink(scores: torch.Tensor) -> torch.Tensor:
        scores = scores.masked_fill(LATER, -INF)
        wide = torch.cat([scores, torch.zeros(B, H, T, 1)], -1)
        return wide.softmax(-1)[..., :-1]

    [call] = trace(ByHand(softmax=sink), tokens())
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_weights_that_are_computed_are_no_tokens() -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF))
    nn.utils.parametrizations.weight_norm(model.project)
    [call] = trace(model, tokens())
    assert (call.mask, call.cross) == (CAUSAL, False)


def test_a_buffer_that_layers_share() -> None:
    buffer = torch.empty(B, H, T, T)

    def through(scores: torch.Tensor) -> torch.Tensor:
        return buffer.copy_(scores).masked_fill_(LATER, -INF)

    for call in trace(Stack(ByHand(through), ByHand(through)), tokens()):
        assert (call.mask, call.convention) == (CAUSAL, "bool, True drops")


class Mixture(nn.Module):
    """Experts that a router weighs, and words at the end: softmaxes that are no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ByHand(lambda s: s.masked_fill(LATER, -INF))
        self.router, self.words = nn.Linear(C, 3), nn.Linear(C, 9)
        self.experts = nn.Parameter(torch.randn(3, C, C))
        self.embedding = nn.Parameter(torch.randn(9, C))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        share = self.router(x).softmax(-1)
        each = torch.einsum("btc,ecd->bted", x, self.experts)
        x = torch.einsum("bte,bted->btd", share, each)
        return self.words(x).softmax(-1) @ self.embedding


def test_routers_and_distributions_are_not_recorded() -> None:
    calls = trace(Mixture(), tokens())
    assert [call.layer for call in calls] == ["attention"]
