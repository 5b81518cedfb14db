"""Masks in PyTorch's own code, against the same code with tensors as masks."""

from __future__ import annotations

import copy
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw
from maskwright.integrations import torch_calls, torch_multihead
from maskwright.integrations.torch import MultiheadAttention, carry

B, H, T, S, D = 2, 2, 5, 5, 8
MODES = list(product([True, False], [True, False]))

MASKS = {
    "everything": mw.everything(),
    "causal": mw.causal(),
    "window": mw.window(1, 1),
    "padding": mw.padding(lengths=[3, 5]),
    "causal and padding": mw.causal() & mw.padding(keep=[[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]),
    "documents": mw.documents(lengths=[[2, 3], [1, 4]]),
    "by head": mw.by_head([mw.causal(), mw.everything()]),
    "empty rows": mw.causal() & ~mw.keys([0]),
}


def randoms(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def as_tensor(mask: mw.Mask | mw.BoundMask, q_len: int = T, kv_len: int = S) -> torch.Tensor:
    bound = mask if isinstance(mask, mw.BoundMask) else mask.on(q_len, kv_len, B, H)
    return mw.lower(bound, "torch.bool")


def assert_same(one: Any, other: Any, inputs: Any) -> None:
    """Outputs and gradients agree, and none is NaN."""
    torch.testing.assert_close(one, other)
    for loss in (one, other):
        assert not loss.isnan().any()
    weight = torch.randn(one.shape)  # not randn_like, which follows the strides
    got = torch.autograd.grad((one * weight).sum(), inputs, allow_unused=True)
    right = torch.autograd.grad((other * weight).sum(), inputs, allow_unused=True)
    for left, expected in zip(got, right, strict=True):
        torch.testing.assert_close(left, expected)


# ── F.scaled_dot_product_attention ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("bound", [False, True])
def test_sdpa_takes_a_mask(name: str, bound: bool) -> None:
    q, k, v = randoms((B, H, T, D), (B, H, S, D), (B, H, S, 3))
    mask = MASKS[name].on(T, S, B, H) if bound else MASKS[name]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    right = F.scaled_dot_product_attention(q, k, v, as_tensor(MASKS[name]))
    assert_same(out, right, (q, k, v))
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, mask), right)


@pytest.mark.parametrize("lead", [(), (3,), (3, 2), (2, 3, 2), (1, 1), (0, 2)])
def test_sdpa_takes_any_axes_before_the_length(lead: tuple[int, ...]) -> None:
    q, k, v = randoms((*lead, 4, D), (*lead, 6, D), (*lead, 6, D))
    mask = mw.window(back=2)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    right = F.scaled_dot_product_attention(q, k, v, mw.lower(mask, "torch.bool", 4, 6)[0, 0])
    assert out.shape == right.shape
    torch.testing.assert_close(out, right)


def test_one_axis_before_the_length_is_the_batch() -> None:
    q, k, v = randoms(*[(2, 5, D)] * 3)
    mask = mw.padding(lengths=[2, 4])
    right = F.scaled_dot_product_attention(q, k, v, mw.lower(mask, "torch.bool", 5)[:, 0])
    torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, attn_mask=mask), right)


def test_sdpa_broadcasts_the_batch_and_the_heads() -> None:
    q, k, v = randoms((B, H, T, D), (1, H, S, D), (B, 1, S, D))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal())
    right = F.scaled_dot_product_attention(q, k, v, as_tensor(mw.causal()))
    assert_same(out, right, (q, k, v))


@pytest.mark.parametrize("lead", [(B,), ()])
def test_sdpa_takes_groups_of_heads_and_a_scale(lead: tuple[int, ...]) -> None:
    q, k, v = randoms((*lead, 4, T, D), (*lead, 2, S, D), (*lead, 2, S, D))
    options: dict[str, Any] = {"scale": 0.3, "enable_gqa": True}
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.window(1), **options)
    seen = mw.lower(mw.window(1), "torch.bool", T)
    right = F.scaled_dot_product_attention(q, k, v, seen if lead else seen[0], **options)
    assert_same(out, right, (q, k, v))
    by_head = mw.by_head([mw.causal()] * 3 + [mw.window(back=0)])
    last = F.scaled_dot_product_attention(q, k, v, attn_mask=by_head, **options)[..., 3, :, :]
    torch.testing.assert_close(last, v[..., 1, :, :])


