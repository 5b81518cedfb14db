"""Masks of transformers models in graphs of torch.compile.

In a graph the mask of a forward pass is a plain bool tensor, as with "sdpa", that refers to a second
tensor: the handle of the mask. The operator `maskwright::bind_mask` makes the handle while the graph
runs, from the padding, the documents and the sizes of that run. Layers pass the handle to
`maskwright::attend`. The bool tensor is read by nothing then, and the compiler removes it; a model that
changes its mask reads it, and its layers use SDPA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import torch

from maskwright.core import mask_registry
from maskwright.engine.call import Mode, read_call
from maskwright.engine.graph_op import call_custom_op, mask_handle
from maskwright.engine.validate import broadcast
from maskwright.errors import Unsupported
from maskwright.integrations.transformers_functions import View, read_formula_mask
from maskwright.integrations.transformers_indices import parse_formula, read_formula
from maskwright.integrations.transformers_packing import Packing, pack_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.bound import BoundMask
    from maskwright.engine.call import AttentionOptions

# Attributes of a mask tensor: the handle for graphs, and the mask for layers that are not compiled.
HANDLE: Final = "_maskwright_handle"
BOUND: Final = "_maskwright_bound"


@torch.library.custom_op(
    "maskwright::bind_mask",
    mutates_args=(),
    schema="(Tensor[] data, Tensor? q_offset, str formula, SymInt[] sizes) -> Tensor",
)
def bind_mask(
    data: list[torch.Tensor], q_offset: torch.Tensor | None, formula: str, sizes: list[int]
) -> torch.Tensor:
    """The handle of the mask of a formula.

    Args:
        data: The tensors of the formula. One that it does not use stands for none.
        q_offset: Position of the first query, or None if it is in `sizes`.
        formula: The text of `read_formula`.
        sizes: Batch size, queries, keys, position of the first query, position of the first key.
    """
    batch, q_len, kv_len, start, shift = sizes
    if q_offset is not None:
        start = int(q_offset)
    view = View(batch, q_len, kv_len, start - shift, shift)
    return mask_handle(read_formula_mask(parse_formula(formula), data, view))


@bind_mask.register_fake
def _(*_: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


@torch.library.custom_op(
    "maskwright::pack_mask",
    mutates_args=(),
    schema=(
        "(Tensor handle, Tensor? positions, Tensor[] cu_seq_lens, Tensor? padding, SymInt[] sizes)"
        " -> Tensor"
    ),
)
def pack_mask(
    handle: torch.Tensor,
    positions: torch.Tensor | None,
    cu_seq_lens: list[torch.Tensor],
    padding: torch.Tensor | None,
    sizes: list[int],
) -> torch.Tensor:
    """The handle of a mask within the documents of a `Packing`.

    Args:
        handle: Of a bound mask.
        positions: Its position ids, or None.
        cu_seq_lens: Its cumulative lengths, or an empty list.
        padding: (batch, queries), True for real tokens; None if all are.
        sizes: Batch size, and the maximum lengths.
    """
    bound = cast("BoundMask", mask_registry.lookup(int(handle)))
    batch, *max_lengths = sizes
    lens = (cu_seq_lens[0], cu_seq_lens[1]) if cu_seq_lens else None
    packing = Packing(positions, lens, tuple(max_lengths))
    return mask_handle(pack_bound(bound, packing, batch, padding))


@pack_mask.register_fake
def _(*_: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


def pack_in_graph(
    handle: torch.Tensor, packing: Packing, batch: int, padding: torch.Tensor | None
) -> torch.Tensor:
    """The handle of the mask of a layer, within the documents of its packing."""
    lens = [] if packing.cu_seq_lens is None else list(packing.cu_seq_lens)
    return pack_mask(handle, packing.positions, lens, padding, [batch, *packing.max_lengths])


def bind_in_graph(
    dense: torch.Tensor, function: Callable[..., Any], sizes: list[Any], q_offset: Any
) -> None:
    """Add the handle of the mask of a function to its bool tensor, if the function has a formula.

    Args:
        dense: The mask as a tensor.
        function: The mask function, with padding.
        sizes: Batch size, queries, keys, and the position of the first key.
        q_offset: Position of the first query; a tensor with a static cache.
    """
    try:
        formula, data = read_formula(function)
    except (AttributeError, TypeError, Unsupported):
        return
    if len(data) == 0:
        data.append(dense.new_empty(0))  # an operator has a tensor
    offset = q_offset if isinstance(q_offset, torch.Tensor) else None
    start = 0 if offset is not None else q_offset
    batch, q_len, kv_len, shift = sizes
    handle = bind_mask(data, offset, formula, [batch, q_len, kv_len, start, shift])
    setattr(dense, HANDLE, handle)


def with_handle(bound: BoundMask, batch: int) -> torch.Tensor:
    """The mask as a bool tensor with its handle, which is an input of a graph that was compiled.

    >>> import maskwright as mw
    >>> mask = with_handle(mw.causal().on(1, 4), batch=2)
    >>> mask.shape, mask.all(), hasattr(mask, HANDLE)
    (torch.Size([2, 1, 1, 4]), tensor(True), True)
    """
    dense = torch.from_numpy(bound.dense()).expand(batch, -1, -1, -1).contiguous()
    setattr(dense, HANDLE, mask_handle(bound))
    setattr(dense, BOUND, bound)
    return dense


def attend_handle(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    handle: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attention under the mask of a handle, as a node of a graph."""
    q, k, v = broadcast(*tensors, options.enable_gqa)
    return call_custom_op(read_call((q, k, v), None, options, mode=Mode.GRAPH, handle=handle))[0]
