"""Scenes of masks: one mask, or two beside each other; cells while they fit, else tiles."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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

    Tokens = Sequence[str] | Sequence[Sequence[str]]

MOST_SIGNS = 256  # along one side
MOST_PLANES = 8
MOST_INTERVALS = 2**24  # read for one picture
SAID_ROWS = 16  # rows that the text alternative lists one by one


class View(NamedTuple):
    """A part of a mask: so many rows and keys from a row and a key on.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import View
    >>> view = View(row=500, rows=2, key=499, keys=3)
    >>> print(mw.picture(mw.causal().on(1_000_000), form="text", view=view))
    causal()
    1000000 queries × 1000000 keys, density 0.50
    <BLANKLINE>
    query ↓  key →
             499
        500  ████··
        501  ██████
    <BLANKLINE>
    ██ seen   ·· hidden
    """

    row: int
    rows: int
    key: int
    keys: int


class Span(NamedTuple):
    """What a grid shows along both axes: the part, and how large a tile is."""

    view: View
    block: tuple[int, int]

    @property
    def area(self) -> IntArray:
        """How many cells every tile has; those at the edge have fewer."""
        sizes = []
        for length, block in zip((self.view.rows, self.view.keys), self.block, strict=True):
            starts = np.arange(0, length, block)
            sizes.append(np.minimum(starts + block, length) - starts)
        return np.outer(*sizes)


def scene_of(
    bound: BoundMask,
    *,
    tokens: Tokens | None = None,
    key_tokens: Tokens | None = None,
    batch: int | None = None,
    head: int | None = None,
    view: View | None = None,
    most: int = MOST_SIGNS,
    planes: int = MOST_PLANES,
) -> Scene:
    """A bound mask as a scene: a grid for every batch row and head that differs, or for one.

    `tokens` name the queries, and the keys too where `key_tokens` does not; one list, or one for
    every batch row. Up to `most` queries and keys are shown cell by cell, more as tiles. No more
    than `planes` grids are drawn, and the note says how many are left.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import scene_of
    >>> scene = scene_of((mw.causal() & mw.padding(lengths=[1, 2])).on(2), tokens=["a", "b"])
    >>> [grid.title for grid in scene.grids]
    ['batch 0', 'batch 1']
    >>> scene.grids[0].kinds.tolist()
    [[2, 0], [2, 0]]
    """
    labels = _Labels(bound, tokens, key_tokens)
    if planes < 1:
        raise ArgumentError(f"planes={planes} is less than 1. Give how many grids may be drawn.")
    draw = partial(grid_of, bound, view=view, most=most)
    shown, left = _grids(bound, labels, batch, head, draw, planes)
    title = title_of(bound)
    note = _with_block(f"{sizes_of(bound)}, {density_of(bound)}{_and_more(left)}", shown)
    return Scene(title, shown, note, legend_of(shown), describe(title, note, shown))


def difference_of(
    first: BoundMask,
    second: BoundMask,
    *,
    tokens: Tokens | None = None,
    key_tokens: Tokens | None = None,
    batch: int | None = None,
    head: int | None = None,
    view: View | None = None,
    most: int = MOST_SIGNS,
) -> Scene:
    """Two masks on one frame as a scene: what both see, and what only one of them does.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import difference_of
    >>> scene = difference_of(mw.causal().on(3), mw.window(back=1).on(3))
    >>> scene.grids[0].kinds.tolist()
    [[2, 0, 0], [2, 2, 0], [3, 2, 2]]
    """
    both = common(first, second)
    one, other = title_of(first), title_of(second)
    labels = _Labels(both, tokens, key_tokens)
    draw = partial(difference_grid, first, second, view=view, most=most)
    shown, left = _grids(both, labels, batch, head, draw)
    words = {Kind.SEEN: "both see it", Kind.FIRST: f"only {one}", Kind.SECOND: f"only {other}"}
    mine, theirs = only(first, second).count(), only(second, first).count()
    cells = "cell" if mine == 1 else "cells"
    note = f"{sizes_of(first)}; only the first sees {mine:,} {cells}, only the second {theirs:,}"
    note = _with_block(note + _and_more(left), shown)
    title = f"{one} against {other}"
    return Scene(title, shown, note, legend_of(shown, words), f"{title}: {note}.")


def grid_of(
    bound: BoundMask,
    *,
    batch: int = 0,
    head: int = 0,
    view: View | None = None,
    most: int = MOST_SIGNS,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Grid:
    """One batch row and head of a mask, or a part of it, in at most `most` signs a side.

    `rows` and `columns` are labels of all queries and keys; tiles have none.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import View, grid_of
    >>> grid_of(mw.causal().on(1_000_000), view=View(10, 2, 9, 3)).kinds.tolist()
    [[2, 2, 0], [2, 2, 2]]
    """
    span = _span(bound, view, most)
    seen = _coverage(bound, batch, head, span)
    area = span.area
    kinds = np.where(seen == area, Kind.SEEN, np.where(seen > 0, Kind.SOME, Kind.HIDDEN))
    return _grid(kinds, seen / area, span, rows, columns)


def difference_grid(
    first: BoundMask,
    second: BoundMask,
    *,
    batch: int = 0,
    head: int = 0,
    view: View | None = None,
    most: int = MOST_SIGNS,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Grid:
    """One batch row and head of two masks: where they differ, and what both see.

    >>> import maskwright as mw
    >>> from maskwright.draw.masks import difference_grid
    >>> difference_grid(mw.causal().on(2), mw.causal().T.on(2)).kinds.tolist()
    [[2, 4], [3, 2]]
    """
    span = _span(first, view, most)
    both, mine, theirs = (
        _coverage(part, batch, head, span)
        for part in (common(first, second), only(first, second), only(second, first))
    )
    area = span.area
    kinds = np.where(both == area, Kind.SEEN, np.where(both > 0, Kind.SOME, Kind.HIDDEN))
    kinds[mine > 0] = Kind.FIRST
    kinds[theirs > 0] = Kind.SECOND
    kinds[(mine > 0) & (theirs > 0)] = Kind.MIXED
    differ = mine + theirs
    # A tile that differs in one cell only must still be seen to differ.
    shades = np.where(differ > 0, 0.5 + 0.5 * differ / area, both / area)
    return _grid(kinds, shades, span, rows, columns)


def describe(title: str, note: str, grids: Sequence[Grid]) -> str:
    """A mask in words: row by row where these are few, else as a whole."""
    said = [f"{title}, {note}. Rows are queries, columns are keys."]
    for grid in grids:
        where = f"{grid.title}: " if grid.title else ""
        if grid.block == (1, 1) and grid.shape[0] <= SAID_ROWS:
            said.append(where + "; ".join(_rows_in_words(grid)) + ".")
        else:
            full, some, none = (
                int((grid.kinds == kind).sum()) for kind in (Kind.SEEN, Kind.SOME, Kind.HIDDEN)
            )
            said.append(
                f"{where}{full} of {grid.kinds.size} signs are all seen, {some} in part, "
                f"{none} hidden."
            )
    return " ".join(said)


class _Labels:
    """The tokens of queries and keys, of every batch row."""

    def __init__(self, bound: BoundMask, tokens: Tokens | None, keys: Tokens | None) -> None:
        frame = bound.frame
        if keys is None and frame.q_len == frame.kv_len:
            keys = tokens
        self.queries = _read_labels(tokens, "tokens", frame.q_len, frame.batch)
        self.keys = _read_labels(keys, "key_tokens", frame.kv_len, frame.batch)

    def of(self, batch: int) -> tuple[Sequence[str] | None, Sequence[str] | None]:
        """Of one batch row."""
        rows, columns = (
            None if held is None else held[batch if len(held) > 1 else 0]
            for held in (self.queries, self.keys)
        )
        return rows, columns


def _read_labels(
    given: Tokens | None, name: str, length: int, batch: int
) -> list[list[str]] | None:
    if given is None:
        return None
    nested = any(not isinstance(token, str) for token in given)
    rows = [[str(token) for token in row] for row in given] if nested else [[*map(str, given)]]
    if len(rows) not in (1, batch):
        raise FrameError(
            f"{name}: there are {len(rows)} lists but the batch has {batch} sequences. "
            "Give one list, or one for every sequence."
        )
    for row in rows:
        if len(row) != length:
            raise FrameError(
                f"{name}: a list has {len(row)} tokens but the mask has {length}. "
                "Give a token for every one."
            )
    return rows


def _grids(
    bound: BoundMask,
    labels: _Labels,
    batch: int | None,
    head: int | None,
    draw: Callable[..., Grid],
    most: int = MOST_PLANES,
) -> tuple[tuple[Grid, ...], int]:
    """The planes that differ, or the one asked for, each with its name; and how many are left."""
    batches, heads = bound.shape[:2]
    planes = [
        (b, h)
        for b in (range(batches) if batch is None else [batch])
        for h in (range(heads) if head is None else [head])
    ]
    grids = []
    for b, h in planes[:most]:
        rows, columns = labels.of(b)
        names = [f"batch {b}"] * (batches > 1 or batch is not None)
        names += [f"head {h}"] * (heads > 1 or head is not None)
        grid = draw(batch=b, head=h, rows=rows, columns=columns)
        grids.append(replace(grid, title=", ".join(names)))
    return tuple(grids), max(0, len(planes) - most)


def _span(bound: BoundMask, view: View | None, most: int) -> Span:
    q_len, kv_len = bound.shape[2:]
    part = View(0, q_len, 0, kv_len) if view is None else view
    if min(part) < 0 or part.row + part.rows > q_len or part.key + part.keys > kv_len:
        raise FrameError(
            f"view: rows {part.row} … {part.row + part.rows - 1} and keys "
            f"{part.key} … {part.key + part.keys - 1} are not all there. "
            f"Give some of {q_len} queries and {kv_len} keys."
        )
    if most < 1:
        raise ArgumentError(f"most={most} is less than 1. Give how many signs a side may have.")
    tall, broad = (max(1, math.ceil(n / most)) for n in (part.rows, part.keys))
    return Span(part, (tall, broad))


def _coverage(bound: BoundMask, batch: int, head: int, span: Span) -> IntArray:
    row, rows, key, keys = span.view
    planes = max(1, bound.shape[0] * bound.shape[1])
    intervals = planes * rows * max(1, bound.mask._width(keys))
    if intervals > MOST_INTERVALS:
        raise SizeError(
            f"{title_of(bound)} may have {intervals:,} intervals in this picture, more than "
            f"{MOST_INTERVALS:,}. Draw fewer rows."
        )
    return bound.coverage(
        *span.block, batch=batch, head=head, rows=(row, row + rows), keys=(key, key + keys)
    )


def _grid(
    kinds: npt.NDArray[np.int_],
    shades: npt.NDArray[np.float64],
    span: Span,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
) -> Grid:
    view, (tall, broad) = span
    return Grid(
        kinds.astype(np.uint8),
        shades=shades if (tall, broad) != (1, 1) else None,
        rows=tuple(rows[view.row : view.row + view.rows]) if rows and tall == 1 else None,
        columns=tuple(columns[view.key : view.key + view.keys]) if columns and broad == 1 else None,
        block=(tall, broad),
        start=(view.row, view.key),
        extent=(view.rows, view.keys),
    )


def _rows_in_words(grid: Grid) -> Iterator[str]:
    for number, row in enumerate(grid.kinds == Kind.SEEN):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row, [0])))).reshape(-1, 2)
        runs = [
            f"{grid.start[1] + first}"
            + (f" to {grid.start[1] + stop - 1}" if stop - first > 1 else "")
            for first, stop in edges.tolist()
        ]
        alone = len(runs) == 1 and " to " not in runs[0]
        keys = f"key{'' if alone else 's'} {', '.join(runs)}" if runs else "nothing"
        yield f"query {grid.start[0] + number} sees {keys}"


def _with_block(note: str, grids: Sequence[Grid]) -> str:
    """Says what a sign stands for, where that is not one cell."""
    tall, broad = grids[0].block if grids else (1, 1)
    return note if (tall, broad) == (1, 1) else f"{note}; a sign is {tall:,} × {broad:,} cells"


def _and_more(left: int) -> str:
    return f"; {left} more batch rows and heads are not drawn" if left else ""
