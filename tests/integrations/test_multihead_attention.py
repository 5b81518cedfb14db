"""Masks in `MultiheadAttention`, against nn's own with tensors as masks."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.integrations import MultiheadAttention, multihead_attention, wrap_mask
from tests._helpers.torch_masks import MASKS, MODES, PAD, B, D, H, S, T, randoms, spy

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


def compare(
    layers: tuple[MultiheadAttention, nn.MultiheadAttention],
    inputs: list[torch.Tensor],
    mask: mw.Mask,
    *sizes: int,
    **options: Any,
) -> None:
    """Ours with a mask, and nn's with what it is lowered to."""
    lowered = mw.lower(mask, "torch.mha", *sizes, batch=B, heads=layers[1].num_heads)
    assert_same_layers(layers, inputs, {"attn_mask": mask, **options}, {**lowered, **options})


def test_state_dict_is_nns() -> None:
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
def test_mask_equals_tensor_masks_of_nn(
    name: str, batch_first: bool, need_weights: bool, kind: str
) -> None:
    layers = pair(batch_first=batch_first, **KINDS[kind])
    inputs = inputs_of(layers[1], T, S)
    compare(layers, inputs, MASKS[name], T, S, need_weights=need_weights)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 6), (6, 6), (1, 5)])
def test_queries_and_keys_may_be_of_different_lengths(
    q_len: int, kv_len: int, need_weights: bool, average: bool
) -> None:
    layers = pair(batch_first=True)
    inputs = inputs_of(layers[1], q_len, kv_len)
    mask = mw.by_head([mw.causal(), mw.window(1, 1)])
    options = {"need_weights": need_weights, "average_attn_weights": average}
    compare(layers, inputs, mask, q_len, kv_len, **options)


@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention_projects_once_and_gives_same(need_weights: bool) -> None:
    for batch_first in (True, False):
        layers = pair(batch_first=batch_first)
        x = randoms((B, T, D) if batch_first else (T, B, D))
        compare(layers, x * 3, mw.causal(), T, need_weights=need_weights)


@pytest.mark.parametrize("need_weights", [True, False])
def test_inputs_without_batch(need_weights: bool) -> None:
    layers = pair(add_zero_attn=True)
    inputs = randoms((3, D), (T, D), (T, D))
    for average in (True, False):
        options = {"need_weights": need_weights, "average_attn_weights": average}
        compare(layers, inputs, mw.causal(), 3, T, **options)


@pytest.mark.parametrize("need_weights", [True, False])
def test_row_that_is_fully_masked_gives_bias_of_output(need_weights: bool) -> None:
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


FLOATS = torch.zeros(B, S).masked_fill(PAD, -torch.inf)


