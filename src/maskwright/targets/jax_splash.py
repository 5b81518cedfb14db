"""jax.splash: the mask and the segment ids of splash attention on TPUs."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores
from maskwright.bias.values import to_numpy
from maskwright.core.bound import BoundMask
from maskwright.core.interval_ops import CSR, covered, sweep
from maskwright.core.operators import And, Chain
from maskwright.core.spans import Spans, union
from maskwright.targets.base import Target, Unrepresentable
from maskwright.targets.codegen import bound_code
from maskwright.targets.predicates import (
    EmptyRows,
    band,
    check_bytes,
    check_empty_rows,
    first_empty_row,
    full_spans,
    row_index,
    single_intervals,
)

if TYPE_CHECKING:
    from maskwright.core.expr import Mask
    from maskwright.core.validate import IntArray

TARGET = Target(
    name="jax.splash",
    returns="mask and segment_ids",
    supports="one mask per head, and segments per sequence",
    polarity="True keeps",
    shape="H masks of (T, S), and segment ids (B, T) and (B, S)",
    empty_rows="uniform; refused",
    encoding="keep",
    dtypes=("bool",),
    requires="jax",
    alternatives=("jax", "torch.flex"),
    scores={
        "softcap": "attn_logits_soft_cap, an argument of make_splash_mha",
        "sinks": "sinks, an argument of the kernel",
    },
    score_call="""\
# kernel = splash_attention.make_splash_mha_single_device(
#     lowered["mask"], attn_logits_soft_cap=lowered.get("attn_logits_soft_cap"))
# attend = lambda q, k, v, ids: kernel(q, k, v, segment_ids=ids, sinks=lowered.get("sinks"))
# output = jax.vmap(attend)(q, k, v, lowered["segment_ids"])""",
)


MAX_TERMS: Final = 8  # of a LogicalAnd or LogicalOr; more are slower than an array


