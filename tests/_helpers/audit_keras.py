"""Run by test_frameworks.py with KERAS_BACKEND set: Keras chooses its backend once a process."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

import maskwright as mw

PROBES = ("leak", "gradient", "padding", "batch", "numbers")


class Block(keras.layers.Layer):
    """Self-attention with a residual; `leaks` omits its causal mask."""

    def __init__(self, leaks: bool) -> None:
        super().__init__()
        self.leaks = leaks
        self.attention = keras.layers.MultiHeadAttention(2, 8, seed=0)

    def call(self, x: Any, training: bool = False) -> Any:
        return x + self.attention(x, x, use_causal_mask=not self.leaks, training=training)


def functional(leaks: bool) -> Any:
    """Ids to hidden states."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(20, 16)(ids)
    return keras.Model(ids, Block(leaks)(Block(False)(x)))


class Subclassed(keras.Model):
    """Floats to hidden states, with dropout, which must be off."""

    def __init__(self, leaks: bool) -> None:
        super().__init__()
        keras.utils.set_random_seed(0)
        self.blocks = [Block(False), Block(leaks)]
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = block(x, training=training)
        return {"hidden": self.dropout(x, training=training)}


def check() -> None:
    """Audits both kinds, healthy and leaking, on arrays of NumPy."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 20, (2, 9)).astype(np.int32)
    floats = rng.normal(size=(2, 9, 16)).astype(np.float32)
    for build, x in ((functional, ids), (Subclassed, floats)):
        healthy = mw.audit(build(False), x, expects="causal", probes=PROBES)
        assert healthy.ok, str(healthy)
        leaking = mw.audit(build(True), x, expects="causal", probes=PROBES)
        assert leaking.findings, str(leaking)
        assert leaking.findings[0].probe == "leak", str(leaking)
        statuses = {result.probe: result.status.value for result in healthy.answers}
        print(keras.backend.backend(), build.__name__, statuses)


if __name__ == "__main__":
    check()
    sys.exit(0)
