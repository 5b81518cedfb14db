"""Atoms that relate tokens to tokens: trees of drafts, graphs, and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from maskwright.core.expr import Atom, Cell, Mask, mask_property
from maskwright.core.frame import BroadcastDims
from maskwright.core.validate import FrozenArray, parse_bool, parse_int, read_choice, read_ints
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.frame import Frame
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray


@dataclass(frozen=True, repr=False)
class Tree(Atom):
    """The query's ancestors and itself."""

    name = "tree"
    parents: FrozenArray  # (batch, tokens), -1 at a root

    @mask_property
    def _heads(self) -> IntArray:
        """For every token the first of the chain p, p - 1, … in which each is the next's parent."""
        parents = self.parents.data
        own = np.arange(parents.shape[1])
        begins = np.where((parents != own - 1) | (parents < 0), own, 0)
        return np.maximum.accumulate(begins, axis=1)

    @mask_property
    def _chains(self) -> int:
        """The most chains between a token and its root."""
        batch = np.arange(self._heads.shape[0])[:, None]
        above = np.take_along_axis(self.parents.data, self._heads, axis=1)
        chains = np.ones_like(above)
        while bool((above >= 0).any()):  # twice as many chains with every turn
            chains += np.where(above >= 0, chains[batch, above], 0)
            above = np.where(above >= 0, above[batch, above], -1)
        return int(chains.max(initial=0))

    @mask_property
    def _downward(self) -> bool:
        """Does every parent stand before its children?"""
        return bool((self.parents.data < np.arange(self.parents.data.shape[1])).all())

    def _spans(self, view: View) -> Spans:
        parents, heads = self.parents.data, self._heads
        batch, tokens = parents.shape
        row = np.arange(batch * view.rows)
        place = np.tile(view.queries, batch)
        sequence = np.repeat(np.arange(batch), view.rows)
        rows, lows, highs = [], [], []
        while place.size:
            flat = sequence * tokens + place
            head = heads.ravel()[flat]
            rows.append(row)
            lows.append(head)
            highs.append(place + 1)
            place = parents.ravel()[sequence * tokens + head]
            alive = place >= (max(view.first, 0) if self._downward else 0)
            row, place, sequence = row[alive], place[alive], sequence[alive]
        if not rows:
            return view.pieces(row, place, place, batch=batch)
        row, low, high = (np.concatenate(part) for part in (rows, lows, highs))
        return view.pieces(row, low, high, batch=batch)

    def _fit(self, frame: Frame) -> None:
        count = int(self.parents.data.shape[1])
        fix = f"Pass kv_len={count}, or give a parent for every key."
        frame.check_tokens(count, "tree", f"parents has {count} columns", fix)

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("tree: parents", int(self.parents.data.shape[0]), 1),)

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._chains)

    def _call(self) -> tuple[str, dict[str, Any]]:
        return self.name, {"": self.parents}

    def _reason(self, cell: Cell, sees: bool) -> str:
        if cell.query == cell.key:
            return "a token sees itself"
        return f"key {cell.key} is {'an' if sees else 'no'} ancestor of query {cell.query}"


