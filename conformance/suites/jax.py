"""jax: the mask classes of splash attention, and `jax.nn.dot_product_attention`.

The wheel contains no tests: the cases are ours, the expected values the library's own functions'.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

import maskwright as mw
from conformance.cells import check_cells
from conformance.runners import Side, run_functions
from conformance.sources import NotRunError, installed
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.sources import Sources

SHAPES = ((1, 1), (4, 4), (12, 12), (8, 16), (16, 8), (12, 20))
OFFSETS = (0, 3, -3)
WINDOWS = ((None, None), (2, None), (None, 1), (0, 0), (3, 2), (40, 40))
CHUNKS = (1, 4, 7, 32)
TOLERANCE = 2e-6


def run_splash(sources: Sources) -> Runs:  # noqa: ARG001 - the classes are in the installed package
    """Every class with sizes, offsets, windows and chunks; pairs of them; and one mask per head."""
    release = installed("jax")
    try:
        from tests._helpers.target_readers import READERS
    except ImportError as error:
        raise NotRunError(f"the checks cannot be imported: {error}") from None
    tests = {}
    for name, (theirs, mask, q_start) in splash_cases().items():
        heads, q_len, kv_len = theirs.shape
        bound = mask.on(q_len, kv_len, 1, heads, q_start=q_start)
        tests[name] = partial(
            check_cells,
            partial(theirs.__getitem__, (slice(None),) * 3),
            partial(lower_splash, bound, READERS["jax.splash"]),
        )
    return run_functions(f"jax {release}", tests)


def lower_splash(bound: mw.BoundMask, read: Callable[..., Any]) -> np.ndarray:
    """The cells of a mask lowered to splash attention's classes, by those and their table of blocks."""
    lowered = mw.lower(bound, "jax.splash", empty_rows="native")
    shape = (1, bound.frame.heads, *bound.shape[2:])
    cells: np.ndarray = read(lowered, shape)[0]
    return cells


