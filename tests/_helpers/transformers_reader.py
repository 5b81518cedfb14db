"""The masks that reach a model's attention in transformers, from the lowered arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

Shape = tuple[int, int, int, int]


def config(implementation: str) -> LlamaConfig:
    tiny = LlamaConfig(hidden_size=4, num_attention_heads=1, num_hidden_layers=1, vocab_size=8)
    tiny._attn_implementation = implementation
    return tiny


CONFIGS = {name: config(name) for name in ("eager", "sdpa")}


def read(given: dict[str, Any], shape: Shape, kind: str, implementation: str) -> np.ndarray:
    """The dense mask of a model of this kind, "decoder" or "encoder"."""
    b, h, t, s = shape
    mask, positions = given["attention_mask"], given.get("position_ids")
    assert set(given) <= {"attention_mask", "position_ids", "use_cache"}
    if mask is not None:
        assert tuple(mask.shape) in ((b, s), (b, 1, t, s), (b, h, t, s))
    if positions is not None:
        assert tuple(positions.shape) == (b, t)
        assert positions.dtype == torch.int64
    tiny, embeds = CONFIGS[implementation], torch.zeros(b, t, 4)
    if kind == "encoder":
        made = create_bidirectional_mask(
            tiny, embeds, mask, past_key_values=filled_cache(b, s - t) if s > t else None
        )
    else:
        cache = None if given.get("use_cache") is False else filled_cache(b, s - t)
        made = create_causal_mask(tiny, embeds, mask, cache, positions)
    return np.broadcast_to(as_cells(made, shape, kind), shape)


def as_cells(made: Any, shape: Shape, kind: str) -> np.ndarray:
    b, h, t, s = shape
    if made is None:  # left to the attention: `is_causal` is on for a decoder with queries > 1
        rows = np.arange(t)[:, None] + (s - t if t == 1 else 0)
        seen = np.arange(s)[None, :] <= rows if kind == "decoder" else np.ones((t, s), np.bool_)
        return seen[None, None]
    assert tuple(made.shape) in ((b, 1, t, s), (b, h, t, s))
    if made.dtype == torch.bool:
        return made.numpy()
    least = torch.finfo(made.dtype).min
    assert bool(((made == 0) | (made == least)).all())
    return (made == 0).numpy()


def filled_cache(batch: int, tokens: int) -> DynamicCache:
    """A cache of this many tokens, or an empty one."""
    cache = DynamicCache()
    if tokens > 0:
        past = torch.zeros(batch, 1, tokens, 4)
        cache.update(past, past, 0)
    return cache
