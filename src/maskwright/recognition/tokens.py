"""Terms that tie tokens to tokens: documents, trees, graphs, images, and blocks of cells.

Each is worked out from the cells that must be seen; whether it leaves out what must not be is for
the caller to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.atoms.array import Blocks
from maskwright.core.atoms.structure import Graph, Image, Tree, unique_pairs
from maskwright.core.atoms.tokens import Documents
from maskwright.core.expr import Transpose
from maskwright.core.validate import FrozenArray
from maskwright.errors import MaskError
from maskwright.recognition.lines import joined
from maskwright.recognition.plane import Plane, Term, by_label, cost, from_cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray, IntArray

EDGE: Final = 8  # letters of an edge, at least


# ── documents ─────────────────────────────────────────────────────────────────────────────────


def documents_above(plane: Plane) -> Iterator[Term]:
    """The finest documents that hold all cells: in one piece each, or torn."""
    if not plane.has_tokens:
        return
    for part in [plane] if plane.batch == 1 else [plane.shared, plane]:
        live = _live(part)
        whole = np.cumsum(~joined(part), axis=1, dtype=np.int64)
        yield _by_lengths(plane, whole, live)
        if not live.all():
            yield _by_ids(plane, whole, live)
        torn = _torn(part) if plane.small else _torn_large(part)
        if torn is not None and not np.array_equal(_numbered(torn), _numbered(whole)):
            yield _by_ids(plane, torn, live)


def _live(plane: Plane) -> BoolArray:
    """(batch, tokens): does the token see, or is it seen?"""
    live = np.zeros((plane.batch, plane.tokens), np.bool_)
    live[:, : plane.kv_len] = plane.columns
    live[:, plane.q_start : plane.q_stop] |= plane.rows
    return live


def _by_lengths(plane: Plane, labels: IntArray, live: BoolArray) -> Term:
    """Documents one after the other; idle tokens between them make one, the last are left over."""
    begins = np.ones(labels.shape, np.bool_)
    begins[:, 1:] = (labels[:, 1:] != labels[:, :-1]) & (live[:, 1:] | live[:, :-1])
    number = np.cumsum(begins, axis=1, dtype=np.int64)
    ended = ~np.logical_or.accumulate(live[:, ::-1], axis=1)[:, ::-1]
    number[ended] = -1
    rows = (np.unique(line[line >= 0], return_counts=True)[1].tolist() for line in number)
    return _documents(plane, Documents(tuple(map(tuple, rows)), None), number)


def _by_ids(plane: Plane, labels: IntArray, live: BoolArray) -> Term:
    """A number for every token; idle ones are padding, or one document that no query is in."""
    kept = live.copy()
    kept[:, : plane.q_start] = True
    kept[:, plane.q_stop :] = True
    ids = _numbered(np.where(live, labels, np.where(kept, labels.max() + 1, -1)))
    return _documents(plane, Documents(None, FrozenArray(ids)), ids)


def _documents(plane: Plane, mask: Mask, labels: IntArray) -> Term:
    rows, keys = labels[:, plane.q_start : plane.q_stop], labels[:, : plane.kv_len]
    return Term(mask, by_label(np.where(rows < 0, -2, rows), keys), cost(mask))


def _numbered(labels: IntArray) -> IntArray:
    """The labels of each sequence as 0, 1, … in the order in which they come; below 0 is -1."""
    out = np.full(labels.shape, -1, np.int64)
    for row, line in zip(out, labels, strict=True):
        names, first, inverse = np.unique(line, return_index=True, return_inverse=True)
        first = np.where(names < 0, line.size, first)
        rank = np.empty(names.size, np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(names.size)
        row[:] = np.where(line < 0, -1, rank[inverse.reshape(-1)])
    return out


def _torn(plane: Plane) -> IntArray | None:
    """(batch, tokens): the smallest token that each one is tied to, however far apart they stand."""
    if plane.is_strip:
        return None  # which tokens a document has takes more rows to tell
    begins = plane.must.copy()
    begins[:, :, 1:] &= ~plane.must[:, :, :-1]
    batch, row, start = np.nonzero(begins)
    tokens = plane.tokens
    # Tokens side by side in one row are tied, and every stretch of keys to the row's own query.
    side = np.zeros((plane.batch, tokens), np.bool_)
    side[:, 1 : plane.kv_len] = (plane.must[:, :, 1:] & plane.must[:, :, :-1]).any(axis=1)
    after = np.flatnonzero(side.ravel())
    one = np.concatenate([batch * tokens + row + plane.q_start, after])
    other = np.concatenate([batch * tokens + start, after - 1])
    labels = np.arange(plane.batch * tokens)
    while True:
        least = np.minimum(labels[one], labels[other])
        before = labels.copy()
        np.minimum.at(labels, labels[one], least)
        np.minimum.at(labels, labels[other], least)
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels.reshape(plane.batch, tokens)


def _torn_large(plane: Plane) -> IntArray | None:
    """The same where a query must see all of its document, or all of its past in it."""
    if plane.is_strip or plane.q_start != 0 or plane.q_len != plane.kv_len:
        return None
    first, _, tied = plane.ends
    return np.where(tied, first, np.arange(plane.q_len))


# ── trees, graphs and images ──────────────────────────────────────────────────────────────────


def relations(plane: Plane) -> Iterator[Term]:
    """Trees and images that may be this plane, or its transpose."""
    if not plane.has_tokens or not _sees_itself(plane):
        return
    masks = [*_trees(plane), *_images(plane)]
    if plane.turned is not None:
        masks += map(Transpose, _trees(plane.turned))
    rows = [0, plane.q_len // 3, plane.q_len // 2, plane.q_len - 1]
    for mask in masks:
        if _agrees(plane, mask, rows):
            yield Term(mask, from_cells(cells_of(plane, mask)), cost(mask))


def graphs(plane: Plane, limit: float) -> Iterator[Term]:
    """Graphs whose edges are the cells that must be seen, if those are few."""
    least = int(np.count_nonzero(plane.must)) - plane.q_len  # loops need no edge
    if not plane.has_tokens or least * EDGE > 2 * limit:
        return
    part = plane.shared
    for mask in _graphs(part, limit):
        yield Term(mask, from_cells(cells_of(part, mask)), cost(mask))


def cells_of(plane: Plane, mask: Mask) -> BoolArray:
    """The cells of any mask on the plane's frame."""
    bound = mask.on(plane.q_len, plane.kv_len, plane.batch, 1, plane.q_start)
    return bound.dense()[:, 0]