def test_the_last_query_sits_at_the_last_key_unless_bound_otherwise() -> None:
    q, k, v = randoms((1, 1, 2, D), (1, 1, 5, D), (1, 1, 5, D))
    lower_right = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal())
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, lower_right))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.causal().on(2, 5, q_start=0))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    q, k, v = randoms(*[(1, 1, 3, D)] * 3)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mw.keys([0]) & ~mw.queries([1]))
    assert out[0, 0, 1].eq(0).all()
    assert out[0, 0, 0].ne(0).all()


def spy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `attention` is called with."""
    calls: list[dict[str, Any]] = []
    real = torch_calls.attention

    def seen(*args: Any, **options: Any) -> Any:
        calls.append(options)
        return real(*args, **options)

    for module in (torch_calls, torch_multihead):
        monkeypatch.setattr(module, "attention", seen)
    return calls


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
REFUSED = {
    "causal too": (
        lambda mask: F.scaled_dot_product_attention(X, X, X, mask, is_causal=True),
        r"is_causal=True.*mask & mw.causal\(\)",
    ),
    "wrong place": (lambda mask: F.scaled_dot_product_attention(X, mask, X), "attn_mask=mask"),
    "axes": (lambda mask: F.scaled_dot_product_attention(X, X[0], X, mask), "do not go together"),
    "one axis": (lambda mask: F.scaled_dot_product_attention(*[X[0, 0, 0]] * 3, mask), r"\(3,\)"),
    "heads": (
        lambda mask: F.scaled_dot_product_attention(
            X.expand(1, 3, 3, 3), X.expand(1, 2, 3, 3), X.expand(1, 2, 3, 3), mask
        ),
        "do not go together",
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
        "integrations.torch.MultiheadAttention",
    ),
    "nn padding": (
        lambda mask: MHA(TOKENS, TOKENS, TOKENS, key_padding_mask=mask),
        "integrations.torch.MultiheadAttention",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("bound", [False, True])
def test_other_calls_are_refused(name: str, bound: bool) -> None:
    call, words = REFUSED[name]
    with pytest.raises(mw.ArgumentError, match=words) as caught:
        call(mw.causal().on(3) if bound else mw.causal())
    assert len(str(caught.value)) < 250


def test_what_torch_does_not_ask_about_is_refused_by_the_mask() -> None:
    weights = (MHA.in_proj_weight, MHA.in_proj_bias, None, None, False, 0.0)
    out = (MHA.out_proj.weight, MHA.out_proj.bias)
    with pytest.raises(AttributeError, match="no attribute"):
        F.multi_head_attention_forward(
            TOKENS, TOKENS, TOKENS, 8, 2, *weights, *out, attn_mask=mw.causal()
        )


@pytest.mark.parametrize("bound", [False, True])
def test_compiled_code_takes_a_mask_without_a_break(bound: bool) -> None:
    q, k, v = randoms(*[(1, 2, 9, 8)] * 3)
    mask = mw.window(back=3).on(9, 9, 1, 2) if bound else mw.window(back=3)

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    torch._dynamo.reset()
    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
    assert_same(compiled(q, k, v), plain(q, k, v), (q, k, v))


# ── MultiheadAttention ────────────────────────────────────────────────────────────────────────

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head": {"num_heads": 1},
    "no bias": {"bias": False},
    "other widths": {"kdim": 6, "vdim": 7},
    "bias keys": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both keys": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6},
}


def pair(**options: Any) -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Ours and nn's, with the same parameters."""
    torch.manual_seed(1)
    options = {"embed_dim": D, "num_heads": H, "dtype": torch.float64, **options}
    right = nn.MultiheadAttention(**options)
    for parameter in right.parameters():  # biases are zero at first, and would hide errors
        nn.init.normal_(parameter)
    own = MultiheadAttention(**options)
    own.load_state_dict(right.state_dict(), strict=True)
    return own, right


def inputs_of(layer: nn.MultiheadAttention, q_len: int, kv_len: int) -> list[torch.Tensor]:
    shapes = [(B, q_len, D), (B, kv_len, layer.kdim), (B, kv_len, layer.vdim)]
    if not layer.batch_first:
        shapes = [(n, b, d) for b, n, d in shapes]
    return randoms(*shapes)


def grads(out: torch.Tensor, layer: nn.Module, inputs: Any) -> list[Any]:
    torch.manual_seed(2)
    loss = (out * torch.randn(out.shape)).sum()  # not randn_like, which follows the strides
    wanted = [*dict.fromkeys(inputs), *layer.parameters()]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def assert_same_layers(
    layers: tuple[MultiheadAttention, nn.MultiheadAttention],
    inputs: list[torch.Tensor],
    given: dict[str, Any],
    right: dict[str, Any],
) -> None:
    own, other = layers
    out, weights = own(*inputs, **given)
    expected, expected_weights = other(*inputs, **right)
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights, expected_weights)
    for one, two in zip(grads(out, own, inputs), grads(expected, other, inputs), strict=True):
        torch.testing.assert_close(one, two)


