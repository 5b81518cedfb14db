"""slices: ranges of queries and keys with a kind each, as MagiAttention takes a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.targets.facts import EmptyRows, check_empty_rows, of_all_heads
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import numbers

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="slices",
    gives="q_ranges, k_ranges and attn_type_map",
    says="every mask that is the same for all heads",
    polarity="ranges of what is seen",
    shape="(slices, 2), (slices, 2) and (slices,), tokens of all sequences end to end",
    alignment="causal from the lower right of a slice, inverse causal from its upper left",
    empty_rows="as the kernel does",
    needs="torch",
    checked="format checked, kernel not run here",
    instead=("torch.flex", "intervals"),
)

# How the ends of a row's interval move from row to row, and the number of that kind of slice.
KINDS: Final = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}  # full, causal, inverse, both


def lower(
    bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native"
) -> dict[str, Any]:
    """Slices that no two of share a cell: each goes on for as long as rows follow its pattern."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    found = np.array(_slices(bound), np.int64).reshape(-1, 5)
    return {
        "q_ranges": numbers(found[:, 0:2], device),
        "k_ranges": numbers(found[:, 2:4], device),
        "attn_type_map": numbers(found[:, 4], device),
    }


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:  # noqa: ARG001 - all is given
    """The lines that call it, with q, k, v of (tokens, heads, head_dim)."""
    lines = ["import torch", "", "# 0 full, 1 causal, 2 inverse causal, 3 both"]
    lines += [
        f"{name} = torch.tensor({value.tolist()}, dtype=torch.int32).reshape{tuple(value.shape)}"
        if not value.numel() and value.ndim == 2
        else f"{name} = torch.tensor({value.tolist()}, dtype=torch.int32)"
        for name, value in given.items()
    ]
    call = "q, k, v, q_ranges, k_ranges, attn_type_map=attn_type_map"
    return [*lines, f"# output, lse = flex_flash_attn_func({call})"]


def _slices(bound: BoundMask) -> list[tuple[int, int, int, int, int]]:
    """(first query, stop, first key, stop, kind), in the order of their first queries."""
    spans, frame = of_all_heads(bound), bound.frame
    offsets = spans.offsets.tolist()
    starts, stops = spans.starts.tolist(), spans.stops.tolist()
    done: list[tuple[int, int, int, int, int]] = []
    for b in range(frame.batch):
        plane = 0 if spans.shape[0] == 1 else b * frame.q_len
        going: dict[tuple[int, int], _Slice] = {}
        for q in range(frame.q_len):
            part = slice(offsets[plane + q], offsets[plane + q + 1])
            here: list[_Slice] = []
            for start, stop in zip(starts[part], stops[part], strict=True):
                old = going.get((start, stop))
                if old is None or not old.goes_on(start, stop):
                    old = _Slice(b * frame.q_len + q, b * frame.kv_len, start, stop)
                    done.append((0, 0, 0, 0, 0))
                    old.index = len(done) - 1
                here.append(old)
                done[old.index] = old.told()
            going = {}
            for one in here:
                for end in one.expects():
                    going.setdefault(end, one)
    return done


class _Slice:
    """Rows whose intervals follow each other in one pattern, once two of them have shown it."""

    __slots__ = ("base", "index", "kind", "low", "query", "rows", "start", "stop")

    def __init__(self, query: int, base: int, start: int, stop: int) -> None:
        self.query, self.base, self.low = query, base, start
        self.start, self.stop, self.rows, self.index = start, stop, 1, 0
        self.kind: tuple[int, int] | None = None

    def expects(self) -> list[tuple[int, int]]:
        """The intervals with which the next row would go on."""
        kinds = KINDS if self.kind is None else (self.kind,)
        return [(self.start + a, self.stop + b) for a, b in kinds]

    def goes_on(self, start: int, stop: int) -> bool:
        """Take the next row's interval, unless this row has taken one already."""
        if (start, stop) not in self.expects():
            return False
        self.kind = (start - self.start, stop - self.stop)
        self.start, self.stop, self.rows = start, stop, self.rows + 1
        return True

    def told(self) -> tuple[int, int, int, int, int]:
        """As numbers, among the tokens of all sequences."""
        kind = KINDS[self.kind or (0, 0)]
        keys = self.base + self.low, self.base + self.stop
        return self.query, self.query + self.rows, *keys, kind