def _sees_itself(plane: Plane) -> bool:
    """Must every query see its own position, as far as that is there?"""
    own = _own(plane)
    return bool(own.size) and bool(plane.must[:, own - plane.q_start, own].all())


def _own(plane: Plane) -> IntArray:
    """The positions that are both a query's and a key's."""
    return np.arange(max(plane.q_start, 0), min(plane.q_stop, plane.kv_len))


def _trees(plane: Plane) -> Iterator[Mask]:
    """A token's parent is the nearest of its ancestors: the one that has the most itself."""
    own = _own(plane)
    if not own.size or not (plane.small or _may_be_tree(plane, own)):
        return
    parents = np.full((plane.batch, plane.tokens), -1, np.int64)
    parents[:, own] = _last_before(plane.must, own, own - plane.q_start)
    # A token whose own row is not in the frame: a row that sees it sees its ancestors too.
    hidden = np.arange(min(plane.q_start, plane.kv_len))
    known = _last_before(plane.must, hidden, plane.must.argmax(axis=1)[:, hidden])
    parents[:, hidden] = np.where(plane.columns[:, hidden], known, np.minimum(hidden, 1) - 1)
    yield from _tree(parents)
    if plane.q_start == 0 and plane.q_len == plane.kv_len and plane.must.size <= 2**22:
        depth = plane.must.sum(axis=2)
        ranked = np.where(plane.must, depth[:, None, :], -1)
        ranked[:, own, own] = -1
        best = ranked.argmax(axis=2)
        yield from _tree(np.where(ranked.max(axis=2) >= 0, best, -1))


