"""Every class of xformers' attn_bias is returned where it is equal, by its own `materialize`."""

from __future__ import annotations

import inspect
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from xformers.ops.fmha import attn_bias as biases

import maskwright as mw
from tests._helpers.strategies import bind
from tests._helpers.target_readers import READERS
from tests._helpers.target_strategies import for_target

DOCUMENTS = mw.documents(lengths=[[3, 5]])
ROOM = mw.padding(keep=np.arange(12) % 6 < [[4]])  # two documents of 4 keys, with room for 6
HALVES = mw.documents(ids=[[0] * 6 + [1] * 6])


def near(queries: list[int], keys: list[tuple[int, int]], size: int, kind: str) -> mw.Mask:
    """Blocks of queries and keys, whose last query is aligned with the last key."""
    cells = np.zeros((sum(queries), size), np.bool_)
    for first, count, (start, stop) in zip(
        accumulate(queries, initial=0), queries, keys, strict=False
    ):
        place = np.arange(count)[:, None] + (stop - start) - count
        key = np.arange(stop - start)[None, :]
        inside = (key <= place) if "causal" in kind else key >= 0
        inside = inside & (key >= place - 1) if "window" in kind else inside
        inside = inside & (key <= place + 1) if "both" in kind else inside
        cells[first : first + count, start:stop] = inside
    return mw.dense(cells)


ROOMS = [(0, 4), (6, 9)]
GAPS = [(1, 5), (6, 9)]
# Pages of two: the first block has the keys 0 … 3, or 1 … 3, in pages 3 and 0, the second 0 … 2 in
# pages 1 and 2.
PAGES = np.array([6, 7, 0, 1, 2, 3, 4, 5])


def paged(mask: mw.Mask) -> mw.Mask:
    """The keys of `mask` in their pages."""
    cells = np.zeros((4, 8), np.bool_)
    cells[:, PAGES] = mask.on(4, 8, q_start=0).dense()[0, 0]
    return mw.dense(cells)


PAGED = [(0, 4), (4, 7)]
PAGED_GAPS = [(1, 4), (4, 7)]

# The mask, its sizes and options of `lower`.
CLASSES: dict[str, tuple[mw.Mask, dict[str, Any]]] = {
    "LowerTriangularMask": (mw.causal(), {"q_len": 4, "kv_len": 6, "q_start": 0, "batch": 2}),
    "LowerTriangularFromBottomRightMask": (mw.causal(), {"q_len": 4, "kv_len": 6, "batch": 2}),
    "LowerTriangularFromBottomRightLocalAttentionMask": (
        mw.window(1),
        {"q_len": 6, "kv_len": 4, "batch": 2},
    ),
    "LocalAttentionFromBottomRightMask": (mw.window(2, 1), {"q_len": 4, "kv_len": 9, "batch": 2}),
    "LowerTriangularMaskWithTensorBias": (
        mw.causal(),
        {"q_len": 4, "batch": 2, "bias": mw.bias.alibi([0.5])},
    ),
    "BlockDiagonalMask": (DOCUMENTS, {}),
    "BlockDiagonalCausalMask": (
        near([2, 3], [(0, 2), (4, 7)], 9, "causal"),
        {"q_len": 5, "kv_len": 9},
    ),
    "BlockDiagonalCausalFromBottomRightMask": (mw.causal() & DOCUMENTS, {}),
    "BlockDiagonalCausalLocalAttentionMask": (mw.window(1) & DOCUMENTS, {}),
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask": (
        near([2, 3], [(0, 4), (4, 9)], 9, "causal window"),
        {},
    ),
    "BlockDiagonalPaddedKeysMask": (HALVES & ROOM, {}),
    "BlockDiagonalCausalWithOffsetPaddedKeysMask": (near([2, 2], ROOMS, 12, "causal"), {}),
    "BlockDiagonalLocalAttentionPaddedKeysMask": (near([4, 3], ROOMS, 12, "window both"), {}),
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask": (
        near([3, 2], ROOMS, 12, "causal window"),
        {},
    ),
    "BlockDiagonalGappyKeysMask": (near([3, 2], GAPS, 10, ""), {}),
    "BlockDiagonalCausalWithOffsetGappyKeysMask": (near([3, 2], GAPS, 10, "causal"), {}),
    "PagedBlockDiagonalPaddedKeysMask": (paged(near([2, 2], PAGED, 8, "")), {"page_size": 2}),
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask": (
        paged(near([2, 2], PAGED, 8, "causal")),
        {"page_size": 2},
    ),
    "PagedBlockDiagonalGappyKeysMask": (paged(near([2, 2], PAGED_GAPS, 8, "")), {"page_size": 2}),
    "PagedBlockDiagonalCausalWithOffsetGappyKeysMask": (
        paged(near([2, 2], PAGED_GAPS, 8, "causal")),
        {"page_size": 2},
    ),
}
NO_BACKWARD = ("WithTensorBias", "PaddedKeys", "GappyKeys")


