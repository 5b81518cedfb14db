"""Scenes of masks: one mask, the difference of two, or the tiles that attention visits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.ascii import density_of, sizes_of, title_of
from maskwright.core.compare import common, only
from maskwright.draw.scene import Grid, Kind, Scene, legend_of
from maskwright.errors import ArgumentError, FrameError, SizeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray
    from maskwright.engine.cost import WorkEstimate

    Tokens = Sequence[str] | Sequence[Sequence[str]]

MAX_CELLS = 256  # along one side of a grid
MAX_PLANES = 8
MAX_INTERVALS = 2**24  # read for one picture
MAX_DESCRIBED_ROWS = 16


class View(NamedTuple):
    """A rectangle of a mask.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import View
    >>> view = View(row=500, rows=2, key=499, keys=3)
    >>> print(mw.picture(mw.causal().on(1_000_000), form="text", view=view))
    causal()
    1,000,000 queries × 1,000,000 keys, density 0.50
    <BLANKLINE>
    query ↓  key →
             499
        500  ████··
        501  ██████
    <BLANKLINE>
    ██ visible   ·· masked
    """

    row: int
    rows: int
    key: int
    keys: int


@dataclass(frozen=True)
class GridOptions:
    """What a grid shows of a mask.

    Attributes:
        batch: The batch row.
        head: The head.
        view: The rectangle to draw.
        max_cells: Maximum number of cells along a side.
        tile: Number of queries and keys of a cell, where `max_cells` allows it.
        rows: Labels of all queries. Blocks have none.
        columns: Labels of all keys.
    """

    batch: int = 0
    head: int = 0
    view: View | None = None
    max_cells: int = MAX_CELLS
    tile: tuple[int, int] = (1, 1)
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None


WHOLE_MASK: Final = GridOptions()


def scene_of(
    bound: BoundMask,
    *,
    tokens: Tokens | None = None,
    key_tokens: Tokens | None = None,
    batch: int | None = None,
    head: int | None = None,
    view: View | None = None,
    max_cells: int = MAX_CELLS,
    max_planes: int = MAX_PLANES,
) -> Scene:
    """A bound mask as a scene, with a grid for each batch row and head that differs.

    Args:
        bound: The mask.
        tokens: Labels of the queries, and of the keys without `key_tokens`: one list, or one for
            each batch row.
        key_tokens: Labels of the keys.
        batch: Draw this batch row only.
        head: Draw this head only.
        view: Draw this rectangle only.
        max_cells: Maximum number of cells along a side. More queries or keys are drawn as blocks.
        max_planes: Maximum number of grids. The note gives the number of the others.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import scene_of
    >>> scene = scene_of((mw.causal() & mw.padding(lengths=[1, 2])).on(2), tokens=["a", "b"])
    >>> [grid.title for grid in scene.grids]
    ['batch 0', 'batch 1']
    >>> scene.grids[0].kinds.tolist()
    [[2, 0], [2, 0]]
    """
    if max_planes < 1:
        raise ArgumentError(f"max_planes must be at least 1, got {max_planes}.")
    draw, options = partial(grid_of, bound), GridOptions(view=view, max_cells=max_cells)
    grids, omitted = _grids(bound, (tokens, key_tokens), (batch, head), draw, options, max_planes)
    title, note = title_of(bound), f"{sizes_of(bound)}, {density_of(bound)}{omitted}"
    return Scene(title, grids, note, legend_of(grids), describe(title, note, grids))


def difference_of(
    first: BoundMask,
    second: BoundMask,
    *,
    tokens: Tokens | None = None,
    key_tokens: Tokens | None = None,
    batch: int | None = None,
    head: int | None = None,
    view: View | None = None,
    max_cells: int = MAX_CELLS,
) -> Scene:
    """Two masks of the same sizes as a scene: the cells of both, and of only one of them.

    The arguments are those of `scene_of`.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import difference_of
    >>> scene = difference_of(mw.causal().on(3), mw.window(back=1).on(3))
    >>> scene.grids[0].kinds.tolist()
    [[2, 0, 0], [2, 2, 0], [3, 2, 2]]
    """
    both = common(first, second)
    first_title, second_title = title_of(first), title_of(second)
    draw, options = (
        partial(difference_grid, first, second),
        GridOptions(view=view, max_cells=max_cells),
    )
    grids, omitted = _grids(both, (tokens, key_tokens), (batch, head), draw, options)
    names = {
        Kind.VISIBLE: "visible in both",
        Kind.FIRST_ONLY: f"only {first_title}",
        Kind.SECOND_ONLY: f"only {second_title}",
    }
    counts = (only(first, second).count(), only(second, first).count())
    note = f"{sizes_of(first)}; visible only in the first: {counts[0]:,}, only in the second: {counts[1]:,}"
    note += omitted
    title = f"{first_title} compared with {second_title}"
    return Scene(title, grids, note, legend_of(grids, names), f"{title}: {note}.")


def tiles_scene(bound: BoundMask, work: WorkEstimate, *, batch: int = 0, head: int = 0) -> Scene:
    """One batch row and head of a mask, with a cell for each tile of a blockwise kernel.

    Args:
        bound: The mask.
        work: The work under this mask, of `explain_backend`.
        batch: The batch row to draw.
        head: The head to draw.
        max_cells: Maximum number of cells along a side. More tiles are joined.

    Returns:
        The scene. A kernel skips masked tiles and applies the mask to partly visible ones only.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import tiles_scene
    >>> work = mw.explain_backend((1, 1, 256, 64), mask=mw.causal(), impl="flex").work
    >>> tiles_scene(mw.causal().on(256), work).grids[0].kinds.tolist()
    [[1, 0], [2, 1]]
    """
    batch, head = (min(at, n - 1) for at, n in zip((batch, head), bound.shape[:2], strict=True))
    tile = (work.block_q, work.block_kv)
    grid = grid_of(bound, GridOptions(batch, head, tile=tile))
    note = (
        f"{sizes_of(bound)}; {work.tiles_visited:,} of {work.tiles:,} tiles of {tile[0]} × "
        f"{tile[1]} visited, {work.useful_share:.0%} of the computed scores are visible"
    )
    names = {Kind.MASKED: "masked, skipped", Kind.VISIBLE: "visible, no mask applied"}
    title = title_of(bound)
    text = describe(title, note, [grid])
    return Scene(title, (grid,), note, legend_of([grid], names), text)


def grid_of(bound: BoundMask, options: GridOptions = WHOLE_MASK) -> Grid:
    """One batch row and head of a mask as a grid.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import GridOptions, View, grid_of
    >>> grid_of(mw.causal().on(1_000_000), GridOptions(view=View(10, 2, 9, 3))).kinds.tolist()
    [[2, 2, 0], [2, 2, 2]]
    """
    span = _span(bound, options)
    visible, area = _coverage(bound, options, span), span.area
    return _grid(_kinds(visible, area), visible / area, span, options)


def difference_grid(first: BoundMask, second: BoundMask, options: GridOptions = WHOLE_MASK) -> Grid:
    """One batch row and head of two masks as a grid.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import difference_grid
    >>> difference_grid(mw.causal().on(2), mw.causal().T.on(2)).kinds.tolist()
    [[2, 4], [3, 2]]
    """
    span = _span(first, options)
    both, mine, theirs = (
        _coverage(part, options, span)
        for part in (common(first, second), only(first, second), only(second, first))
    )
    area = span.area
    kinds = _kinds(both, area)
    kinds[mine > 0] = Kind.FIRST_ONLY
    kinds[theirs > 0] = Kind.SECOND_ONLY
    kinds[(mine > 0) & (theirs > 0)] = Kind.BOTH_DIFFER
    differ = mine + theirs
    # A block that differs in one cell only must still be seen to differ.
    shades = np.where(differ > 0, 0.5 + 0.5 * differ / area, both / area)
    return _grid(kinds, shades, span, options)


def describe(title: str, note: str, grids: Sequence[Grid]) -> str:
    """The text alternative of a mask: row by row if these are few, else the number of blocks."""
    parts = [f"{title}, {note}. Rows are queries, columns are keys."]
    for grid in grids:
        where = f"{grid.title}: " if grid.title else ""
        if grid.block == (1, 1) and grid.shape[0] <= MAX_DESCRIBED_ROWS:
            parts.append(where + "; ".join(_describe_rows(grid)) + ".")
        else:
            masked, partial, visible, *_ = np.bincount(grid.kinds.ravel(), minlength=len(Kind))
            blocks = " × ".join(f"{n:,}" for n in grid.block)
            parts.append(
                f"{where}of {grid.kinds.size:,} blocks of {blocks}, {visible:,} are visible, "
                f"{partial:,} partly visible, {masked:,} masked."
            )
    return " ".join(parts)


class _Span(NamedTuple):
    """The part of a mask that a grid shows, and the size of its blocks."""

    view: View
    block: tuple[int, int]

    @property
    def area(self) -> IntArray:
        """Number of mask cells of each block; those at the edge have fewer."""
        lengths = zip((self.view.rows, self.view.keys), self.block, strict=True)
        return np.outer(*(np.diff([*range(0, n, block), n]) for n, block in lengths))


def _grids(
    bound: BoundMask,
    labels: tuple[Tokens | None, Tokens | None],
    plane: tuple[int | None, int | None],
    draw: Callable[[GridOptions], Grid],
    options: GridOptions,
    max_planes: int = MAX_PLANES,
) -> tuple[tuple[Grid, ...], str]:
    """The grids of the planes to draw, and a note about those that are not drawn."""
    frame, (tokens, key_tokens) = bound.frame, labels
    if key_tokens is None and frame.q_len == frame.kv_len:
        key_tokens = tokens
    queries = _read_labels(tokens, "tokens", frame.q_len, frame.batch)
    keys = _read_labels(key_tokens, "key_tokens", frame.kv_len, frame.batch)
    sizes = bound.shape[:2]
    chosen = (range(n) if at is None else [at] for n, at in zip(sizes, plane, strict=True))
    planes = [*product(*chosen)]
    grids = []
    for b, h in planes[:max_planes]:
        names = [
            f"{name} {at}"
            for name, at, size, index in zip(("batch", "head"), (b, h), sizes, plane, strict=True)
            if size > 1 or index is not None
        ]
        rows, columns = queries[b % len(queries)], keys[b % len(keys)]
        grid = draw(replace(options, batch=b, head=h, rows=rows, columns=columns))
        grids.append(replace(grid, title=", ".join(names)))
    left = len(planes) - max_planes
    return tuple(grids), f"; {left} more batch rows and heads are not drawn" if left > 0 else ""


def _read_labels(
    tokens: Tokens | None, name: str, length: int, batch: int
) -> Sequence[list[str] | None]:
    """The labels of each batch row, or one list for all of them."""
    if tokens is None:
        return [None]
    nested = any(not isinstance(token, str) for token in tokens)
    rows = [[str(token) for token in row] for row in tokens] if nested else [[*map(str, tokens)]]
    if len(rows) not in (1, batch):
        raise FrameError(
            f"{name}: expected one list of tokens or {batch} (one for each batch row), "
            f"got {len(rows)} lists."
        )
    for row in rows:
        if len(row) != length:
            raise FrameError(f"{name}: expected {length} tokens, got {len(row)}.")
    return rows


def _span(bound: BoundMask, options: GridOptions) -> _Span:
    (q_len, kv_len), max_cells = bound.shape[2:], options.max_cells
    view = options.view or View(0, q_len, 0, kv_len)
    if min(view) < 0 or view.row + view.rows > q_len or view.key + view.keys > kv_len:
        raise FrameError(
            f"view: rows {view.row} … {view.row + view.rows - 1} and keys "
            f"{view.key} … {view.key + view.keys - 1} are outside of the mask, which has "
            f"{q_len} queries and {kv_len} keys."
        )
    if max_cells < 1:
        raise ArgumentError(f"max_cells must be at least 1, got {max_cells}.")
    tall, wide = (
        step * max(1, math.ceil(n / (step * max_cells)))
        for n, step in zip((view.rows, view.keys), options.tile, strict=True)
    )
    return _Span(view, (tall, wide))


def _coverage(bound: BoundMask, options: GridOptions, span: _Span) -> IntArray:
    """Number of visible cells of each block."""
    row, rows, key, keys = span.view
    planes = max(1, bound.shape[0] * bound.shape[1])
    intervals = planes * rows * max(1, bound.mask._width(keys))
    if intervals > MAX_INTERVALS:
        raise SizeError(
            f"{title_of(bound)} may have {intervals:,} intervals in this picture, more than "
            f"{MAX_INTERVALS:,}. Draw fewer rows: view=View(row, rows, key, keys)."
        )
    plane = {"batch": options.batch, "head": options.head}
    return bound.coverage(*span.block, **plane, rows=(row, row + rows), keys=(key, key + keys))


def _kinds(visible: IntArray, area: IntArray) -> npt.NDArray[np.uint8]:
    kinds = np.where(visible > 0, Kind.PARTIAL, Kind.MASKED)
    return np.where(visible == area, Kind.VISIBLE, kinds).astype(np.uint8)


def _grid(
    kinds: npt.NDArray[np.uint8], shades: npt.NDArray[np.float64], span: _Span, options: GridOptions
) -> Grid:
    (view, (tall, wide)), rows, columns = span, options.rows, options.columns
    return Grid(
        kinds,
        shades=shades if (tall, wide) != (1, 1) else None,
        rows=tuple(rows[view.row : view.row + view.rows]) if rows and tall == 1 else None,
        columns=tuple(columns[view.key : view.key + view.keys]) if columns and wide == 1 else None,
        block=(tall, wide),
        start=(view.row, view.key),
        extent=(view.rows, view.keys),
    )


def _describe_rows(grid: Grid) -> Iterator[str]:
    for index, row in enumerate(grid.kinds == Kind.VISIBLE):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row, [0])))).reshape(-1, 2)
        runs = [
            f"{grid.start[1] + start}"
            + (f" to {grid.start[1] + stop - 1}" if stop - start > 1 else "")
            for start, stop in edges.tolist()
        ]
        single = len(runs) == 1 and " to " not in runs[0]
        keys = f"key{'' if single else 's'} {', '.join(runs)}" if runs else "no key"
        yield f"query {grid.start[0] + index} attends to {keys}"
