"""Scores, `masked_fill`, softmax, and the weighted sum of the values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.peers import Way

if TYPE_CHECKING:
    import torch

    from benchmarks.patterns import Case

# Bytes of the scores in float32. Above, this is several times slower than the fastest peer.
MAX_SCORES = 2e8


def ways(case: Case, dtype: str) -> dict[str, Way]:
    """One implementation in float32, where the scores are small; bfloat16 is slower."""
    if dtype != "float32" or 4 * case.batch * case.heads * case.q_len * case.kv_len > MAX_SCORES:
        return {}
    masked = None if case.visible is None else case.visible.logical_not()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if masked is not None:
            scores = scores.masked_fill(masked, -math.inf)
        return scores.softmax(-1) @ v

    return {"textbook": Way(attend)}
