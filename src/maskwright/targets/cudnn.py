"""cudnn: the endpoints of each row's intervals, as the mask plan of cuDNN's front end takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.targets._torch import int32_tensor
from maskwright.targets.base import FORMAT_ONLY, Target
from maskwright.targets.predicates import EmptyRows, check_bytes, check_empty_rows, interval_index

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="cudnn",
    returns="an int32 tensor",
    polarity="[0, F0) ∪ [F1, F2) ∪ … are visible",
    shape="(H or 1, an odd number of endpoints, B·T)",
    empty_rows="as the kernel does",
    requires="torch",
    tested=FORMAT_ONLY,
)


def lower(bound: BoundMask, *, device: object = None, empty_rows: EmptyRows = "native") -> Any:
    """F0, F1, F2, … per row: an interval that starts at key 0 has one endpoint, others two."""
    check_empty_rows(bound, empty_rows, returns_zero=False)
    spans, frame = bound.spans, bound.frame
    row, nth = interval_index(spans)
    b, h, rows = spans.shape
    from_zero = np.zeros(b * h * rows, np.bool_)
    from_zero[row[(nth == 0) & (spans.starts == 0)]] = True
    slot = nth + ~from_zero[row]  # slot 0 is [0, F0), slot n is [F(2n-1), F(2n))
    slots = int(slot.max(initial=0)) + 1
    check_bytes((2 * slots, from_zero.size), 8)
    ends = np.full((2 * slots, from_zero.size), frame.kv_len)
    ends[0], ends[1, ~from_zero] = 0, 0  # [0, 0) where no interval starts at key 0
    ends[2 * slot, row], ends[2 * slot + 1, row] = spans.starts, spans.stops
    table = np.broadcast_to(
        ends[1:].reshape(2 * slots - 1, b, h, rows), (2 * slots - 1, frame.batch, h, rows)
    )
    by_head = np.moveaxis(table, 2, 0).reshape(h, 2 * slots - 1, frame.batch * rows)
    return int32_tensor(by_head, device)


def usage(bound: BoundMask, lowered: Any) -> list[str]:  # noqa: ARG001 - the tensor has it all
    """Lines that build it."""
    return [
        "import torch",
        "",
        "# row r attends to [0, F0), [F1, F2), …: (heads or 1, endpoints, queries of all sequences)",
        f"mask_func = torch.tensor({lowered.tolist()}, dtype=torch.int32)",
        "# plan = cudnn.flex_attention.create_mask_plan(mask_func, …)",
    ]