def splash_cases() -> dict[str, tuple[Any, mw.Mask, int]]:
    """MultiHeadMasks of the library by name, each with the same mask of ours and its `q_start`."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash

    cases: dict[str, tuple[Any, mw.Mask, int]] = {}
    for index, shape in enumerate(SHAPES):
        cells = np.random.default_rng(index).random(shape) < 0.5
        aligned: dict[str, tuple[Any, mw.Mask]] = {
            "FullMask": (splash.FullMask(shape), mw.everything()),
            "NumpyMask": (splash.NumpyMask(cells), mw.dense(cells)),
        }
        for size in CHUNKS:
            mask = mw.causal() & mw.chunks(size)
            aligned[f"ChunkedCausalMask {size}"] = (splash.ChunkedCausalMask(shape, size), mask)
        shifted: dict[tuple[str, int], tuple[Any, mw.Mask]] = {}
        for offset in OFFSETS:
            shifted["CausalMask", offset] = splash.CausalMask(shape, offset), mw.causal()
            for back, ahead in WINDOWS:
                local = splash.LocalMask(shape, (back, ahead), offset)
                shifted[f"LocalMask {back} {ahead}", offset] = local, mw.window(back, ahead)
        aligned |= {name: pair for (name, offset), pair in shifted.items() if not offset}
        single = {(name, 0): pair for name, pair in aligned.items()} | shifted
        for (name, offset), (theirs, mask) in single.items():
            cases[f"{name}, {shape}, offset {offset}"] = (
                splash.MultiHeadMask([theirs]),
                mask,
                offset,
            )
        names = list(aligned)
        for first, second in zip(names, names[1:] + names[:1], strict=True):
            (left, ours), (right, other) = aligned[first], aligned[second]
            name = f"{first}, {second}, {shape}"
            cases[f"LogicalAnd: {name}"] = splash.MultiHeadMask([left & right]), ours & other, 0
            cases[f"LogicalOr: {name}"] = splash.MultiHeadMask([left | right]), ours | other, 0
            heads = splash.MultiHeadMask([left, right])
            cases[f"MultiHeadMask: {name}"] = heads, mw.by_head([ours, other]), 0
    return cases


def run_attention(sources: Sources) -> Runs:  # noqa: ARG001 - the function is in the package
    """All combinations of the arguments that mask, with and without shared KV heads."""
    release = installed("jax")
    tests: dict[str, Callable[[Side], None]] = {}
    for (q_len, kv_len), causal, window, lengths, masked, kv_heads in product(
        ((12, 12), (5, 9), (9, 5)),
        (False, True),
        (None, (2, 1), (0, 3)),
        (None, "keys", "queries", "both"),
        (False, True),
        (4, 2),
    ):
        options: dict[str, Any] = {"is_causal": causal, "local_window_size": window}
        if lengths in ("keys", "both"):
            options["key_value_seq_lengths"] = np.array([kv_len, kv_len - 2], np.int32)
        if lengths in ("queries", "both"):
            options["query_seq_lengths"] = np.array([q_len - 1, q_len], np.int32)
        if masked:
            cells = np.random.default_rng(0).random((2, 4, q_len, kv_len)) < 0.7
            cells[..., 0] = True
            options["mask"] = cells
        name = f"({q_len}, {kv_len}), {causal=}, {window=}, {lengths=}, {masked=}, {kv_heads=}"
        tests[name] = partial(check_attention, (q_len, kv_len, kv_heads), options)
    return run_functions(f"jax {release}", tests)


def check_attention(sizes: tuple[int, int, int], options: dict[str, Any], side: Side) -> None:
    """Raise if the rows with visible keys, or those beyond the lengths of queries, differ."""
    import jax

    q_len, kv_len, kv_heads = sizes
    generator = np.random.default_rng(sum(sizes))
    q, k, v = (
        generator.standard_normal((2, length, heads, 8), np.float32)
        for length, heads in ((q_len, 4), (kv_len, kv_heads), (kv_len, kv_heads))
    )
    expected = np.asarray(jax.nn.dot_product_attention(q, k, v, **options))
    if side == "original":
        return
    bound = read_options(options).on(q_len, kv_len, 2, 4, q_start=0)
    visible = np.broadcast_to(bound.dense().any(3), (2, 4, q_len)).swapaxes(1, 2)
    by_heads = (x.swapaxes(1, 2).copy() for x in (q, k, v))
    out = mw.attention(*by_heads, bound, enable_gqa=kv_heads < 4).swapaxes(1, 2)
    lowered = mw.lower(bound, "jax", empty_rows="native")
    again = np.asarray(jax.nn.dot_product_attention(q, k, v, **lowered))
    for result in (out, again):
        np.testing.assert_allclose(
            result[visible], expected[visible], rtol=TOLERANCE, atol=TOLERANCE
        )
    for row, length in enumerate(options.get("query_seq_lengths", ())):
        np.testing.assert_array_equal(out[row, length:], expected[row, length:])


def read_options(options: dict[str, Any]) -> mw.Mask:
    """The mask of the arguments of `jax.nn.dot_product_attention`."""
    mask = mw.causal() if options["is_causal"] else mw.everything()
    if options["local_window_size"] is not None:
        mask = mask & mw.window(*options["local_window_size"])
    if "key_value_seq_lengths" in options:
        mask = mask & mw.padding(lengths=options["key_value_seq_lengths"])
    if "query_seq_lengths" in options:
        mask = mask & mw.padding(lengths=options["query_seq_lengths"]).T
    if "mask" in options:
        mask = mask & mw.dense(options["mask"])
    return mask


SUITES = (
    Suite(
        "jax.splash",
        "mask classes of splash attention, with sizes of ours; read by their cells and `process_mask`",
        "the classes of `splash_attention_mask`",
        run_splash,
    ),
    Suite(
        "jax.attention",
        "`jax.nn.dot_product_attention`, all combinations of arguments that mask, made by us: "
        "rows with visible keys",
        "`jax.nn.dot_product_attention`",
        run_attention,
    ),
)
