"""intervals: the endpoints of every row's intervals, as cuDNN's front end takes a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets.facts import EmptyRows, check_bytes, check_empty_rows, each_interval
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import numbers

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="intervals",
    gives="an int32 tensor",
    says="every mask",
    polarity="[0, F0) ∪ [F1, F2) ∪ … are seen",
    shape="(H or 1, an odd number of endpoints, B·T)",
    alignment="the frame's",
    empty_rows="as the kernel does",
    needs="torch",
    checked="format checked, kernel not run here",
)


def lower(bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native") -> Any:
    """F0, F1, F2, … for every row: an interval from key 0 needs one number, others two."""
    check_empty_rows(bound, empty_rows, gives_zero=False)
    spans, frame = bound.spans, bound.frame
    row, nth = each_interval(spans)
    b, h, rows = spans.shape
    from_zero = np.zeros(b * h * rows, np.bool_)
    from_zero[row[(nth == 0) & (spans.starts == 0)]] = True
    slot = nth + ~from_zero[row]  # slot 0 is [0, F0), slot n is [F(2n-1), F(2n))
    slots = int(slot.max(initial=0)) + 1
    check_bytes((2 * slots, from_zero.size), 8)
    ends = np.full((2 * slots, from_zero.size), frame.kv_len)
    ends[0], ends[1, ~from_zero] = 0, 0  # nothing from key 0, where no interval begins there
    ends[2 * slot, row], ends[2 * slot + 1, row] = spans.starts, spans.stops
    table = np.broadcast_to(
        ends[1:].reshape(2 * slots - 1, b, h, rows), (2 * slots - 1, frame.batch, h, rows)
    )
    return numbers(np.moveaxis(table, 2, 0).reshape(h, 2 * slots - 1, frame.batch * rows), device)


def usage(bound: BoundMask, given: Any) -> list[str]:  # noqa: ARG001 - all is given
    """The lines that hand it over."""
    return [
        "import torch",
        "",
        "# row r sees [0, F0), [F1, F2), …: (heads or 1, endpoints, queries of all sequences)",
        f"mask_func = torch.tensor({given.tolist()}, dtype=torch.int32)",
        "# plan = cudnn.flex_attention.create_mask_plan(mask_func, …)",
    ]
