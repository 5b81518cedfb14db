"""magi: ranges of queries and keys with a mask type each, as MagiAttention takes them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.targets._torch import int32_tensor
from maskwright.targets.base import FORMAT_ONLY, Target
from maskwright.targets.predicates import EmptyRows, check_empty_rows, spans_shared_by_heads

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="magi",
    returns="q_ranges, k_ranges and attn_type_map, of disjoint rectangles",
    supports="every mask that is the same for all heads",
    polarity="visible ranges",
    shape="(slices, 2), (slices, 2) and (slices,), over the concatenated tokens of all sequences",
    alignment="causal at the lower right of a slice, inverse causal at its upper left",
    empty_rows="as the kernel does",
    requires="torch",
    tested=FORMAT_ONLY,
    alternatives=("torch.flex", "cudnn"),
)

# The attn_type of a slice, by how much the start and stop of a row's interval grow per row:
# full, causal, inverse causal, bidirectional causal.
ATTN_TYPES: Final = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}


def lower(
    bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native"
) -> dict[str, Any]:
    """Slices with disjoint rectangles, each as long as the rows follow its pattern."""
    check_empty_rows(bound, empty_rows, returns_zero=False)
    slices = np.array(_slices(bound), np.int64).reshape(-1, 5)
    return {
        "q_ranges": int32_tensor(slices[:, 0:2], device),
        "k_ranges": int32_tensor(slices[:, 2:4], device),
        "attn_type_map": int32_tensor(slices[:, 4], device),
    }


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:  # noqa: ARG001
    """Lines that call it, with q, k, v of (tokens, heads, head_dim)."""
    lines = ["import torch", "", "# 0 full, 1 causal, 2 inverse causal, 3 both"]
    lines += [
        f"{name} = torch.tensor({value.tolist()}, dtype=torch.int32).reshape{tuple(value.shape)}"
        if not value.numel() and value.ndim == 2
        else f"{name} = torch.tensor({value.tolist()}, dtype=torch.int32)"
        for name, value in lowered.items()
    ]
    call = "q, k, v, q_ranges, k_ranges, attn_type_map=attn_type_map"
    return [*lines, f"# output, lse = flex_flash_attn_func({call})"]


def _slices(bound: BoundMask) -> list[tuple[int, int, int, int, int]]:
    """(first query, stop, first key, stop, attn_type), in the order of their first queries.

    The rectangles of two slices, q_range × k_range, have no cell in common, not even a masked one:
    MagiAttention's dense reference writes each rectangle over the ones before it.
    """
    spans, frame = spans_shared_by_heads(bound), bound.frame
    offsets = spans.offsets.tolist()
    starts, stops = spans.starts.tolist(), spans.stops.tolist()
    slices: list[_Slice] = []
    for b in range(frame.batch):
        plane = 0 if spans.shape[0] == 1 else b * frame.q_len
        open_slices: dict[tuple[int, int], _Slice] = {}  # by the next interval that extends them
        for q in range(frame.q_len):
            part = slice(offsets[plane + q], offsets[plane + q + 1])
            previous: _Slice | None = None  # of this row, to the left
            row: list[_Slice] = []
            for interval in zip(starts[part], stops[part], strict=True):
                current = open_slices.pop(interval, None)
                if current is None or not current.can_extend(interval, previous):
                    current = _Slice(b * frame.q_len + q, b * frame.kv_len, *interval)
                    slices.append(current)
                else:
                    current.extend(*interval)
                if previous is not None:
                    previous.limit = min(previous.limit, current.first_key)
                row.append(current)
                previous = current
            open_slices = {}
            for current in row:
                for interval in current.next_intervals():
                    open_slices.setdefault(interval, current)
    return [part.as_tuple() for part in slices]


class _Slice:
    """Consecutive rows whose intervals follow one pattern, which the second row determines."""

    __slots__ = ("base", "first_key", "growth", "limit", "query", "rows", "start", "stop")

    def __init__(self, query: int, base: int, start: int, stop: int) -> None:
        self.query, self.base, self.first_key = query, base, start
        self.start, self.stop, self.rows = start, stop, 1
        self.growth: tuple[int, int] | None = None
        self.limit = sys.maxsize  # the first key of the rectangles to the right, in any row

    def next_intervals(self) -> list[tuple[int, int]]:
        """The intervals of the next row that would extend the slice."""
        patterns = ATTN_TYPES if self.growth is None else (self.growth,)
        return [(self.start + a, self.stop + b) for a, b in patterns]

    def can_extend(self, interval: tuple[int, int], previous: _Slice | None) -> bool:
        """Whether the rectangle, extended by the next row, overlaps none on either side.

        False too if another interval of that row has extended the slice.
        """
        clear = previous is None or previous.stop <= self.first_key
        return clear and interval[1] <= self.limit and interval in self.next_intervals()

    def extend(self, start: int, stop: int) -> None:
        """Adds the next row's interval."""
        self.growth = (start - self.start, stop - self.stop)
        self.start, self.stop, self.rows = start, stop, self.rows + 1

    def as_tuple(self) -> tuple[int, int, int, int, int]:
        """(first query, stop, first key, stop, attn_type) among the tokens of all sequences."""
        attn_type = ATTN_TYPES[self.growth or (0, 0)]
        keys = self.base + self.first_key, self.base + self.stop
        return self.query, self.query + self.rows, *keys, attn_type
