"""FlexAttention in compiled graphs: called in the graph itself, with a BlockMask of tables.

A graph cannot hold a mask. The operator `maskwright::block_mask_tables` looks the mask up by its handle
when the graph runs, and returns the tables of its BlockMask. Their shapes depend on the sizes of q and
k only, so a new mask compiles nothing, and a new length neither where shapes are dynamic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from maskwright.core import mask_registry
from maskwright.engine.backends.flex import block_mask, run
from maskwright.engine.support import MAX_GRAPH_INTERVALS
from maskwright.engine.validate import bind
from maskwright.errors import Unsupported
from maskwright.targets._torch import int32_tensor
from maskwright.targets.torch_flex import interval_tables, span_mod

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.call import Call

BLOCK: Final = 128
LISTS: Final = tuple(
    f"{full}{axis}_{part}"
    for axis in ("kv", "q")
    for full in ("", "full_")
    for part in ("num_blocks", "indices")
)


def attend(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and the logsumexp if requested, as nodes of the graph that is traced.

    Args:
        call: A call of mode GRAPH that `is_flex_in_graph`.
    """
    *lists, low, high = block_mask_tables(
        call.q, call.k, call.mask.mask._handle, q_start=call.mask.q_start
    )
    mask = BlockMask(
        (call.shape.q_len, call.shape.kv_len),
        **dict(zip(LISTS, lists, strict=True)),
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=span_mod(low, high),
    )
    return run(flex_attention, call, mask, call.mask.frame.q_start)


@torch.library.custom_op(
    "maskwright::block_mask_tables",
    mutates_args=(),
    schema="(Tensor q, Tensor k, SymInt mask, *, SymInt? q_start) -> Tensor[]",
)
def block_mask_tables(
    q: torch.Tensor, k: torch.Tensor, mask: int, *, q_start: int | None
) -> list[torch.Tensor]:
    """The lists of blocks in the order of `LISTS`, and the starts and stops of each row's intervals.

    They have all batch rows and heads of q, also where the mask does not vary over them. They are
    made once for a mask and copied on each call, since a graph may overwrite them.
    """
    batch, heads, q_len, _ = q.shape
    bound = bind(mask_registry.lookup(mask), (batch, heads, q_len, k.shape[2]), q_start)
    key = ("flex tables", batch, heads, str(q.device))
    tables = bound.cached(key, lambda: _make_tables(bound, (batch, heads), q.device))
    return [table.clone() for table in tables]


def _make_tables(
    bound: BoundMask, planes: tuple[int, int], device: torch.device
) -> list[torch.Tensor]:
    largest = int(np.diff(bound.spans.offsets).max(initial=0))
    if largest > MAX_GRAPH_INTERVALS:
        raise Unsupported(
            f'attention: in a compiled graph impl="flex" supports masks of up to {MAX_GRAPH_INTERVALS} '
            f'intervals per row, and this one has {largest}. Leave impl out, or pass impl="blocks".',
            target="flex",
            term=repr(bound.mask),
        )
    flex_mask = block_mask(bound, device)
    lists = [getattr(flex_mask, name) for name in LISTS]
    slots = [
        int32_tensor(x, device) for x in interval_tables(bound.spans, MAX_GRAPH_INTERVALS, BLOCK)
    ]
    return [
        *(x.expand(*planes, *x.shape[2:]).contiguous() for x in lists),
        *(x.expand(MAX_GRAPH_INTERVALS, *planes, x.shape[3]).contiguous() for x in slots),
    ]


@block_mask_tables.register_fake
def _(q: Any, k: Any, mask: Any, *, q_start: Any) -> list[Any]:  # noqa: ARG001
    batch, heads, q_len, _ = q.shape
    rows, keys = (q_len + BLOCK - 1) // BLOCK, (k.shape[2] + BLOCK - 1) // BLOCK
    counts = [(batch, heads, rows), (batch, heads, rows, keys)] * 2
    counts += [(batch, heads, keys), (batch, heads, keys, rows)] * 2
    shapes = [*counts, *[(MAX_GRAPH_INTERVALS, batch, heads, rows * BLOCK)] * 2]
    return [q.new_empty(shape, dtype=torch.int32) for shape in shapes]
