"""`scaled_dot_product_attention`: without a mask, with its flag, and with precomputed dense masks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.peers import Way

if TYPE_CHECKING:
    from benchmarks.patterns import Case

# SDPA converts a boolean mask in each call. That takes long with many cells, and is never faster.
MAX_BOOL_CELLS = (2**27, 2**22)


def ways(case: Case, dtype: str) -> dict[str, Way]:
    """Without a mask where all keys are visible, else `is_causal` where it is the same, and masks."""
    visible = case.visible
    if visible is None:
        return {"sdpa": Way(sdpa, upcast=True)}
    found = {}
    if is_causal(case):
        found["sdpa is_causal"] = Way(lambda q, k, v: sdpa(q, k, v, is_causal=True), upcast=True)
    added = torch.zeros(visible.shape, dtype=getattr(torch, dtype))
    added.masked_fill_(visible.logical_not(), -math.inf)
    found["sdpa float mask"] = Way(lambda q, k, v: sdpa(q, k, v, added), upcast=True)
    found["sdpa bool mask"] = Way(lambda q, k, v: sdpa(q, k, v, visible), max_cells=MAX_BOOL_CELLS)
    return found


def is_causal(case: Case) -> bool:
    """Whether the mask is exactly that of `is_causal`."""
    visible = case.visible
    if visible is None or case.q_len != case.kv_len or visible.shape[:2] != (1, 1):
        return False
    return torch.equal(visible[0, 0], torch.ones_like(visible[0, 0]).tril_())
