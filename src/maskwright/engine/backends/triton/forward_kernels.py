"""The forward kernel: online softmax over the visited tiles of a block of query rows."""

from __future__ import annotations

import triton
import triton.language as tl

from maskwright.engine.backends.triton.softmax import (
    LN2,
    add_tile,
    exponential,
    in_base,
    log_sum,
    score_tile,
)
from maskwright.engine.backends.triton.tile import (
    first_interval,
    head_at,
    load_rows,
    partial_cells,
    read_item,
    read_runs,
    row_products,
    store_rows,
)


@triton.jit
def _visit_runs(
    state, query, keys, spans, runs, scoring, dropout, kv_len,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PIECE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Updates accumulator, sum and maximum by the runs of tiles of one kind."""
    softmax, cursor = state
    q, q_rows, rows, batch, head = query
    K, k_strides, V, v_strides = keys
    run_first, run_last, Run_starts, Run_stops = runs
    interval = spans  # not used unless tiles are partial, and rows have one interval
    if PARTIAL and ONE_INTERVAL:
        interval = first_interval(spans)
    for run in range(run_first, run_last):
        for tile in range(tl.load(Run_starts + run), tl.load(Run_stops + run)):
            left = tile * BLOCK_N
            cols = left + tl.arange(0, BLOCK_N)
            k = q  # not used if it is read in pieces
            if PIECE == 0:
                k = load_rows(K, left, kv_len, k_strides, BLOCK_N, HEAD_DIM, BLOCK_D, PARTIAL)
            products = row_products(
                q, q_rows, k, (K, left, kv_len, k_strides), BLOCK_M, BLOCK_N, HEAD_DIM, PIECE,
                True, PARTIAL, INTERPRET,
            )  # fmt: skip
            scores, _ = score_tile(
                products, rows[:, None], cols[None, :], batch, head, scoring, SOFTCAP, BASE2
            )
            visible = products  # not used unless the tile is partial
            if PARTIAL:
                visible, cursor = partial_cells(
                    cols[None, :], left + BLOCK_N, cursor, spans, interval, BLOCK_M, BLOCK_N,
                    ONE_INTERVAL,
                )  # fmt: skip
            softmax = add_tile(
                softmax, scores, visible, (V, left, kv_len, v_strides),
                (rows[:, None], cols[None, :], batch, head), dropout,
                BLOCK_N, V_DIM, BLOCK_DV, DROPOUT, INTERPRET, BASE2, PARTIAL,
            )  # fmt: skip
    return softmax, cursor


# Lengths, counts and seeds do not become constants, so that new ones compile nothing.
FREE = [
    *("num_items", "num_blocks", "copies", "copies_h", "mask_heads", "heads", "group"),
    *("q_len", "kv_len", "distance_sh", "distance_zero", "num_distances", "grid_sh"),
    *("grid_height", "grid_width", "grid_shift", "seed_low", "seed_high", "threshold"),
]


@triton.jit(do_not_specialize=FREE)
def forward_kernel(
    Q, K, V, Out, Lse,
    q_sb, q_sh, q_sm, q_sd, k_sb, k_sh, k_sn, k_sd, v_sb, v_sh, v_sn, v_sd, o_sb, o_sh, o_sm,
    Order, Offsets, Starts, Stops,
    Full_offsets, Full_starts, Full_stops, Part_offsets, Part_starts, Part_stops,
    num_items, num_blocks, copies, copies_h, mask_heads, heads, group, q_len, kv_len,
    factor, cap, Distance, distance_sh, distance_zero, num_distances,
    Biases, Grid, grid_sh, grid_height, grid_width, grid_shift,
    Sinks, seed_low, seed_high, threshold, keep_factor,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    PIECE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr,
):  # fmt: skip
    """Output and logsumexp of the items of one program."""
    scoring = (
        factor, cap, Distance, distance_sh, distance_zero, num_distances,
        Biases, q_len, kv_len, Grid, grid_sh, grid_height, grid_width, grid_shift,
    )  # fmt: skip
    dropout = (seed_low, seed_high, threshold, keep_factor)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        plane, block, batch, head = read_item(item, Order, num_blocks, copies, copies_h, mask_heads)
        top = block * BLOCK_M
        rows = top + tl.arange(0, BLOCK_M)
        real = rows < q_len
        out_at = head_at(Out, batch, head, o_sb, o_sh)
        q_at = head_at(Q, batch, head, q_sb, q_sh)
        q_rows = (q_at, top, q_len, (q_sm, q_sd))
        q = rows  # not used if it is read in pieces
        if PIECE == 0:
            q = load_rows(q_at, top, q_len, (q_sm, q_sd), BLOCK_M, HEAD_DIM, BLOCK_D, True)
        k_at = head_at(K, batch, head // group, k_sb, k_sh)
        v_at = head_at(V, batch, head // group, v_sb, v_sh)
        keys = (k_at, (k_sn, k_sd), v_at, (v_sn, v_sd))
        first = tl.load(Offsets + plane * q_len + rows, mask=real, other=0)
        last = tl.load(Offsets + plane * q_len + rows + 1, mask=real, other=0)
        query = (q, q_rows, rows, batch, head)
        spans = (first, last, Starts, Stops)
        softmax = (
            tl.zeros([BLOCK_M, BLOCK_DV], tl.float32),
            tl.zeros([BLOCK_M], tl.float32),
            tl.full([BLOCK_M], float("-inf"), tl.float32),
        )
        state = (softmax, first)
        index = plane * num_blocks + block
        full = read_runs(index, Full_offsets, Full_starts, Full_stops)
        state = _visit_runs(
            state, query, keys, spans, full, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, PIECE, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, False,
        )  # fmt: skip
        partial = read_runs(index, Part_offsets, Part_starts, Part_stops)
        state = _visit_runs(
            state, query, keys, spans, partial, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, PIECE, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, True,
        )  # fmt: skip
        acc, total, maximum = state[0]
        empty = total == 0  # the total of a row with NaN is NaN
        norm = total
        if Sinks is not None:  # one more logit in the denominator, without a value
            sink = in_base(tl.load(Sinks + head), BASE2)
            shift = tl.maximum(maximum, sink)
            shift = tl.where(empty, 0.0, shift)
            norm = total * exponential(maximum - shift, BASE2) + exponential(sink - shift, BASE2)
            acc = acc * exponential(maximum - shift, BASE2)[:, None]
        out = tl.where(empty[:, None], 0.0, acc / tl.where(empty, 1.0, norm)[:, None])
        store_rows(out, out_at, top, q_len, (o_sm, 1), BLOCK_M, V_DIM, BLOCK_DV, INTERPRET)
        lse = log_sum(total, maximum, BASE2)
        if BASE2:
            lse = lse * LN2
        lse_at = Lse + (batch * heads + head).to(tl.int64) * q_len + rows
        tl.store(lse_at, lse, mask=real)