def test_the_state_dict_is_nns() -> None:
    for options in KINDS.values():
        own, right = pair(**options)
        assert {k: v.shape for k, v in own.state_dict().items()} == {
            k: v.shape for k, v in right.state_dict().items()
        }
        right.load_state_dict(own.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, kind in product(MASKS, KINDS)
        if name != "empty rows" and (name, kind) != ("by head", "one head")
    ],
)
@pytest.mark.parametrize(("batch_first", "need_weights"), MODES)
def test_a_mask_does_what_nns_tensors_do(
    name: str, batch_first: bool, need_weights: bool, kind: str
) -> None:
    layers = pair(batch_first=batch_first, **KINDS[kind])
    inputs = inputs_of(layers[1], T, S)
    lowered = mw.lower(MASKS[name], "torch.mha", T, S, batch=B, heads=layers[1].num_heads)
    assert_same_layers(
        layers,
        inputs,
        {"attn_mask": MASKS[name], "need_weights": need_weights},
        {**lowered, "need_weights": need_weights},
    )


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 6), (6, 6), (1, 5)])
def test_queries_and_keys_may_be_of_different_lengths(
    q_len: int, kv_len: int, need_weights: bool, average: bool
) -> None:
    layers = pair(batch_first=True)
    inputs = inputs_of(layers[1], q_len, kv_len)
    mask = mw.by_head([mw.causal(), mw.window(1, 1)])
    lowered = mw.lower(mask, "torch.mha", q_len, kv_len, batch=B)
    options = {"need_weights": need_weights, "average_attn_weights": average}
    assert_same_layers(layers, inputs, {"attn_mask": mask, **options}, {**lowered, **options})


@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention_projects_once_and_gives_the_same(need_weights: bool) -> None:
    for batch_first in (True, False):
        layers = pair(batch_first=batch_first)
        x = randoms((B, T, D) if batch_first else (T, B, D))
        lowered = mw.lower(mw.causal(), "torch.mha", T)
        options = {"need_weights": need_weights}
        given = {"attn_mask": mw.causal(), **options}
        assert_same_layers(layers, x * 3, given, {**lowered, **options})


@pytest.mark.parametrize("need_weights", [True, False])
def test_inputs_without_a_batch(need_weights: bool) -> None:
    layers = pair(add_zero_attn=True)
    inputs = randoms((3, D), (T, D), (T, D))
    lowered = mw.lower(mw.causal(), "torch.mha", 3, T)
    for average in (True, False):
        options = {"need_weights": need_weights, "average_attn_weights": average}
        given = {"attn_mask": mw.causal(), **options}
        assert_same_layers(layers, inputs, given, {**lowered, **options})


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_row_that_sees_nothing_gives_the_bias_of_the_output(need_weights: bool) -> None:
    own, _ = pair(batch_first=True)
    x = inputs_of(own, T, S)
    out, weights = own(*x, attn_mask=MASKS["empty rows"], need_weights=need_weights)
    torch.testing.assert_close(out[:, 0], own.out_proj.bias.expand(B, -1))
    assert weights is None or weights[:, 0].eq(0).all()
    assert all(bool(g.isfinite().all()) for g in grads(out, own, x) if g is not None)


def test_padded_keys_may_hold_anything() -> None:
    own, _ = pair(batch_first=True)
    (x,) = randoms((B, T, D))
    spoilt = x.detach().clone()
    spoilt[0, 3:] = torch.nan
    for need_weights in (True, False):
        options = {"attn_mask": mw.padding(lengths=[3, 5]), "need_weights": need_weights}
        clean = own(x, x, x, **options)[0]
        torch.testing.assert_close(own(x, spoilt, spoilt, **options)[0], clean)


PAD = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 0, 0, 0]], dtype=torch.bool)
FLOATS = torch.zeros(B, S).masked_fill(PAD, -torch.inf)


