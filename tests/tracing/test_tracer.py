"""`trace` on models of nn and transformers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.tracing import AttentionCall, recording, trace
from tests._helpers.tiny_models import ALL, WINDOW
from tests._helpers.traced_modules import (
    CAUSAL,
    FUTURE,
    IS_PADDING,
    PADDING,
    B,
    C,
    D,
    H,
    T,
    assert_visible,
    cells,
    tokens,
    trace_unchanged,
)

if TYPE_CHECKING:
    from maskwright import Mask

# ── nn.Transformer ────────────────────────────────────────────────────────────────────────────


def encoder(nested: bool, layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(C, H, C, batch_first=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "padded"])
def test_encoder_fast_path(nested: bool) -> None:
    model = encoder(nested)
    calls = trace_unchanged(model, tokens(), src_key_padding_mask=IS_PADDING)
    assert [call.layer for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call in calls:
        assert call.kernel == "encoder fast path"
        assert call.mask == PADDING
        assert call.convention == ("nested tensor" if nested else "bool, True masks")
        assert call.shapes[0] == call.shapes[-1] == (B, T, C)
        assert call.shapes[1:4] == ((B, H, T, D), (B, H, T, T), (B, H, T, D))
    calls = trace_unchanged(model, tokens(), mask=FUTURE)
    assert {call.mask for call in calls} == {CAUSAL}
    assert {call.kernel for call in calls} == {"encoder fast path"}


def test_encoder_fast_path_converts_float_masks_to_bool() -> None:
    bias = torch.zeros(T, T).masked_fill(FUTURE, 0.5)
    [call] = trace_unchanged(encoder(nested=False, layers=1), tokens(), mask=bias)
    assert call.kernel == "encoder fast path"
    assert call.mask == CAUSAL


def test_encoder_slow_paths() -> None:
    model = encoder(nested=False, norm_first=True)
    with recording(model) as recorder:  # with gradients
        model(tokens(), mask=FUTURE, src_key_padding_mask=IS_PADDING)
    assert [call.layer for call in recorder.calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call in recorder.calls:
        assert call.kernel == "mha"
        assert_visible(call, CAUSAL & PADDING)


def test_decoder_has_two_masks_per_layer() -> None:
    layer = nn.TransformerDecoderLayer(C, H, C, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    calls = trace_unchanged(
        model,
        tokens(3),
        tokens(seed=1),
        tgt_mask=FUTURE[:3, :3],
        memory_key_padding_mask=IS_PADDING,
    )
    assert [call.layer for call in calls] == [
        "layers.0.self_attn",
        "layers.0.multihead_attn",
        "layers.1.self_attn",
        "layers.1.multihead_attn",
    ]
    assert [call.cross for call in calls] == [False, True, False, True]
    assert [call.mask for call in calls] == [CAUSAL, PADDING, CAUSAL, PADDING]


def test_transformer() -> None:
    model = nn.Transformer(C, H, 1, 1, C, batch_first=True).eval()
    calls = trace(model, tokens(), tokens(3, seed=1), tgt_is_causal=True, tgt_mask=FUTURE[:3, :3])
    assert [call.layer for call in calls] == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    ]
    assert [call.mask for call in calls] == [mw.everything(), CAUSAL, mw.everything()]
    assert [call.cross for call in calls] == [False, False, True]


# ── models of transformers ────────────────────────────────────────────────────────────────────

IDS = torch.tensor([[5, 6, 7, 8, 0, 0], [5, 6, 7, 8, 9, 4]])
REAL = (IDS != 0).long()


def assert_visible_without_padding(call: AttentionCall, mask: Mask) -> None:
    """Query rows of padding may attend to any key."""
    rows = np.broadcast_to(~IS_PADDING.numpy()[:, None, :], (B, H, T))
    whole = np.broadcast_to(call.visible, (B, H, T, T))
    np.testing.assert_array_equal(whole[rows], np.broadcast_to(cells(mask), whole.shape)[rows])


def build(name: str, implementation: str = "eager") -> Any:
    [tiny] = [tiny for tiny in ALL if tiny.name == name]
    return tiny.build(implementation)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_decoders(name: str, implementation: str) -> None:
    model = build(name, implementation)
    calls = trace_unchanged(model, IDS, attention_mask=REAL)
    stem = "transformer.h.{}.attn" if name == "gpt2" else "model.layers.{}.self_attn"
    assert [call.layer for call in calls] == [stem.format(i) for i in range(2)]
    mask = CAUSAL & PADDING
    if name == "mistral":
        mask = mask & mw.window(back=WINDOW - 1)
    for call in calls:
        assert call.kernel == ("softmax" if implementation == "eager" else "sdpa")
        assert not call.cross
        assert_visible_without_padding(call, mask)
    [call, *_] = trace(model, IDS[1:])
    assert call.mask == (mw.window(back=WINDOW - 1) if name == "mistral" else CAUSAL)
    assert call.q_shape == (1, H, T, D)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_bert(implementation: str) -> None:
    calls = trace_unchanged(build("bert", implementation), IDS, attention_mask=REAL)
    names = [f"bert.encoder.layer.{i}.attention.self" for i in range(2)]
    assert [call.layer for call in calls] == names
    assert [call.mask for call in calls] == [PADDING, PADDING]


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders(name: str) -> None:
    model = build(name)
    target = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    calls = trace_unchanged(
        model, input_ids=IDS, attention_mask=REAL, decoder_input_ids=target, use_cache=False
    )
    assert len(calls) == 6
    assert [call.cross for call in calls] == [False] * 2 + [False, True] * 2
    assert all("encoder" in call.layer for call in calls[:2])
    assert all("decoder" in call.layer for call in calls[2:])
    expected = [PADDING, PADDING, CAUSAL, PADDING, CAUSAL, PADDING]
    assert [call.mask for call in calls] == expected