def lower(
    bound: BoundMask, *, empty_rows: EmptyRows = "zero", scores: Scores = NO_SCORES
) -> dict[str, Any]:
    """A mask per head that all sequences share, and segments of each sequence."""
    check_empty_rows(bound, empty_rows, returns_zero=False)
    if not bound.frame.heads:
        raise Unrepresentable("there are no heads")
    masks, ids = _masks_and_segments(bound)
    heads = masks * (bound.frame.heads // len(masks))
    lowered = {"mask": _splash_masks().MultiHeadMask(heads), "segment_ids": ids}
    if scores.softcap is not None:
        lowered["attn_logits_soft_cap"] = scores.softcap
    if scores.sinks is not None:
        lowered["sinks"] = to_numpy(scores.sinks, np.float32)
    return lowered


def usage(bound: BoundMask, lowered: object) -> list[str]:  # noqa: ARG001 - one format only
    """Lines that call it, with q, k, v of (heads, length, head_dim) per sequence."""
    option = "" if first_empty_row(bound) is None else ', empty_rows="native"'
    return [
        "import maskwright as mw",
        "",
        f"mask = {bound_code(bound)}",
        f'kwargs = mw.lower(mask, "jax.splash"{option})',
        "# kernel = splash_attention.make_splash_mha_single_device(kwargs['mask'])",
        "# output = jax.vmap(kernel)(q, k, v, segment_ids=kwargs['segment_ids'])",
    ]


def connected_components(spans: Spans) -> tuple[IntArray, IntArray]:
    """The connected components of one sequence's rows and keys, over all heads.

    A row and a key that it attends to are in the same component. Returns a component id per row
    and per key; -1 for rows and -2 for keys without any visible cell.
    """
    rows, keys = spans.shape[2], spans.kv_len
    offsets, starts, stops = spans.flat
    # The keys of an interval are connected, so overlapping intervals merge into one block.
    begin, end = sweep(2 * starts, 2 * stops - 1, lambda level: level > 0)
    begin, end = begin // 2, (end + 1) // 2
    block = np.searchsorted(begin, starts, side="right") - 1
    owner = np.repeat(np.arange(offsets.size - 1) % max(rows, 1), np.diff(offsets))
    root = _merge_blocks(owner, block, begin.size)
    row_ids, key_ids = np.full(rows, -1), np.full(keys, -2)
    row_ids[owner] = root[block]
    size = end - begin
    inside = np.repeat(np.arange(begin.size), size)
    place = np.arange(inside.size) - np.repeat(np.cumsum(size) - size, size)
    key_ids[np.repeat(begin, size) + place] = root[inside]
    return row_ids, key_ids


def _merge_blocks(owner: IntArray, block: IntArray, count: int) -> IntArray:
    """Union-find: the lowest block that each block is connected with by rows that have both."""
    parent = np.arange(count)
    order = np.argsort(owner, kind="stable")
    owner, block = owner[order], block[order]
    linked = owner[1:] == owner[:-1]
    left, right = block[:-1][linked], block[1:][linked]

    def find(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = int(parent[at])
        return at

    for a, b in set(zip(left.tolist(), right.tolist(), strict=True)):
        root_a, root_b = find(a), find(b)
        parent[max(root_a, root_b)] = min(root_a, root_b)
    return np.array([find(at) for at in range(count)], np.int64)


def _same_segment(segments: list[tuple[IntArray, IntArray]]) -> Spans:
    """The cells whose query and key have the same segment id, in each sequence."""
    planes = []
    for queries, keys in segments:
        # The keys of each segment, as runs of keys that follow each other.
        edges = np.flatnonzero(np.diff(keys)) + 1
        starts, stops = np.append(0, edges)[: keys.size], np.append(edges, keys.size)[: keys.size]
        order = np.argsort(keys[starts], kind="stable")
        names, count = np.unique(keys[starts], return_counts=True)
        runs = CSR(np.append(0, np.cumsum(count)), starts[order], stops[order])
        by_segment = Spans((1, 1, names.size), keys.size, flat=runs)
        at = np.searchsorted(names, queries)
        at[~np.isin(queries, names)] = -1  # no key
        planes.append(by_segment.take(at[None, None]))
    return Spans.stack(planes, axis=0)


def _splash_masks() -> Any:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask

    return splash_attention_mask


def _masks_and_segments(bound: BoundMask) -> tuple[list[Any], Any]:
    """The mask of each head, or the one that all heads have, and SegmentIds or None.

    Segments are used where sequences differ, and where they leave a lazy mask for every head,
    which is computed block by block: an array has T · S elements.
    """
    spans, frame = bound.spans, bound.frame
    heads = range(spans.shape[1])
    equal = all(spans.plane(0, b) == spans.plane(0, 0) for b in range(1, spans.shape[0]))
    masks: list[Any] = []
    if equal:
        spans = spans.plane(0, 0)
        masks = [_composed(bound, bound.mask, head) for head in heads]
        if None not in masks:
            return masks, None
    # The finest segments of each sequence. A lazy mask is right within coarser ones only if it is
    # within these.
    segments = [connected_components(spans.plane(0, b)) for b in range(spans.shape[0])]
    within = _same_segment(segments)
    lazy = [_lazy_mask(bound, spans.plane(1, head), within) for head in heads]
    if None in lazy and equal:
        return _with_arrays(bound, masks, spans), None
    if None in lazy:
        shared = union([spans.plane(0, b) for b in range(spans.shape[0])])
        if spans != shared & within:
            raise Unrepresentable("sequences differ in more than their segments")
        lazy = _with_arrays(bound, lazy, shared)
    return lazy, _segment_ids(segments, frame.batch)


def _segment_ids(segments: list[tuple[IntArray, IntArray]], batch: int) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention

    queries, keys = (np.stack(side).astype(np.int32) for side in zip(*segments, strict=True))
    return splash_attention.SegmentIds(
        q=np.broadcast_to(queries, (batch, queries.shape[1])),
        kv=np.broadcast_to(keys, (batch, keys.shape[1])),
    )


def _composed(bound: BoundMask, mask: Mask, head: int) -> Any:
    """The lazy mask of one head for all sequences, or that of each term of `&` or `|`; or None."""
    whole = bound if mask is bound.mask else BoundMask(mask, bound._home, bound._part)
    spans = whole.spans.plane(1, head)
    if spans.shape[0] == 1:
        lazy = _lazy_mask(bound, spans, None)
        if lazy is not None:
            return lazy
    if not isinstance(mask, Chain) or len(mask.terms) > MAX_TERMS:
        return None
    terms = []
    for term in mask.terms:
        terms.append(_composed(bound, term, head))
        if terms[-1] is None:
            return None
    return reduce(and_ if isinstance(mask, And) else or_, terms)


def _lazy_mask(bound: BoundMask, spans: Spans, within: Spans | None) -> Any:
    """The lazy mask whose cells, of those in `within` unless None, are `spans`; or None."""
    splash, size = _splash_masks(), bound.shape[2:]
    row = row_index(bound)

    def equal(cells: Spans) -> bool:
        return spans == (cells if within is None else cells & within)

    if equal(full_spans(bound)):
        return splash.FullMask(size)
    if not spans.starts.size:  # every row is fully masked
        return splash.CausalMask(size, offset=-size[0])
    bands = _diagonals(spans)
    if len(bands) > MAX_TERMS:
        return None
    # The smallest mask that depends on key - row only. One that is larger is preferred if it
    # bounds one side only.
    first, last = bands[0][0], bands[-1][1]
    for lowest, highest in ((-size[0], last), (first, size[1]), (first, last)):
        if equal(band(bound, row + lowest, row + highest + 1)):
            return _band_mask(bound, lowest, highest)
    if len(bands) > 1 and equal(union([band(bound, row + a, row + b + 1) for a, b in bands])):
        return reduce(or_, [_band_mask(bound, lowest, highest) for lowest, highest in bands])
    chunked: Any = getattr(splash, "ChunkedCausalMask", None)  # missing in older versions of JAX
    chunk = _chunk_size(spans) if chunked is not None and within is None else None
    if chunk and last == 0:
        begin = row // chunk * chunk
        if equal(band(bound, begin, row + 1)):
            return chunked(size, chunk)
        if equal(band(bound, np.maximum(begin, row + first), row + 1)):
            return chunked(size, chunk) & _band_mask(bound, first, size[1])
    return None


def _diagonals(spans: Spans) -> list[tuple[int, int]]:
    """The ranges of key - row, both ends included, of all visible cells."""
    offsets, starts, stops = spans.flat
    row = np.repeat(np.arange(offsets.size - 1) % spans.shape[2], np.diff(offsets))
    first, stop = sweep(starts - row, stops - row, covered)
    return list(zip(first.tolist(), (stop - 1).tolist(), strict=True))


def _band_mask(bound: BoundMask, first: int, last: int) -> Any:
    """The mask of the cells whose key - row is in first … last."""
    splash, size = _splash_masks(), bound.shape[2:]
    if first <= -size[0]:
        return splash.CausalMask(size, offset=last)
    # The position of row 0, of the frame if it leaves no side negative.
    usual = [bound.frame.q_start, 0, size[1] - size[0]]
    offset = next((at for at in usual if first <= at <= last), first)
    ahead = None if last >= size[1] else last - offset
    return splash.LocalMask(size, window_size=(offset - first, ahead), offset=offset)


def _chunk_size(spans: Spans) -> int | None:
    """The first row whose keys begin at itself, or that has none: a chunk ends before it."""
    ends = single_intervals(spans)
    if ends is None:
        return None
    low, high = ends[0].ravel(), ends[1].ravel()
    begins = (low == np.arange(low.size)) | (low == high)
    return int(np.argmax(begins[1:])) + 1 if bool(begins[1:].any()) else None


def _with_arrays(bound: BoundMask, masks: list[Any], spans: Spans) -> list[Any]:
    """The masks, with an array of the spans in place of each None."""
    size = bound.shape[2:]
    check_bytes((len(masks), *size), 1)
    masks = list(masks)
    for head in range(len(masks)):
        if masks[head] is None:
            cells = np.zeros((1, 1, *size), np.bool_)
            spans.plane(1, head).write_dense(cells)
            masks[head] = _splash_masks().NumpyMask(cells[0, 0])
    return masks
