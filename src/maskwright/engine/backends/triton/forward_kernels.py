"""The forward kernel: online softmax over the visited tiles of a block of query rows."""

from __future__ import annotations

import triton
import triton.language as tl

from maskwright.engine.backends.triton.tile import (
    LN2,
    dot,
    exponential,
    in_base,
    kept_cells,
    load_rows,
    logarithm,
    round_to,
    score_tile,
    split_finite,
    store_rows,
    visible_cells,
)


@triton.jit
def read_item(item, Order, num_blocks, copies, copies_h, mask_heads):
    """Mask plane, block, batch row and head of an item; heads of one plane are neighbours."""
    place = tl.load(Order + item // copies)
    copy = item % copies
    plane, block = place // num_blocks, place % num_blocks
    # Where a mask varies over the batch there is one copy along it, and where not, one plane.
    batch = plane // mask_heads + copy // copies_h
    head = plane % mask_heads + copy % copies_h
    return plane, block, batch, head


@triton.jit
def _visit_runs(
    state, query, keys, spans, where, scoring, dropout, kv_len,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Updates accumulator, sum and maximum by the runs of tiles of one kind."""
    acc, total, maximum, cursor = state
    q, rows, batch, head = query
    K, k_strides, V, v_strides = keys
    first, last, Starts, Stops = spans
    run_first, run_last, Run_starts, Run_stops = where
    seed_low, seed_high, threshold, keep_factor = dropout
    if PARTIAL and ONE_INTERVAL:
        low = tl.load(Starts + first, mask=first < last, other=0)
        high = tl.load(Stops + first, mask=first < last, other=0)
    for run in range(run_first, run_last):
        tile_first, tile_last = tl.load(Run_starts + run), tl.load(Run_stops + run)
        for tile in range(tile_first, tile_last):
            cols = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            k = load_rows(K, tile * BLOCK_N, kv_len, k_strides, BLOCK_N, HEAD_DIM, BLOCK_D, PARTIAL)
            products = dot(q, k.T, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), INTERPRET)
            scores, _ = score_tile(
                products, rows[:, None], cols[None, :], batch, head, scoring, SOFTCAP, BASE2
            )
            if PARTIAL:
                if ONE_INTERVAL:
                    visible = (cols[None, :] >= low[:, None]) & (cols[None, :] < high[:, None])
                else:
                    stop = (tile + 1) * BLOCK_N
                    visible, cursor = visible_cells(
                        cols[None, :], stop, cursor, last, Starts, Stops, BLOCK_M, BLOCK_N
                    )
                scores = tl.where(visible, scores, float("-inf"))
            # A row without a visible key so far has the maximum -inf, and is shifted by 0.
            new = tl.maximum(maximum, tl.max(scores, 1))
            shift = tl.where(new == float("-inf"), 0.0, new)
            alpha = exponential(maximum - shift, BASE2)
            p = exponential(scores - shift[:, None], BASE2)
            total = total * alpha + tl.sum(p, 1)
            if DROPOUT:
                kept = kept_cells(
                    rows[:, None], cols[None, :], batch, head, seed_low, seed_high, threshold
                )
                p = tl.where(kept, p * keep_factor, 0.0)
            v = load_rows(V, tile * BLOCK_N, kv_len, v_strides, BLOCK_N, V_DIM, BLOCK_DV, PARTIAL)
            if PARTIAL:  # a row that attends to NaN or infinity becomes NaN, and no other one
                v, spoiled = split_finite(v)
                p = tl.where(visible & spoiled[None, :], float("nan"), p)
            acc = acc * alpha[:, None]
            acc = dot(round_to(p, v.dtype, INTERPRET), v, acc, INTERPRET)
            maximum = new
    return acc, total, maximum, cursor


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
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
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
        out_at = Out + batch.to(tl.int64) * o_sb + head.to(tl.int64) * o_sh
        q_at = Q + batch.to(tl.int64) * q_sb + head.to(tl.int64) * q_sh
        q = load_rows(q_at, top, q_len, (q_sm, q_sd), BLOCK_M, HEAD_DIM, BLOCK_D, True)
        k_at = K + batch.to(tl.int64) * k_sb + (head // group).to(tl.int64) * k_sh
        v_at = V + batch.to(tl.int64) * v_sb + (head // group).to(tl.int64) * v_sh
        keys = (k_at, (k_sn, k_sd), v_at, (v_sn, v_sd))
        first = tl.load(Offsets + plane * q_len + rows, mask=real, other=0)
        last = tl.load(Offsets + plane * q_len + rows + 1, mask=real, other=0)
        query = (q, rows, batch, head)
        spans = (first, last, Starts, Stops)
        state = (
            tl.zeros([BLOCK_M, BLOCK_DV], tl.float32),
            tl.zeros([BLOCK_M], tl.float32),
            tl.full([BLOCK_M], float("-inf"), tl.float32),
            first,
        )
        index = plane * num_blocks + block
        full = (
            tl.load(Full_offsets + index), tl.load(Full_offsets + index + 1),
            Full_starts, Full_stops,
        )  # fmt: skip
        state = _visit_runs(
            state, query, keys, spans, full, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, False,
        )  # fmt: skip
        partial = (
            tl.load(Part_offsets + index), tl.load(Part_offsets + index + 1),
            Part_starts, Part_stops,
        )  # fmt: skip
        state = _visit_runs(
            state, query, keys, spans, partial, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, True,
        )  # fmt: skip
        acc, total, maximum, _ = state
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
        lse = maximum + logarithm(tl.where(empty, 1.0, total), BASE2)
        if BASE2:
            lse = lse * LN2
        lse = tl.where(maximum == float("inf"), float("inf"), lse)
        lse_at = Lse + (batch * heads + head).to(tl.int64) * q_len + rows
        tl.store(lse_at, lse, mask=real)
