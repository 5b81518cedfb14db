"""Atoms given by a structure of tokens: trees of draft tokens, graphs, and image neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from maskwright.core.atoms.position import Nothing, Window
from maskwright.core.cache import mask_property
from maskwright.core.expr import Atom, Mask
from maskwright.core.frame import BroadcastDims
from maskwright.core.nodes import Cell, Operator, Sizes
from maskwright.core.operators import And
from maskwright.core.validate import (
    FrozenArray,
    parse_bool,
    parse_int,
    read_choice,
    read_ints,
    token_rows,
)
from maskwright.errors import ArgumentError, FrameError
from maskwright.messages import Reason

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.frame import Frame
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray


@dataclass(frozen=True, repr=False)
class Tree(Atom):
    """The query's ancestors and itself."""

    name = "tree"
    positional = ("parents",)
    _rank = 10
    parents: FrozenArray  # (batch, tokens), -1 at a root

    @mask_property
    def _chain_starts(self) -> IntArray:
        """For each token p the first of the chain p, p - 1, … in which each is the next's parent."""
        parents = self.parents.data
        positions = np.arange(parents.shape[1])
        begins = np.where((parents != positions - 1) | (parents < 0), positions, 0)
        return np.maximum.accumulate(begins, axis=1)

    @mask_property
    def _chains(self) -> int:
        """Maximum number of chains between a token and its root."""
        batch = np.arange(self._chain_starts.shape[0])[:, None]
        above = np.take_along_axis(self.parents.data, self._chain_starts, axis=1)
        chains = np.ones_like(above)
        while bool((above >= 0).any()):  # doubles the chains with each pass
            chains += np.where(above >= 0, chains[batch, above], 0)
            above = np.where(above >= 0, above[batch, above], -1)
        return int(chains.max(initial=0))

    @mask_property
    def _downward(self) -> bool:
        """Whether every parent precedes its children."""
        return bool((self.parents.data < np.arange(self.parents.data.shape[1])).all())

    def _spans(self, view: View) -> Spans:
        parents, heads = self.parents.data, self._chain_starts
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
        fix = f"Pass kv_len={count}, or pass a parent per key."
        frame.check_tokens(count, "tree", f"parents has {count} columns", fix)

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims("tree: parents", int(self.parents.data.shape[0]), 1),)

    def _sequence(self, frame: Frame, operator: Operator = "&") -> Mask | None:  # noqa: ARG002
        return self if operator != "~" and self._downward else None

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._chains)

    def _sizes(self, exact: bool) -> Sizes:  # noqa: ARG002
        return Sizes(None, int(self.parents.data.shape[1]))

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        return Reason("tree.self") if cell.query == cell.key else super()._reason(cell, visible)


