"""nn.TransformerEncoder takes what `torch.mha` gives, in every mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import maskwright as mw
from tests._helpers.torch_masks import MASKS, MODES, B, D, H, T, as_floats, randoms, run_layer


@pytest.mark.parametrize("name", [name for name in MASKS if name != "empty rows"])
@pytest.mark.parametrize(("training", "grad"), MODES)
def test_encoder_sees_exactly_this_mask(name: str, training: bool, grad: bool) -> None:
    (x,) = randoms((B, T, D))
    layer = nn.TransformerEncoderLayer(D, H, 16, 0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    right = run_layer(encoder, True, True, x, mask=as_floats(MASKS[name], T))
    given = mw.lower(MASKS[name], "torch.mha", q_len=T, batch=B, heads=H)
    masks = {"mask": given["attn_mask"], "src_key_padding_mask": given["key_padding_mask"]}
    out = run_layer(encoder, training, grad, x, **masks)
    # Left to itself, a padded query may come out as zero: its output counts for nothing.
    real = ~given["key_padding_mask"] if given["key_padding_mask"] is not None else ...
    torch.testing.assert_close(out[real], right[real])
