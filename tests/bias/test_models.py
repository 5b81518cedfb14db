"""Biases equal those of transformers and of FlexAttention's documented score_mods."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from transformers import MptConfig, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.swin.modeling_swin import SwinRelativePositionBias
from transformers.models.t5.modeling_t5 import T5Attention

import maskwright as mw
from maskwright.bias.atoms import t5_bucket

HEADS = [*range(1, 34), 40, 48, 56, 63, 64, 65, 96, 112, 128]


def in_each_row_a_constant(found: np.ndarray, right: np.ndarray) -> bool:
    """Whether the causal cells of each row differ by one constant: the softmax is the same."""
    _, q_len, kv_len = right.shape
    visible = mw.causal().on(q_len, kv_len).dense()[0, 0]
    for h, q in np.ndindex(right.shape[:2]):
        difference = (found[h, q] - right[h, q])[visible[q]]
        if np.ptp(difference) > 1e-4 * max(1.0, abs(right[h, q]).max()):
            return False
    return True


@pytest.mark.parametrize("heads", HEADS)
def test_alibi_is_that_of_bloom(heads: int) -> None:
    made = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).numpy()  # slope * k
    right = np.broadcast_to(made, (heads, 9, 9))
    found = mw.bias.alibi(heads).on(9).dense()[0]
    assert in_each_row_a_constant(found, right)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("max_bias", [8, 16])
def test_alibi_is_that_of_mpt(heads: int, max_bias: int) -> None:
    assert MptConfig().attn_config.alibi_bias_max == 8
    made = build_mpt_alibi_tensor(heads, 9, alibi_bias_max=max_bias).numpy()  # slope * (k - 8)
    right = np.broadcast_to(made, (heads, 9, 9))
    found = mw.bias.alibi(heads, max_bias=max_bias).on(9).dense()[0]
    assert in_each_row_a_constant(found, right)
    assert np.allclose(found[:, -1], right[:, -1], rtol=1e-5)  # the last row, exactly


@pytest.mark.parametrize("heads", [3, 12, 20])
def test_geometric_slopes_differ_from_those_of_bloom_unless_a_power_of_two(heads: int) -> None:
    geometric = mw.bias.alibi(heads, variant="geometric").slope_values
    assert not np.allclose(geometric, mw.bias.alibi(heads).slope_values)
    assert np.allclose(geometric, 2.0 ** (-8 * np.arange(1, heads + 1) / heads))
    same = mw.bias.alibi(16, variant="geometric").slope_values
    assert np.array_equal(same, mw.bias.alibi(16).slope_values)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("buckets", [4, 5, 6, 8, 10, 16, 20, 32, 64, 127])
def test_t5_buckets_are_those_of_transformers(bidirectional: bool, buckets: int) -> None:
    distances = np.arange(-2000, 2001)
    near = (buckets // 2 if bidirectional else buckets) // 2
    for max_distance in {near + 1, near + 2, 64, 100, 128, 256, 512, 1000} - set(range(near + 1)):
        right = T5Attention._relative_position_bucket(
            torch.from_numpy(distances), bidirectional, buckets, max_distance
        )
        found = t5_bucket(distances, bidirectional, buckets, max_distance)
        assert np.array_equal(found, right.numpy()), max_distance


@pytest.mark.parametrize("decoder", [False, True])
def test_t5_bias_is_that_of_transformers(decoder: bool) -> None:
    config = T5Config(d_model=16, num_heads=4, d_kv=4, is_decoder=decoder)
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    table = module.relative_attention_bias.weight
    for q_len, kv_len in [(7, 7), (1, 300), (300, 300)]:
        right = module.compute_bias(q_len, kv_len, past_seen_tokens=kv_len - q_len)
        bias = mw.bias.t5(table, bidirectional=not decoder, max_distance=128)
        found = bias.on(q_len, kv_len).dense()
        assert torch.equal(found, right)
        (grad,) = torch.autograd.grad(found.square().sum(), table)
        (expected,) = torch.autograd.grad(right.square().sum(), table)
        assert torch.allclose(grad, expected)


@pytest.mark.parametrize("size", [(7, 7), (2, 5), (1, 4), (4, 1)])
def test_grid_is_that_of_swin(size: tuple[int, int]) -> None:
    height, width = size
    module = SwinRelativePositionBias(3, size)
    with torch.no_grad():
        module.relative_position_bias_table.normal_()
    table = module.relative_position_bias_table
    right = module()
    tokens = height * width
    assert torch.equal(mw.bias.grid(table, height, width).on(tokens).dense(), right)


def test_score_mods_of_flexattention() -> None:
    """ALiBi, relative and clipped relative biases as FlexAttention's documentation writes them."""
    heads, tokens = 6, 12
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, heads, tokens, 8, dtype=torch.float64)
    table = torch.randn(heads, 7, dtype=torch.float64)

    def alibi(score, b, h, q_idx, kv_idx):  # type: ignore[no-untyped-def] # attention-gym's
        scale = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + (kv_idx - q_idx) * scale

    def relative(score, b, h, q_idx, kv_idx):  # type: ignore[no-untyped-def]
        return score + (q_idx - kv_idx)

    def clipped(score, b, h, q_idx, kv_idx):  # type: ignore[no-untyped-def]
        return score + table[h, (kv_idx - q_idx).clamp(-3, 3) + 3]

    visible = torch.from_numpy(mw.causal().on(tokens).dense())
    every = mw.bias.relative([[float(-d) for d in range(-tokens, tokens + 1)]])
    for mod, bias in [
        (alibi, mw.bias.alibi(heads, variant="geometric")),
        (relative, every),
        (clipped, mw.bias.relative(table)),
    ]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            block_mask = mw.lower(mw.causal(), "torch.flex", q_len=tokens)
            right = flex_attention(q, k, v, score_mod=mod, block_mask=block_mask)
        scores = q @ k.mT / 8**0.5 + torch.as_tensor(bias.on(tokens).dense())
        found = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
        # flex_attention evaluates exp2 of the ALiBi score_mod in float32.
        assert torch.allclose(found, right, rtol=1e-6, atol=1e-7)