@pytest.mark.parametrize("padding", [PAD, FLOATS], ids=["bool", "float"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["plain", "both keys"])
def test_padding_as_tensor_with_mask(padding: torch.Tensor, need_weights: bool, kind: str) -> None:
    layers = pair(batch_first=True, **KINDS[kind])
    inputs = inputs_of(layers[1], T, S)
    hidden = mw.lower(mw.causal(), "torch.mha", T)["attn_mask"]
    right = {"attn_mask": hidden, "key_padding_mask": PAD, "need_weights": need_weights}
    whole = (mw.causal() & mw.padding(keep=np.ones((1, 8), bool))).on(8, 8)
    for mask in (mw.causal(), mw.causal().on(T), whole.rows(0, T, kv_len=S)):
        given = {**right, "attn_mask": mask, "key_padding_mask": padding}
        assert_same_layers(layers, inputs, given, right)


@pytest.mark.parametrize("q_start", [None, 0, 1])
def test_padding_with_mask_leaves_queries_in_their_places(q_start: int | None) -> None:
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


def test_mask_with_more_keys_is_kept_for_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = pair(add_zero_attn=True)
    bound, seen = mw.causal().on(T), []
    real = multihead_attention.attention

    def spied(*args: Any, **options: Any) -> torch.Tensor:
        seen.append(args[3])
        return real(*args, **options)

    monkeypatch.setattr(multihead_attention, "attention", spied)
    (x,) = randoms((T, B, D))
    for _ in range(2):
        own(x, x, x, attn_mask=bound, need_weights=False)
    assert seen[0] is seen[1]


def test_autocast_runs_in_lower_precision() -> None:
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
    "hint": (lambda: OWN(Y, Y, Y, attn_mask=mw.causal(), is_causal=True), "is_causal=True"),
    "a name": (lambda: OWN(Y, Y, Y, attn_mask="causal"), "attn_mask is of type str"),
    "padding": (lambda: OWN(Y, Y, Y, mw.padding(lengths=[3, 5])), "key_padding_mask.*attn_mask"),
    "wrapped": (lambda: OWN(Y, Y, Y, wrap_mask(mw.causal())), "key_padding_mask.*attn_mask"),
    "axes": (lambda: OWN(Y, Y[0], Y[0], attn_mask=mw.causal()), "two dimensions"),
    "shape": (lambda: OWN(Y, Y, Y, PAD[:, :4], attn_mask=mw.causal()), r"shape \(2, 4\)"),
    "values": (lambda: OWN(Y, Y, Y, FLOATS - 1, attn_mask=mw.causal()), "0 and -inf"),
    "integers": (lambda: OWN(Y, Y, Y, PAD.long(), attn_mask=mw.causal()), "0 and -inf"),
    "lengths": (lambda: OWN(Y, Y, Y, attn_mask=mw.causal().on(4)), "bound to 4 queries"),
    "batch": (lambda: OWN(Y, Y[:1], Y[:1], attn_mask=mw.causal()), "batch sizes"),
    "wrap_mask": (lambda: wrap_mask(PAD), "of type Tensor"),
    "view": (
        lambda: wrap_mask(mw.causal()).view(1, 1),
        "torch.Tensor.view",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_argument(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(mw.MaskError, match=words):
        call()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_rejected() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3, D), torch.zeros(5, D)])
    with pytest.raises(mw.ArgumentError, match="nested tensor"):
        OWN(nested, nested, nested, attn_mask=mw.causal())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"kdim": 4, "vdim": 4},
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_script_takes_tensors_as_masks(options: dict[str, Any], training: bool) -> None:
    layer = MultiheadAttention(8, 2, **options).train(training)
    scripted = torch.jit.script(layer)
    x = torch.randn(4, 4, 8)
    keys = torch.randn(4, 4, options.get("kdim", 8))
    for mask in (None, torch.ones(4, 4).triu(1).bool()):
        for given, expected in zip(
            scripted(x, keys, keys, attn_mask=mask),
            layer(x, keys, keys, attn_mask=mask),
            strict=True,
        ):
            torch.testing.assert_close(given, expected)
    assert dict(scripted.named_parameters()).keys() == dict(layer.named_parameters()).keys()
    assert type(layer) is MultiheadAttention  # and takes masks as before
    layer(x, keys, keys, attn_mask=mw.causal())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")
def test_script_of_encoder() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    layer.self_attn = MultiheadAttention(8, 2, batch_first=True).eval()
    x, mask = torch.randn(2, 4, 8), torch.ones(4, 4).triu(1).bool()
    expected = layer(x, src_mask=mask)
    scripted = torch.jit.script(copy.deepcopy(layer))
    torch.testing.assert_close(scripted(x, src_mask=mask), expected)
    torch.testing.assert_close(layer(x, src_mask=wrap_mask(mw.causal())), expected)


def test_script_of_subclass_is_not_replaced() -> None:
    class Doubled(MultiheadAttention):
        def forward(self, *args: Any, **options: Any) -> Any:
            out, weights = super().forward(*args, **options)
            return 2 * out, weights

    layer = Doubled(8, 2)
    assert layer.__prepare_scriptable__() is layer
