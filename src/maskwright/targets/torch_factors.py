"""One mask for all sequences and the keys of each: how torch's own modules take a mask apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.targets.facts import check_bytes

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray


def factors(bound: BoundMask) -> tuple[BoolArray | None, BoolArray | None]:
    """The mask as (T, S) and (B, S) whose intersection it is, each None where it hides nothing.

    If there is such a pair, this one is it: the least mask that holds for all sequences, and the
    least set of keys of each. If there is none, it is a mask for every sequence and head,
    (B·H, T, S), and None.
    """
    allowed, frame = bound.dense(), bound.frame
    if bool((allowed == allowed[:, :1]).all()):
        allowed = allowed[:, :1]
        common = np.any(allowed, axis=(0, 1))  # (T, S)
        keys = np.any(allowed, axis=(1, 2))  # (B or 1, S)
        if bool((allowed == (common & keys[:, None, None, :])).all()):
            if bool((allowed == keys[:, None, None, :]).all()):
                common = np.ones_like(common)
            if len(keys) == 1 and bool((allowed == common).all()):
                keys = np.ones_like(keys)
            spread = np.broadcast_to(keys, (frame.batch, keys.shape[1]))
            return None if common.all() else common, None if keys.all() else spread
    check_bytes((frame.batch, frame.heads, *allowed.shape[2:]), 1)
    every = np.broadcast_to(allowed, (frame.batch, frame.heads, *allowed.shape[2:]))
    return every.reshape(frame.batch * frame.heads, *allowed.shape[2:]), None
