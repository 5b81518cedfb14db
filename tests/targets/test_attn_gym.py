"""attention-gym's mask_mods, taken as they are by `where`, and masks of our own that equal them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attn_gym import masks as gym
from torch.nn.attention.flex_attention import create_mask

import maskwright as mw

LENGTH = 40
OFFSETS = torch.tensor([0, 13, 20, 40])
MODS: dict[str, Any] = {
    "causal": gym.causal_mask,
    "sliding window": gym.generate_sliding_window(5),
    "prefix": gym.generate_prefix_lm_mask(7),
    "documents": gym.generate_doc_mask_mod(gym.causal_mask, OFFSETS),
    "dilated": gym.generate_dilated_sliding_window(6, 2),
}
EQUALS = {
    "causal": mw.causal(),
    "sliding window": mw.window(back=5),  # theirs counts the keys before the query
    "prefix": mw.causal() | mw.prefix([7]),
    "documents": mw.causal() & mw.documents(lengths=[[13, 7, 20]]),
}


@pytest.mark.parametrize("name", MODS)
def test_mask_mod_is_mask(name: str) -> None:
    theirs = create_mask(MODS[name], 1, 1, LENGTH, LENGTH, device="cpu").numpy()
    mask = mw.where(over_tensors(MODS[name]))
    assert theirs.any()
    assert np.array_equal(mw.lower(mask, "numpy", q_len=LENGTH), theirs)
    block_mask = mw.lower(mask, "torch.flex", q_len=LENGTH, block_size=16)
    again = create_mask(block_mask.mask_mod, 1, 1, LENGTH, LENGTH, device="cpu").numpy()
    assert np.array_equal(again, theirs)
    if name in EQUALS:
        assert np.array_equal(mw.lower(EQUALS[name], "numpy", q_len=LENGTH), theirs)


def over_tensors(mod: Any) -> Any:
    """A mask_mod that looks things up in tensors needs tensors as indices."""

    def allowed(b: Any, h: Any, q: Any, k: Any) -> Any:
        return np.asarray(mod(*(torch.as_tensor(np.asarray(x)) for x in (b, h, q, k))))

    return allowed
