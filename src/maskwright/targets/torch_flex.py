"""torch.flex: a BlockMask for flex_attention, built from spans and tiles.

All masks share one mask_mod, which looks up the intervals of a row in tensors. So a compiled
flex_attention is compiled once for all masks whose tensors have the same shapes, and building the
BlockMask evaluates no cell. A soft cap and a bias become a score_mod, which reads the bias from the
tensors of its terms. Sinks are a factor of the output, which needs the logsumexp: `apply_sinks`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores, sink_factor
from maskwright.bias.values import is_torch
from maskwright.core.frame import MAX_BYTES
from maskwright.core.spans import Spans
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, SizeError
from maskwright.targets._torch import int32_tensor, to_tensor
from maskwright.targets.base import Target
from maskwright.targets.codegen import bound_code
from maskwright.targets.predicates import (
    EmptyRows,
    check_bytes,
    check_empty_rows,
    interval_index,
    max_intervals_sampled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="torch.flex",
    returns="a BlockMask; with bias, softcap or sinks block_mask, score_mod and return_aux",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S), in blocks",
    empty_rows="zero",
    encoding="keep",
    requires="torch",
    scores={
        "bias": "in score_mod",
        "softcap": "in score_mod",
        "sinks": "return_aux, and a factor of the output: apply_sinks(output, aux, sinks)",
    },
    score_call="""\
from maskwright.targets.torch_flex import apply_sinks
from torch.nn.attention.flex_attention import flex_attention

output = flex_attention(q, k, v, **lowered)  # torch.compile it for speed
# with sinks: output = apply_sinks(*output, sinks)""",
)

MAX_SLOTS: Final = 16  # intervals per row up to which the mask_mod tests each; beyond, a table


def lower(
    bound: BoundMask,
    *,
    device: object = None,
    block_size: int | tuple[int, int] = 128,
    empty_rows: EmptyRows = "zero",
    scores: Scores = NO_SCORES,
) -> BlockMask | dict[str, Any]:
    """Empty blocks are skipped, full blocks need no mask, and a mask_mod masks the others.

    With a bias, a soft cap or sinks: the arguments block_mask and score_mod, and with sinks
    return_aux (before torch 2.9 return_lse). flex_attention then returns the output and the
    logsumexp, and the result is `apply_sinks(output, aux, sinks)`.
    """
    block_mask = _block_mask(bound, device, block_size, empty_rows)
    if scores is NO_SCORES:
        return block_mask
    lowered: dict[str, Any] = {"block_mask": block_mask}
    if scores.bias is not None or scores.softcap is not None:
        lowered["score_mod"] = _score_mod(scores.lowered(bound.frame), bound.frame.q_start, device)
    if scores.sinks is not None:
        lowered |= request_lse()
    return lowered


def apply_sinks(output: torch.Tensor, lse: Any, sinks: torch.Tensor) -> torch.Tensor:
    """The output of attention with sinks, from that without them and its logsumexp.

    A sink adds exp(sink) to the denominator of the softmax, which multiplies the output by
    `sigmoid(lse - sink)`.

    Args:
        output: (batch, heads, queries, head_dim).
        lse: (batch, heads, queries), -inf for a fully masked row; or the AuxOutput that contains it.
        sinks: (heads,).

    Returns:
        The output with sinks; zero for a fully masked row.

    >>> import torch
    >>> apply_sinks(torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1), torch.zeros(1)).tolist()
    [[[[0.5, 0.5]]]]
    """
    factor = sink_factor(getattr(lse, "lse", lse), sinks)
    return output * factor.unsqueeze(-1).to(output.dtype)


def _score_mod(scores: Scores, q_start: int, device: object) -> Any:
    """The score_mod of scores whose terms may be arrays; tensors stay differentiable."""
    tensors = [x if is_torch(x) else to_tensor(x, device) for x in scores.tensors]
    return scores.with_tensors(tensors).score_mod(q_start)


def request_lse() -> dict[str, Any]:
    """The argument of flex_attention that requests the logsumexp."""
    from torch.nn.attention import flex_attention

    if hasattr(flex_attention, "AuxRequest"):
        return {"return_aux": flex_attention.AuxRequest(lse=True)}
    return {"return_lse": True}


