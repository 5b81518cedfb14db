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
    BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
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
            start_n = tile * BLOCK_N
            cols = start_n + tl.arange(0, BLOCK_N)
            k = q  # not used if it is read in pieces
            if BLOCK_K == 0:
                k = load_rows(K, start_n, kv_len, k_strides, BLOCK_N, HEAD_DIM, BLOCK_D, PARTIAL)
            products = row_products(
                q, q_rows, k, (K, start_n, kv_len, k_strides), BLOCK_M, BLOCK_N, HEAD_DIM, BLOCK_K,
                True, PARTIAL, INTERPRET,
            )  # fmt: skip
            scores, _ = score_tile(
                products, rows[:, None], cols[None, :], batch, head, scoring, SOFTCAP, BASE2
            )
            visible = products  # not used unless the tile is partial
            if PARTIAL:
                visible, cursor = partial_cells(
                    cols[None, :], start_n + BLOCK_N, cursor, spans, interval, BLOCK_M, BLOCK_N,
                    ONE_INTERVAL,
                )  # fmt: skip
            softmax = add_tile(
                softmax, scores, visible, (V, start_n, kv_len, v_strides),
                (rows[:, None], cols[None, :], batch, head), dropout,
                BLOCK_N, V_DIM, BLOCK_DV, DROPOUT, INTERPRET, BASE2, PARTIAL,
            )  # fmt: skip
    return softmax, cursor


# Lengths, counts and seeds do not become constants, so that new ones compile nothing.
DO_NOT_SPECIALIZE = [
    *("num_items", "num_blocks", "copies", "copies_h", "mask_heads", "heads", "group"),
    *("q_len", "kv_len", "distance_sh", "distance_zero", "num_distances", "grid_sh"),
    *("grid_height", "grid_width", "grid_shift", "seed_low", "seed_high", "threshold"),
]


@triton.jit(do_not_specialize=DO_NOT_SPECIALIZE)
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
    BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
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
        start_m = block * BLOCK_M
        rows = start_m + tl.arange(0, BLOCK_M)
        row_mask = rows < q_len
        out_ptr = head_at(Out, batch, head, o_sb, o_sh)
        q_ptr = head_at(Q, batch, head, q_sb, q_sh)
        q_rows = (q_ptr, start_m, q_len, (q_sm, q_sd))
        q = rows  # not used if it is read in pieces
        if BLOCK_K == 0:
            q = load_rows(q_ptr, start_m, q_len, (q_sm, q_sd), BLOCK_M, HEAD_DIM, BLOCK_D, True)
        k_ptr = head_at(K, batch, head // group, k_sb, k_sh)
        v_ptr = head_at(V, batch, head // group, v_sb, v_sh)
        keys = (k_ptr, (k_sn, k_sd), v_ptr, (v_sn, v_sd))
        first = tl.load(Offsets + plane * q_len + rows, mask=row_mask, other=0)
        last = tl.load(Offsets + plane * q_len + rows + 1, mask=row_mask, other=0)
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
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_K, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, False,
        )  # fmt: skip
        partial = read_runs(index, Part_offsets, Part_starts, Part_stops)
        state = _visit_runs(
            state, query, keys, spans, partial, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_K, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, True,
        )  # fmt: skip
        acc, l_i, m_i = state[0]
        empty = l_i == 0  # l_i of a row with NaN is NaN
        norm = l_i
        if Sinks is not None:  # one more logit in the denominator, without a value
            sink = in_base(tl.load(Sinks + head), BASE2)
            shift = tl.maximum(m_i, sink)
            shift = tl.where(empty, 0.0, shift)
            norm = l_i * exponential(m_i - shift, BASE2) + exponential(sink - shift, BASE2)
            acc = acc * exponential(m_i - shift, BASE2)[:, None]
        out = tl.where(empty[:, None], 0.0, acc / tl.where(empty, 1.0, norm)[:, None])
        store_rows(out, out_ptr, start_m, q_len, (o_sm, 1), BLOCK_M, V_DIM, BLOCK_DV, INTERPRET)
        lse = log_sum(l_i, m_i, BASE2)
        if BASE2:
            lse = lse * LN2
        lse_ptr = Lse + (batch * heads + head).to(tl.int64) * q_len + rows
        tl.store(lse_ptr, lse, mask=row_mask)
