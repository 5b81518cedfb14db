"""Tiles that attention visits, as outlines over the mask."""

from __future__ import annotations

import math

import numpy as np
import pytest

import maskwright as mw
from maskwright.draw.plans import MAX_OUTLINES, tiles_scene
from maskwright.draw.png import render as render_png
from maskwright.draw.svg import render as render_svg
from maskwright.engine.cost import WorkEstimate

MASKS = {
    "window": mw.window(back=20),
    "documents": mw.causal() & mw.documents(lengths=[[60, 100, 40, 56]]),
    "sinks": mw.window(back=20) | (mw.keys([0, 1]) & mw.causal()),
    "heads": mw.by_head([mw.causal(), mw.window(back=3)]),
    "blocks": mw.blocks(np.eye(4, dtype=bool) | (np.arange(4) == 0), size=64),
}


def work(block_q: int, block_kv: int) -> WorkEstimate:
    return WorkEstimate(block_q, block_kv, 64, 32, 1000, 500, 1.0)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("block", [(8, 32), (128, 1), (16, 16)])
def test_outlines_are_the_visited_tiles(name: str, block: tuple[int, int]) -> None:
    bound = MASKS[name].on(256)
    for head in range(bound.shape[1]):
        scene = tiles_scene(bound, work(*block), head=head)
        visible = bound.dense()[0, min(head, bound.shape[1] - 1)]
        outlined = np.zeros((256, 256), bool)
        for box in scene.grids[0].outlines:
            rows = slice(math.floor(box.row), math.ceil(box.row + box.rows))
            keys = slice(math.floor(box.column), math.ceil(box.column + box.columns))
            assert visible[rows, keys].any()
            assert box.dashed != visible[rows, keys].all()
            assert not outlined[rows, keys].any()
            outlined[rows, keys] = True
        assert outlined[visible].all()


def test_small_tiles_of_a_long_sequence_are_outlined_in_larger_blocks() -> None:
    bound = mw.window(back=255).on(4096)
    scene = tiles_scene(bound, mw.explain_backend((1, 1, 4096, 64), mask=bound).work)
    (grid,) = scene.grids
    assert 0 < len(grid.outlines) <= MAX_OUTLINES
    assert max(box.row + box.rows for box in grid.outlines) <= grid.shape[0]
    assert min(box.rows for box in grid.outlines) > 3
    assert "tiles of 128 × 128" in scene.note
    assert "visited" in scene.description


@pytest.mark.parametrize("mask", [mw.nothing(), mw.everything()])
@pytest.mark.parametrize("size", [0, 1, 5, 70])
def test_masks_without_visited_tiles_and_without_empty_ones(mask: mw.Mask, size: int) -> None:
    scene = tiles_scene(mask.on(size), work(8, 32))
    kinds = {box.dashed for box in scene.grids[0].outlines}
    assert kinds == ({False} if size and mask == mw.everything() else set())


def test_partial_tiles_are_dashed_in_every_picture() -> None:
    scene = tiles_scene(mw.causal().on(64), work(8, 32))
    assert render_svg(scene).count("stroke-dasharray") == sum(
        box.dashed for box in scene.grids[0].outlines
    )
    assert render_png(scene)[:4] == b"\x89PNG"
