"""The block-diagonal classes of xformers: blocks of queries, each with a block of keys.

The tokens of all sequences are concatenated. The queries of the blocks follow each other. The keys
do too, or each block has room for the same number of keys, or its keys begin anywhere; or they are
in pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.errors import ArgumentError
from maskwright.targets._torch import int32_tensor
from maskwright.targets.base import Unrepresentable
from maskwright.targets.predicates import check_bytes, spans_shared_by_heads
from maskwright.targets.varlen import row_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray
    from maskwright.targets.varlen import RowGroups

Window = tuple[int | None, int | None]  # keys back and ahead, None for all

FULL: Window = (None, None)
CAUSAL: Window = (None, 0)


class _Blocks(NamedTuple):
    """Blocks of consecutive queries, each with its number of queries and its keys."""

    queries: IntArray
    begin: IntArray
    keys: IntArray


def contiguous_bias(bound: BoundMask, biases: Any, device: Any) -> Any:
    """The BlockDiagonalMask, or one of its subclasses, that is equal; or None."""
    rows = row_groups(bound)
    if not rows.first.size or bool((rows.high <= rows.low).any()):
        return None  # xformers documents no blocks without keys here
    previous = np.append(0, rows.end[:-1])
    following = np.append(rows.begin[1:], rows.num_keys)
    if bool((rows.begin < previous).any()):
        return None
    queries = np.diff(np.append(rows.first, rows.low.size))
    # Keys that no row attends to are before a window that is aligned at the last key, and after
    # one that is aligned at the first key.
    lower_right = _Blocks(queries, previous, rows.end - previous)
    upper_left = _Blocks(queries, rows.begin, following - rows.begin)
    right_fits = int(rows.end[-1]) == rows.num_keys
    left_fits = int(rows.begin[0]) == 0

    def make(blocks: _Blocks) -> Any:
        lengths = blocks.queries.tolist(), blocks.keys.tolist()
        return biases.BlockDiagonalMask.from_seqlens(*lengths, device=device)

    enough = bool((lower_right.keys >= queries).all())  # as the constructors require
    if right_fits and _equal(rows, lower_right, FULL):
        return make(lower_right)
    if right_fits and enough and _equal(rows, lower_right, CAUSAL):
        return make(lower_right).make_causal_from_bottomright()
    if left_fits and _equal(rows, upper_left, CAUSAL, upper_left=True):
        return make(upper_left).make_causal()
    if left_fits:
        back = _window(rows, upper_left, upper_left=True)[0]
        if (
            back is not None
            and bool((queries <= upper_left.keys + back).all())  # as the constructor requires
            and _equal(rows, upper_left, (back, 0), upper_left=True)
        ):
            return make(upper_left).make_local_attention(back + 1)
    if right_fits and enough:
        back = _window(rows, lower_right)[0]
        if back is not None and _equal(rows, lower_right, (back, 0)):
            return make(lower_right).make_local_attention_from_bottomright(back + 1)
    return None


def padded_bias(bound: BoundMask, biases: Any, device: Any) -> Any:
    """The BlockDiagonalPaddedKeysMask, or one of its subclasses, that is equal; or None."""
    rows = row_groups(bound)
    for blocks, padding in _padded_blocks(rows, bound.frame.kv_len):
        lengths = blocks.queries.tolist(), padding, blocks.keys.tolist()
        if _equal(rows, blocks, FULL):
            return biases.BlockDiagonalPaddedKeysMask.from_seqlens(*lengths, device=device)
        if _equal(rows, blocks, CAUSAL):
            kind = biases.BlockDiagonalCausalWithOffsetPaddedKeysMask
            return kind.from_seqlens(*lengths, device=device)
        back, ahead = _window(rows, blocks)
        back = padding if back is None else back
        padded = biases.BlockDiagonalPaddedKeysMask.from_seqlens(*lengths, device=device)
        if _equal(rows, blocks, (back, 0)):
            return biases.BlockDiagonalCausalLocalAttentionPaddedKeysMask(
                q_seqinfo=padded.q_seqinfo, k_seqinfo=padded.k_seqinfo, _window_size=back + 1
            )
        ahead = padding if ahead is None else ahead
        if _equal(rows, blocks, (back, ahead)):
            return padded.make_local_attention(back, ahead)
    return None


def gappy_bias(bound: BoundMask, biases: Any, device: Any, *, shared_keys: bool) -> Any:
    """The BlockDiagonalGappyKeysMask, or its causal subclass, that is equal; or None.

    With `shared_keys`, blocks that follow each other may have keys in common: then every row may
    be a block of its own.
    """
    rows = row_groups(bound)
    kinds = {
        FULL: biases.BlockDiagonalGappyKeysMask,
        CAUSAL: biases.BlockDiagonalCausalWithOffsetGappyKeysMask,
    }
    if not rows.first.size:
        return None  # every row is fully masked
    fits = [
        (blocks, window)
        for window in kinds
        for blocks in [_runs(rows, window) if shared_keys else _groups(rows)]
        if _equal(rows, blocks, window)
    ]
    if not fits:
        return None
    blocks, window = min(fits, key=lambda fit: fit[0].queries.size)
    starts = [*blocks.begin.tolist(), rows.num_keys]
    lengths = blocks.queries.tolist(), starts, blocks.keys.tolist()
    return kinds[window].from_seqlens(*lengths, device=device)


def paged_bias(bound: BoundMask, page_size: int, biases: Any, device: Any) -> Any:
    """The paged class that is equal: keys are in pages, each sequence's in any order.

    Raises:
        Unrepresentable: If there is none.
        ArgumentError: If the keys are not a number of pages.
    """
    num_keys = bound.frame.batch * bound.frame.kv_len
    if num_keys % page_size:
        raise ArgumentError(
            f"lower: page_size={page_size} does not divide {num_keys}, the number of keys. "
            "Pass a kv_len of whole pages."
        )
    cells = _cells(bound)
    if not cells.size:
        raise Unrepresentable("there are no queries or no keys")
    if bound.frame.kv_len % page_size:  # a page has keys of two batch rows
        cells = _concatenated(cells)
    fits = [fit for causal in (False, True) for fit in _paged_sequences(cells, page_size, causal)]
    if not fits:
        raise Unrepresentable("the keys of a sequence are not consecutive in any order of pages")
    causal, queries, parts = min(fits, key=lambda fit: len(fit.queries))
    orders, starts, stops = zip(*parts, strict=True)
    pages = np.array(_block_table(orders, num_keys // page_size))
    table = int32_tensor(pages, device)
    size = table.shape[1] * page_size
    suffix = "CausalWithOffset" if causal else ""
    if not any(starts):
        kind = getattr(biases, f"PagedBlockDiagonal{suffix}PaddedKeysMask")
        return kind.from_seqlens(queries, list(stops), table, page_size, device=table.device)
    begin = [index * size + start for index, start in enumerate(starts)]
    lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
    gappy = getattr(biases, f"BlockDiagonal{suffix}GappyKeysMask").from_seqlens(
        queries, [*begin, len(begin) * size], lengths, device=table.device
    )
    kind = getattr(biases, f"PagedBlockDiagonal{suffix}GappyKeysMask")
    return gappy.make_paged(table, page_size, notional_padding=size, paged_type=kind)


def _equal(rows: RowGroups, blocks: _Blocks, window: Window, *, upper_left: bool = False) -> bool:
    """Whether the blocks, with this window in each, are the rows' intervals."""
    begin, end, place = _positions(blocks, upper_left)
    back, ahead = window
    low = begin if back is None else np.maximum(begin, place - back)
    high = end if ahead is None else np.minimum(end, place + ahead + 1)
    visible = rows.high > rows.low
    same = (low == rows.low) & (high == rows.high)
    return bool(np.where(visible, same, high <= low).all())


