"""Scenes of the tiles that attention visits under a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.draw.masks import MOST_SIGNS, scene_of
from maskwright.draw.scene import Outline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray
    from maskwright.draw.scene import Grid, Scene
    from maskwright.engine.cost import WorkEstimate

MAX_OUTLINES: Final = 256
MIN_OUTLINE_CELLS: Final = 4  # grid cells along the shorter side of an outline
COARSE_BLOCK: Final = 64
INSET: Final = 1 / 640  # between an outline and the edge of its tile, as a share of the grid


def tiles_scene(
    bound: BoundMask,
    work: WorkEstimate,
    *,
    batch: int = 0,
    head: int = 0,
    most: int = MOST_SIGNS,
) -> Scene:
    """One batch row and head of a mask, with an outline around each tile that is visited.

    Args:
        bound: The mask.
        work: The work under this mask, of `explain_backend`.
        batch: The batch row to draw.
        head: The head to draw.
        most: Maximum number of grid cells along one side.

    Returns:
        The scene. The outline of a partial tile is dashed. If the tiles are too many or too small
        to draw, outlines are drawn around larger tiles, and the note gives their size.

    >>> import maskwright as mw
    >>> from maskwright.draw.plans import tiles_scene
    >>> work = mw.explain_backend((1, 1, 32, 64), mask=mw.causal(), impl="flex").work
    >>> [(box.rows > 30, box.dashed) for box in tiles_scene(mw.causal().on(32), work).grids[0].outlines]
    [(True, True)]
    """
    scene = scene_of(
        bound,
        batch=batch if bound.shape[0] > 1 else None,
        head=head if bound.shape[1] > 1 else None,
        most=most,
    )
    (grid,) = scene.grids
    tiles = _Tiles(bound, batch, head)
    block = tiles.block((work.block_q, work.block_kv), grid)
    grid = replace(grid, outlines=tuple(_outlines(tiles, block, grid)), thin_outlines=True)
    note = (
        f"{scene.note}; {work.tiles_visited:,} of {work.tiles:,} tiles of {work.block_q} × "
        f"{work.block_kv} visited, {work.useful_share:.0%} of the computed scores are visible"
    )
    note += f"; outlines: tiles of {block[0]:,} × {block[1]:,}, dashed where partly masked"
    return replace(scene, grids=(grid,), note=note, description=f"{scene.description} {note}.")


class _Tiles:
    """The tiles of one batch row and head, for any block size."""

    def __init__(self, bound: BoundMask, batch: int, head: int) -> None:
        self.bound = bound
        self.plane = (min(batch, bound.shape[0] - 1), min(head, bound.shape[1] - 1))

    def block(self, block: tuple[int, int], grid: Grid) -> tuple[int, int]:
        """The size of the tiles to outline: `block`, or the smallest square that can be drawn."""
        shown = min(n / cells for n, cells in zip(block, grid.block, strict=True))
        if shown >= MIN_OUTLINE_CELLS and self.visited(block).shape[0] <= MAX_OUTLINES:
            return block
        side = max(COARSE_BLOCK, *block)
        while (
            side < MIN_OUTLINE_CELLS * max(grid.block)
            or self.visited((side, side)).shape[0] > MAX_OUTLINES
        ):
            side *= 2
        return side, side

    def visited(self, block: tuple[int, int]) -> IntArray:
        """Row block and key block of each tile that has a visible cell, at most a few too many."""
        return self._indices(self.bound.tiles(*block).touched)

    def full(self, block: tuple[int, int]) -> set[tuple[int, int]]:
        """The tiles of which all cells are visible."""
        return {(row, key) for row, key in self._indices(self.bound.tiles(*block).full).tolist()}

    def _indices(self, tiles: Spans) -> IntArray:
        """Row and key of the cells of this plane, cut off beyond the maximum of outlines."""
        batch, head = self.plane
        offsets, starts, stops = tiles.plane(0, batch).plane(1, head).flat
        lengths = stops - starts
        enough = int(np.searchsorted(np.cumsum(lengths), MAX_OUTLINES)) + 1
        rows = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))[:enough]
        starts, lengths = starts[:enough], np.minimum(lengths[:enough], MAX_OUTLINES + 1)
        before = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        keys = before + np.arange(lengths.sum())
        found: IntArray = np.stack([np.repeat(rows, lengths), keys], axis=1)
        return found


def _outlines(tiles: _Tiles, block: tuple[int, int], grid: Grid) -> Iterator[Outline]:
    full = tiles.full(block)
    inset = INSET * max(grid.shape)
    for row, key in tiles.visited(block).tolist():
        (top, bottom), (left, right) = (
            (n * size / cells + inset, min((n + 1) * size, extent) / cells - inset)
            for n, size, cells, extent in zip(
                (row, key), block, grid.block, grid.extent, strict=True
            )
        )
        dashed = (row, key) not in full
        yield Outline(top, left, bottom - top, right - left, dashed=dashed)
