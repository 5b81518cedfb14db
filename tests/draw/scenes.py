"""Scenes made by hand, one for each thing a renderer must show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.draw.scene import Entry, Grid, Kind, Outline, Scene, legend_of

if TYPE_CHECKING:
    from collections.abc import Callable

# One token each of: plain letters, wide characters, a combining mark, a family joined by ZWJ, a
# flag, a control character, and the signs a markup language would trip over.
TOKENS = ("the", "注意", "cafe\u0301", "👩‍👩‍👧", "🇬🇧", "a\nb", "<&\"'>")


def causal() -> Scene:
    """Every cell by itself, with tokens of many scripts."""
    size = len(TOKENS)
    kinds = np.where(np.tri(size, dtype=bool), Kind.SEEN, Kind.HIDDEN).astype(np.uint8)
    grid = Grid(kinds, rows=TOKENS, columns=TOKENS, extent=(size, size))
    return Scene(
        "causal()",
        (grid,),
        note=f"{size} queries × {size} keys, density 0.57",
        legend=legend_of((grid,)),
        description="causal(). Every query sees itself and the keys before it.",
    )


def tiles() -> Scene:
    """Signs that stand for 64 × 64 cells each, the last ones cut off, with shades."""
    size, block = 12, 64
    shades = np.clip(1 - np.abs(np.arange(size)[:, None] - np.arange(size) - 1) / 4, 0, 1)
    kinds = np.where(shades == 0, Kind.HIDDEN, np.where(shades == 1, Kind.SEEN, Kind.SOME))
    grid = Grid(
        kinds.astype(np.uint8),
        shades=shades,
        block=(block, block),
        start=(128, 0),
        extent=(size * block - 10, size * block - 10),
    )
    return Scene(
        "sliding_window(256)",
        (grid,),
        note="a sign stands for 64 queries × 64 keys",
        legend=legend_of((grid,)),
        description="sliding_window(256). A band along the diagonal.",
    )


def difference() -> Scene:
    """Every kind there is."""
    kinds = np.array(
        [[2, 0, 0, 4, 0, 0], [3, 2, 0, 0, 4, 0], [3, 3, 2, 0, 0, 5], [1, 3, 3, 2, 5, 0]], np.uint8
    )
    shades = np.where(kinds == Kind.HIDDEN, 0.0, np.where(kinds == Kind.SOME, 0.5, 1.0))
    grid = Grid(kinds, title="causal() and sliding_window(2)", shades=shades, extent=(4, 6))
    words = {Kind.FIRST: "only causal()", Kind.SECOND: "only sliding_window(2)"}
    return Scene(
        "Where two masks differ",
        (grid,),
        legend=legend_of((grid,), words),
        description="Two masks that differ in 9 cells.",
    )


def numbers() -> Scene:
    """Numbers in the cells, some of them hidden."""
    tokens = ("I", "like", "tea")
    kinds = np.where(np.tri(3, dtype=bool), Kind.SEEN, Kind.HIDDEN).astype(np.uint8)
    shades = np.array([[0.9, 0.0, 0.0], [0.25, 0.75, 0.0], [0.2, 0.3, 0.5]])
    texts = (("1.72", "-∞", "-∞"), ("-0.25", "0.75", "-∞"), ("-0.2", "0.30", "10.5"))
    grid = Grid(
        kinds,
        title="scores",
        shades=shades,
        texts=texts,
        rows=tokens,
        columns=tokens,
        extent=(3, 3),
    )
    return Scene(
        "QKᵀ / √d + mask",
        (grid,),
        legend=legend_of((grid,)),
        description="Scores of three tokens; a token that comes later has -∞.",
    )


def outlines() -> Scene:
    """Frames around some cells, one of them between cells and one without words."""
    kinds = np.where(np.tri(8, dtype=bool), Kind.SEEN, Kind.HIDDEN).astype(np.uint8)
    frames = (
        Outline(0, 0, 4, 4, "piece 1: triangle"),
        Outline(4, 0, 4, 4.5, "piece 2: <all>"),
        Outline(7, 0, 1, 8),
    )
    grid = Grid(kinds, outlines=frames, extent=(8, 8))
    return Scene(
        "A plan of two pieces",
        (grid,),
        legend=legend_of((grid,)),
        description="A causal mask with frames around two pieces and one row.",
    )


def pair() -> Scene:
    """Two grids of different size under one title, with names of their own for the axes."""
    first = np.where(np.tri(4, dtype=bool), Kind.SEEN, Kind.HIDDEN).astype(np.uint8)
    second = np.full((3, 5), Kind.SEEN, np.uint8)
    second[:, -1] = Kind.HIDDEN
    grids = (
        Grid(first, title="head 0", extent=(4, 4)),
        Grid(second, title="head 1", extent=(3, 5), row_name="target", column_name="source"),
    )
    return Scene(
        "Two heads",
        grids,
        note="batch 0",
        legend=legend_of(grids),
        description="Head 0 is causal, head 1 hides the last source.",
    )


def large() -> Scene:
    """More cells than a terminal has signs: 256 × 256."""
    size = 256
    distance = np.arange(size)[:, None] - np.arange(size)
    seen = (distance >= 0) & ((distance < 48) | (np.arange(size) < 16))
    grid = Grid(np.where(seen, Kind.SEEN, Kind.HIDDEN).astype(np.uint8), extent=(size, size))
    return Scene(
        "sliding_window(48) | first(16)",
        (grid,),
        note="256 queries × 256 keys",
        legend=legend_of((grid,)),
        description="A band along the diagonal, and the first 16 keys.",
    )


def empty() -> Scene:
    """No queries at all, and a legend given by hand."""
    grid = Grid(np.zeros((0, 3), np.uint8), extent=(0, 3))
    return Scene("nothing", (grid,), legend=(Entry(Kind.SEEN, "seen"),), description="No queries.")


SCENES: dict[str, Callable[[], Scene]] = {
    "causal": causal,
    "tiles": tiles,
    "difference": difference,
    "numbers": numbers,
    "outlines": outlines,
    "pair": pair,
    "large": large,
    "empty": empty,
}
