"""Carried masks in `nn.Transformer` and its parts, against the same with tensors as masks."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw
from maskwright.integrations import MultiheadAttention, wrap_mask
from tests._helpers.torch_masks import MASKS, MODES, PAD, B, D, H, T, as_floats, randoms, run_layer


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


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("training", "grad"), MODES)
def test_encoder_accepts_wrapped_mask(name: str, training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    for norm_first, act in ((True, F.gelu), (False, F.relu)):
        layer = nn.TransformerEncoderLayer(
            D, H, 16, 0.0, act, batch_first=True, norm_first=norm_first, dtype=torch.float64
        )
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        right = run_layer(encoder, True, True, x, mask=as_floats(MASKS[name], T))
        out = run_layer(with_ours(encoder), training, grad, x, mask=wrap_mask(MASKS[name]))
        torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_encoder_accepts_padding_with_wrapped_mask(training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    whole = mw.causal() & mw.padding(keep=~PAD)
    right = run_layer(encoder, True, True, x, mask=as_floats(whole, T))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nn warns where the two masks are of different dtypes
        masks = {"mask": wrap_mask(mw.causal()), "src_key_padding_mask": PAD}
        out = run_layer(with_ours(encoder), training, grad, x, **masks)
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_encoder_with_tensors_is_still_nns(training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    hidden = mw.lower(mw.causal(), "torch.mha", T)["attn_mask"]
    right = run_layer(layer, training, grad, x, src_mask=hidden, src_key_padding_mask=PAD)
    out = run_layer(with_ours(layer), training, grad, x, src_mask=hidden, src_key_padding_mask=PAD)
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_transformer_accepts_wrapped_masks(training: bool, grad: bool) -> None:
    source, target = randoms((B, 4, D), (B, T, D))
    model = nn.Transformer(D, H, 1, 1, 16, 0.0, batch_first=True, dtype=torch.float64)
    own, cross = MASKS["causal and padding"], mw.padding(lengths=[4, 2])
    given = {"src_mask": (cross, 4), "tgt_mask": (own, T), "memory_mask": (cross, T, 4)}
    slow = {name: as_floats(*of) for name, of in given.items()}
    right = run_layer(model, True, True, source, target, **slow)
    masks = {name: wrap_mask(mask) for name, (mask, *_) in given.items()}
    out = run_layer(with_ours(model), training, grad, source, target, **masks)
    torch.testing.assert_close(out, right)


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_wrapped_mask_in_nn_attention_is_rejected(training: bool, grad: bool) -> None:
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True)
    with pytest.raises(mw.ArgumentError, match="MultiheadAttention"):
        run_layer(layer, training, grad, torch.zeros(B, T, D), src_mask=wrap_mask(mw.causal()))


def test_wrapped_mask_reaches_sdpa_and_prints() -> None:
    q, k, v = randoms(*[(B, H, T, D)] * 3)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=wrap_mask(mw.causal()))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert repr(wrap_mask(mw.causal())) == "wrap_mask(causal())"
