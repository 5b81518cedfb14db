"""nn.TransformerEncoder and nn.TransformerDecoder take what `torch.mha` gives, in every mode."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import maskwright as mw

B, H, T, S, D = 2, 2, 5, 4, 8
MODES = list(product([True, False], [True, False]))  # in training, with gradients

MASKS = {
    "causal": mw.causal(),
    "padding": mw.padding(lengths=[3, 5]),
    "causal and padding": mw.causal() & mw.padding(lengths=[3, 5]),
    "window": mw.window(1, 1),
    "documents": mw.documents(lengths=[[2, 3], [1, 4]]),
    "by head": mw.by_head([mw.causal(), mw.everything()]),
}


def floats(mask: mw.Mask, *sizes: int) -> torch.Tensor:
    """The mask for every sequence and head, as floats, which no fast path takes."""
    bias = mw.lower(mask, "torch.additive", *sizes, batch=B, heads=H, dtype=torch.float64)
    return bias.expand(B, H, -1, -1).flatten(0, 1)


def out_of(module: nn.Module, training: bool, grad: bool, *inputs: Any, **masks: Any) -> Any:
    module.train(training)
    with torch.set_grad_enabled(grad):
        return module(*inputs, **masks)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("training", "grad"), MODES)
def test_encoder_sees_exactly_this_mask(name: str, training: bool, grad: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(B, T, D, dtype=torch.float64)
    right = out_of(encoder, True, True, x, mask=floats(MASKS[name], T))
    given = mw.lower(MASKS[name], "torch.mha", q_len=T, batch=B, heads=H)
    masks = {"mask": given["attn_mask"], "src_key_padding_mask": given["key_padding_mask"]}
    out = out_of(encoder, training, grad, x, **masks)
    # Left to itself, a padded query may come out as zero: its output counts for nothing.
    real = ~given["key_padding_mask"] if given["key_padding_mask"] is not None else ...
    torch.testing.assert_close(out[real], right[real])


@pytest.mark.parametrize(("training", "grad"), MODES)
def test_decoder_sees_exactly_these_masks(training: bool, grad: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    decoder = nn.TransformerDecoder(layer, 2)
    x, memory = (torch.randn(B, n, D, dtype=torch.float64) for n in (T, S))
    own, cross = MASKS["causal and padding"], mw.padding(lengths=[4, 2])
    slow = {"tgt_mask": floats(own, T), "memory_mask": floats(cross, T, S)}
    right = out_of(decoder, True, True, x, memory, **slow)
    given = mw.lower((cross, own, cross), "torch.transformer", q_len=T, kv_len=S, batch=B)
    masks = {name: mask for name, mask in given.items() if not name.startswith("src")}
    torch.testing.assert_close(out_of(decoder, training, grad, x, memory, **masks), right)