@dataclass(frozen=True, repr=False)
class Graph(Atom):
    """The query's neighbours."""

    name = "graph"
    edges: FrozenArray  # (edges, 2), sorted
    directed: bool
    loops: bool

    @mask_property
    def _pairs(self) -> IntArray:
        """Every (query, key) that an edge allows, sorted."""
        edges = self.edges.data
        return edges if self.directed else unique_pairs(np.concatenate([edges, edges[:, ::-1]]))

    @mask_property
    def _most(self) -> int:
        counts = np.unique(self._pairs[:, 0], return_counts=True)[1]
        return int(counts.max(initial=0)) + self.loops

    def _spans(self, view: View) -> Spans:
        q = view.queries
        first = view.frame.q_start + view.row
        pairs = self._pairs
        begin, end = np.searchsorted(pairs[:, 0], [first, first + view.rows])
        row, key = pairs[begin:end, 0] - first, pairs[begin:end, 1]
        if self.loops:
            row, key = np.concatenate([row, q - first]), np.concatenate([key, q])
        return view.pieces(row, key, key + 1)

    def _fit(self, frame: Frame) -> None:
        last = int(self.edges.data.max(initial=-1))
        if last >= frame.tokens:
            raise FrameError(
                f"graph: edges name node {last} but the frame has {frame.tokens} tokens. "
                f"Pass kv_len={last + 1} or more."
            )

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._most)

    def _call(self) -> tuple[str, dict[str, Any]]:
        given: dict[str, Any] = {"": self.edges}
        if self.directed:
            given["directed"] = True
        if not self.loops:
            given["loops"] = False
        return self.name, given

    def _reason(self, cell: Cell, sees: bool) -> str:
        if cell.query == cell.key and sees and self.loops:
            return "a node sees itself"
        return f"there is {'an' if sees else 'no'} edge from {cell.query} to {cell.key}"


@dataclass(frozen=True, repr=False)
class Image(Atom):
    """The query pixel's neighbourhood in an image that is read row by row."""

    name = "image"
    height: int
    width: int
    radius: int
    raster: bool
    border: Literal["cut", "shift"]

    def _spans(self, view: View) -> Spans:
        q = view.queries
        y, x = q // self.width, q % self.width
        top, bottom = self._reach(y, self.height)
        left, right = self._reach(x, self.width)
        lines = np.arange(min(2 * self.radius + 1, self.height))
        line = top[:, None] + lines  # (rows, lines)
        low, high = line * self.width + left[:, None], line * self.width + right[:, None] + 1
        high = np.where(line <= bottom[:, None], high, low)
        if self.raster:
            high = np.minimum(high, q[:, None] + 1)
        row = np.repeat(np.arange(q.size), lines.size)
        return view.pieces(row, low.ravel(), high.ravel())

    def _reach(self, place: IntArray, size: int) -> tuple[IntArray, IntArray]:
        """The first and last line (or column) that a pixel at `place` sees."""
        radius = min(self.radius, size)  # a larger one sees no more, and could overflow
        if self.border == "shift":
            first = np.clip(place - radius, 0, max(0, size - 2 * radius - 1))
            return first, np.minimum(first + 2 * radius, size - 1)
        return np.maximum(place - radius, 0), np.minimum(place + radius, size - 1)

    def _fit(self, frame: Frame) -> None:
        count = self.height * self.width
        data = f"{self.height} × {self.width} makes {count} pixels"
        frame.check_tokens(count, "image", data, f"Pass kv_len={count}.")

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, 2 * self.radius + 1)

    def _extent(self) -> int:
        return (2 * self.radius + 1) * self.width

    def _call(self) -> tuple[str, dict[str, Any]]:
        given: dict[str, Any] = {"height": self.height, "width": self.width, "radius": self.radius}
        if self.raster:
            given["raster"] = True
        if self.border != "cut":
            given["border"] = self.border
        return self.name, given

    def _reason(self, cell: Cell, sees: bool) -> str:
        (y, x), (v, u) = divmod(cell.query, self.width), divmod(cell.key, self.width)
        return f"pixel ({v}, {u}) is {'' if sees else 'not '}in the neighbourhood of ({y}, {x})"


def tree(parents: Any) -> Mask:
    """A query sees its ancestors and itself: several drafts checked in one pass.

    `parents[p]` is the key position of p's parent, -1 at a root. Give one tree, or one for each
    sequence.

    >>> import maskwright as mw
    >>> mw.tree([-1, 0, 0, 2]).on(4).dense().astype(int).tolist()
    [[[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]]]
    """
    array = read_ints(parents, "tree: parents")
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or not array.shape[0]:
        raise ArgumentError(
            f"tree: parents has shape {array.shape}. Give (tokens,) or (batch, tokens)."
        )
    tokens = array.shape[1]
    if array.size and (int(array.min()) < -1 or int(array.max()) >= tokens):
        wrong = int(array.min()) if int(array.min()) < -1 else int(array.max())
        raise ArgumentError(
            f"tree: parents holds {wrong}, which is no position of {tokens} tokens. "
            "Give the parent's position, or -1 at a root."
        )
    _refuse_cycles(array)
    return Tree(FrozenArray(array))


