"""Calls of attention for the tests of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.engine.call import AttentionOptions, Call, Mode, read_call

if TYPE_CHECKING:
    from collections.abc import Sequence


def call_of(tensors: Sequence[Any], mask: Any = None, *, seed: int = 0, **options: Any) -> Call:
    """The call of attention over tensors or arrays, with fewer KV heads allowed."""
    mode = Mode.NUMPY if isinstance(tensors[0], np.ndarray) else Mode.EAGER
    options = {"enable_gqa": True, **options}
    return read_call(tensors, mask, AttentionOptions(**options), mode=mode).changed(seed=seed)
