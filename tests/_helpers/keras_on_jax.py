"""Run by test_keras.py with KERAS_BACKEND=jax: Keras chooses its backend once a process."""

from __future__ import annotations

import numpy as np

import maskwright as mw
from tests._helpers import target_runners

MASKS = {
    "everything": mw.everything(),
    "causal": mw.causal(),
    "window": mw.window(1, 1),
    "padding": mw.causal() & mw.padding(lengths=[5, 3]),
    "documents": mw.causal() & mw.documents(lengths=[[2, 3], [4, 1]]),
    "heads": mw.by_head([mw.causal(), mw.window(1, 1)]),
    "prefix": mw.causal() | mw.prefix([2, 4]),
    "striped": mw.stride(2),
}


def check_all() -> None:
    """Every mask, on as many queries as keys and on fewer."""
    import keras

    assert keras.backend.backend() == "jax"
    for name, mask in MASKS.items():
        for q_len in (5, 3):
            bound = mask.on(q_len, kv_len=5, batch=2, heads=2)
            allowed = np.broadcast_to(bound.dense(), (2, 2, q_len, 5))
            target_runners.keras(mw.lower(bound, "keras"), allowed)
            print(name, q_len)


if __name__ == "__main__":
    check_all()
