"""The dropout mask: counter-based random numbers (Philox), the same in every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from maskwright.core.arrays import BoolArray, IntArray


def dropout_keep(
    seed: int, dropout_p: float, batch: int, heads: int, rows: IntArray, keys: IntArray
) -> BoolArray:
    key = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64)
    j = np.asarray(keys, np.uint64)
    c0 = (j // 64) * 16 + j % 16
    word = (j % 64) // 16
    b, h, r, c = np.ogrid[:batch, :heads, : len(rows), : len(keys)]
    out = philox(
        (c0[c], np.asarray(rows, np.uint64)[r], h.astype(np.uint64), b.astype(np.uint64)), key
    )
    words = np.choose(np.broadcast_to(word, out[0].shape).astype(int), out)
    return words >= min(2**32 - 1, int(dropout_p * 2**32))


def philox(counter: Any, key: Any, rounds: int = 7) -> Any:
    c = list(np.broadcast_arrays(*counter))
    k = [int(x) for x in key]
    m = 0xFFFFFFFF
    for _ in range(rounds):
        p0 = c[0] * np.uint64(0xD2511F53)
        p1 = c[2] * np.uint64(0xCD9E8D57)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            p1 & np.uint64(m),
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            p0 & np.uint64(m),
        ]
        k = [(k[0] + 0x9E3779B9) & m, (k[1] + 0xBB67AE85) & m]
    return c
