"""Scenes for the tests of renderers, one for each feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.draw.scene import Grid, Kind, LegendEntry, Scene, legend_of

if TYPE_CHECKING:
    from collections.abc import Callable

# One token each of: plain letters, wide characters, a combining mark, a family joined by ZWJ, a
# flag, a control character, and characters of markup.
TOKENS = ("the", "注意", "cafe\u0301", "👩‍👩‍👧", "🇬🇧", "a\nb", "<&\"'>")


def kinds_of(visible: np.ndarray) -> np.ndarray:
    return np.where(visible, Kind.VISIBLE, Kind.MASKED).astype(np.uint8)


def with_legend(
    title: str, *grids: Grid, note: str = "", description: str, names: dict[Kind, str] | None = None
) -> Scene:
    """A scene with a legend of the kinds that occur."""
    return Scene(title, grids, note, legend_of(grids, names), description)


def causal() -> Scene:
    """Single cells, with tokens of many scripts."""
    size = len(TOKENS)
    kinds = kinds_of(np.tri(size, dtype=bool))
    return with_legend(
        "causal()",
        Grid(kinds, rows=TOKENS, columns=TOKENS, extent=(size, size)),
        note=f"{size} queries × {size} keys, density 0.57",
        description="causal(). Each query attends to itself and the keys before it.",
    )


def tiles() -> Scene:
    """Blocks of 64 × 64 cells, the last ones smaller, with shades."""
    size, block = 12, 64
    shades = np.clip(1 - np.abs(np.arange(size)[:, None] - np.arange(size) - 1) / 4, 0, 1)
    kinds = np.where(shades == 0, Kind.MASKED, np.where(shades == 1, Kind.VISIBLE, Kind.PARTIAL))
    places = {"start": (128, 0), "extent": (size * block - 10, size * block - 10)}
    return with_legend(
        "sliding_window(256)",
        Grid(kinds.astype(np.uint8), shades=shades, block=(block, block), **places),
        description="sliding_window(256). A band along the diagonal.",
    )


def difference() -> Scene:
    """All kinds."""
    kinds = np.array(
        [[2, 0, 0, 4, 0, 0], [3, 2, 0, 0, 4, 0], [3, 3, 2, 0, 0, 5], [1, 3, 3, 2, 5, 0]], np.uint8
    )
    shades = np.where(kinds == Kind.MASKED, 0.0, np.where(kinds == Kind.PARTIAL, 0.5, 1.0))
    return with_legend(
        "Where two masks differ",
        Grid(kinds, title="causal() and sliding_window(2)", shades=shades, extent=(4, 6)),
        names={Kind.FIRST_ONLY: "only causal()", Kind.SECOND_ONLY: "only sliding_window(2)"},
        description="Two masks that differ in 9 cells.",
    )


def numbers() -> Scene:
    """Numbers in the cells, some of them masked."""
    tokens = ("I", "like", "tea")
    shades = np.array([[0.9, 0.0, 0.0], [0.25, 0.75, 0.0], [0.2, 0.3, 0.5]])
    texts = (("1.72", "-∞", "-∞"), ("-0.25", "0.75", "-∞"), ("-0.2", "0.30", "10.5"))
    labels = {"title": "scores", "texts": texts, "rows": tokens, "columns": tokens}
    return with_legend(
        "QKᵀ / √d + mask",
        Grid(kinds_of(np.tri(3, dtype=bool)), shades=shades, extent=(3, 3), **labels),
        description="Scores of three tokens; later tokens have -∞.",
    )


def pair() -> Scene:
    """Two grids of different sizes, with other names of the axes."""
    first, second = kinds_of(np.tri(4, dtype=bool)), kinds_of(np.ones((3, 5), bool))
    second[:, -1] = Kind.MASKED
    return with_legend(
        "Two heads",
        Grid(first, title="head 0", extent=(4, 4)),
        Grid(second, title="head 1", extent=(3, 5), row_name="target", column_name="source"),
        note="batch 0",
        description="Head 0 is causal, head 1 masks the last source.",
    )


def large() -> Scene:
    """More cells than a terminal has columns: 256 × 256."""
    size = 256
    distance = np.arange(size)[:, None] - np.arange(size)
    visible = (distance >= 0) & ((distance < 48) | (np.arange(size) < 16))
    return with_legend(
        "sliding_window(48) | first(16)",
        Grid(kinds_of(visible), extent=(size, size)),
        note="256 queries × 256 keys",
        description="A band along the diagonal, and the first 16 keys.",
    )


def empty() -> Scene:
    """No queries."""
    grid, legend = (
        Grid(np.zeros((0, 3), np.uint8), extent=(0, 3)),
        LegendEntry(Kind.VISIBLE, "visible"),
    )
    return Scene("nothing", (grid,), legend=(legend,), description="No queries.")


SCENES: dict[str, Callable[[], Scene]] = {
    make.__name__: make for make in (causal, tiles, difference, numbers, pair, large, empty)
}
