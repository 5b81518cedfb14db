"""The dropout mask of the softmax weights, which every backend reproduces.

The random numbers are those of Philox4x32 with 7 rounds (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", 2011). The key is the seed. The counter is (c, query, head, batch): key j has
c = j // 64 * 16 + j % 16, and takes word j % 64 // 16 of the four that the generator returns. Its
weight is dropped if the word is below p * 2**32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.validate import BoolArray, IntArray

ROUNDS: Final = 7
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)


def philox4x32(
    counter: tuple[Any, Any, Any, Any], seed: int, rounds: int = ROUNDS
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Returns the four 32-bit words of Philox4x32 for each counter, as uint64 arrays.

    Args:
        counter: Four arrays of 32-bit words, which broadcast against each other.
        seed: The key, 64 bits.
        rounds: The number of rounds.

    >>> [hex(int(word)) for word in philox4x32((0, 0, 0, 0), 0)]
    ['0x5f6fb709', '0xd893f64', '0x4f121f81', '0x4f730a48']
    """
    c0, c1, c2, c3 = (np.asarray(word).astype(np.uint64) & _LOW for word in counter)
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(rounds):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (second >> _32) ^ c1 ^ np.uint64(keys[0])
        c1 = second & _LOW
        c2 = (first >> _32) ^ c3 ^ np.uint64(keys[1])
        c3 = first & _LOW
        keys = [(key + weyl) & 0xFFFFFFFF for key, weyl in zip(keys, _WEYL, strict=True)]
    return c0, c1, c2, c3


def dropout_threshold(dropout_p: float) -> int:
    """Returns the word below which a weight is dropped.

    >>> dropout_threshold(0.5) == 2**31
    True
    """
    return min(2**32 - 1, int(dropout_p * 2**32))


def dropout_keep(
    seed: int, dropout_p: float, batch: int, heads: int, rows: IntArray, keys: IntArray
) -> BoolArray:
    """Returns which softmax weights are kept, (batch, heads, len(rows), len(keys)).

    Kept weights are to be multiplied by 1 / (1 - dropout_p).

    Args:
        seed: The seed, 64 bits.
        dropout_p: The probability with which a weight is dropped.
        batch: The number of batch rows.
        heads: The number of query heads.
        rows: Indices of the query rows in q.
        keys: Indices of the keys in k.

    >>> import numpy as np
    >>> keep = dropout_keep(0, 0.25, 1, 1, np.arange(100), np.arange(100))
    >>> keep.shape, round(float(keep.mean()), 1)
    ((1, 1, 100, 100), 0.7)
    """
    keys = np.asarray(keys)
    counter = (
        keys // 64 * 16 + keys % 16,
        np.asarray(rows)[:, None],
        np.arange(heads)[:, None, None],
        np.arange(batch)[:, None, None, None],
    )
    words = np.stack(np.broadcast_arrays(*philox4x32(counter, seed)))
    index = np.broadcast_to(keys % 64 // 16, words.shape[1:])[None]
    chosen = np.take_along_axis(words, index, 0)[0]
    keep: BoolArray = chosen >= dropout_threshold(dropout_p)
    return keep
