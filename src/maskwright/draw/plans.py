"""A plan as a scene: the mask, and a frame around every piece that is computed at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maskwright.draw.masks import MOST_SIGNS, scene_of
from maskwright.draw.scene import Outline
from maskwright.engine.pieces import Bundle, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.draw.scene import Grid, Scene
    from maskwright.engine.pieces import Piece
    from maskwright.engine.plan import Plan

MOST_OUTLINES = 200


def plan_scene(
    bound: BoundMask, plan: Plan, *, batch: int = 0, head: int = 0, most: int = MOST_SIGNS
) -> Scene:
    """One batch row and head of a mask, with the pieces by which attention is computed.

    >>> import maskwright as mw
    >>> from maskwright.draw.plans import plan_scene
    >>> from maskwright.engine.plan import plan_of
    >>> bound = (mw.causal() & mw.chunks(4)).on(8)
    >>> scene = plan_scene(bound, plan_of(bound))
    >>> bool(scene.grids[0].outlines)
    True
    """
    scene = scene_of(bound, batch=batch, head=head, most=most)
    (grid,) = scene.grids
    found = [outline for piece in plan.pieces for outline in _outlines(piece, grid, batch, head)]
    waste = 1 - plan.useful / plan.computed if plan.computed else 0.0
    note = (
        f"{scene.note}; {len(plan.pieces)} pieces, {plan.computed:,} cells computed, "
        f"{waste:.0%} of them in vain"
    )
    if len(found) > MOST_OUTLINES:
        note += f"; {MOST_OUTLINES} of {len(found)} strips are framed"
    grid = replace(grid, outlines=tuple(found[:MOST_OUTLINES]))
    return replace(scene, grids=(grid,), note=note, description=f"{scene.description} {note}.")


def _outlines(piece: Piece | Bundle, grid: Grid, batch: int, head: int) -> Iterator[Outline]:
    if isinstance(piece, Bundle):
        for n in range(piece.rows.size):
            if (piece.batch[n], piece.heads[n]) == (batch, head):
                keys = piece.keys[n]
                stop = int(piece.rows[n]) + (piece.height - 1) * piece.step + 1
                yield _frame(grid, int(piece.rows[n]), stop, int(keys[0]), int(keys[-1]) + 1)
        return
    if any(
        part is not None and n not in part
        for part, n in zip(piece.planes, (batch, head), strict=True)
    ):
        return
    rows = piece.rows
    first, last = (
        (piece.keys.start, piece.keys.stop)
        if isinstance(piece.keys, Steps)
        else (int(piece.keys[0]), int(piece.keys[-1]) + 1)
    )
    for n in range(min(piece.times, MOST_OUTLINES + 1)):
        down, along = n * piece.row_shift, n * piece.key_shift
        yield _frame(grid, rows.start + down, rows.stop + down, first + along, last + along)


def _frame(grid: Grid, row: int, row_stop: int, key: int, key_stop: int) -> Outline:
    """In signs of the grid."""
    tall, broad = grid.block
    return Outline(row / tall, key / broad, (row_stop - row) / tall, (key_stop - key) / broad)
