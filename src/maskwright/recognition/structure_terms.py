"""Terms that relate tokens to tokens: documents, trees, graphs, images, and blocks of cells.

They are derived from the required cells; the caller checks them against the forbidden cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms import tree
from maskwright.core.atoms.array import Blocks
from maskwright.core.atoms.structure import Graph, Image, unique_pairs
from maskwright.core.atoms.tokens import Documents
from maskwright.core.operators import Transpose
from maskwright.core.validate import FrozenArray
from maskwright.errors import MaskError
from maskwright.recognition.plane import Plane, Term, cost, read_cells, read_equal_labels
from maskwright.recognition.position_terms import joined_positions, per_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray, IntArray

MIN_EDGE_LENGTH: Final = 8  # characters of an edge
MAX_RANKED_CELLS: Final = 2**22  # up to which tokens are ranked by their number of ancestors


# ── documents ─────────────────────────────────────────────────────────────────────────────────


def superset_documents(plane: Plane) -> Iterator[Term]:
    """The smallest documents that contain all required cells, contiguous or interleaved."""
    if not plane.has_tokens:
        return
    for part in per_batch(plane):
        used = _used_tokens(part)
        contiguous = np.cumsum(~joined_positions(part), axis=1, dtype=np.int64)
        yield _documents_by_length(plane, contiguous, used)
        if not used.all():
            yield _documents_by_id(plane, contiguous, used)
        labels = _components(part) if plane.is_small else _first_key_labels(part)
        if labels is not None and not np.array_equal(_renumber(labels), _renumber(contiguous)):
            yield _documents_by_id(plane, labels, used)


def _used_tokens(plane: Plane) -> BoolArray:
    """Whether a token has required cells, as query or as key: (batch, tokens)."""
    used = np.zeros((plane.batch, plane.num_tokens), np.bool_)
    used[:, : plane.kv_len] = plane.keys_used
    used[:, plane.q_start : plane.q_stop] |= plane.queries_used
    return used


def _documents_by_length(plane: Plane, labels: IntArray, used: BoolArray) -> Term:
    """Consecutive documents. Unused tokens between them are one document, those at the end none."""
    begins = np.ones(labels.shape, np.bool_)
    begins[:, 1:] = (labels[:, 1:] != labels[:, :-1]) & (used[:, 1:] | used[:, :-1])
    number = np.cumsum(begins, axis=1, dtype=np.int64)
    at_end = ~np.logical_or.accumulate(used[:, ::-1], axis=1)[:, ::-1]
    number[at_end] = -1
    rows = (np.unique(row[row >= 0], return_counts=True)[1].tolist() for row in number)
    return _documents_term(plane, Documents(tuple(map(tuple, rows)), None), number)


def _documents_by_id(plane: Plane, labels: IntArray, used: BoolArray) -> Term:
    """Documents by an id per token. Unused queries are padding, other unused tokens a document."""
    kept = used.copy()
    kept[:, : plane.q_start] = True
    kept[:, plane.q_stop :] = True
    ids = _renumber(np.where(used, labels, np.where(kept, labels.max() + 1, -1)))
    return _documents_term(plane, Documents(None, FrozenArray(ids)), ids)


def _documents_term(plane: Plane, mask: Mask, labels: IntArray) -> Term:
    rows, keys = labels[:, plane.q_start : plane.q_stop], labels[:, : plane.kv_len]
    return Term(mask, read_equal_labels(np.where(rows < 0, -2, rows), keys), cost(mask))


def _renumber(labels: IntArray) -> IntArray:
    """The labels of each sequence as 0, 1, … in order of appearance; negative ones as -1."""
    out = np.full(labels.shape, -1, np.int64)
    for row, line in zip(out, labels, strict=True):
        values, first, inverse = np.unique(line, return_index=True, return_inverse=True)
        first = np.where(values < 0, line.size, first)
        rank = np.empty(values.size, np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(values.size)
        row[:] = np.where(line < 0, -1, rank[inverse.reshape(-1)])
    return out


def _components(plane: Plane) -> IntArray | None:
    """The connected components of the required cells: the first token of each, (batch, tokens)."""
    if plane.is_strip:
        return None  # tokens of one document may be connected by other rows
    begins = plane.required.copy()
    begins[:, :, 1:] &= ~plane.required[:, :, :-1]
    batch, row, start = np.nonzero(begins)
    tokens = plane.num_tokens
    # Edges: adjacent keys of one row, and the first key of each interval with the row's query.
    adjacent = np.zeros((plane.batch, tokens), np.bool_)
    both = plane.required[:, :, 1:] & plane.required[:, :, :-1]
    adjacent[:, 1 : plane.kv_len] = both.any(axis=1)
    after = np.flatnonzero(adjacent.ravel())
    sources = np.concatenate([batch * tokens + row + plane.q_start, after])
    targets = np.concatenate([batch * tokens + start, after - 1])
    labels = np.arange(plane.batch * tokens)
    while True:
        smallest = np.minimum(labels[sources], labels[targets])
        before = labels.copy()
        np.minimum.at(labels, labels[sources], smallest)
        np.minimum.at(labels, labels[targets], smallest)
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels.reshape(plane.batch, tokens)


def _first_key_labels(plane: Plane) -> IntArray | None:
    """Each query's first key: its document, if queries attend to all of its past."""
    if plane.is_strip or plane.q_start != 0 or plane.q_len != plane.kv_len:
        return None
    first, _, nonempty = plane.key_range
    return np.where(nonempty, first, np.arange(plane.q_len))