def graph(edges: Any, *, directed: bool = False, loops: bool = True) -> Mask:
    """A query sees its neighbours, and itself unless `loops=False`.

    `edges` are (query, key) pairs of positions; undirected ones hold both ways.

    >>> import maskwright as mw
    >>> mw.graph([(0, 1), (1, 2)]).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 1], [0, 1, 1]]]]
    """
    array = read_ints(list(edges) if _is_view(edges) else edges, "graph: edges")
    if array.size == 0:
        array = array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ArgumentError(
            f"graph: edges has shape {array.shape}. Give (query, key) pairs, (n, 2); turn (2, n) over."
        )
    if array.size and int(array.min()) < 0:
        raise ArgumentError(f"graph: edges names node {int(array.min())}. Count nodes from 0.")
    one_way = parse_bool(directed, "graph: directed")
    if not one_way:
        array = np.sort(array, axis=1)
    return Graph(FrozenArray(unique_pairs(array)), one_way, parse_bool(loops, "graph: loops"))


def image(
    height: int,
    width: int,
    radius: int,
    *,
    raster: bool = False,
    border: Literal["cut", "shift"] = "cut",
) -> Mask:
    """A pixel sees the square of pixels within `radius` lines and columns of it.

    Positions run row by row. With `raster=True` it sees only what is drawn already, itself
    included. At the border the square is cut, or shifted inward to keep its size.

    >>> import maskwright as mw
    >>> mw.image(3, 3, radius=1).on(9).spans.row(0)
    [(0, 2), (3, 5)]
    >>> mw.image(3, 3, radius=1, raster=True).on(9).spans.row(4)
    [(0, 5)]
    """
    edge: Any = read_choice(border, "image: border", ("cut", "shift"))
    tall = parse_int(height, "image: height", minimum=0)
    broad = parse_int(width, "image: width", minimum=1)
    near = parse_int(radius, "image: radius", minimum=0)
    return Image(tall, broad, near, parse_bool(raster, "image: raster"), edge)


def unique_pairs(pairs: IntArray) -> IntArray:
    """The pairs in order, each once."""
    most = int(pairs.max(initial=0)) + 1
    if most > 2**31:  # too large to be one number each
        return np.unique(pairs, axis=0)
    numbers = np.sort(pairs[:, 0] * most + pairs[:, 1])
    once = numbers[np.append(True, numbers[1:] != numbers[:-1])[: numbers.size]]
    return np.stack(np.divmod(once, most), axis=1)


def _refuse_cycles(parents: IntArray) -> None:
    """Follow all parents at once, twice as far each time; a tree ends at its roots."""
    batch, tokens = parents.shape
    row = np.arange(batch)[:, None]
    place, reached = parents, 1
    while reached <= tokens and bool((place >= 0).any()):
        place = np.where(place >= 0, place[row, place], -1)
        reached *= 2
    if bool((place >= 0).any()):
        b, p = (int(i[0]) for i in np.nonzero(place >= 0))
        raise ArgumentError(
            f"tree: following the parents of token {p} of sequence {b} never ends. "
            "Give -1 as the parent of a root."
        )


def _is_view(edges: Any) -> bool:
    """Things such as networkx edge views: iterable, without being a sequence or an array."""
    return (
        hasattr(edges, "__iter__")
        and not hasattr(edges, "__array__")
        and not isinstance(edges, (list, tuple, str, bytes, dict, range))
    )
