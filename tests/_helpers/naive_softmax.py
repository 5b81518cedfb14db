"""The arithmetic of attention, as naive as it is usually written: no row is ever treated specially.

What may enter: a few lines of numpy that several lessons share. Nothing here knows what a mask is;
`keep` is an array that holds True or 1 where a query attends to a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def softmax(scores: Array) -> Array:
    """Weights along the last axis. A row of nothing but -inf comes out as NaN."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def select(scores: Array, keep: Array, fill: float) -> Array:
    """The score where a key may be seen, else the fill. The dtype stays that of the scores."""
    return np.where(np.asarray(keep, bool), scores, scores.dtype.type(fill))


def add(scores: Array, keep: Array, fill: float) -> Array:
    """The score plus `(1 - keep) * fill`, in the dtype of the scores."""
    return scores + (1 - keep.astype(scores.dtype)) * scores.dtype.type(fill)
