"""Where a framework has a mask object that is equal to the mask, `lower` returns it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from tests._helpers.target_readers import READERS

XFORMERS = [
    (mw.causal(), {}, "LowerTriangularMask"),
    (mw.causal(), {"kv_len": 11}, "LowerTriangularFromBottomRightMask"),
    (mw.window(2, 1), {}, "LocalAttentionFromBottomRightMask"),
    (mw.documents(lengths=[[3, 5]]), {}, "BlockDiagonalMask"),
    (mw.causal() & mw.documents(lengths=[[3, 5]]), {}, "BlockDiagonalCausalFromBottomRightMask"),
    (mw.window(1) & mw.documents(lengths=[[3, 5]]), {}, "Tensor"),
    (mw.causal() | mw.prefix(3), {}, "Tensor"),
]

SPLASH = [
    (mw.everything(), {}, "FullMask"),
    (mw.causal(), {}, "CausalMask"),
    (mw.causal(), {"kv_len": 11}, "CausalMask"),
    (mw.causal(), {"kv_len": 11, "q_start": 1}, "CausalMask"),
    (mw.window(2, 1), {}, "LocalMask"),
    (mw.window(2, 1), {"kv_len": 11}, "LocalMask"),
    (mw.causal() | mw.prefix(3), {}, "NumpyMask"),
]


@pytest.mark.parametrize(("mask", "sizes", "name"), XFORMERS)
def test_xformers(mask: mw.Mask, sizes: dict[str, Any], name: str) -> None:
    bound = mask.on(8, **sizes)
    given = mw.lower(bound, "xformers")
    assert type(given).__name__ == name
    bias = given if name == "Tensor" else given.materialize(bound.shape[2:])
    assert np.array_equal(bias.numpy().reshape(bound.shape) == 0, bound.dense())


@pytest.mark.parametrize(("mask", "sizes", "name"), SPLASH)
def test_splash(mask: mw.Mask, sizes: dict[str, Any], name: str) -> None:
    bound = mask.on(8, heads=2, **sizes)
    given = mw.lower(bound, "jax.splash")
    assert given["segment_ids"] is None
    assert [type(one).__name__ for one in given["mask"].masks] == [name] * 2
    for one in given["mask"].masks:
        assert np.array_equal(one[:, :], bound.dense()[0, 0])


@pytest.mark.parametrize(
    ("mask", "sizes", "names"),
    [
        (mw.everything(), {}, set()),
        (mw.causal(), {}, {"is_causal"}),
        (mw.causal(), {"kv_len": 11, "q_start": 0}, {"is_causal"}),
        (mw.causal(), {"kv_len": 11}, {"local_window_size"}),
        (mw.window(2), {}, {"is_causal", "local_window_size"}),
        (mw.window(2, 1), {}, {"local_window_size"}),
        (mw.padding(lengths=[3, 8]), {}, {"key_value_seq_lengths"}),
        (mw.causal() & mw.padding(lengths=[3, 8]), {}, {"is_causal", "key_value_seq_lengths"}),
        (
            mw.padding(lengths=[3, 8]) & mw.padding(lengths=[3, 8]).T,
            {},
            {"key_value_seq_lengths", "query_seq_lengths"},
        ),
        (mw.causal() | mw.prefix(3), {}, {"mask"}),
    ],
)
def test_jax_is_given_flags_where_they_are_exactly_equal(
    mask: mw.Mask, sizes: dict[str, Any], names: set[str]
) -> None:
    assert set(mw.lower(mask, "jax", 8, **sizes)) == names


def test_rectangles_of_magi_slices_are_disjoint() -> None:
    """The triangle of rows 0 and 1 ends before the column of row 1, which is in its rectangle."""
    mask = mw.dense([[0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    lowered = mw.lower(mask, "magi")
    assert np.array_equal(READERS["magi"](lowered, (1, 1, 4, 4)), mask.on(4).dense())
    bands = mw.window(1) | (mw.window(6) - mw.window(4))
    lowered = mw.lower(bands, "magi", 16)
    assert np.array_equal(READERS["magi"](lowered, (1, 1, 16, 16)), bands.on(16).dense())
