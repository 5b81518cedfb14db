"""jax.splash: the mask and the segment ids of splash attention on TPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.core.spans import Spans, union
from maskwright.targets.bundles import bundles
from maskwright.targets.code import bound_code
from maskwright.targets.facts import (
    EmptyRows,
    band,
    check_bytes,
    check_empty_rows,
    everything,
    first_empty_row,
    rows,
)
from maskwright.targets.target import CannotSay, Target

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="jax.splash",
    gives="mask and segment_ids",
    says="a mask for every head, and for every sequence a parting into segments",
    polarity="True keeps",
    shape="H masks of (T, S), and segment ids (B, T) and (B, S)",
    alignment="the frame's",
    empty_rows="uniform, so refused",
    reads="keep",
    needs="jax",
    instead=("jax", "torch.flex"),
)


def lower(bound: BoundMask, *, empty_rows: EmptyRows = "zero") -> dict[str, Any]:
    """What all sequences share as a mask for each head; what differs as segments."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    check_empty_rows(bound, empty_rows, gives_zero=False)
    if not bound.frame.heads:
        raise CannotSay("there is no head")
    spans, ids = bound.spans, None
    if spans.shape[0] > 1:
        # The least mask that holds for all sequences, and the finest parting of each.
        shared = union([spans.plane(0, b) for b in range(spans.shape[0])])
        parts = [bundles(spans.plane(0, b)) for b in range(spans.shape[0])]
        if spans != shared & _same(parts):
            raise CannotSay("sequences differ in more than their segments")
        spans = shared
        queries, keys = (np.stack(side).astype(np.int32) for side in zip(*parts, strict=True))
        ids = splash_attention.SegmentIds(q=queries, kv=keys)
    heads = [_mask(bound, spans.plane(1, h), splash_attention) for h in range(bound.frame.heads)]
    return {"mask": splash_attention.MultiHeadMask(heads), "segment_ids": ids}


def usage(bound: BoundMask, given: object) -> list[str]:  # noqa: ARG001 - one form only
    """The lines that call it, with q, k, v of (heads, length, head_dim) for each sequence."""
    wish = "" if first_empty_row(bound) is None else ', empty_rows="native"'
    return [
        "import maskwright as mw",
        "",
        f"mask = {bound_code(bound)}",
        f'given = mw.lower(mask, "jax.splash"{wish})',
        "# kernel = splash_attention.make_splash_mha_single_device(given['mask'])",
        "# output = jax.vmap(kernel)(q, k, v, segment_ids=given['segment_ids'])",
    ]


def _same(parts: list[Any]) -> Spans:
    """The cells whose query and key have the same segment, in every sequence."""
    planes = []
    for queries, keys in parts:
        names = np.unique(keys)
        check_bytes((names.size, keys.size), 1)
        cells = keys[None, :] == names[:, None]  # which keys each segment has
        held = Spans.from_cells(cells[None, None], keys.size)
        at = np.searchsorted(names, queries)
        found = at < names.size
        found[found] = names[at[found]] == queries[found]
        planes.append(held.take(np.where(found, at, -1)[None, None]))
    return Spans.stack(planes, axis=0)


def _mask(bound: BoundMask, spans: Spans, splash: Any) -> Any:
    """The lazy object that says it, where there is one; else an array."""
    size = q_len, kv_len = bound.shape[2:]
    here = rows(bound)
    if spans == everything(bound):
        return splash.FullMask(size)
    offsets = sorted({0, kv_len - q_len, bound.frame.q_start})
    for offset in offsets:
        if spans == band(bound, here * 0, here + offset + 1):
            return splash.CausalMask(size, offset=offset)
    for offset in offsets:
        reach = _window(spans, here + offset)
        if reach is not None:
            low, high = here + offset - reach[0], here + offset + reach[1] + 1
            if spans == band(bound, low, high):
                return splash.LocalMask(size, window_size=reach, offset=offset)
    check_bytes((bound.frame.heads, *size), 1)
    cells = np.zeros((1, 1, *size), np.bool_)
    spans.write_dense(cells)
    return splash.NumpyMask(cells[0, 0])


def _window(spans: Spans, place: Any) -> tuple[int, int] | None:
    """How far rows look back and ahead at most, if each sees one stretch."""
    if not spans.starts.size or bool((np.diff(spans.offsets) != 1).any()):
        return None
    at = place.ravel()
    back, ahead = int((at - spans.starts).max()), int((spans.stops - 1 - at).max())
    return (back, ahead) if min(back, ahead) >= 0 else None