@pytest.mark.parametrize("padding", [PAD, FLOATS], ids=["bool", "float"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["plain", "both keys"])
def test_padding_as_a_tensor_beside_a_mask(
    padding: torch.Tensor, need_weights: bool, kind: str
) -> None:
    layers = pair(batch_first=True, **KINDS[kind])
    inputs = inputs_of(layers[1], T, S)
    hidden = mw.lower(mw.causal(), "torch.mha", T)["attn_mask"]
    right = {"attn_mask": hidden, "key_padding_mask": PAD, "need_weights": need_weights}
    whole = (mw.causal() & mw.padding(keep=np.ones((1, 8), bool))).on(8, 8)
    for mask in (mw.causal(), mw.causal().on(T), whole.rows(0, T, kv_len=S)):
        given = {**right, "attn_mask": mask, "key_padding_mask": padding}
        assert_same_layers(layers, inputs, given, right)


@pytest.mark.parametrize("q_start", [None, 0, 1])
def test_padding_beside_a_mask_leaves_the_queries_in_their_places(q_start: int | None) -> None:
    layers = pair(batch_first=True)
    inputs = inputs_of(layers[1], 3, S)
    bound = mw.causal().on(3, S, q_start=q_start)
    hidden = mw.lower(bound, "torch.mha")["attn_mask"]
    right = {"attn_mask": hidden, "key_padding_mask": PAD}
    assert_same_layers(layers, inputs, {**right, "attn_mask": bound}, right)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_with_tensors_it_is_nns(training: bool, need_weights: bool) -> None:
    layers = pair(batch_first=True)
    for layer in layers:
        layer.train(training)
    inputs = inputs_of(layers[1], T, S)
    lowered = mw.lower(mw.causal(), "torch.mha", T)
    for given in ({}, {"key_padding_mask": PAD}, {"attn_mask": lowered["attn_mask"]}):
        given = {**given, "need_weights": need_weights}
        assert_same_layers(layers, inputs, given, given)
    given = {"attn_mask": lowered["attn_mask"], "is_causal": True, "need_weights": need_weights}
    assert_same_layers(layers, inputs, given, given)
    with torch.no_grad():  # nn's fused inference
        x = inputs[0]
        torch.testing.assert_close(layers[0](x, x, x), layers[1](x, x, x))


def test_dropout_is_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = pair(dropout=0.25, batch_first=True)
    (x,) = randoms((B, 40, D))
    calls = spy(monkeypatch)
    full = own.eval()(x, x, x, attn_mask=mw.causal(), average_attn_weights=False)[1]
    own(x, x, x, attn_mask=mw.causal(), need_weights=False)
    own.train()(x, x, x, attn_mask=mw.causal(), need_weights=False)
    assert [call["dropout_p"] for call in calls] == [0.0, 0.25]
    some = own(x, x, x, attn_mask=mw.causal(), average_attn_weights=False)[1]
    kept = some != 0
    torch.testing.assert_close(some[kept], full[kept] / 0.75)
    assert 0.2 < 1 - float(kept.sum() / (full != 0).sum()) < 0.3


def test_a_mask_with_more_keys_is_kept_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = pair(add_zero_attn=True)
    bound, seen = mw.causal().on(T), []
    real = torch_multihead.attention

    def spied(*args: Any, **options: Any) -> torch.Tensor:
        seen.append(args[3])
        return real(*args, **options)

    monkeypatch.setattr(torch_multihead, "attention", spied)
    (x,) = randoms((T, B, D))
    for _ in range(2):
        own(x, x, x, attn_mask=bound, need_weights=False)
    assert seen[0] is seen[1]


def test_autocast_runs_in_the_lower_precision() -> None:
    own = MultiheadAttention(D, H, batch_first=True, add_bias_kv=True)
    x = torch.randn(B, T, D)
    with torch.autocast("cpu", torch.bfloat16):
        for need_weights in (True, False):
            out = own(x, x, x, attn_mask=mw.causal(), need_weights=need_weights)[0]
            assert out.dtype == torch.bfloat16
            right = own.float()(x, x, x, attn_mask=mw.causal())[0]
            torch.testing.assert_close(out, right, atol=0.05, rtol=0.05)


OWN = MultiheadAttention(D, H, batch_first=True)
Y = torch.zeros(B, T, D)
WRONG = {
    "hint": (lambda: OWN(Y, Y, Y, attn_mask=mw.causal(), is_causal=True), "Leave is_causal out"),
    "a name": (lambda: OWN(Y, Y, Y, attn_mask="causal"), "attn_mask is of type str"),
    "padding": (lambda: OWN(Y, Y, Y, mw.padding(lengths=[3, 5])), "Give it as attn_mask"),
    "carried": (lambda: OWN(Y, Y, Y, carry(mw.causal())), "Give it as attn_mask"),
    "axes": (lambda: OWN(Y, Y[0], Y[0], attn_mask=mw.causal()), "two axes"),
    "shape": (lambda: OWN(Y, Y, Y, PAD[:, :4], attn_mask=mw.causal()), r"shape \(2, 4\)"),
    "values": (lambda: OWN(Y, Y, Y, FLOATS - 1, attn_mask=mw.causal()), "0 and -inf"),
    "whole numbers": (lambda: OWN(Y, Y, Y, PAD.long(), attn_mask=mw.causal()), "0 and -inf"),
    "lengths": (lambda: OWN(Y, Y, Y, attn_mask=mw.causal().on(4)), "bound to 4 queries"),
    "batch": (lambda: OWN(Y, Y[:1], Y[:1], attn_mask=mw.causal()), "batches"),
    "carry": (lambda: carry(PAD), "of type Tensor"),
    "view": (lambda: carry(mw.causal()).view(1, 1), "torch.Tensor.view was given a carried mask"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_say_what_was_given(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(mw.MaskError, match=words):
        call()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3, D), torch.zeros(5, D)])
    with pytest.raises(mw.ArgumentError, match="nested tensor"):
        OWN(nested, nested, nested, attn_mask=mw.causal())


# ── nn.Transformer and its parts ──────────────────────────────────────────────────────────────


def with_ours(module: nn.Module) -> nn.Module:
    """A copy in which every attention is ours."""
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.MultiheadAttention:
                own = MultiheadAttention(D, H, batch_first=child.batch_first, dtype=torch.float64)
                own.load_state_dict(child.state_dict())
                setattr(parent, name, own)
    return module


def floats(mask: mw.Mask, *sizes: int) -> torch.Tensor:
    """The mask for every sequence and head, as floats, which no fused path takes."""
    bias = mw.lower(mask, "torch.additive", *sizes, batch=B, heads=H, dtype=torch.float64)
    return bias.expand(B, H, -1, -1).flatten(0, 1)


def run(module: nn.Module, training: bool, grad: bool, *inputs: Any, **masks: Any) -> Any:
    module.train(training)
    with torch.set_grad_enabled(grad):
        return module(*inputs, **masks)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("training", "grad"), MODES)
