"""The dropout mask in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from maskwright.engine.dropout import dropout_keep, dropout_threshold, philox4x32

# Known answers of Random123, the reference implementation (kat_vectors).
KNOWN = [
    (7, (0, 0, 0, 0), (0, 0), "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, (0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (
        7,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "4dfccaba 190a87f0 c47362ba b6b5242a",
    ),
    (10, (0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, (0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN)
def test_known_answers(
    rounds: int, counter: tuple[int, int, int, int], key: tuple[int, int], expected: str
) -> None:
    words = philox4x32(counter, key[0] | key[1] << 32, rounds)
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_one_cell_by_hand() -> None:
    batch, head, row, key = 1, 2, 5, 77
    words = philox4x32((key // 64 * 16 + key % 16, row, head, batch), 99)
    keep = dropout_keep(99, 0.5, 2, 3, np.array([5]), np.array([77]))
    assert keep[batch, head, 0, 0] == (int(words[key % 64 // 16]) >= 2**31)


def test_indices_select_cells_of_whole_mask() -> None:
    whole = dropout_keep(5, 0.3, 2, 2, np.arange(20), np.arange(200))
    rows, keys = np.array([3, 17]), np.arange(1, 200, 7)
    assert np.array_equal(dropout_keep(5, 0.3, 2, 2, rows, keys), whole[:, :, rows][..., keys])


@pytest.mark.parametrize("p", [0.0, 0.001, 0.1, 0.5, 0.9])
def test_share_of_dropped_weights(p: float) -> None:
    keep = dropout_keep(1, p, 2, 4, np.arange(100), np.arange(100))
    deviation = (p * (1 - p) / keep.size) ** 0.5
    assert abs(1 - keep.mean() - p) <= 5 * deviation
    assert keep.all() == (p == 0.0)


def test_threshold_fits_in_32_bits() -> None:
    assert dropout_threshold(1 - 2**-40) == 2**32 - 1