# ── trees, graphs and images ──────────────────────────────────────────────────────────────────


def trees_and_images(plane: Plane) -> Iterator[Term]:
    """Trees and images that agree with some rows of the plane, and transposes of such trees."""
    if not plane.has_tokens or not _has_diagonal(plane):
        return
    masks = [*_trees(plane), *_images(plane)]
    if plane.transposed is not None:
        masks += map(Transpose, _trees(plane.transposed))
    rows = [0, plane.q_len // 3, plane.q_len // 2, plane.q_len - 1]
    for mask in masks:
        if _agrees(plane, mask, rows):
            yield Term(mask, read_cells(cells_of(plane, mask)), cost(mask))


def graphs(plane: Plane, max_cost: float) -> Iterator[Term]:
    """Graphs with the required cells as edges, if these are few enough for `max_cost`."""
    num_edges = int(np.count_nonzero(plane.required)) - plane.q_len  # self-loops need no edge
    if not plane.has_tokens or num_edges * MIN_EDGE_LENGTH > 2 * max_cost:
        return
    part = plane.merged
    for mask in _graphs(part, max_cost):
        yield Term(mask, read_cells(cells_of(part, mask)), cost(mask))


def cells_of(plane: Plane, mask: Mask) -> BoolArray:
    """The visible cells of a mask on the plane's frame."""
    bound = mask.on(plane.q_len, plane.kv_len, plane.batch, 1, plane.q_start)
    return bound.dense()[:, 0]


def _has_diagonal(plane: Plane) -> bool:
    """Whether all queries must attend to their own position, if that is among the keys."""
    diagonal = _diagonal_positions(plane)
    return bool(diagonal.size) and bool(plane.required[:, diagonal - plane.q_start, diagonal].all())


def _diagonal_positions(plane: Plane) -> IntArray:
    """The positions on the diagonal: those of queries that are also keys."""
    return np.arange(max(plane.q_start, 0), min(plane.q_stop, plane.kv_len))


def _trees(plane: Plane) -> Iterator[Mask]:
    """Trees in which the parent is the last ancestor, or the one with the most ancestors."""
    diagonal = _diagonal_positions(plane)
    if not diagonal.size or not (plane.is_small or _may_be_tree(plane, diagonal)):
        return
    parents = np.full((plane.batch, plane.num_tokens), -1, np.int64)
    parents[:, diagonal] = _last_key_before(plane.required, diagonal, diagonal - plane.q_start)
    # Tokens before the first query have no row: a row that attends to one has its ancestors too.
    past = np.arange(min(plane.q_start, plane.kv_len))
    known = _last_key_before(plane.required, past, plane.required.argmax(axis=1)[:, past])
    parents[:, past] = np.where(plane.keys_used[:, past], known, np.minimum(past, 1) - 1)
    yield from _tree(parents)
    is_square = plane.q_start == 0 and plane.q_len == plane.kv_len
    if is_square and plane.required.size <= MAX_RANKED_CELLS:
        depth = plane.required.sum(axis=2)
        ranked = np.where(plane.required, depth[:, None, :], -1)
        ranked[:, diagonal, diagonal] = -1
        deepest = ranked.argmax(axis=2)
        yield from _tree(np.where(ranked.max(axis=2) >= 0, deepest, -1))


def _may_be_tree(plane: Plane, diagonal: IntArray) -> bool:
    """Whether some tokens attend to exactly the keys of their parents, and to themselves."""
    for token in diagonal[:: max(1, diagonal.size // 8)].tolist():
        row = plane.required[0, token - plane.q_start].copy()
        row[token:] = False
        parent = int(np.flatnonzero(row)[-1]) if row.any() else plane.q_start
        parent_row = plane.required[0, max(parent - plane.q_start, 0)]
        if parent >= plane.q_start and row.any() and not np.array_equal(row, parent_row):
            return False
    return True


def _last_key_before(required: BoolArray, keys: IntArray, rows: IntArray) -> IntArray:
    """For each key the last required key before it in the given row, -1 if none, (batch, keys)."""
    batch = np.arange(required.shape[0])[:, None]
    before = required[batch, np.broadcast_to(rows, (required.shape[0], keys.size))]
    before &= np.arange(required.shape[2]) < keys[:, None]
    last = required.shape[2] - 1 - before[:, :, ::-1].argmax(axis=2)
    return np.where(before.any(axis=2), last, -1)


def _tree(parents: IntArray) -> Iterator[Mask]:
    try:
        yield tree(parents)
    except MaskError:  # the parents form a cycle
        return


def _graphs(plane: Plane, max_cost: float) -> Iterator[Mask]:
    row, key = np.nonzero(plane.required[0])
    pairs = np.stack([row + plane.q_start, key], axis=1)
    diagonal = _diagonal_positions(plane)
    loops_forbidden = bool(plane.forbidden[0, diagonal - plane.q_start, diagonal].any())
    for loops in (True, False):
        if loops and loops_forbidden:
            continue
        edges = pairs[pairs[:, 0] != pairs[:, 1]] if loops else pairs
        undirected = unique_pairs(np.sort(edges, axis=1))
        if len(undirected) * MIN_EDGE_LENGTH < max_cost:
            yield Graph(FrozenArray(undirected), False, loops)
        if len(edges) * MIN_EDGE_LENGTH < max_cost:
            yield Graph(FrozenArray(edges), True, loops)


def _images(plane: Plane) -> Iterator[Mask]:
    """Image neighbourhoods of all heights, widths and radii that agree with some rows."""
    pixels = plane.num_tokens
    if plane.batch > 1 or plane.kv_len != pixels or pixels < 4:
        return
    raster = int(plane.required_offsets[-1]) <= 0
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
    """Possible radii: the distance of the farthest pixel, or half of it at a shifted border."""
    radii: set[int] = set()
    for row in rows:
        key = np.flatnonzero(plane.required[0, row])
        (y, x), (key_y, key_x) = divmod(row + plane.q_start, width), np.divmod(key, width)
        distance = max(np.abs(key_y - y).max(initial=0), np.abs(key_x - x).max(initial=0))
        radii |= {int(distance), (int(distance) + 1) // 2}
    return sorted(radii)


def _agrees(plane: Plane, mask: Mask, rows: list[int]) -> bool:
    """Whether a mask has all required and no forbidden cells of these rows."""
    bound = mask.on(plane.q_len, plane.kv_len, plane.batch, q_start=plane.q_start)
    for row in rows:
        visible = bound.rows(row, row + 1).dense()[:, 0, 0]
        wrong = (visible & plane.forbidden[:, row]) | (~visible & plane.required[:, row])
        if bool(wrong.any()):
            return False
    return True


# ── blocks ────────────────────────────────────────────────────────────────────────────────────


def largest_blocks(cells: BoolArray) -> Blocks:
    """Cells (batch, heads, queries, keys) as blocks of the largest uniform size."""
    q_changes = (cells[:, :, 1:] != cells[:, :, :-1]).any(axis=(0, 1, 3))
    kv_changes = (cells[:, :, :, 1:] != cells[:, :, :, :-1]).any(axis=(0, 1, 2))
    block_q = _block_size(q_changes, cells.shape[2])
    block_kv = _block_size(kv_changes, cells.shape[3])
    return Blocks(FrozenArray(cells[:, :, ::block_q, ::block_kv]), block_q, block_kv)


def _block_size(changes: BoolArray, size: int) -> int:
    """The greatest common divisor of the indices at which a line differs from the one before."""
    indices = np.flatnonzero(changes) + 1
    return int(np.gcd.reduce(indices)) if indices.size else max(size, 1)