@dataclass(frozen=True, repr=False)
class Graph(Atom):
    """The query's neighbours."""

    name = "graph"
    positional = ("edges",)
    _rank = 11
    edges: FrozenArray  # (edges, 2), sorted
    directed: bool = False
    loops: bool = True

    @mask_property
    def _pairs(self) -> IntArray:
        """All (query, key) pairs that an edge makes visible, sorted."""
        edges = self.edges.data
        return edges if self.directed else unique_pairs(np.concatenate([edges, edges[:, ::-1]]))

    @mask_property
    def _max_degree(self) -> int:
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
                f"graph: edges contains node {last} but the frame has {frame.tokens} tokens. "
                f"Pass kv_len={last + 1} or more."
            )

    def _width(self, keys: int) -> int:
        return min(keys // 2 + 1, self._max_degree)

    def _transposed(self) -> Mask:
        if not self.directed:
            return self
        return Graph(FrozenArray(unique_pairs(self.edges.data[:, ::-1])), True, self.loops)

    def _simpler(self) -> Mask | None:
        if self.edges.data.size:
            return None
        return Window(0, 0) if self.loops else Nothing()

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        if cell.query == cell.key and visible and self.loops:
            return Reason("graph.self")
        return super()._reason(cell, visible)


@dataclass(frozen=True, repr=False)
class Image(Atom):
    """The query pixel's neighbourhood in an image in raster order."""

    name = "image"
    _rank = 12
    height: int
    width: int
    radius: int
    raster: bool = False
    border: Literal["cut", "shift"] = "cut"

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
        """The first and last line (or column) of the neighbourhood of a pixel at `place`."""
        radius = min(self.radius, size)  # a larger one adds no pixel, and could overflow
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

    def _transposed(self) -> Mask | None:
        if self.border != "cut":
            return None
        whole = replace(self, raster=False)
        return And((whole, Window(0, None))) if self.raster else whole

    def _sizes(self, exact: bool) -> Sizes:  # noqa: ARG002
        return Sizes(None, self.height * self.width)

    def _reason(self, cell: Cell, visible: bool) -> Reason:
        query, key = divmod(cell.query, self.width), divmod(cell.key, self.width)
        return self._reason_code(visible, query=query, key=key)


def tree(parents: Any) -> Mask:
    """A query attends to its ancestors in a tree and to itself.

    For speculative decoding, where several drafts are verified in one pass.

    Args:
        parents: The key position of each token's parent, -1 at a root: (tokens,) or
            (batch, tokens).

    Returns:
        The mask.

    Raises:
        ArgumentError: If a parent is not a position, or the parents contain a cycle.

    >>> import maskwright as mw
    >>> mw.tree([-1, 0, 0, 2]).on(4).dense().astype(int).tolist()
    [[[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]]]
    """
    array = token_rows(read_ints(parents, "tree: parents"), "tree: parents", min_rows=1)
    tokens = array.shape[1]
    if array.size and (int(array.min()) < -1 or int(array.max()) >= tokens):
        wrong = int(array.min()) if int(array.min()) < -1 else int(array.max())
        raise ArgumentError(
            f"tree: parents contains {wrong}, which is not a position of {tokens} tokens. "
            "Pass the parent's position, or -1 at a root."
        )
    _refuse_cycles(array)
    return Tree(FrozenArray(array))


def graph(edges: Any, *, directed: bool = False, loops: bool = True) -> Mask:
    """A query attends to its neighbours in a graph, and to itself unless `loops=False`.

    Args:
        edges: (query, key) pairs of positions, (n, 2).
        directed: Whether an edge makes only its key visible to its query, not the reverse.
        loops: Whether every node attends to itself.

    Returns:
        The mask.

    Raises:
        ArgumentError: If the edges are not pairs of positions.

    >>> import maskwright as mw
    >>> mw.graph([(0, 1), (1, 2)]).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 1], [0, 1, 1]]]]
    """
    array = read_ints(list(edges) if _is_view(edges) else edges, "graph: edges")
    if array.size == 0:
        array = array.reshape(0, 2)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ArgumentError(
            f"graph: edges has shape {array.shape}. Expected (query, key) pairs, (n, 2); transpose (2, n)."
        )
    if array.size and int(array.min()) < 0:
        raise ArgumentError(f"graph: edges contains node {int(array.min())}. Nodes count from 0.")
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
    """A pixel attends to the square of pixels within `radius` rows and columns.

    Positions are in raster order.

    Args:
        height: Rows of the image.
        width: Columns of the image.
        radius: Maximum distance in rows and columns.
        raster: Mask later pixels, for autoregressive generation; a pixel attends to itself.
        border: At the border, "cut" the square, or "shift" it inward to keep its size.

    Returns:
        The mask.

    Raises:
        ArgumentError: If a value is out of range.

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
    """The distinct pairs, sorted."""
    base = int(pairs.max(initial=0)) + 1
    if base > 2**31:  # two do not fit into one int64
        return np.unique(pairs, axis=0)
    numbers = np.sort(pairs[:, 0] * base + pairs[:, 1])
    once = numbers[np.append(True, numbers[1:] != numbers[:-1])[: numbers.size]]
    return np.stack(np.divmod(once, base), axis=1)


def _refuse_cycles(parents: IntArray) -> None:
    """Raises ArgumentError for a cycle: follows all parents at once, twice as far each time."""
    batch, tokens = parents.shape
    row = np.arange(batch)[:, None]
    place, reached = parents, 1
    while reached <= tokens and bool((place >= 0).any()):
        place = np.where(place >= 0, place[row, place], -1)
        reached *= 2
    if bool((place >= 0).any()):
        b, p = (int(i[0]) for i in np.nonzero(place >= 0))
        raise ArgumentError(
            f"tree: the parents of token {p} of sequence {b} form a cycle, so following them never ends. "
            "Pass -1 as the parent of a root."
        )


def _is_view(edges: Any) -> bool:
    """Whether this is an iterable such as a networkx edge view, not a sequence or an array."""
    return (
        hasattr(edges, "__iter__")
        and not hasattr(edges, "__array__")
        and not isinstance(edges, (list, tuple, str, bytes, dict, range))
    )
