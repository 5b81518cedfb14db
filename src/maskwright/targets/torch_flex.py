"""torch.flex: a BlockMask for flex_attention, straight from spans and tiles.

There is one mask_mod for all masks: it looks a row's intervals up in tensors. So a compiled
flex_attention is compiled once for all masks whose tensors have the same shapes, and no cell is
ever asked for one at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from maskwright.core.frame import MAX_BYTES
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, SizeError
from maskwright.targets.code import bound_code
from maskwright.targets.facts import (
    EmptyRows,
    check_bytes,
    check_empty_rows,
    each_interval,
    intervals_of_some_rows,
)
from maskwright.targets.target import Target
from maskwright.targets.torch_tensors import numbers, tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.flex",
    gives="a BlockMask",
    says="every mask",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S), in blocks",
    alignment="the frame's",
    empty_rows="zero",
    reads="keep",
    needs="torch",
)

MOST_SLOTS: Final = 16  # intervals a row up to which the mask_mod looks at each of them


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    block_size: int | tuple[int, int] = 128,
    empty_rows: EmptyRows = "zero",
) -> BlockMask:
    """Empty blocks left out, full blocks without a mask, and one mask_mod for the rest."""
    from torch.nn.attention.flex_attention import BlockMask

    check_empty_rows(bound, empty_rows, gives_zero=True)
    _check_size(bound)
    sides = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    if len(sides) != 2:
        raise ArgumentError(
            f"lower: block_size has {len(sides)} numbers. Give one, or one for queries and one for keys."
        )
    tall, broad = (parse_int(side, "lower: block_size", minimum=1) for side in sides)
    tiles = bound.tiles(tall, broad)
    full = tiles.full & _whole_blocks(bound, tiles.full, tall, broad)
    partial = tiles.touched - full
    blocks = {
        "kv_num_blocks": _listed(partial, device),
        "full_kv_num_blocks": _listed(full, device),
        "q_num_blocks": _listed(partial.transpose(), device),  # for the backward pass
        "full_q_num_blocks": _listed(full.transpose(), device),
    }
    return BlockMask(
        bound.shape[2:],
        **{name: count for name, (count, _) in blocks.items()},
        **{name.replace("num_blocks", "indices"): which for name, (_, which) in blocks.items()},
        BLOCK_SIZE=(tall, broad),
        mask_mod=_mask_mod(bound, tall, device),
    )


def usage(bound: BoundMask, given: BlockMask) -> list[str]:
    """The lines that call it, with q, k, v of (batch, heads, length, head_dim)."""
    block = "" if given.BLOCK_SIZE == (128, 128) else f", block_size={given.BLOCK_SIZE}"
    return [
        "import maskwright as mw",
        "from torch.nn.attention.flex_attention import flex_attention",
        "",
        f"mask = {bound_code(bound)}",
        f'block_mask = mw.lower(mask, "torch.flex"{block})',
        "output = flex_attention(q, k, v, block_mask=block_mask)  # compile it where speed counts",
    ]


def _whole_blocks(bound: BoundMask, full: Spans, tall: int, broad: int) -> Spans:
    """The blocks that no edge of the mask cuts: only those may go without the mask_mod."""
    q_len, kv_len = bound.shape[2:]
    count = full.shape[2]
    stop = np.full((1, 1, count), kv_len // broad)
    stop[..., q_len // tall :] = 0
    return Spans.from_band(np.zeros_like(stop), stop, full.kv_len, count)


def _listed(blocks: Spans, device: object) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks each row of blocks has, and which: (B, H, rows) and (B, H, rows, blocks)."""
    offsets, starts, stops = blocks.flat
    sizes = stops - starts
    before = np.concatenate(([0], np.cumsum(sizes)))  # blocks before each interval
    owner = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    base = before[offsets]  # blocks before each row
    total = int(before[-1])
    nth = np.arange(total)
    row = np.repeat(owner, sizes)
    check_bytes((offsets.size - 1, blocks.kv_len), 4)
    index = np.zeros((offsets.size - 1, blocks.kv_len), np.int32)
    index[row, nth - base[row]] = np.repeat(starts - before[:-1], sizes) + nth
    count = np.diff(base).reshape(blocks.shape)
    return numbers(count, device), numbers(index.reshape(*blocks.shape, blocks.kv_len), device)


def _mask_mod(bound: BoundMask, tall: int, device: object) -> Callable[..., torch.Tensor]:
    """Is key k in one of row q's intervals?"""
    spans = bound.spans
    slots = int(np.diff(spans.offsets).max(initial=1))
    if slots > MOST_SLOTS:
        return _table_mod(bound, device)
    slots = 1 << (slots - 1).bit_length()  # so that like masks share one compilation
    low, high = _slotted(spans, slots, tall)
    return span_mod(numbers(low, device), numbers(high, device))


def span_mod(low: torch.Tensor, high: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The one mask_mod: `low` and `high` are (slots, B or 1, H or 1, rows)."""
    slots, batch, heads, _ = low.shape

    def in_a_span(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        row = (b % batch, h % heads, q)
        seen = (k >= low[0][row]) & (k < high[0][row])
        for slot in range(1, slots):
            seen = seen | ((k >= low[slot][row]) & (k < high[slot][row]))
        return seen

    return in_a_span


def _check_size(bound: BoundMask) -> None:
    """Refuse a mask whose table would be too large, by a look at some rows before reading all."""
    size = math.prod(bound.shape)
    if size > MAX_BYTES and intervals_of_some_rows(bound) > MOST_SLOTS:
        _refuse_table(size)


def _refuse_table(size: int) -> NoReturn:
    raise SizeError(
        f"torch.flex: rows of more than {MOST_SLOTS} intervals need a table of {size / 1e9:.1f} GB. "
        "Lower some rows at a time: bound.rows(start, stop)."
    )


def _table_mod(bound: BoundMask, device: object) -> Callable[..., torch.Tensor]:
    """For rows of very many intervals: every cell in a table."""
    if math.prod(bound.shape) > MAX_BYTES:
        _refuse_table(math.prod(bound.shape))
    table = tensor(bound.dense(), device)

    def in_the_table(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return table[b % table.shape[0], h % table.shape[1], q, k]

    return in_the_table


def _slotted(spans: Spans, slots: int, tall: int) -> tuple[Any, Any]:
    """The nth interval of every row, empty where there is none; rows fill whole blocks."""
    b, h, rows = spans.shape
    shape = (2, slots, b, h, -(-rows // tall) * tall)
    check_bytes(shape, 4)
    low, high = np.zeros(shape, np.int32)
    if slots == 1 and spans.band is not None:
        low[0, ..., :rows], high[0, ..., :rows] = spans.band
        return low, high
    row, nth = each_interval(spans)
    at = (nth, *np.unravel_index(row, spans.shape))
    low[at], high[at] = spans.starts, spans.stops
    return low, high
