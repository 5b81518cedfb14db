"""The owners of bias gradients visit each cell once, with the key - query that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from maskwright.engine.backends.triton import bias_gradients, bias_kernels

SIZES = [(1, 1), (5, 5), (16, 33), (40, 7), (31, 64)]


def visits(owners: bias_gradients.Owners, block: int, q_len: int, kv_len: int) -> list[list[tuple]]:
    """The cells of each owner as (query, key, row of the tile, column of the tile)."""
    found = []
    for row, row_x, col, col_x, lines, tiles in owners.table.tolist():
        cells = []
        for line, tile in np.ndindex(lines, tiles):
            for i, j in np.ndindex(block, block):
                query = row + line * owners.width + tile * owners.row_step + i
                key = col + line * owners.width + tile * owners.col_step + j
                in_line = max(
                    row_x + tile * owners.row_step + i, col_x + tile * owners.col_step + j
                )
                if 0 <= query < q_len and key < kv_len and in_line < owners.width:
                    cells.append((query, key, i, j))
        found.append(cells)
    return found


def assert_each_cell_once(found: list[list[tuple]], q_len: int, kv_len: int) -> None:
    cells = sorted(cell[:2] for own in found for cell in own)
    assert cells == list(np.ndindex(q_len, kv_len))


@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize("mode", [bias_kernels.CELLS, bias_kernels.KEYS, bias_kernels.ROWS])
def test_blocks(q_len: int, kv_len: int, mode: int) -> None:
    owners = bias_gradients.block_owners(q_len, kv_len, 8, mode)
    assert_each_cell_once(visits(owners, 8, q_len, kv_len), q_len, kv_len)


@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
def test_diagonals(q_len: int, kv_len: int) -> None:
    owners = bias_gradients.diagonal_owners(q_len, kv_len, 8)
    found = visits(owners, 8, q_len, kv_len)
    assert_each_cell_once(found, q_len, kv_len)
    for own, apart in zip(found, range(1 - -(-q_len // 8), -(-kv_len // 8)), strict=True):
        assert all(key - query == 8 * apart + j - i for query, key, i, j in own)


@pytest.mark.parametrize("width", [3, 8, 13, 100])
@pytest.mark.parametrize("q_start", [0, 5, 24])
@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
def test_grids(q_len: int, kv_len: int, q_start: int, width: int) -> None:
    lines = (q_start // width, (q_start + q_len - 1) // width)
    last = (kv_len - 1) // width
    owners = bias_gradients.grid_owners(lines, last, width, q_start, 8)
    found = visits(owners, 8, q_len, kv_len)
    assert_each_cell_once(found, q_len, kv_len)
    num_tiles = -(-width // 8)
    pairs = [
        (down, apart)
        for down in range(-lines[1], last - lines[0] + 1)
        for apart in range(1 - num_tiles, num_tiles)
    ]
    for own, (down, apart) in zip(found, pairs, strict=True):
        for query, key, i, j in own:
            place = query + q_start
            assert key // width - place // width == down
            assert key % width - place % width == 8 * apart + j - i
