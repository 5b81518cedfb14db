"""The way back: what an array says, and what is said about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import ArgumentError, Frame, Mask
from maskwright.recognition import plane as plane_module
from maskwright.recognition.recognize import recognize
from tests.conftest import FUZZ
from tests.recognition.encoded import CONVENTIONS, check_exact, written
from tests.strategies import bind, cases

R = mw.recipes


# ── free compositions ─────────────────────────────────────────────────────────────────────────


def cells_on(mask: Mask, frame: Frame) -> np.ndarray:
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    return np.array(np.broadcast_to(bind(mask, frame).dense(), shape))


@settings(max_examples=max(60, FUZZ // 10))
@given(case=cases(), convention=st.sampled_from(CONVENTIONS))
def test_any_composition_comes_back_exactly(case: tuple[Mask, Frame], convention: str) -> None:
    mask, frame = case
    cells = cells_on(mask, frame)
    array, polarity = written(cells, convention)
    found = recognize(array, polarity=polarity, q_start=frame.q_start)
    assert found.frame == frame
    check_exact(found, cells)
    assert bind(mask, frame).equals(found.mask)


@settings(max_examples=max(30, FUZZ // 10))
@given(case=cases(), convention=st.sampled_from(CONVENTIONS))
def test_without_polarity_every_reading_is_exact(case: tuple[Mask, Frame], convention: str) -> None:
    cells = cells_on(*case)
    array = written(cells, convention)[0]
    found = recognize(array)
    readings = [found, *([found.other] if found.other else [])]
    for reading in readings:
        check_exact(reading, array == reading.convention.keeps)
    if found.ambiguous or not convention.endswith(("keep", "drop")):
        assert any(np.array_equal(array == one.convention.keeps, cells) for one in readings)


@settings(max_examples=max(30, FUZZ // 10))
@given(
    mask=st.sampled_from(
        [
            mw.causal(),
            mw.window(3, 1),
            mw.causal() & mw.padding(lengths=[9, 5]),
            mw.documents(lengths=[[4, 5, 3]]),
            mw.causal() | mw.prefix(4),
            mw.image(3, 4, radius=1),
            mw.tree([-1, 0, 0, 1, 1, 2, 2, 5, 7, 7, 3, 10]),
            mw.by_head([mw.causal(), mw.chunks(4)]),
        ]
    ),
    place=st.integers(0, 143),
)
def test_one_flipped_cell_is_seen(mask: Mask, place: int) -> None:
    cells = np.array(mask.on(12).dense())
    cells[-1, -1].flat[place] ^= True
    check_exact(recognize(cells, polarity="keep"), cells)


def test_a_flipped_cell_is_named() -> None:
    cells = np.array(mw.causal().on(20).dense())
    cells[0, 0, 3, 11] = True
    found = recognize(cells).mask
    assert repr(found) == "causal() | graph([[3, 11]])"


# ── large arrays: what is weighed on a few rows holds on all ──────────────────────────────────

LARGE = [
    mw.causal(),
    mw.causal() & mw.padding(lengths=[500]),
    mw.window(37) & mw.documents(lengths=[[100, 250, 249]]),
    R.sinks(64),
    R.sparse_transformer(16),
    R.longformer(9, [0, 300]),
    R.shared_prefix(100, [130, 170, 200]),
    R.image_text(np.where(np.arange(600) // 20 % 4 == 0, np.arange(600) // 80, -1)),
    mw.documents(ids=np.arange(600) * 7 % 4),
    R.natten(20, 30, 5),
]


@pytest.mark.parametrize("mask", LARGE, ids=lambda mask: repr(mask)[:40])
def test_large_arrays(mask: Mask) -> None:
    cells = mask.on(600).dense()
    found = recognize(cells, polarity="keep")
    check_exact(found, cells)
    assert len(repr(found.mask)) <= len(repr(mask))


@settings(max_examples=max(30, FUZZ // 10))
@given(case=cases(), few=st.integers(1, 9))
def test_what_a_large_array_goes_through(case: tuple[Mask, Frame], few: int) -> None:
    cells = cells_on(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plane_module, "MAX_SMALL_CELLS", 0)
        patch.setattr(plane_module, "NUM_SAMPLE_ROWS", few)
        check_exact(recognize(cells, polarity="keep", q_start=case[1].q_start), cells)


def test_a_large_array_that_differs_in_one_cell() -> None:
    cells = np.array(mw.causal().on(600).dense())
    cells[0, 0, 301, 17] = False
    found = recognize(cells)
    check_exact(found, cells)
    assert len(repr(found.mask)) < 60


def test_a_large_array_without_any_order_is_listed() -> None:
    cells = np.random.default_rng(0).random((600, 600)) < 0.5
    found = recognize(cells, polarity="keep")
    check_exact(found, cells[None, None])
    assert "no closed form fits" in found.notes


# ── conventions, and what is said about them ──────────────────────────────────────────────────


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_says_the_same(convention: str) -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 4])
    found = recognize(written(mask.on(4).dense(), convention)[0])
    assert found.mask == mask
    assert found.frame == Frame(4, 4, batch=2)
    assert not found.ambiguous


def test_the_text_of_an_answer() -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 4])
    low = float(np.finfo(np.float32).min)
    found = recognize(np.where(mask.on(4).dense(), 0, low).astype(np.float32))
    text = "causal() & padding(lengths=[3, 4])   "
    assert str(found) == text + "additive, 0 keeps, -3.4e+38 hides, (2, 1, 4, 4), float32"
    floats = str(recognize(mask.on(4).dense().astype(np.float32))).splitlines()
    assert floats[1] == "0 and 1 as floats: added to scores, they mask nothing"


def test_two_masks_that_were_summed() -> None:
    terms = [mw.causal().on(4).dense(), mw.padding(lengths=[3]).on(4).dense()]
    found = recognize(sum(np.where(cells, 0, -1e9) for cells in terms))
    assert found.mask == mw.causal() & mw.padding(lengths=[3])
    assert found.notes == ("several mask values (-1e+09 … -2e+09): two masks were summed",)


def test_a_long_expression_is_shortened_in_text_only() -> None:
    ids = np.arange(300) ** 2 % 7
    found = recognize(mw.documents(ids=ids).on(300).dense(), polarity="keep")
    assert str(found).startswith("documents(...)   bool")
    assert found.mask.on(300).equals(mw.documents(ids=ids))


def test_the_other_alignment_is_noted() -> None:
    found = recognize(mw.causal().on(4, 9, q_start=0).dense())
    assert found.mask == mw.causal()
    assert found.frame.q_start == 0
    assert any("q_start=0" in note for note in found.notes)
    usual = recognize(mw.causal().on(4, 9).dense())
    assert (usual.mask, usual.frame.q_start, usual.notes) == (mw.causal(), 5, ())
    told = recognize(mw.causal().on(4, 9, q_start=2).dense(), q_start=2)
    assert (told.mask, told.frame.q_start) == (mw.causal(), 2)


@pytest.mark.parametrize("start", [-(10**9), -50, 7, 10**9])
def test_queries_far_from_the_keys(start: int) -> None:
    for mask in (
        mw.causal(),
        mw.keys([1, 4]),
        mw.chunks(3),
        mw.stride(3),
        mw.dense(np.eye(4, 6) > 0),
    ):
        cells = mask.on(4, 6, q_start=start).dense()
        found = recognize(cells, polarity="keep", q_start=start)
        assert found.frame.q_start == start
        check_exact(found, cells)


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
def test_polarity_that_is_clear(mask: Mask, keeps: bool) -> None:
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
        R.longformer(1, [0]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keeps", [True, False])
def test_polarity_that_is_likely_comes_first(mask: Mask, keeps: bool) -> None:
    """A query mostly sees itself, but in a graph without loops, for one, it does not."""
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
        mw.tree([-1, 0, 1, 1, 3, 0, 0, 2]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_meant_is_among_the_readings(mask: Mask, keeps: bool) -> None:
    cells = mask.on(8).dense()
    found = recognize(cells == keeps)
    readings = [found, *([found.other] if found.other else [])]
    meant = [one for one in readings if one.convention.keeps == keeps]
    assert meant
    check_exact(meant[0], cells)


def test_what_hides_the_future_comes_first_even_without_itself() -> None:
    found = recognize(np.tri(4, k=-1, dtype=bool))
    assert found.convention.keeps == 1


def test_polarity_that_is_not() -> None:
    found = recognize([0, 0, 1, 1])
    assert found.ambiguous
    assert found.other is not None
    assert found.other.mask == mw.padding(lengths=[2])
    assert found.convention.keeps == 1
    assert found.other.convention.keeps == 0
    assert "ambiguous" in str(found)
    assert str(found.other) in str(found)
    for polarity, reading in (("keep", found), ("drop", found.other)):
        told = recognize([0, 0, 1, 1], polarity=polarity)  # type: ignore[arg-type]
        assert told.mask == reading.mask
        assert not told.ambiguous


def test_a_sequence_that_would_see_nothing_tells_the_polarity() -> None:
    rows = [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert recognize(rows, axes="bk").mask == mw.padding(lengths=[3, 4])
    turned = recognize(1 - np.array(rows), axes="bk")
    assert turned.mask == mw.padding(lengths=[3, 4])
    assert turned.convention.keeps == 0


def test_polarity_decides_about_zeros() -> None:
    assert recognize(np.zeros((3, 3))).mask == mw.everything()
    assert recognize(np.zeros((3, 3)), polarity="drop").mask == mw.everything()
    assert recognize(np.zeros((3, 3)), polarity="keep").mask == mw.nothing()


# ── axes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("axes", "shape"),
    [("qk", (6, 6)), ("bqk", (2, 6, 6)), ("hqk", (3, 6, 6)), ("bhqk", (2, 3, 6, 6))],
)
def test_axes(axes: str, shape: tuple[int, ...]) -> None:
    frame = dict(zip(axes, shape, strict=True))
    members = [mw.causal(), mw.chunks(2), mw.window(2)]
    mask = mw.by_head(members) if "h" in axes else mw.causal()
    if "b" in axes:
        mask &= mw.padding(lengths=[4, 6])
    bound = mask.on(6, batch=frame.get("b"), heads=frame.get("h"))
    found = recognize(bound.dense().reshape(shape), axes=axes)
    assert found.frame == bound.frame
    assert bound.equals(found.mask)
    assert len(repr(found.mask)) <= len(repr(mask))


def test_keys_alone_know_nothing_of_queries() -> None:
    found = recognize([True, True, False, True], axes="k", polarity="keep")
    assert found.mask == ~mw.keys([2])
    assert found.frame == Frame(1, 4, q_start=3)
    heads = np.array([[1, 1, 0, 0], [0, 1, 1, 1]])
    assert recognize(heads, axes="hk", polarity="keep").mask.on(1, 4).shape == (1, 2, 1, 4)


def test_rows_that_look_like_sequences_are_noted() -> None:
    rows = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert any('axes="bk"' in note for note in recognize(rows, polarity="keep").notes)
    assert not recognize(rows, axes="bk", polarity="keep").notes
    assert not recognize(mw.causal().on(3, 5).dense()[0, 0]).notes


def test_one_row_beside_a_cache() -> None:
    row = mw.window(back=2).step(7).dense()
    found = recognize(row, polarity="keep")
    assert found.mask == mw.window(back=2)
    assert found.frame == Frame(1, 8, q_start=7)
    padded = recognize((mw.causal() & mw.padding(lengths=[3, 8])).step(7).dense(), polarity="keep")
    assert padded.mask == mw.padding(lengths=[3, 8])


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (0, 1, 2, 2), (1, 0, 2, 2)])
def test_arrays_without_cells(shape: tuple[int, ...]) -> None:
    assert recognize(np.zeros(shape, np.bool_)).mask == mw.nothing()


# ── other frameworks, and wrong input ─────────────────────────────────────────────────────────


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    cells = torch.ones(5, 5, dtype=torch.bool).tril()
    assert recognize(cells).mask == mw.causal()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        low = torch.finfo(dtype).min
        added = torch.zeros(5, 5, dtype=dtype).masked_fill(~cells, low).requires_grad_()
        found = recognize(added)
        assert found.mask == mw.causal()
        assert found.convention.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("array", "options", "words"),
    [
        (True, {}, "has 0 axes"),
        (np.zeros((1, 1, 1, 1, 1)), {}, "has 5 axes"),
        ("causal", {}, "of type str"),
        ([[0.5, 0.0]], {}, "holds 0.5 at (0, 0)"),
        ([[0.0, float("nan")]], {}, "holds nan at (0, 1)"),
        ([[2, 1]], {}, "holds 2 at (0, 0)"),
        ([[1, 0]], {"polarity": "true"}, "polarity is 'true'"),
        ([[0.0, -1e9]], {"polarity": "drop"}, "is added to scores"),
        ([[1, 0]], {"axes": 2}, "axes is of type int"),
        ([[1, 0]], {"axes": "kq"}, "axes='kq'"),
        ([[1, 0]], {"axes": "bqk"}, "names 3 axes"),
        ([[1, 0]], {"axes": ""}, "axes=''"),
        ([[1, 0]], {"q_start": 0.5}, "q_start is of type float"),
        ([[1, 0]], {"q_start": 2**40}, "is beyond 2147483647"),
    ],
)
def test_wrong_input_gets_a_clear_sentence(array: Any, options: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        recognize(array, **options)
    assert words in str(error.value)
    assert str(error.value).count(". ") >= 1