def _may_be_tree(plane: Plane, own: IntArray) -> bool:
    """Do some tokens see exactly what their parents see, and themselves?"""
    for token in own[:: max(1, own.size // 8)].tolist():
        row = plane.must[0, token - plane.q_start].copy()
        row[token:] = False
        parent = int(np.flatnonzero(row)[-1]) if row.any() else plane.q_start
        above = plane.must[0, max(parent - plane.q_start, 0)]
        if parent >= plane.q_start and row.any() and not np.array_equal(row, above):
            return False
    return True


def _last_before(must: BoolArray, keys: IntArray, rows: IntArray) -> IntArray:
    """(batch, keys): the last key before each that its row must see, -1 where there is none."""
    batch = np.arange(must.shape[0])[:, None]
    seen = must[batch, np.broadcast_to(rows, (must.shape[0], keys.size))]
    seen &= np.arange(must.shape[2]) < keys[:, None]
    return np.where(seen.any(axis=2), must.shape[2] - 1 - seen[:, :, ::-1].argmax(axis=2), -1)


def _tree(parents: IntArray) -> Iterator[Mask]:
    from maskwright.core.atoms import tree

    try:
        mask: Any = tree(parents)
    except MaskError:  # these parents run in a circle
        return
    if isinstance(mask, Tree):
        yield mask


def _graphs(plane: Plane, limit: float) -> Iterator[Mask]:
    row, key = np.nonzero(plane.must[0])
    pairs = np.stack([row + plane.q_start, key], axis=1)
    at = _own(plane)
    barred = bool(plane.bar[0, at - plane.q_start, at].any())
    for loops in (True, False):
        if loops and barred:
            continue
        edges = pairs[pairs[:, 0] != pairs[:, 1]] if loops else pairs
        both = unique_pairs(np.sort(edges, axis=1))
        if len(both) * EDGE < limit:
            yield Graph(FrozenArray(both), False, loops)
        if len(edges) * EDGE < limit:
            yield Graph(FrozenArray(edges), True, loops)


def _images(plane: Plane) -> Iterator[Mask]:
    """Heights, widths and radii that a few rows agree with."""
    pixels = plane.tokens
    if plane.batch > 1 or plane.kv_len != pixels or pixels < 4:
        return
    raster = int(plane.seen_offsets[-1]) <= 0
    for width in range(2, pixels // 2 + 1):
        if pixels % width == 0:
            height = pixels // width
            middle = height // 2 * width + width // 2 - plane.q_start
            rows = [min(max(middle, 0), plane.q_len - 1), plane.q_len - 1, 0]
            for radius in _radii(plane, rows, width):
                for border in ("cut", "shift"):
                    mask = Image(height, width, radius, raster, border)
                    if _agrees(plane, mask, rows):
                        yield mask


def _radii(plane: Plane, rows: list[int], width: int) -> list[int]:
    """How far these rows see, in lines or columns; at a shifted border it is twice the radius."""
    found: set[int] = set()
    for row in rows:
        key = np.flatnonzero(plane.must[0, row])
        (y, x), (v, u) = divmod(row + plane.q_start, width), np.divmod(key, width)
        far = int(max(np.abs(v - y).max(initial=0), np.abs(u - x).max(initial=0)))
        found |= {far, (far + 1) // 2}
    return sorted(found)


def _agrees(plane: Plane, mask: Mask, rows: list[int]) -> bool:
    bound = mask.on(plane.q_len, plane.kv_len, plane.batch, q_start=plane.q_start)
    for row in rows:
        seen = bound.rows(row, row + 1).dense()[:, 0, 0]
        if bool(((seen & plane.bar[:, row]) | (~seen & plane.must[:, row])).any()):
            return False
    return True


# ── blocks ────────────────────────────────────────────────────────────────────────────────────


def blocks_of(cells: BoolArray) -> Blocks:
    """(batch, heads, queries, keys) as the largest blocks that it is made of."""
    tall = _side((cells[:, :, 1:] != cells[:, :, :-1]).any(axis=(0, 1, 3)), cells.shape[2])
    broad = _side((cells[:, :, :, 1:] != cells[:, :, :, :-1]).any(axis=(0, 1, 2)), cells.shape[3])
    return Blocks(FrozenArray(cells[:, :, ::tall, ::broad]), tall, broad)


def _side(changes: BoolArray, size: int) -> int:
    """The largest step that all lines, which differ from the one before them, are multiples of."""
    places = np.flatnonzero(changes) + 1
    return int(np.gcd.reduce(places)) if places.size else max(size, 1)