def test_an_encoder_takes_a_carried_mask(name: str, training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    for norm_first, act in ((True, F.gelu), (False, F.relu)):
        layer = nn.TransformerEncoderLayer(
            D, H, 16, 0.0, act, batch_first=True, norm_first=norm_first, dtype=torch.float64
        )
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        right = run(encoder, True, True, x, mask=floats(MASKS[name], T))
        out = run(with_ours(encoder), training, grad, x, mask=carry(MASKS[name]))
        torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_an_encoder_takes_padding_beside_a_carried_mask(training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    whole = mw.causal() & mw.padding(keep=~PAD)
    right = run(encoder, True, True, x, mask=floats(whole, T))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nn warns where the two masks are of different dtypes
        masks = {"mask": carry(mw.causal()), "src_key_padding_mask": PAD}
        out = run(with_ours(encoder), training, grad, x, **masks)
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_an_encoder_with_tensors_is_still_nns(training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    hidden = mw.lower(mw.causal(), "torch.mha", T)["attn_mask"]
    right = run(layer, training, grad, x, src_mask=hidden, src_key_padding_mask=PAD)
    out = run(with_ours(layer), training, grad, x, src_mask=hidden, src_key_padding_mask=PAD)
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_a_whole_transformer_takes_carried_masks(training: bool, grad: bool) -> None:
    source, target = randoms((B, 4, D), (B, T, D))
    model = nn.Transformer(D, H, 1, 1, 16, 0.0, batch_first=True, dtype=torch.float64)
    own, cross = MASKS["causal and padding"], mw.padding(lengths=[4, 2])
    right = run(
        model,
        True,
        True,
        source,
        target,
        src_mask=floats(cross, 4),
        tgt_mask=floats(own, T),
        memory_mask=floats(cross, T, 4),
    )
    masks = {"src_mask": carry(cross), "tgt_mask": carry(own), "memory_mask": carry(cross)}
    out = run(with_ours(model), training, grad, source, target, **masks)
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_a_carried_mask_in_nns_own_attention_is_refused(training: bool, grad: bool) -> None:
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True)
    with pytest.raises(mw.ArgumentError, match=r"carried mask.*MultiheadAttention"):
        run(layer, training, grad, torch.zeros(B, T, D), src_mask=carry(mw.causal()))


def test_a_carried_mask_reaches_sdpa_and_prints() -> None:
    q, k, v = randoms(*[(B, H, T, D)] * 3)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=carry(mw.causal()))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert repr(carry(mw.causal())) == "carry(causal())"