def _window(rows: RowGroups, blocks: _Blocks, *, upper_left: bool = False) -> Window:
    """The largest distances back and ahead of rows that do not reach the ends of their blocks."""
    begin, end, place = _positions(blocks, upper_left)
    visible = rows.high > rows.low
    back = (place - rows.low)[visible & (rows.low > begin)]
    ahead = (rows.high - 1 - place)[visible & (rows.high < end)]
    return (
        max(int(back.max()), 0) if back.size else None,
        max(int(ahead.max()), 0) if ahead.size else None,
    )


def _positions(blocks: _Blocks, upper_left: bool) -> tuple[IntArray, IntArray, IntArray]:
    """The first key, the stop and the aligned key of each row in its block."""
    block = np.repeat(np.arange(blocks.queries.size), blocks.queries)
    row = np.arange(block.size) - (np.cumsum(blocks.queries) - blocks.queries)[block]
    begin, end = blocks.begin[block], (blocks.begin + blocks.keys)[block]
    return begin, end, row + (begin if upper_left else end - blocks.queries[block])


def _padded_blocks(rows: RowGroups, kv_len: int) -> Iterator[tuple[_Blocks, int]]:
    """Blocks with room for the same number of keys, and that number."""
    total, groups = rows.num_keys, rows.first.size
    if not groups or not total:
        return
    sizes = [kv_len, total // groups, int(np.gcd.reduce(rows.begin, initial=total))]
    for size in dict.fromkeys(sizes):
        if not size or total % size:
            continue
        index = rows.begin // size
        if bool(((rows.end - 1) // size != index).any() or (np.diff(index) <= 0).any()):
            continue
        count = total // size
        queries, keys = np.zeros((2, count), np.int64)
        queries[index], keys[index] = rows.last + 1 - rows.first, rows.end - index * size
        # Fully masked rows before a group are in an unused block, or the first ones of its block.
        empty = rows.first - np.append(0, rows.last[:-1] + 1)
        unused = np.append(-1, index[:-1]) + 1
        np.add.at(queries, unused, empty)
        after = rows.low.size - int(rows.last[-1]) - 1
        if after and int(index[-1]) + 1 == count:
            continue
        if after:
            queries[int(index[-1]) + 1] += after
        yield _Blocks(queries, np.arange(count) * size, keys), size


def _groups(rows: RowGroups) -> _Blocks:
    """A block per group, and one without keys for the fully masked rows between two of them."""
    before = rows.first - np.append(0, rows.last[:-1] + 1)
    queries = np.stack([before, rows.last + 1 - rows.first], axis=1).ravel()
    begin = np.repeat(rows.begin, 2)
    keys = np.stack([before * 0, rows.end - rows.begin], axis=1).ravel()
    after = rows.low.size - int(rows.last[-1]) - 1
    queries, begin, keys = (
        np.append(part, last) for part, last in ((queries, after), (begin, rows.end[-1]), (keys, 0))
    )
    used = queries > 0
    return _Blocks(queries[used], begin[used], keys[used])


def _runs(rows: RowGroups, window: Window) -> _Blocks:
    """The longest blocks whose rows have the same keys, or under CAUSAL one key more each."""
    visible = rows.high > rows.low
    low, high = np.where(visible, rows.low, 0), np.where(visible, rows.high, 0)
    grow = visible[1:] & visible[:-1] if window == CAUSAL else 0
    new = (low[1:] != low[:-1]) | (high[1:] != high[:-1] + grow)
    first = np.flatnonzero(np.append(True, new | (visible[1:] != visible[:-1])))
    last = np.append(first[1:], low.size) - 1
    return _Blocks(last + 1 - first, low[first], high[last] - low[first])


def _cells(bound: BoundMask) -> BoolArray:
    """The cells (B, T, S)."""
    spans, frame = spans_shared_by_heads(bound), bound.frame
    cells = np.zeros((frame.batch, 1, frame.q_len, frame.kv_len), np.bool_)
    check_bytes(cells.shape, 1)
    spans.expand((frame.batch, 1, frame.q_len)).write_dense(cells)
    return cells[:, 0]


def _concatenated(cells: BoolArray) -> BoolArray:
    """The cells (B, T, S) as (1, B · T, B · S), False between batch rows."""
    batch, queries, keys = cells.shape
    check_bytes((batch, queries, batch, keys), 1)
    out = np.zeros((batch, queries, batch, keys), np.bool_)
    for b in range(batch):
        out[b, :, b] = cells[b]
    return out.reshape(1, batch * queries, batch * keys)


class _PagedSequences(NamedTuple):
    causal: bool
    queries: list[int]  # of each sequence
    parts: list[tuple[list[int], int, int]]  # its pages in order, first key and stop


def _paged_sequences(cells: BoolArray, page_size: int, causal: bool) -> Iterator[_PagedSequences]:
    """The sequences if all rows of each see the same keys, or under `causal` one key more each."""
    _, num_rows, num_keys = cells.shape
    rows = cells.reshape(-1, num_keys)
    first = np.flatnonzero(_new_sequences(cells, causal))
    queries = np.diff(np.append(first, len(rows))).tolist()
    parts = []
    for start, count in zip(first.tolist(), queries, strict=True):
        stop = start + count
        # Rows of earlier batch rows are fully masked, so all keys are those of the last one.
        part = _logical_pages(rows[start:stop], page_size, causal)
        if part is None:
            return
        order, begin, end = part
        offset = (stop - 1) // num_rows * (num_keys // page_size)
        parts.append(([offset + page for page in order], begin, end))
    yield _PagedSequences(causal, queries, parts)


def _new_sequences(cells: BoolArray, causal: bool) -> BoolArray:
    """Whether a row has other keys than the row before it; `causal`: than these and one more."""
    batch, num_rows, num_keys = cells.shape
    rows = cells.reshape(-1, num_keys)
    more = (rows[1:] & ~rows[:-1]).sum(axis=1)
    fewer = np.any(rows[:-1] & ~rows[1:], axis=1)
    # Batch rows have no keys in common.
    last = np.arange(1, batch) * num_rows - 1
    more[last], fewer[last] = rows[last + 1].sum(axis=1), rows[last].any(axis=1)
    grows = causal & rows[1:].any(axis=1)  # fully masked rows follow each other
    return np.append(True, fewer | (more != grows))


def _logical_pages(
    cells: BoolArray, page_size: int, causal: bool
) -> tuple[list[int], int, int] | None:
    """The order of the pages of one sequence, and its first key and stop in that order."""
    pages = cells.reshape(len(cells), -1, page_size)
    count = pages.sum(axis=(0, 2))
    used = np.flatnonzero(pages[-1].any(axis=1))
    if not used.size:
        return [], 0, 0
    # A page is before the pages that the first rows see less of; the one whose first keys are
    # masked is before all, the one whose last keys are masked after all.
    head, tail = ~pages[-1, used, 0], ~pages[-1, used, -1]
    order = used[np.lexsort((used, -count[used], tail, ~head))]
    seen = cells.reshape(pages.shape)[:, order].reshape(len(cells), -1)
    first, total = int(np.argmax(seen[-1])), int(seen[-1].sum())
    key = np.arange(seen.shape[1])
    stop = first + total - causal * (len(cells) - 1 - np.arange(len(cells)))[:, None]
    if not np.array_equal(seen, (key >= first) & (key < stop)):
        return None
    return order.tolist(), first, first + total


def _block_table(orders: tuple[list[int], ...], num_pages: int) -> list[list[int]]:
    """The pages of each sequence. Unused entries are pages that the sequence has no key in.

    xformers takes the number of pages from the highest entry, so the last page is one.
    """
    width = max(1, *(len(order) for order in orders))
    last = num_pages - 1
    if all(last not in order and len(order) == width for order in orders):
        width += 1
    table = []
    for order in orders:
        missing = width - len(order)
        used = set(order)
        unused = (page for page in reversed(range(num_pages)) if page not in used)
        table.append(order + ([next(unused)] * missing if missing else []))
    return table