def test_all_classes_are_listed() -> None:
    classes = {
        name
        for name, kind in inspect.getmembers(biases, inspect.isclass)
        if issubclass(kind, biases.AttentionBias) and kind is not biases.AttentionBias
    }
    assert classes == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_returned(name: str) -> None:
    mask, arguments = CLASSES[name]
    sizes = {key: arguments[key] for key in arguments if key not in ("bias", "page_size")}
    options = {key: arguments[key] for key in arguments if key not in sizes}
    queries, keys = mask.implied_sizes()
    sizes.setdefault("q_len", keys if queries is None else queries)
    sizes.setdefault("kv_len", keys)
    bound = mask.on(**sizes)
    lowered = mw.lower(bound, "xformers", **options)
    assert type(lowered).__name__ == name
    if "bias" in options:
        values = lowered.materialize((2, 1, 4, 4), torch.float64)
        dense = np.asarray(options["bias"].dense(bound.frame))
        right = np.broadcast_to(np.where(bound.dense(), dense, -np.inf), values.shape)
        assert np.array_equal(values.numpy(), right)
        return
    shape = (bound.frame.batch, bound.frame.heads, *bound.shape[2:])
    right = np.broadcast_to(bound.dense(), shape)
    assert np.array_equal(READERS["xformers"](lowered, shape), right)
    code: dict[str, Any] = {}
    exec(mw.explain_lowering(bound, "xformers", **options), code)
    assert type(code["attn_bias"]).__name__ == name
    assert np.array_equal(READERS["xformers"](code["attn_bias"], shape), right)


@pytest.mark.parametrize("name", [name for name in CLASSES if "Paged" not in name])
def test_backward_excludes_classes_without_it(name: str) -> None:
    mask, arguments = CLASSES[name]
    lowered = mw.lower(mask, "xformers", backward=True, **arguments)
    if any(part in name for part in NO_BACKWARD):
        assert isinstance(lowered, torch.Tensor)
    else:
        assert type(lowered).__name__ == name


def test_learned_bias_stays_tensor() -> None:
    slopes = torch.tensor([0.5], requires_grad=True)
    lowered = mw.lower(mw.causal(), "xformers", 4, bias=mw.bias.alibi(slopes))
    assert isinstance(lowered, torch.Tensor)
    assert lowered.requires_grad


@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (mw.causal(), "BlockDiagonalCausalFromBottomRightMask"),
        (mw.everything(), "BlockDiagonalMask"),
        (mw.padding(lengths=[3, 5]), "BlockDiagonalPaddedKeysMask"),
        (mw.window(1) & mw.documents(lengths=[[3, 3], [2, 4]]), "BlockDiagonalCausalLocalAttentionMask"),
        (mw.causal() | mw.prefix(2), "BlockDiagonalCausalWithOffsetGappyKeysMask"),
    ],
)  # fmt: skip
def test_packed_sequences(mask: mw.Mask, name: str) -> None:
    bound = mask.on(6, batch=2)
    lowered = mw.lower(bound, "xformers", packed=True)
    assert type(lowered).__name__ == name
    right = np.broadcast_to(bound.dense(), (2, 1, 6, 6))
    assert np.array_equal(READERS["xformers"](lowered, (2, 1, 6, 6)), right)
    assert not hasattr(mw.lower(bound, "xformers"), "q_seqinfo")


@pytest.mark.parametrize(
    "options",
    [{"packed": True}, {"page_size": 2}, {"packed": True, "bias": mw.bias.alibi([1.0])}],
)
def test_masks_and_biases_without_class_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(mw.Unsupported) as refusal:
        mw.lower(mw.causal() - mw.keys([1]), "xformers", 8, **options)
    assert refusal.value.term in ("~keys([1])", "alibi([1.0])")


def test_invalid_page_sizes_are_refused() -> None:
    for options in ({"page_size": 3}, {"page_size": 0}, {"page_size": 2, "backward": True}):
        with pytest.raises(mw.ArgumentError, match="page_size"):
            mw.lower(mw.causal(), "xformers", 8, **options)


