"""Atoms, recipes and common compositions are recognized by a text that is not longer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from maskwright.recipes.registry import recipe_table
from maskwright.recognition import recognize
from tests._helpers.mask_encodings import CONVENTIONS, cells_on, check_exact, encode
from tests._helpers.strategies import atom, fitting
from tests._helpers.target_strategies import usual

SHARE = 0.7  # of the masks of a kind are recognized by a text that is not longer
KINDS = [*fitting(Frame(8, 8), code=False), "usual"]
PARTIAL = ("causal", "window", "padding", "stride", "keys", "usual")  # also for some queries
COMPOSED = (
    "causal() & padding(lengths=[9, 12]) & padding(lengths=[9, 12]).T",
    "causal() & padding(lengths=[9, 12]) & (window(back=2, ahead=1) | keys([0]))",
    "causal() | prefix(5)",
    "window(back=2, ahead=1) | keys([0, 7]) | queries([3])",
    "(window(back=3) | keys([0, 7])).T",
    "causal() - keys([1, 5])",
    "~chunks(4)",
    "~documents(lengths=[[5, 7]])",
    "tree([-1, 0, 0, 1, 1, 2, 2, 5, 7, 7, 3, 10]).T",
    "by_head([chunks(4), window(back=2), causal()]) & padding(lengths=[9, 12])",
    "by_batch([causal(), chunks(4)])",
)
TEXTS = [*((text, 12) for text in COMPOSED), *((r.expression, r.size or 8) for r in recipe_table())]


@st.composite
def frames(draw: st.DrawFn, kind: str) -> Frame:
    """Square, or with queries for the first or the last of the keys."""
    keys = draw(st.integers(4, 64))
    queries = draw(st.integers(2, keys)) if kind in PARTIAL and draw(st.booleans()) else keys
    start = draw(st.sampled_from([keys - queries, 0]))
    return Frame(queries, keys, draw(st.integers(1, 3)), 1, start)


def excess(mask: Mask, frame: Frame, convention: str) -> int:
    """By how many characters the text of the result is longer than that of the mask."""
    cells = cells_on(mask, frame)
    array, polarity = encode(cells, convention)
    found = recognize(array, polarity=polarity, q_start=frame.q_start)
    check_exact(found, cells)
    assert not found.ambiguous
    return len(repr(found.mask)) - max(len(repr(mask)), len(repr(mw.simplify(mask))))


@pytest.mark.parametrize("kind", KINDS)
def test_random_masks_of_every_kind(kind: str) -> None:
    found = []

    @settings(max_examples=8, derandomize=True, database=None)
    @given(frames(kind), st.sampled_from(CONVENTIONS), st.data())
    def draw(frame: Frame, convention: str, data: st.DataObject) -> None:
        mask = data.draw(usual(frame) if kind == "usual" else atom(frame, kind))
        found.append(excess(mask, frame, convention))

    draw()
    longer = 1 if kind == "prefix" else 0  # alone, the first n keys are called padding
    assert np.mean(np.array(found) <= longer) >= SHARE, found


@pytest.mark.parametrize("convention", ["keep", "int drop", "-1e9"])
@pytest.mark.parametrize(("text", "size"), TEXTS)
def test_compositions_and_recipes(text: str, size: int, convention: str) -> None:
    mask = mw.parse(text)
    assert excess(mask, mask.on(size).frame, convention) <= 0
