"""Work lists against the dense mask: full and partial tiles, their order, and splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from maskwright.engine.backends.triton import work_list
from tests._helpers.attention_inputs import MASKS, T

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

BLOCKS = [(16, 16), (32, 7), (5, 64)]


def padded_tiles(visible: np.ndarray, block_rows: int, block_cols: int) -> np.ndarray:
    """(planes, row blocks, column blocks): 0 empty, 1 partial, 2 full and within the columns."""
    planes = visible.reshape(-1, *visible.shape[2:])
    rows, cols = planes.shape[1:]
    kinds = np.zeros((len(planes), -(-rows // block_rows), -(-cols // block_cols)), int)
    for p, m, n in np.ndindex(kinds.shape):
        tile = planes[p, m * block_rows :, n * block_cols :][:block_rows, :block_cols]
        whole = tile.all() and (n + 1) * block_cols <= cols
        kinds[p, m, n] = 2 if whole else int(tile.any())
    return kinds


def listed_tiles(work: work_list.WorkList, num_cols: int) -> np.ndarray:
    """The same from the list."""
    planes = work.planes[0] * work.planes[1]
    kinds = np.zeros((planes * work.num_blocks, num_cols), int)
    arrays = [x.numpy() for x in work.tensors]
    for kind, (offsets, starts, stops) in ((2, arrays[4:7]), (1, arrays[7:10])):
        for row in range(len(kinds)):
            for run in range(offsets[row], offsets[row + 1]):
                assert not kinds[row, starts[run] : stops[run]].any()  # no tile twice
                kinds[row, starts[run] : stops[run]] = kind
    return kinds.reshape(planes, work.num_blocks, num_cols)


def bound(name: str) -> BoundMask:
    batch, heads = MASKS[name].on(T).shape[:2]
    return MASKS[name].on(T, T, batch, max(heads, 2))


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("name", MASKS)
def test_tiles_of_rows_and_keys(name: str, blocks: tuple[int, int]) -> None:
    mask = bound(name)
    work = work_list.row_work(mask, *blocks, "cpu")
    right = padded_tiles(mask.dense(), *blocks)
    assert np.array_equal(listed_tiles(work, right.shape[2]), right)
    assert (work.tiles_visited, work.tiles_full) == ((right > 0).sum(), (right == 2).sum())
    keys = work_list.key_work(mask, *blocks, 1, "cpu")
    right = padded_tiles(np.swapaxes(mask.dense(), 2, 3), *blocks)
    assert np.array_equal(listed_tiles(keys, right.shape[2]), right)


@pytest.mark.parametrize("name", MASKS)
def test_order_is_by_descending_number_of_tiles(name: str) -> None:
    mask = bound(name)
    work = work_list.row_work(mask, 16, 16, "cpu")
    cost = (padded_tiles(mask.dense(), 16, 16) > 0).sum(2).ravel()
    order = work.tensors[0].numpy()
    assert sorted(order) == list(range(cost.size))
    assert all(np.diff(cost[order]) <= 0)


@pytest.mark.parametrize("num_splits", [1, 3, 7])
@pytest.mark.parametrize("name", ["causal", "by head", "padding", "nothing", "scattered"])
def test_splits_of_a_decode_step_cover_each_tile_once(name: str, num_splits: int) -> None:
    mask = MASKS[name]
    batch, heads = mask.on(T).shape[:2]
    heads = max(heads, 2)
    few = mask.on(3, T, batch, heads)
    work = work_list.decode_work(few, heads // 2, 2, 16, num_splits, "cpu")
    splits, tiles = (x.numpy() for x in work.tensors[:2])
    dense = np.broadcast_to(few.dense(), (batch, few.shape[1], 3, T))
    if few.shape[1] > 1:
        dense = dense.reshape(batch, heads // 2, 6, T)
    right = padded_tiles(dense, 6, 16)[:, 0]
    splits = splits[: len(right) * (num_splits + 1)].reshape(len(right), num_splits + 1)
    for plane, kinds in enumerate(right):
        first, last = splits[plane, 0], splits[plane, -1]
        found = tiles[first:last]
        assert (np.diff(splits[plane]) >= 0).all()
        assert found.tolist() == [2 * n + (kinds[n] == 2) for n in np.flatnonzero(kinds)]
