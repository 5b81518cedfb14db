"""Where a framework has a mask object that is equal to the mask, `lower` returns it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from tests._helpers.reference_attention import attention, random_qkv
from tests._helpers.target_readers import READERS

XFORMERS = [
    (mw.causal(), {}, "LowerTriangularMask"),
    (mw.causal(), {"kv_len": 11}, "LowerTriangularFromBottomRightMask"),
    (mw.window(2, 1), {}, "LocalAttentionFromBottomRightMask"),
    (mw.documents(lengths=[[3, 5]]), {}, "BlockDiagonalMask"),
    (mw.causal() & mw.documents(lengths=[[3, 5]]), {}, "BlockDiagonalCausalFromBottomRightMask"),
    (mw.window(1) & mw.documents(lengths=[[3, 5]]), {}, "BlockDiagonalCausalLocalAttentionMask"),
    (mw.causal() | mw.prefix(3), {}, "Tensor"),
]

SPLASH = [
    (mw.everything(), {}, "FullMask"),
    (mw.causal(), {}, "CausalMask"),
    (mw.causal(), {"kv_len": 11}, "CausalMask"),
    (mw.causal(), {"kv_len": 11, "q_start": 1}, "CausalMask"),
    (mw.window(2, 1), {}, "LocalMask"),
    (mw.window(2, 1), {"kv_len": 11}, "LocalMask"),
    (mw.causal(), {"kv_len": 6, "q_start": -1}, "CausalMask"),
    (mw.nothing(), {}, "CausalMask"),
    (mw.window(None, 2), {}, "CausalMask"),
    (mw.window(2, None), {}, "LocalMask"),
    (mw.window(1, 0), {"kv_len": 4, "q_start": 0}, "LocalMask"),
    (mw.window(6) - mw.window(4), {}, "LocalMask"),
    (~mw.causal(), {}, "LocalMask"),
    (mw.recipes.chunked(3), {}, "ChunkedCausalMask"),
    (mw.recipes.chunked(4), {"kv_len": 4, "q_start": 0}, "ChunkedCausalMask"),
    (mw.window(1) | (mw.window(6) - mw.window(4)), {}, "LogicalOr"),
    (mw.recipes.chunked(4) | mw.window(1), {}, "LogicalOr"),
    (mw.recipes.chunked(4) & mw.window(2), {}, "LogicalAnd"),
    ((mw.recipes.chunked(4) | mw.window(1)) & mw.window(2), {}, "LogicalAnd"),
    (mw.causal() | mw.prefix(3), {}, "NumpyMask"),
]

# Masks that a lazy mask represents together with segments of each sequence.
SEGMENTS = [
    (mw.documents(lengths=[[3, 5]]), "FullMask"),
    (mw.causal() & mw.documents(lengths=[[3, 5]]), "CausalMask"),
    (mw.causal() & mw.documents(lengths=[[3, 5], [6, 2]]), "CausalMask"),
    (mw.causal() & mw.padding(lengths=[3, 8]), "CausalMask"),
    (mw.window(2, 1) & mw.documents(lengths=[[3, 5], [4, 4]]), "LocalMask"),
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
    lowered = mw.lower(bound, "jax.splash", empty_rows="native")
    assert lowered["segment_ids"] is None
    assert [type(head).__name__ for head in lowered["mask"].masks] == [name] * 2
    shape = (1, 2, *bound.shape[2:])
    right = np.broadcast_to(bound.dense(), shape)
    assert np.array_equal(READERS["jax.splash"](lowered, shape), right)


@pytest.mark.parametrize(("mask", "name"), SEGMENTS)
def test_splash_with_segments(mask: mw.Mask, name: str) -> None:
    bound = mask.on(8, heads=2)
    lowered = mw.lower(bound, "jax.splash")
    assert [type(head).__name__ for head in lowered["mask"].masks] == [name] * 2
    shape = (bound.frame.batch, 2, 8, 8)
    right = np.broadcast_to(bound.dense(), shape)
    assert np.array_equal(READERS["jax.splash"](lowered, shape), right)


def test_splash_masks_differ_by_head() -> None:
    heads = [mw.recipes.chunked(4) & mw.window(2), mw.causal(), mw.causal() | mw.prefix(3)]
    bound = mw.by_head(heads).on(8)
    lowered = mw.lower(bound, "jax.splash")
    names = [type(head).__name__ for head in lowered["mask"].masks]
    assert names == ["LogicalAnd", "CausalMask", "NumpyMask"]
    assert np.array_equal(READERS["jax.splash"](lowered, (1, 3, 8, 8)), bound.dense())


@pytest.mark.parametrize(
    "mask", [mw.recipes.chunked(100), mw.causal() & mw.documents(lengths=[[99, 157]])]
)
def test_splash_kernel_computes_lazy_masks(mask: mw.Mask) -> None:
    from jax.experimental.pallas.ops.tpu import splash_attention
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    lowered = mw.lower(mask, "jax.splash", 256)
    q, k, v = random_qkv((1, 1, 256, 256), 128)
    run = kernel.make_splash_mha_single_device(
        lowered["mask"],
        block_sizes=splash_attention.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128),
        interpret=True,
    )
    inputs = [x[0].astype(np.float32) for x in (q / np.sqrt(128), k, v)]
    ids = lowered["segment_ids"]
    if ids is not None:
        ids = splash_attention.SegmentIds(q=ids.q[0], kv=ids.kv[0])
    out = np.asarray(run(*inputs, segment_ids=ids))
    assert np.allclose(out, attention(q, k, v, mask.on(256).dense())[0], rtol=2e-3, atol=2e-3)


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
