"""A plan covers exactly the mask's cells, each once, whatever the mask is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import maskwright as mw
from maskwright.engine.costs import Costs, table
from maskwright.engine.pieces import Piece, Steps
from maskwright.engine.plan import Plan, make_plan
from tests.strategies import bind, cases


def painted(plan: Plan, planes: tuple[int, int]) -> np.ndarray:
    """How often each cell is computed and let through."""
    counts = np.zeros((*planes, *plan.shape[2:]), int)
    for piece in plan.pieces:
        part = piece.planes.slices
        for n in range(piece.times):
            rows = (
                np.arange(piece.rows.size) * piece.rows.step
                + piece.rows.start
                + n * piece.row_shift
            )
            keys = keys_of(piece, n)
            if piece.causal:
                seen = np.tri(rows.size, keys.size, dtype=bool)
            elif piece.stencil is None:
                seen = np.ones((rows.size, keys.size), bool)
            else:
                seen = piece.stencil.paint(keys.size)
            counts[(*part, *np.ix_(rows, keys))] += seen
    return counts


def keys_of(piece: Piece, n: int) -> np.ndarray:
    if isinstance(piece.keys, Steps):
        return np.arange(piece.keys.size) * piece.keys.step + piece.keys.start + n * piece.key_shift
    return np.asarray(piece.keys)


def check(bound: mw.BoundMask, costs: Costs, planes: tuple[int, int]) -> None:
    plan = make_plan(bound.spans, *planes, costs)
    dense = bound.dense()
    assert (painted(plan, dense.shape[:2]) == dense).all()
    assert plan.useful == dense.sum() * (planes[0] // dense.shape[0]) * (
        planes[1] // dense.shape[1]
    )
    read = np.zeros(dense.shape[:2] + dense.shape[3:], bool)
    for piece in plan.pieces:
        part = piece.planes.slices
        for n in range(piece.times):
            read[(*part, keys_of(piece, n))] = True
    lost = read & ~dense.any(2)
    assert (lost if plan.unseen is None else lost & ~plan.unseen).sum() == 0
    written = set()
    for piece in plan.pieces:
        for n in range(piece.times):
            rows = range(
                piece.rows.start + n * piece.row_shift,
                piece.rows.stop + n * piece.row_shift,
                piece.rows.step,
            )
            cells = {(piece.planes, row) for row in rows}
            assert not piece.first or not cells & written
            written |= cells


# Costs under which each way of cutting is worth it for masks of a few rows.
NATIVE = 0.5, 0.1, 0.1  # the kernel in C, of which a plan of strips knows nothing
CHEAP_CALLS = Costs((1,), (1.0,), (1.0,), (0.1,), 0.5, 0.1, 0.1, 0.01, 0.01, *NATIVE)
DEAR_MASKS = Costs((1,), (1.0,), (9.0,), (0.1,), 0.5, 0.1, 0.1, 0.01, 0.01, *NATIVE)
ONE_CALL = Costs((1,), (1.0,), (1.0,), (0.1,), 5.0, 1e9, 1e9, 1.0, 1e9, *NATIVE)


@pytest.mark.parametrize(
    "costs", [CHEAP_CALLS, DEAR_MASKS, ONE_CALL], ids=["calls", "masks", "one"]
)
@given(case=cases())
def test_a_plan_covers_exactly_the_mask(costs: Costs, case: tuple[mw.Mask, mw.Frame]) -> None:
    bound = bind(*case)
    check(bound, costs, (bound.frame.batch, bound.frame.heads))


PATTERNS = {
    "everything": mw.everything(),
    "causal": mw.causal(),
    "window": mw.window(back=255),
    "both sides": mw.window(back=40, ahead=30),
    "ahead only": ~mw.causal(),
    "documents": mw.causal() & mw.documents(lengths=[100, 512, 3, 1, 1, 300, 107]),
    "even documents": mw.causal() & mw.chunks(128),
    "prefix": mw.causal() | mw.prefix(200),
    "sinks": mw.recipes.sinks(128),
    "longformer": mw.recipes.longformer(64, range(16)),
    "bigbird": mw.recipes.bigbird(1024, 64, 2),
    "dilated": mw.window(back=511) & mw.stride(4),
    "dilated documents": mw.stride(3) & mw.documents(lengths=[500, 524]) & mw.causal(),
    "image": mw.image(32, 32, radius=3),
    "left padding": mw.causal()
    & mw.padding(keep=np.arange(1024) >= np.array([[300], [0], [1024], [1023]])),
    "right padding": mw.causal() & mw.padding(lengths=[300, 1024, 0, 1]),
    "by head": mw.by_head([mw.causal(), mw.causal(), mw.window(back=9), mw.everything()]),
    "holes": mw.causal() - mw.keys(range(0, 1024, 7)),
    "some rows": mw.queries(range(100, 200)) & mw.causal(),
    "scattered": mw.where(lambda b, h, q, k: (q * 31 + k * 17) % 11 == 0),
}


@pytest.mark.parametrize("costs", [*table().values(), CHEAP_CALLS, DEAR_MASKS, ONE_CALL])
@pytest.mark.parametrize("name", PATTERNS)
def test_a_plan_covers_the_masks_of_the_literature(name: str, costs: Costs) -> None:
    bound = PATTERNS[name].on(1024)
    check(bound, costs, (bound.frame.batch, bound.frame.heads))
