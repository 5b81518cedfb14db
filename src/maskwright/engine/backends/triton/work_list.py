"""Work lists: which tiles each block of rows visits, read from the spans, and the order of blocks.

A block of rows visits its full tiles without a mask test, then its partial tiles, in which the
intervals of the rows are tested. Empty tiles are in no list. The blocks are sorted by descending
number of tiles. Program p takes the items p, p + P, p + 2 P, ... of P programs, so the programs
differ by at most the longest block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.tiles import cut
from maskwright.errors import SizeError

if TYPE_CHECKING:
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray

MAX_INT32 = 2**31 - 1


class WorkList(NamedTuple):
    """The spans and tiles of a mask on a device.

    `tensors` are int32, in the order of the kernels' arguments: the order of the blocks; offsets,
    starts and stops of the spans; of the runs of full tiles; and of the runs of partial tiles. Row r
    of plane p has the intervals `offsets[p * rows + r]` to `offsets[p * rows + r + 1]`, and block m
    the runs of tiles from index `p * num_blocks + m` of their offsets, likewise.
    """

    tensors: tuple[torch.Tensor, ...]
    planes: tuple[int, int]  # batch rows and heads of the mask
    num_blocks: int  # blocks of rows
    max_intervals: int  # of a row
    tiles_visited: int
    tiles_full: int


class DecodeList(NamedTuple):
    """The tiles of a decode step: all rows that share a KV head are one block.

    `tensors` are int32: splits, tiles, and offsets, starts and stops of the spans. Split s of plane
    p has the tiles `splits[p, s]` to `splits[p, s + 1]`, each as twice the index of a key tile, plus
    1 if it is full.
    """

    tensors: tuple[torch.Tensor, ...]
    planes: tuple[int, int]


def row_work(bound: BoundMask, block_q: int, block_kv: int, device: Any) -> WorkList:
    """The work list of blocks of query rows: of the forward pass and of dQ.

    Args:
        bound: The mask.
        block_q: Rows of a tile.
        block_kv: Keys of a tile.
        device: Where the tensors are put.

    Returns:
        The list, made once for each mask, tile and device.
    """
    key = ("triton.rows", block_q, block_kv, str(device))
    return bound.cached(key, lambda: make_work_list(bound.spans, block_q, block_kv, device))


def key_work(bound: BoundMask, block_kv: int, block_q: int, group: int, device: Any) -> WorkList:
    """The work list of blocks of keys, over the transposed spans: of dK and dV.

    Args:
        bound: The mask.
        block_kv: Keys of a tile.
        block_q: Query rows of a tile.
        group: Query heads per KV head. The order is by KV head, the lists are by query head.
        device: Where the tensors are put.

    Returns:
        The list, made once for each mask, tile and device.
    """
    key = ("triton.keys", block_kv, block_q, group, str(device))
    return bound.cached(
        key,
        lambda: make_work_list(bound.spans.transpose(), block_kv, block_q, device, group),
    )


def make_work_list(
    spans: Spans, block_rows: int, block_cols: int, device: Any, group: int = 1
) -> WorkList:
    """The work list of spans in tiles of `block_rows` × `block_cols`."""
    batch, heads, _ = spans.shape
    tiles = cut([spans], block_rows, block_cols)
    touched, whole = tiles.touched.flat, _inside(tiles.full, spans.kv_len, block_cols)
    partial = (tiles.touched - whole).flat
    full = whole.flat
    num_blocks = tiles.touched.shape[2]
    cost = _tiles_per_row(touched).reshape(batch, heads, num_blocks)
    if heads > 1 and group > 1:
        cost = cost.reshape(batch, heads // group, group, num_blocks).sum(2)
    order = np.argsort(-cost.ravel(), kind="stable")
    arrays = (order, *spans.flat, *full, *partial)
    return WorkList(
        to_device(arrays, device),
        planes=(batch, heads),
        num_blocks=num_blocks,
        max_intervals=int(np.diff(spans.flat.offsets).max(initial=0)),
        tiles_visited=int(_tiles_per_row(touched).sum()),
        tiles_full=int(_tiles_per_row(full).sum()),
    )


def decode_work(
    bound: BoundMask, kv_heads: int, group: int, block_kv: int, num_splits: int, device: Any
) -> DecodeList:
    """The work list of a decode step, whose keys are split over several programs.

    Args:
        bound: The mask of few query rows.
        kv_heads: Number of KV heads.
        group: Query heads per KV head, whose rows are one block.
        block_kv: Keys of a tile.
        num_splits: Number of programs that share the keys of a KV head.
        device: Where the tensors are put.

    Returns:
        The list, made once for each mask, tile and device.
    """
    key = ("triton.decode", kv_heads, group, block_kv, num_splits, str(device))
    return bound.cached(
        key, lambda: _decode_list(bound.spans, kv_heads, group, block_kv, num_splits, device)
    )


def _decode_list(
    spans: Spans, kv_heads: int, group: int, block_kv: int, num_splits: int, device: Any
) -> DecodeList:
    batch, heads, q_len = spans.shape
    if heads > 1:
        spans = spans.reshape((batch, kv_heads, group * q_len))
    tiles = cut([spans], spans.shape[2], block_kv)
    full = _inside(tiles.full, spans.kv_len, block_kv)
    entries = _expand(tiles.touched.flat, full.kv_len)
    is_full = np.isin(entries, _expand(full.flat, full.kv_len))
    counts = _tiles_per_row(tiles.touched.flat)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    shares = counts[:, None] * np.arange(num_splits + 1) // num_splits + bounds[:-1, None]
    arrays = (shares.ravel(), entries % (full.kv_len + 1) * 2 + is_full, *spans.flat)
    return DecodeList(to_device(arrays, device), (spans.shape[0], spans.shape[1]))


def _inside(full: Spans, num_cols: int, block_cols: int) -> Spans:
    """The full tiles that do not reach beyond the last column, where kernels need a test."""
    if num_cols % block_cols == 0:
        return full
    return full.clip(num_cols // block_cols).shift(0, full.kv_len)


def _tiles_per_row(flat: Any) -> IntArray:
    """Number of tiles in the runs of each block of rows."""
    total = np.concatenate(([0], np.cumsum(flat.stops - flat.starts)))
    counts: IntArray = np.diff(total[flat.offsets])
    return counts


def _expand(flat: Any, kv_len: int) -> IntArray:
    """The tiles of all runs, tile t of block r as r * (kv_len + 1) + t."""
    rows = np.repeat(np.arange(flat.offsets.size - 1), np.diff(flat.offsets))
    lengths = flat.stops - flat.starts
    first = rows * (kv_len + 1) + flat.starts
    before = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    tiles: IntArray = np.repeat(first - before, lengths) + np.arange(lengths.sum())
    return tiles


def to_device(arrays: tuple[IntArray, ...], device: Any) -> tuple[torch.Tensor, ...]:
    """The arrays as int32 tensors, copied to the device at once."""
    import torch

    largest = max((int(x.max()) for x in arrays if x.size), default=0)
    if largest > MAX_INT32:
        raise SizeError(
            f"attention: the mask has {largest:,} intervals or keys, and the Triton kernels read at "
            f'most {MAX_INT32:,}. Split the call, or pass impl="flex".'
        )
    sizes = [max(x.size, 1) for x in arrays]  # no empty tensor: its address would be NULL
    # Sixteen entries are 64 bytes: every part begins at an aligned address.
    places = np.concatenate(([0], np.cumsum([-(-size // 16) * 16 for size in sizes])))
    whole = np.zeros(int(places[-1]), np.int32)
    for array, place in zip(arrays, places[:-1], strict=True):
        whole[place : place + array.size] = array
    tensor = torch.from_numpy(whole).to(device)
    return tuple(tensor[at : at + size] for at, size in zip(places.tolist(), sizes, strict=False))


def num_programs(num_items: int, device: Any, per_unit: int = 2) -> int:
    """Programs of a persistent kernel: a few for each multiprocessor, at most one per item."""
    import torch

    units = 3
    if torch.device(device).type != "cpu":
        units = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(num_items, per_unit * units))
