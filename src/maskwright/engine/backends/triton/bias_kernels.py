"""The kernel of the gradients of biases: sums of the score gradients over tiles of one owner.

An owner is a part of the gradient: a tile of a bias tensor, a block of its rows or keys, or a pair of
neighbouring diagonals of tiles. One program adds all tiles of an owner in a fixed order, without
atomics, so results are deterministic. The tiles of a diagonal of tiles have the same key - query in
each cell, so they are added cell by cell, and the diagonals are summed once, at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from maskwright.engine.backends.triton.forward_kernels import DO_NOT_SPECIALIZE
from maskwright.engine.backends.triton.softmax import softmax_gradients
from maskwright.engine.backends.triton.tile import (
    dot,
    head_at,
    round_to,
    seek_interval,
    visible_cells,
)

# How an owner sums its tile at the end.
CELLS, KEYS, ROWS, DIAGONALS = 0, 1, 2, 3
_CELLS, _KEYS, _ROWS = tl.constexpr(CELLS), tl.constexpr(KEYS), tl.constexpr(ROWS)


@triton.jit
def _load_masked_rows(matrix, rows, row_mask, strides, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """The rows of a matrix, 0 where `row_mask` is False and from column `DIM` on."""
    cols = tl.arange(0, BLOCK_D)
    at = matrix + rows.to(tl.int64)[:, None] * strides[0] + cols[None, :] * strides[1]
    return tl.load(at, mask=row_mask[:, None] & (cols < DIM)[None, :], other=0.0)


@triton.jit(
    do_not_specialize=[
        *DO_NOT_SPECIALIZE, "num_owners", "num_steps", "mask_batch", "width", "row_step", "col_step",
        "out_heads", "copies", "copies_h",
    ]
)  # fmt: skip
def bias_gradient_kernel(
    Q, K, V, Grad, Norm, Delta, Out,
    q_sb, q_sh, q_sm, q_sd, k_sb, k_sh, k_sn, k_sd, v_sb, v_sh, v_sn, v_sd,
    g_sb, g_sh, g_sm, g_sd, out_sp,
    Owners, Offsets, Starts, Stops,
    num_owners, out_heads, copies, copies_h, width, row_step, col_step,
    num_steps, mask_batch, mask_heads, heads, group, q_len, kv_len,
    factor, cap, Distance, distance_sh, distance_zero, num_distances,
    Biases, Grid, grid_sh, grid_height, grid_width, grid_shift,
    seed_low, seed_high, threshold, keep_factor,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MODE: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr,
):  # fmt: skip
    """One owner of one plane of the gradient, summed over the batch rows and heads that share it.

    Queries and keys are in lines of `width`, which no tile crosses. Owner o has the entries
    `Owners[o]`: query and its place in the line, key and its place, of the first tile; the number of
    lines; and the number of tiles in each, `row_step` and `col_step` apart.
    """
    scoring = (
        factor, cap, Distance, distance_sh, distance_zero, num_distances,
        Biases, q_len, kv_len, Grid, grid_sh, grid_height, grid_width, grid_shift,
    )  # fmt: skip
    dropout = (seed_low, seed_high, threshold, keep_factor)
    owner = tl.program_id(0) % num_owners
    plane = tl.program_id(0) // num_owners
    entry = Owners + owner * 6
    first_row, first_row_x = tl.load(entry), tl.load(entry + 1)
    first_col, first_col_x = tl.load(entry + 2), tl.load(entry + 3)
    num_tiles = tl.load(entry + 5)
    num_visits = tl.load(entry + 4) * num_tiles
    up, across = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for visit in range(copies * num_visits):
        copy, line, tile = visit // num_visits, visit % num_visits // num_tiles, visit % num_tiles
        batch = plane // out_heads + copy // copies_h
        head = plane % out_heads + copy % copies_h
        rows = first_row + line * width + tile * row_step + up
        start_n = first_col + line * width + tile * col_step
        cols = start_n + across
        row_mask = (rows >= 0) & (rows < q_len) & (first_row_x + tile * row_step + up < width)
        col_mask = (cols < kv_len) & (first_col_x + tile * col_step + across < width)
        mask_plane = (batch % mask_batch) * mask_heads + head % mask_heads
        first = tl.load(Offsets + mask_plane * q_len + rows, mask=row_mask, other=0)
        last = tl.load(Offsets + mask_plane * q_len + rows + 1, mask=row_mask, other=0)
        spans = (first, last, Starts, Stops)
        cursor = seek_interval(first, last, start_n, Stops, num_steps)
        visible, cursor = visible_cells(
            cols[None, :], start_n + BLOCK_N, cursor, spans, BLOCK_M, BLOCK_N
        )
        visible = visible & col_mask[None, :]
        if tl.max(visible.to(tl.int32)) > 0:
            q_ptr = head_at(Q, batch, head, q_sb, q_sh)
            k_ptr = head_at(K, batch, head // group, k_sb, k_sh)
            v_ptr = head_at(V, batch, head // group, v_sb, v_sh)
            g_ptr = head_at(Grad, batch, head, g_sb, g_sh)
            row_at = (batch * heads + head).to(tl.int64) * q_len + rows
            norm = tl.load(Norm + row_at, mask=row_mask, other=0.0)
            delta = tl.load(Delta + row_at, mask=row_mask, other=0.0)
            q = _load_masked_rows(q_ptr, rows, row_mask, (q_sm, q_sd), HEAD_DIM, BLOCK_D)
            k = _load_masked_rows(k_ptr, cols, col_mask, (k_sn, k_sd), HEAD_DIM, BLOCK_D)
            zero = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            products = dot(q, k.T, zero, INTERPRET)
            grad = _load_masked_rows(g_ptr, rows, row_mask, (g_sm, g_sd), V_DIM, BLOCK_DV)
            v = _load_masked_rows(v_ptr, cols, col_mask, (v_sn, v_sd), V_DIM, BLOCK_DV)
            grads = dot(grad, v.T, zero, INTERPRET)
            gradients = softmax_gradients(
                products, grads, visible, norm[:, None], delta[:, None], rows[:, None],
                cols[None, :], batch, head, scoring, dropout, True, DROPOUT, SOFTCAP, BASE2,
            )  # fmt: skip
            acc += gradients[1]
    out_ptr = Out + plane.to(tl.int64) * out_sp
    rows, cols = first_row + up, first_col + across
    if MODE == _CELLS:
        inside = (rows < q_len)[:, None] & (cols < kv_len)[None, :]
        at = out_ptr + rows.to(tl.int64)[:, None] * kv_len + cols[None, :]
        tl.store(at, round_to(acc, Out.dtype.element_ty, INTERPRET), mask=inside)
    elif MODE == _KEYS:
        tl.store(out_ptr + cols, tl.sum(acc, 0), mask=cols < kv_len)
    elif MODE == _ROWS:
        tl.store(out_ptr + rows, tl.sum(acc, 1), mask=rows < q_len)
    else:  # key - query from 1 - BLOCK_M to BLOCK_N - 1
        apart = across[None, :] - up[:, None]
        at = out_ptr + owner.to(tl.int64) * (BLOCK_M + BLOCK_N)
        for n in range(BLOCK_M + BLOCK_N - 1):
            cells = tl.where(apart == n - (BLOCK_M - 1), acc, 0.0)
            tl.store(at + n, tl.sum(cells))
