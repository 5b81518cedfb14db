"""Tiles compared with PyTorch's block masks, and at sizes too large for dense masks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import maskwright as mw
from tests._helpers.target_readers import listed_blocks

LENGTHS = [100, 28, 200, 56]
IDS = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))

PEERS = {
    "causal": (mw.causal(), lambda b, h, q, k: q >= k),
    "window": (mw.window(back=63), lambda b, h, q, k: (q >= k) & (q - k < 64)),
    "documents": (
        mw.causal() & mw.documents(lengths=[LENGTHS]),
        lambda b, h, q, k: (q >= k) & (IDS[q] == IDS[k]),
    ),
    "prefix": (mw.causal() | mw.prefix(70), lambda b, h, q, k: (q >= k) | (k < 70)),
    "stride": (mw.stride(3), lambda b, h, q, k: (q - k) % 3 == 0),
    "by head": (
        mw.by_head([mw.causal(), mw.window(back=9)]),
        lambda b, h, q, k: (q >= k) & ((h == 0) | (q - k < 10)),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_tiles_are_torchs_blocks(name: str) -> None:
    mask, mask_mod = PEERS[name]
    bound = mask.on(384)
    heads = bound.shape[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = create_block_mask(mask_mod, 1, heads, 384, 384, "cpu", 32)
    kinds = bound.tiles(32).kinds()
    partial = listed_blocks(theirs.kv_num_blocks, theirs.kv_indices, (1, heads))
    full = listed_blocks(theirs.full_kv_num_blocks, theirs.full_kv_indices, (1, heads))
    assert np.array_equal(kinds == 1, partial)
    assert np.array_equal(kinds == 2, full)


def test_million_tokens() -> None:
    tiles = mw.window(back=255).on(1_048_576).tiles(128)
    # Every block of rows sees its own, the one before in full, and a corner of one more.
    assert tiles.counts()["full"] == 8191
    assert tiles.counts()["partial"] == 8192 + 8190


def test_block_taller_than_chunk() -> None:
    tiles = mw.stride(2).on(2048).tiles(2048)
    assert tiles.kinds().tolist() == [[[[1]]]]


def test_blocks_default_to_squares_of_128() -> None:
    assert mw.causal().on(300).tiles().shape == (1, 1, 3, 3)
    assert mw.causal().on(300).tiles(64).kv_block == 64
