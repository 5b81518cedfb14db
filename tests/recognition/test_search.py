"""The search: large arrays, which are sampled first, and arrays with single exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from maskwright.recognition import plane as plane_module
from maskwright.recognition import recognize, search
from tests._helpers.mask_encodings import cells_on, check_exact
from tests._helpers.strategies import cases
from tests.conftest import FUZZ

if TYPE_CHECKING:
    from maskwright.recognition.cover import Candidate
    from maskwright.recognition.plane import Plane

R = mw.recipes

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
@given(case=cases(), num_rows=st.integers(1, 9))
def test_sampled_search_is_exact(case: tuple[Mask, Frame], num_rows: int) -> None:
    cells = cells_on(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plane_module, "MAX_SMALL_CELLS", 0)
        patch.setattr(plane_module, "NUM_SAMPLE_ROWS", num_rows)
        check_exact(recognize(cells, polarity="keep", q_start=case[1].q_start), cells)


def test_large_array_with_one_exception() -> None:
    cells = np.array(mw.causal().on(600).dense())
    cells[0, 0, 301, 17] = False
    found = recognize(cells)
    check_exact(found, cells)
    assert len(repr(found.mask)) < 60


def test_large_random_array_is_listed() -> None:
    cells = np.random.default_rng(0).random((600, 600)) < 0.5
    found = recognize(cells, polarity="keep")
    check_exact(found, cells[None, None])
    assert "no closed form fits" in found.notes


def test_search_of_arrays_without_structure_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []
    explain = search.explain_plane

    def counted(plane: plane_module.Plane, *, nested: bool = True) -> search.Candidate | None:
        searched.append(plane)
        return explain(plane, nested=nested)

    monkeypatch.setattr(search, "explain_plane", counted)
    cells = np.random.default_rng(0).random((16, 16, 8, 8)) < 0.5
    assert np.array_equal(recognize(cells, polarity="keep").mask.on(8).dense(), cells)
    assert len(searched) <= search.MAX_FAILED_SEARCHES


def test_heads_with_structure_are_found_among_others() -> None:
    heads = np.stack(
        [np.tri(16, dtype=bool)] * 3 + [np.random.default_rng(0).random((16, 16)) < 0.5]
    )
    found = recognize(heads[None], polarity="keep").mask
    assert repr(found).startswith("by_head([causal(), causal(), causal(), ")
    assert np.array_equal(found.on(16).dense(), heads[None])


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
def test_one_flipped_cell_is_found(mask: Mask, place: int) -> None:
    cells = np.array(mask.on(12).dense())
    cells[-1, -1].flat[place] ^= True
    check_exact(recognize(cells, polarity="keep"), cells)


def test_flipped_cell_is_graph_edge() -> None:
    cells = np.array(mw.causal().on(20).dense())
    cells[0, 0, 3, 11] = True
    found = recognize(cells).mask
    assert repr(found) == "causal() | graph([[3, 11]])"


@pytest.mark.parametrize("drafts", [[11, 12, 12, 14], [11, 11, 11], [11, 12, 11, 14, 14]])
def test_tree_after_a_prompt(drafts: list[int]) -> None:
    tree = mw.tree([*range(-1, 11), *drafts])
    size = 12 + len(drafts)
    for rows in (len(drafts), size):
        assert recognize(tree.on(rows, size).dense(), polarity="keep").mask == tree


def test_search_of_noise_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many planes that have expressions, but long ones."""
    planes = []

    def counted(plane: Plane, *, nested: bool = True) -> Candidate | None:
        planes.append(plane)
        return explain_plane(plane, nested=nested)

    explain_plane = search.explain_plane
    monkeypatch.setattr(search, "explain_plane", counted)
    noise = np.random.default_rng(0).random((3, 12, 4, 5)) < 0.5
    cells = noise & np.tri(4, 5, 1, dtype=bool)
    check_exact(recognize(cells, polarity="keep"), cells)
    assert len(planes) < 100
