"""`recognize`: exact results, notes, axes and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import ArgumentError, Frame, Mask
from maskwright.recognition import recognize
from tests._helpers.mask_encodings import CONVENTIONS, cells_on, check_exact, encode
from tests._helpers.strategies import bind, cases
from tests.conftest import FUZZ

# ── free compositions ─────────────────────────────────────────────────────────────────────────


@settings(max_examples=max(60, FUZZ // 10))
@given(case=cases(), convention=st.sampled_from(CONVENTIONS))
def test_any_composition_is_recognized_exactly(case: tuple[Mask, Frame], convention: str) -> None:
    mask, frame = case
    cells = cells_on(mask, frame)
    array, polarity = encode(cells, convention)
    found = recognize(array, polarity=polarity, q_start=frame.q_start)
    assert found.frame == frame
    check_exact(found, cells)
    assert bind(mask, frame).equals(found.mask)


@settings(max_examples=max(30, FUZZ // 10))
@given(case=cases(), convention=st.sampled_from(CONVENTIONS))
def test_both_polarities_are_exact(case: tuple[Mask, Frame], convention: str) -> None:
    cells = cells_on(*case)
    array = encode(cells, convention)[0]
    found = recognize(array)
    readings = [found, *([found.other] if found.other else [])]
    for reading in readings:
        check_exact(reading, array == reading.convention.keeps)
    if found.ambiguous or not convention.endswith(("keep", "drop")):
        assert any(np.array_equal(array == one.convention.keeps, cells) for one in readings)


# ── conventions and notes ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_gives_same_mask(convention: str) -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 4])
    found = recognize(encode(mask.on(4).dense(), convention)[0])
    assert found.mask == mask
    assert found.frame == Frame(4, 4, batch=2)
    assert not found.ambiguous


def test_text_of_result() -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 4])
    low = float(np.finfo(np.float32).min)
    found = recognize(np.where(mask.on(4).dense(), 0, low).astype(np.float32))
    text = "causal() & padding(lengths=[3, 4])   "
    assert str(found) == text + "additive, 0 keeps, -3.4e+38 masks, (2, 1, 4, 4), float32"
    floats = str(recognize(mask.on(4).dense().astype(np.float32))).splitlines()
    assert floats[1] == "0 and 1 as floats: added to scores, they mask nothing"


def test_note_on_summed_masks() -> None:
    terms = [mw.causal().on(4).dense(), mw.padding(lengths=[3]).on(4).dense()]
    found = recognize(sum(np.where(cells, 0, -1e9) for cells in terms))
    assert found.mask == mw.causal() & mw.padding(lengths=[3])
    assert found.notes == ("several mask values (-1e+09 … -2e+09): two masks were summed",)


def test_long_expressions_are_abbreviated_in_text() -> None:
    ids = np.arange(300) ** 2 % 7
    found = recognize(mw.documents(ids=ids).on(300).dense(), polarity="keep")
    assert str(found).startswith("documents(...)   bool")
    assert found.mask.on(300).equals(mw.documents(ids=ids))


def test_note_on_q_start_0() -> None:
    found = recognize(mw.causal().on(4, 9, q_start=0).dense())
    assert found.mask == mw.causal()
    assert found.frame.q_start == 0
    assert any("q_start=0" in note for note in found.notes)
    usual = recognize(mw.causal().on(4, 9).dense())
    assert (usual.mask, usual.frame.q_start, usual.notes) == (mw.causal(), 5, ())
    explicit = recognize(mw.causal().on(4, 9, q_start=2).dense(), q_start=2)
    assert (explicit.mask, explicit.frame.q_start) == (mw.causal(), 2)


@pytest.mark.parametrize("start", [-(10**9), -50, 7, 10**9])
def test_queries_far_from_keys(start: int) -> None:
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


def test_key_axis_only() -> None:
    found = recognize([True, True, False, True], axes="k", polarity="keep")
    assert found.mask == ~mw.keys([2])
    assert found.frame == Frame(1, 4, q_start=3)
    heads = np.array([[1, 1, 0, 0], [0, 1, 1, 1]])
    assert recognize(heads, axes="hk", polarity="keep").mask.on(1, 4).shape == (1, 2, 1, 4)


def test_note_on_rows_that_look_like_padding_masks() -> None:
    rows = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert any('axes="bk"' in note for note in recognize(rows, polarity="keep").notes)
    assert not recognize(rows, axes="bk", polarity="keep").notes
    assert not recognize(mw.causal().on(3, 5).dense()[0, 0]).notes


@pytest.mark.parametrize("lengths", [[3, 5, 2, 4, 5], [5, 5, 2, 4, 6, 3], [2, 5, 7, 3, 8, 8, 1, 4]])
def test_as_many_padding_masks_as_tokens(lengths: list[int]) -> None:
    """Rows of a square are queries by default, unless no short expression relates them."""
    size = max(max(lengths), len(lengths))
    rows = np.arange(size) < np.array(lengths)[:, None]
    found = recognize(rows, polarity="keep")
    assert found.mask == mw.padding(lengths=lengths)
    assert found.frame == recognize(rows, axes="bk", polarity="keep").frame
    assert (found.frame.batch, found.frame.kv_len) == (len(lengths), size)
    assert any('axes="qk"' in note for note in found.notes)
    assert recognize(rows[:, ::-1], polarity="keep").frame.batch == len(lengths)
    assert recognize(rows, axes="qk", polarity="keep").frame.batch == 1
    left = np.arange(6) >= 6 - np.array([5, 6, 5, 3, 5, 1])[:, None]  # its complement is causal
    assert recognize(left).frame.batch == 6
    block_causal = (mw.causal() | mw.chunks(2)).on(8).dense()[0, 0]
    assert recognize(block_causal).mask == mw.causal() | mw.chunks(2)


def test_decode_step() -> None:
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


def test_arrays_that_repeat_same_memory() -> None:
    """They have 2**38 cells, which could not be read one by one."""
    shape = (2**12, 2**12, 128, 128)
    causal = np.tri(128, dtype=bool)
    for plane in (causal, np.where(causal, 0.0, -1e9)):
        found = recognize(np.broadcast_to(plane, shape))
        assert (found.mask, found.frame.batch, found.frame.heads) == (mw.causal(), 2**12, 2**12)
    zeros = np.broadcast_to(np.float32(0), shape)
    assert recognize(zeros, polarity="drop").mask == mw.everything()


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
    ("array", "options", "text"),
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
def test_invalid_input_raises(array: Any, options: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        recognize(array, **options)
    assert text in str(error.value)
    assert str(error.value).count(". ") >= 1
