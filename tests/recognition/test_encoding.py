"""Encodings of masks in arrays: values, conventions and polarity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright import ArgumentError, Mask
from maskwright.recognition import recognize
from maskwright.recognition.encoding import choose_polarity, interpretations
from tests._helpers.mask_encodings import check_exact

CAUSAL = np.tri(3, dtype=np.bool_)


@pytest.mark.parametrize(
    ("array", "form"),
    [(CAUSAL, "bool"), (CAUSAL.astype(np.uint8), "integer"), (CAUSAL.astype(np.float16), "float")],
)
def test_bools_and_zero_one_have_two_interpretations(array: Any, form: str) -> None:
    keep, drop = interpretations(array, "it")
    assert np.array_equal(keep.visible, CAUSAL)
    assert np.array_equal(drop.visible, ~CAUSAL)
    assert (keep.convention.form, keep.convention.keeps, keep.convention.hides) == (form, 1, 0)
    assert (drop.convention.form, drop.convention.keeps, drop.convention.hides) == (form, 0, 1)
    assert keep.convention.shape == (3, 3)
    assert keep.convention.dtype == str(array.dtype)


@pytest.mark.parametrize("fill", [-np.inf, -1e9, -1e4, -1000, np.finfo(np.float32).min])
def test_additive_arrays_have_one_interpretation(fill: float) -> None:
    (only,) = interpretations(np.where(CAUSAL, 0.0, fill), "it")
    assert np.array_equal(only.visible, CAUSAL)
    assert only.convention.form == "additive"
    assert only.convention.hides == fill


def test_highest_of_several_mask_values_is_reported() -> None:
    (only,) = interpretations([0.0, -1e9, -2e9], "it")
    assert only.convention.hides == -1e9
    assert only.visible.tolist() == [True, False, False]


def test_additive_integers() -> None:
    (only,) = interpretations([0, -10000, 0], "it")
    assert only.convention.form == "additive"
    assert only.visible.tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32])
def test_empty_arrays(dtype: Any) -> None:
    assert all(
        reading.visible.shape == (0, 2)
        for reading in interpretations(np.zeros((0, 2), dtype), "it")
    )


@pytest.mark.parametrize(
    ("array", "text"),
    [
        ([[0.0, -5.0]], "it holds -5 at (0, 1), which neither keeps nor masks"),
        ([[0.0, np.inf]], "it holds inf at (0, 1)"),
        ([3, 1], "it holds 3 at (0,)"),
        ([0.0, -1e9, 5.0], "it holds 5 at (2,)"),
        (np.array([1j]), "it has dtype complex128"),
        (["yes"], "it has dtype <U3"),
        (None, "it is None"),
    ],
)
def test_invalid_values_raise(array: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        interpretations(array, "it")
    assert text in str(error.value)


def test_convention_text() -> None:
    assert str(interpretations(CAUSAL, "it")[1].convention) == "bool, False keeps, (3, 3)"
    numbers = interpretations([1, 0], "it")[0].convention
    assert str(numbers) == "integer, 1 keeps, 0 masks, (2,), int64"
    added = interpretations([0.0, -np.inf], "it")[0].convention
    assert repr(added) == "additive, 0 keeps, -inf masks, (2,), float64"


# ── polarity ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "mask",
    [
        mw.causal(),
        mw.window(2),
        mw.causal() & mw.documents(lengths=[[3, 5]]),
        mw.causal() & mw.padding(lengths=[5, 8]),
        mw.causal() & mw.padding(keep=[[0, 0, 1, 1, 1, 1, 1, 1]]),
        mw.causal() & mw.padding(keep=[[0, 0, 0, 0, 0, 0, 1, 1]]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keeps", [True, False])
def test_unambiguous_polarity(mask: Mask, keeps: bool) -> None:
    cells = mask.on(8).dense()
    found = recognize(cells == keeps)
    assert not found.ambiguous
    assert found.convention.keeps == keeps
    check_exact(found, cells)


@pytest.mark.parametrize(
    "mask",
    [
        mw.window(2, 2),
        mw.everything(),
        mw.documents(lengths=[[3, 5]]),
        mw.causal() | mw.prefix(3),
        mw.recipes.longformer(1, [0]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keeps", [True, False])
def test_likely_polarity_comes_first(mask: Mask, keeps: bool) -> None:
    """Most masks contain the diagonal, but a graph without self-loops does not."""
    cells = mask.on(8).dense()
    found = recognize(cells == keeps)
    assert found.ambiguous
    assert found.convention.keeps == keeps
    check_exact(found, cells)


@pytest.mark.parametrize(
    "mask",
    [
        mw.nothing(),
        mw.stride(3, phase=1),
        mw.graph([(0, 1), (1, 2), (3, 7)], loops=False),
        mw.graph([(0, 2), (2, 4)], loops=False),
        mw.graph([(1, 6)], loops=False) & mw.padding(lengths=[8, 7]),
        mw.tree([-1, 0, 1, 1, 3, 0, 0, 2]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keeps", [True, False])
def test_right_polarity_is_among_results(mask: Mask, keeps: bool) -> None:
    cells = mask.on(8).dense()
    found = recognize(cells == keeps)
    readings = [found, *([found.other] if found.other else [])]
    right = [one for one in readings if one.convention.keeps == keeps]
    assert right
    check_exact(right[0], cells)


KEEP_MASKS = [
    mw.causal(),
    mw.window(2),
    mw.window(1, 3),
    mw.window(0, 0),
    mw.stride(3),
    mw.causal() & mw.window(6) & mw.stride(2),
    mw.causal() & ~mw.keys([0, 1, 2]),
    mw.causal() | mw.prefix(3),
    mw.window(3) | (mw.causal() & mw.keys([0])),
    mw.by_head([mw.causal(), mw.window(1, 1)]),
]


@pytest.mark.parametrize("size", [(5, 1), (5, 2), (8, 4), (3, 12), (24, 24), (30, 24), (64, 32)])
@pytest.mark.parametrize("mask", KEEP_MASKS, ids=repr)
@pytest.mark.parametrize("is_first_aligned", [True, False])
def test_masks_are_not_read_as_their_complement(
    mask: Mask, size: tuple[int, int], is_first_aligned: bool
) -> None:
    """Few queries with keys, as in a causal mask that is aligned to the last key, are no evidence."""
    cells = mask.on(*size, heads=2, q_start=0 if is_first_aligned else None).dense()
    if cells.all() or not cells.any():
        return
    starts = {0, size[1] - size[0]}
    for keep, is_keep in ((cells, True), (~cells, False)):
        choice = choose_polarity(keep, ~keep, starts)
        assert not choice.clear or choice.best == (not is_keep)
        assert not is_keep or choice.best == 0


@pytest.mark.parametrize(
    ("size", "masked"),
    [
        ((7, 11), [(1, 5), (4, 4), (5, 2)]),
        ((2, 7), [(0, 5), (1, 1)]),
        ((9, 10), [(4, 4), (6, 6)]),
        ((4, 5), [(0, 1), (1, 1), (2, 1)]),
        ((6, 8), [(1, 1), (5, 2), (3, 0)]),
    ],
)
@pytest.mark.parametrize("keeps", [True, False])
def test_few_masked_cells_are_no_causal_mask(
    size: tuple[int, int], masked: list[tuple[int, int]], keeps: bool
) -> None:
    cells = np.ones(size, bool)
    cells[tuple(zip(*masked, strict=True))] = False
    found = recognize(cells == keeps)
    assert found.ambiguous or found.convention.keeps == keeps


def test_strictly_causal_mask_is_preferred_to_complement() -> None:
    for keeps in (1, 0):
        found = recognize(np.tri(4, k=-1, dtype=bool) == keeps)
        assert found.convention.keeps == keeps
        assert found.ambiguous


def test_ambiguous_polarity() -> None:
    found = recognize([0, 0, 1, 1])
    assert found.ambiguous
    assert found.other is not None
    assert found.other.mask == mw.padding(lengths=[2])
    assert found.convention.keeps == 1
    assert found.other.convention.keeps == 0
    assert "ambiguous" in str(found)
    assert str(found.other) in str(found)
    for polarity, reading in (("keep", found), ("drop", found.other)):
        explicit = recognize([0, 0, 1, 1], polarity=polarity)  # type: ignore[arg-type]
        assert explicit.mask == reading.mask
        assert not explicit.ambiguous


def test_fully_masked_sequence_decides_polarity() -> None:
    rows = [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert recognize(rows, axes="bk").mask == mw.padding(lengths=[3, 4])
    turned = recognize(1 - np.array(rows), axes="bk")
    assert turned.mask == mw.padding(lengths=[3, 4])
    assert turned.convention.keeps == 0


def test_zeros_with_polarity() -> None:
    assert recognize(np.zeros((3, 3))).mask == mw.everything()
    assert recognize(np.zeros((3, 3)), polarity="drop").mask == mw.everything()
    assert recognize(np.zeros((3, 3)), polarity="keep").mask == mw.nothing()
