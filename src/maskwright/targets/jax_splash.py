"""jax.splash: the mask and the segment ids of splash attention on TPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.interval_ops import sweep
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
)
from maskwright.targets.scores import NO_SCORES, Scores

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
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


def lower(
    bound: BoundMask, *, empty_rows: EmptyRows = "zero", scores: Scores = NO_SCORES
) -> dict[str, Any]:
    """What all sequences have in common as a mask per head, the rest as segments."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    check_empty_rows(bound, empty_rows, returns_zero=False)
    if not bound.frame.heads:
        raise Unrepresentable("there are no heads")
    spans, ids = bound.spans, None
    if spans.shape[0] > 1:
        # The smallest mask that is common to all sequences, and the finest segments of each.
        shared = union([spans.plane(0, b) for b in range(spans.shape[0])])
        segments = [connected_components(spans.plane(0, b)) for b in range(spans.shape[0])]
        if spans != shared & _same_segment(segments):
            raise Unrepresentable("sequences differ in more than their segments")
        spans = shared
        queries, keys = (np.stack(side).astype(np.int32) for side in zip(*segments, strict=True))
        ids = splash_attention.SegmentIds(q=queries, kv=keys)
    heads = [
        _head_mask(bound, spans.plane(1, h), splash_attention) for h in range(bound.frame.heads)
    ]
    lowered = {"mask": splash_attention.MultiHeadMask(heads), "segment_ids": ids}
    if scores.softcap is not None:
        lowered["attn_logits_soft_cap"] = scores.softcap
    if scores.sinks is not None:
        lowered["sinks"] = scores.numpy_sinks()
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
        one, other = find(a), find(b)
        parent[max(one, other)] = min(one, other)
    return np.array([find(at) for at in range(count)], np.int64)


def _same_segment(segments: list[Any]) -> Spans:
    """The cells whose query and key have the same segment id, in each sequence."""
    planes = []
    for queries, keys in segments:
        names = np.unique(keys)
        check_bytes((names.size, keys.size), 1)
        cells = keys[None, :] == names[:, None]  # the keys of each segment
        held = Spans.from_cells(cells[None, None], keys.size)
        at = np.searchsorted(names, queries)
        found = at < names.size
        found[found] = names[at[found]] == queries[found]
        planes.append(held.take(np.where(found, at, -1)[None, None]))
    return Spans.stack(planes, axis=0)


def _head_mask(bound: BoundMask, spans: Spans, splash: Any) -> Any:
    """The lazy mask object that is equal, if there is one; else an array."""
    size = q_len, kv_len = bound.shape[2:]
    row = row_index(bound)
    if spans == full_spans(bound):
        return splash.FullMask(size)
    offsets = sorted({0, kv_len - q_len, bound.frame.q_start})
    for offset in offsets:
        if spans == band(bound, row * 0, row + offset + 1):
            return splash.CausalMask(size, offset=offset)
    for offset in offsets:
        window = _max_window(spans, row + offset)
        if window is not None:
            low, high = row + offset - window[0], row + offset + window[1] + 1
            if spans == band(bound, low, high):
                return splash.LocalMask(size, window_size=window, offset=offset)
    check_bytes((bound.frame.heads, *size), 1)
    cells = np.zeros((1, 1, *size), np.bool_)
    spans.write_dense(cells)
    return splash.NumpyMask(cells[0, 0])


def _max_window(spans: Spans, position: Any) -> tuple[int, int] | None:
    """The largest distances back and ahead of all rows, if each row has one interval."""
    if not spans.starts.size or bool((np.diff(spans.offsets) != 1).any()):
        return None
    at = position.ravel()
    back, ahead = int((at - spans.starts).max()), int((spans.stops - 1 - at).max())
    return (back, ahead) if min(back, ahead) >= 0 else None
