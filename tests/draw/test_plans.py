from __future__ import annotations

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.plans import plan_scene
from maskwright.engine.plan import plan_of

MASKS = {
    "window": mw.window(back=20),
    "documents": mw.causal() & mw.documents(lengths=[[60, 100, 40, 56]]),
    "sinks": mw.window(back=20) | (mw.keys([0, 1]) & mw.causal()),
    "heads": mw.by_head([mw.causal(), mw.window(back=3)]),
    "blocks": mw.blocks(np.eye(4, dtype=bool) | (np.arange(4) == 0), size=64),
}


@pytest.mark.parametrize("name", MASKS)
def test_frames_hold_every_cell_that_is_seen(name: str) -> None:
    bound = MASKS[name].on(256)
    for head in range(bound.shape[1]):
        scene = plan_scene(bound, plan_of(bound), head=head)
        framed = np.zeros((256, 256), bool)
        for box in scene.grids[0].outlines:
            rows = slice(int(box.row), int(box.row + box.rows))
            framed[rows, int(box.column) : int(box.column + box.columns)] = True
        seen = bound.dense()[0, min(head, bound.shape[1] - 1)]
        assert framed[seen].all()


def test_tiles_have_frames_in_signs() -> None:
    bound = mw.window(back=255).on(4096)
    scene = plan_scene(bound, plan_of(bound))
    (grid,) = scene.grids
    assert grid.block == (16, 16)
    assert max(box.row + box.rows for box in grid.outlines) <= 256
    assert "cells computed" in scene.note