def _block_mask(
    bound: BoundMask, device: object, block_size: int | tuple[int, int], empty_rows: EmptyRows
) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

    check_empty_rows(bound, empty_rows, returns_zero=True)
    _check_table_size(bound)
    sizes = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    if len(sizes) != 2:
        raise ArgumentError(
            f"lower: block_size has {len(sizes)} numbers. Pass one, or one for queries and one for keys."
        )
    block_q, block_kv = (parse_int(size, "lower: block_size", minimum=1) for size in sizes)
    tiles = bound.tiles(block_q, block_kv)
    full = tiles.full & _complete_blocks(bound, tiles.full, block_q, block_kv)
    partial = tiles.touched - full
    blocks = {
        "kv_num_blocks": _block_list(partial, device),
        "full_kv_num_blocks": _block_list(full, device),
        "q_num_blocks": _block_list(partial.transpose(), device),  # for the backward pass
        "full_q_num_blocks": _block_list(full.transpose(), device),
    }
    return BlockMask(
        bound.shape[2:],
        **{name: count for name, (count, _) in blocks.items()},
        **{name.replace("num_blocks", "indices"): index for name, (_, index) in blocks.items()},
        BLOCK_SIZE=(block_q, block_kv),
        mask_mod=_mask_mod(bound, block_q, device),
    )


def usage(bound: BoundMask, lowered: BlockMask) -> list[str]:
    """Lines that call it, with q, k, v of (batch, heads, length, head_dim)."""
    size = lowered.BLOCK_SIZE
    block = "" if size == (128, 128) else f", block_size={size}"
    return [
        "import maskwright as mw",
        "from torch.nn.attention.flex_attention import flex_attention",
        "",
        f"mask = {bound_code(bound)}",
        f'block_mask = mw.lower(mask, "torch.flex"{block})',
        "output = flex_attention(q, k, v, block_mask=block_mask)  # torch.compile it for speed",
    ]


def span_mod(low: torch.Tensor, high: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The mask_mod over intervals: `low` and `high` are (slots, B or 1, H or 1, rows)."""
    slots, batch, heads, _ = low.shape

    def in_spans(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        row = (b % batch, h % heads, q)
        visible = (k >= low[0][row]) & (k < high[0][row])
        for slot in range(1, slots):
            visible = visible | ((k >= low[slot][row]) & (k < high[slot][row]))
        return visible

    return in_spans


def _complete_blocks(bound: BoundMask, full: Spans, block_q: int, block_kv: int) -> Spans:
    """The blocks that lie within the mask: only those may omit the mask_mod."""
    q_len, kv_len = bound.shape[2:]
    count = full.shape[2]
    stop = np.full((1, 1, count), kv_len // block_kv)
    stop[..., q_len // block_q :] = 0
    return Spans.from_band(np.zeros_like(stop), stop, full.kv_len, count)


def _block_list(blocks: Spans, device: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of blocks per row of blocks, (B, H, rows), and their indices, (B, H, rows, max)."""
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
    shape = (*blocks.shape, blocks.kv_len)
    return int32_tensor(count, device), int32_tensor(index.reshape(shape), device)


def _mask_mod(bound: BoundMask, block_q: int, device: object) -> Callable[..., torch.Tensor]:
    """Whether key k is in one of the intervals of row q."""
    spans = bound.spans
    slots = int(np.diff(spans.offsets).max(initial=1))
    if slots > MAX_SLOTS:
        return _table_mod(bound, device)
    slots = 1 << (slots - 1).bit_length()  # a power of 2, so that more masks share a compilation
    low, high = interval_tables(spans, slots, block_q)
    return span_mod(int32_tensor(low, device), int32_tensor(high, device))


def _check_table_size(bound: BoundMask) -> None:
    """Raises for a mask whose table would be too large, before all its spans are computed."""
    size = math.prod(bound.shape)
    if size > MAX_BYTES and max_intervals_sampled(bound) > MAX_SLOTS:
        _raise_table_size(size)


def _raise_table_size(size: int) -> NoReturn:
    raise SizeError(
        f"torch.flex: rows of more than {MAX_SLOTS} intervals need a table of {size / 1e9:.1f} GB. "
        "Lower a range of rows at a time: bound.rows(start, stop)."
    )


def _table_mod(bound: BoundMask, device: object) -> Callable[..., torch.Tensor]:
    """The mask_mod for rows with many intervals: a table of all cells."""
    if math.prod(bound.shape) > MAX_BYTES:
        _raise_table_size(math.prod(bound.shape))
    table = to_tensor(bound.dense(), device)

    def in_table(
        b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        return table[b % table.shape[0], h % table.shape[1], q, k]

    return in_table


def interval_tables(spans: Spans, slots: int, block_q: int) -> tuple[Any, Any]:
    """The nth start and stop of each row, 0 where there is none; rows padded to whole blocks."""
    b, h, rows = spans.shape
    shape = (2, slots, b, h, -(-rows // block_q) * block_q)
    check_bytes(shape, 4)
    low, high = np.zeros(shape, np.int32)
    if slots == 1 and spans.band is not None:
        low[0, ..., :rows], high[0, ..., :rows] = spans.band
        return low, high
    row, nth = interval_index(spans)
    at = (nth, *np.unravel_index(row, spans.shape))
    low[at], high[at] = spans.starts, spans.stops
    return low, high
