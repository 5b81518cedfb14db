"""Compiled `flex_attention` with a precomputed BlockMask. It has no backward pass on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import maskwright as mw
from benchmarks.figures import FORWARD
from benchmarks.peers import Way

if TYPE_CHECKING:
    from benchmarks.patterns import Case
    from benchmarks.peers import Attention


def ways(case: Case, dtype: str) -> dict[str, Way]:
    """One implementation."""
    del dtype
    return {"flex": Way(flex(case), compiles=True, modes=(FORWARD,), upcast=True)}


def flex(case: Case, *, compiled: bool = True) -> Attention:
    """flex_attention at its best on a CPU, with the closure a user would write as its mask_mod.

    Such a closure is faster than one mask_mod for all masks, and blocks of 64 are faster than the
    128 that are flex's own choice, unless most of the mask is visible.
    """
    from torch.nn.attention.flex_attention import flex_attention

    blocks = None
    if case.mod is not None:
        bound = case.bound()
        blocks = mw.lower(bound, "torch.flex", block_size=64 if bound.density < 0.3 else 256)
        blocks.mask_mod = case.mod
    function: Any = flex_attention
    if compiled:
        torch._dynamo.reset()  # what was compiled before is not looked through at every call
        function = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: function(q, k, v, block_mask=blocks)