@st.composite
def attention_biases(draw: st.DrawFn) -> tuple[Any, np.ndarray, int | None]:
    """An object of xformers, its cells, and the size of its pages."""
    count = draw(st.integers(1, 3))
    size = st.integers(1, 4)

    def several(each: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(each, min_size=count, max_size=count))

    queries = several(size)
    keys = [length + more for length, more in zip(queries, several(st.integers(0, 3)), strict=True)]
    window, back, ahead = draw(size), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["one", "blocks", "padded", "gappy", "paged"]))
    if kind == "one":
        bias = draw(
            st.sampled_from(
                [
                    biases.LowerTriangularMask(),
                    biases.LowerTriangularFromBottomRightMask(),
                    biases.LowerTriangularFromBottomRightLocalAttentionMask(window),
                    biases.LocalAttentionFromBottomRightMask(back, ahead),
                ]
            )
        )
        return bias, cells_of(bias, (draw(st.integers(1, 6)), draw(st.integers(1, 6)))), None
    if kind == "blocks":
        blocks = biases.BlockDiagonalMask.from_seqlens(queries, keys)
        other = biases.BlockDiagonalMask.from_seqlens(keys, queries)
        reach = window + max(q - k for q, k in zip(keys, queries, strict=True))
        bias = draw(
            st.sampled_from(
                [
                    blocks,
                    blocks.make_causal(),
                    other.make_causal(),
                    blocks.make_causal_from_bottomright(),
                    blocks.make_local_attention(window),
                    other.make_local_attention(reach),
                    blocks.make_local_attention_from_bottomright(window),
                ]
            )
        )
        return bias, cells_of(bias, seqlens(bias)), None
    causal = draw(st.sampled_from(["", "CausalWithOffset"]))
    if kind == "padded":
        room = max(keys) + draw(st.integers(0, 2))
        padded = f"BlockDiagonal{causal}PaddedKeysMask"
        bias = getattr(biases, padded).from_seqlens(queries, room, keys)
        if not causal and draw(st.booleans()):
            bias = bias.make_local_attention(back, ahead)
        return bias, cells_of(bias, seqlens(bias)), None
    if kind == "gappy":
        total = sum(keys) + draw(st.integers(0, 3))
        starts = [draw(st.integers(0, total - length)) for length in keys]
        gappy = getattr(biases, f"BlockDiagonal{causal}GappyKeysMask")
        bias = gappy.from_seqlens(queries, [*starts, total], keys)
        return bias, cells_of(bias, seqlens(bias)), None
    page_size = draw(st.integers(1, 3))
    width = -(-max(keys) // page_size) + draw(st.integers(0, 1))
    pages = draw(st.permutations(range(count * width)))
    table = torch.tensor(pages, dtype=torch.int32).reshape(count, width)
    room = width * page_size
    if draw(st.booleans()):
        bias = getattr(biases, f"PagedBlockDiagonal{causal}PaddedKeysMask").from_seqlens(
            queries, keys, table, page_size
        )
    else:
        gaps = [draw(st.integers(0, min(page_size, length) - 1)) for length in keys]
        starts = [index * room + gap for index, gap in enumerate(gaps)]
        lengths = [length - gap for length, gap in zip(keys, gaps, strict=True)]
        gappy = getattr(biases, f"BlockDiagonal{causal}GappyKeysMask").from_seqlens(
            queries, [*starts, count * room], lengths
        )
        paged_type = getattr(biases, f"PagedBlockDiagonal{causal}GappyKeysMask")
        bias = gappy.make_paged(table, page_size, room, paged_type)
    return bias, cells_of(bias, (sum(queries), count * room)), page_size


def seqlens(bias: Any) -> tuple[int, int]:
    return bias.q_seqinfo.seqstart_py[-1], bias.k_seqinfo.seqstart_py[-1]


def cells_of(bias: Any, shape: tuple[int, int]) -> np.ndarray:
    return torch.isfinite(bias.materialize(shape)).numpy()


@settings(max_examples=150)
@given(attention_biases(), st.integers(1, 2))
def test_no_object_becomes_tensor(case: tuple[Any, np.ndarray, int | None], batch: int) -> None:
    bias, cells, page_size = case
    if not cells.any():
        return  # a kernel has nothing to compute
    bound = mw.dense(cells).on(*cells.shape, batch=batch if page_size is None else 1)
    blocks = hasattr(bias, "q_seqinfo")
    options: dict[str, Any] = {"page_size": page_size} if page_size else {"packed": blocks}
    lowered = mw.lower(bound, "xformers", **options)
    event(f"{type(bias).__name__} as {type(lowered).__name__}")
    shape = (bound.frame.batch, 1, *cells.shape)
    right = np.broadcast_to(cells, shape)
    assert lowered is None or isinstance(lowered, biases.AttentionBias)
    assert np.array_equal(READERS["xformers"](lowered, shape), right)


@settings(max_examples=100)
@given(
    for_target("xformers"),
    st.sampled_from([{"packed": True}, {"backward": True}, {"page_size": 1}, {"page_size": 2}]),
)
def test_options_return_exactly_this_mask(case: Any, options: dict[str, Any]) -> None:
    bound = bind(*case)
    shape = (bound.frame.batch, bound.frame.heads, *bound.shape[2:])
    try:
        lowered = mw.lower(bound, "xformers", **options)
    except (mw.Unsupported, mw.ArgumentError):
        event("refused")
        assert "backward" not in options
        return
    event(type(lowered).__name__)
    right = np.broadcast_to(bound.dense(), shape)
    assert np.array_equal(READERS["xformers"](lowered, shape), right)
