"""The backward kernels: delta per row, dQ by blocks of queries, dK and dV by blocks of keys.

The softmax weights are recomputed from the logsumexp. Every gradient is summed by one program in a
fixed order, without atomics, so results are deterministic.

    P = exp2(S - norm)          dP = dO Vᵀ          dS = P (dP - delta)
    dV = Pᵀ dO                  dQ = scale dS K      dK = scale dSᵀ Q
"""

from __future__ import annotations

import triton
import triton.language as tl

from maskwright.engine.backends.triton.forward_kernels import DO_NOT_SPECIALIZE
from maskwright.engine.backends.triton.softmax import softmax_gradients
from maskwright.engine.backends.triton.tile import (
    dot,
    first_interval,
    head_at,
    load_rows,
    partial_cells,
    product_pair,
    read_item,
    read_runs,
    round_to,
    split_finite,
    store_rows,
)


@triton.jit(do_not_specialize=["heads", "q_len", "num_blocks"])
def delta_kernel(
    Out, Grad, Delta, o_sb, o_sh, o_sm, o_sd, g_sb, g_sh, g_sm, g_sd, heads, q_len, num_blocks,
    V_DIM: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The sum of out * dO of each row; in float32 tensors summed in float64, since dP - delta cancels."""
    start_m = tl.program_id(0) % num_blocks * BLOCK_M
    plane = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch, head = plane // heads, plane % heads
    out_ptr = Out + batch * o_sb + head * o_sh
    grad_ptr = Grad + batch * g_sb + head * g_sh
    out = load_rows(out_ptr, start_m, q_len, (o_sm, o_sd), BLOCK_M, V_DIM, BLOCK_DV, True)
    grad = load_rows(grad_ptr, start_m, q_len, (g_sm, g_sd), BLOCK_M, V_DIM, BLOCK_DV, True)
    rows = start_m + tl.arange(0, BLOCK_M)
    if Out.dtype.element_ty == tl.float32:
        delta = tl.sum(out.to(tl.float64) * grad.to(tl.float64), 1).to(tl.float32)
    else:
        delta = tl.sum(out.to(tl.float32) * grad.to(tl.float32), 1)
    tl.store(Delta + plane * q_len + rows, delta, mask=rows < q_len)


@triton.jit
def _dq_runs(
    state, query, keys, spans, runs, scoring, dropout, kv_len,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Adds the runs of tiles of one kind to dQ."""
    acc, cursor = state
    q, q_rows, grad, g_rows, norm, delta, rows, batch, head = query
    K, k_strides, V, v_strides = keys
    run_first, run_last, Run_starts, Run_stops = runs
    interval = spans  # not used unless tiles are partial, and rows have one interval
    if PARTIAL and ONE_INTERVAL:
        interval = first_interval(spans)
    for run in range(run_first, run_last):
        for tile in range(tl.load(Run_starts + run), tl.load(Run_stops + run)):
            start_n = tile * BLOCK_N
            cols = start_n + tl.arange(0, BLOCK_N)
            k = load_rows(K, start_n, kv_len, k_strides, BLOCK_N, HEAD_DIM, BLOCK_D, PARTIAL)
            v = k  # not used if it is read in pieces
            if BLOCK_K == 0:
                v = load_rows(V, start_n, kv_len, v_strides, BLOCK_N, V_DIM, BLOCK_DV, PARTIAL)
            has_nonfinite = rows  # used in partial tiles only
            if PARTIAL:  # a row that attends to NaN or infinity becomes NaN, and no other one
                k, has_nonfinite = split_finite(k)
            products, grads = product_pair(
                (q, q_rows, k, (K, start_n, kv_len, k_strides)),
                (grad, g_rows, v, (V, start_n, kv_len, v_strides)),
                BLOCK_M, BLOCK_N, HEAD_DIM, V_DIM, BLOCK_K, PARTIAL, INTERPRET,
            )  # fmt: skip
            visible = products  # not used unless the tile is partial
            if PARTIAL:
                visible, cursor = partial_cells(
                    cols[None, :], start_n + BLOCK_N, cursor, spans, interval, BLOCK_M, BLOCK_N,
                    ONE_INTERVAL,
                )  # fmt: skip
            _, _, ds = softmax_gradients(
                products, grads, visible, norm[:, None], delta[:, None], rows[:, None],
                cols[None, :], batch, head, scoring, dropout, PARTIAL, DROPOUT, SOFTCAP, BASE2,
            )  # fmt: skip
            if PARTIAL:
                ds = tl.where(visible & has_nonfinite[None, :], float("nan"), ds)
            acc = dot(round_to(ds, k.dtype, INTERPRET), k, acc, INTERPRET)
    return acc, cursor


@triton.jit(do_not_specialize=DO_NOT_SPECIALIZE)
def dq_kernel(
    Q, K, V, Grad, Norm, Delta, DQ,
    q_sb, q_sh, q_sm, q_sd, k_sb, k_sh, k_sn, k_sd, v_sb, v_sh, v_sn, v_sd,
    g_sb, g_sh, g_sm, g_sd, dq_sb, dq_sh, dq_sm, dq_sd,
    Order, Offsets, Starts, Stops,
    Full_offsets, Full_starts, Full_stops, Part_offsets, Part_starts, Part_stops,
    num_items, num_blocks, copies, copies_h, mask_heads, heads, group, q_len, kv_len,
    factor, cap, Distance, distance_sh, distance_zero, num_distances,
    Biases, Grid, grid_sh, grid_height, grid_width, grid_shift,
    scale, seed_low, seed_high, threshold, keep_factor,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr,
):  # fmt: skip
    """Computes dQ of the items of one program."""
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
        dq_ptr = head_at(DQ, batch, head, dq_sb, dq_sh)
        q_ptr = head_at(Q, batch, head, q_sb, q_sh)
        g_ptr = head_at(Grad, batch, head, g_sb, g_sh)
        q_rows, g_rows = (
            (q_ptr, start_m, q_len, (q_sm, q_sd)),
            (g_ptr, start_m, q_len, (g_sm, g_sd)),
        )
        q, grad = rows, rows  # not used if they are read in pieces
        if BLOCK_K == 0:
            q = load_rows(q_ptr, start_m, q_len, (q_sm, q_sd), BLOCK_M, HEAD_DIM, BLOCK_D, True)
            grad = load_rows(g_ptr, start_m, q_len, (g_sm, g_sd), BLOCK_M, V_DIM, BLOCK_DV, True)
        row_at = (batch * heads + head).to(tl.int64) * q_len + rows
        norm = tl.load(Norm + row_at, mask=row_mask, other=0.0)
        delta = tl.load(Delta + row_at, mask=row_mask, other=0.0)
        k_ptr = head_at(K, batch, head // group, k_sb, k_sh)
        v_ptr = head_at(V, batch, head // group, v_sb, v_sh)
        keys = (k_ptr, (k_sn, k_sd), v_ptr, (v_sn, v_sd))
        first = tl.load(Offsets + plane * q_len + rows, mask=row_mask, other=0)
        last = tl.load(Offsets + plane * q_len + rows + 1, mask=row_mask, other=0)
        query = (q, q_rows, grad, g_rows, norm, delta, rows, batch, head)
        spans = (first, last, Starts, Stops)
        state = (tl.zeros([BLOCK_M, BLOCK_D], tl.float32), first)
        index = plane * num_blocks + block
        full = read_runs(index, Full_offsets, Full_starts, Full_stops)
        state = _dq_runs(
            state, query, keys, spans, full, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_K, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, False,
        )  # fmt: skip
        partial = read_runs(index, Part_offsets, Part_starts, Part_stops)
        state = _dq_runs(
            state, query, keys, spans, partial, scoring, dropout, kv_len,
            HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_K, BLOCK_M, BLOCK_N,
            ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, True,
        )  # fmt: skip
        acc, _ = state
        store_rows(
            acc * scale, dq_ptr, start_m, q_len, (dq_sm, dq_sd), BLOCK_M, HEAD_DIM, BLOCK_D,
            INTERPRET,
        )  # fmt: skip


@triton.jit
def _dkdv_runs(
    state, key, queries, spans, runs, scoring, dropout, q_len,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Adds the runs of tiles of one kind to dK and dV; the tiles are (keys, queries)."""
    dk, dv, cursor = state
    k, k_rows, v, v_rows, cols, batch, head = key
    Q, q_strides, Grad, g_strides, Norm, Delta = queries
    run_first, run_last, Run_starts, Run_stops = runs
    interval = spans  # not used unless tiles are partial, and rows have one interval
    if PARTIAL and ONE_INTERVAL:
        interval = first_interval(spans)
    for run in range(run_first, run_last):
        for tile in range(tl.load(Run_starts + run), tl.load(Run_stops + run)):
            start_m = tile * BLOCK_M
            rows = start_m + tl.arange(0, BLOCK_M)
            q = load_rows(Q, start_m, q_len, q_strides, BLOCK_M, HEAD_DIM, BLOCK_D, PARTIAL)
            grad = load_rows(Grad, start_m, q_len, g_strides, BLOCK_M, V_DIM, BLOCK_DV, PARTIAL)
            norm = tl.load(Norm + rows, mask=rows < q_len, other=0.0)
            delta = tl.load(Delta + rows, mask=rows < q_len, other=0.0)
            has_nonfinite = rows  # used in partial tiles only
            if PARTIAL:
                q, has_nonfinite = split_finite(q)
                grad, grad_nonfinite = split_finite(grad)
                has_nonfinite = has_nonfinite | grad_nonfinite
            products, grads = product_pair(
                (k, k_rows, q, (Q, start_m, q_len, q_strides)),
                (v, v_rows, grad, (Grad, start_m, q_len, g_strides)),
                BLOCK_N, BLOCK_M, HEAD_DIM, V_DIM, BLOCK_K, PARTIAL, INTERPRET,
            )  # fmt: skip
            visible = products  # not used unless the tile is partial
            if PARTIAL:
                visible, cursor = partial_cells(
                    rows[None, :], start_m + BLOCK_M, cursor, spans, interval, BLOCK_N, BLOCK_M,
                    ONE_INTERVAL,
                )  # fmt: skip
            p, _, ds = softmax_gradients(
                products, grads, visible, norm[None, :], delta[None, :], rows[None, :],
                cols[:, None], batch, head, scoring, dropout, PARTIAL, DROPOUT, SOFTCAP, BASE2,
            )  # fmt: skip
            if PARTIAL:
                p = tl.where(visible & has_nonfinite[None, :], float("nan"), p)
                ds = tl.where(visible & has_nonfinite[None, :], float("nan"), ds)
            dv = dot(round_to(p, grad.dtype, INTERPRET), grad, dv, INTERPRET)
            dk = dot(round_to(ds, q.dtype, INTERPRET), q, dk, INTERPRET)
    return dk, dv, cursor


@triton.jit(do_not_specialize=[*DO_NOT_SPECIALIZE, "head_planes"])
def dkdv_kernel(
    Q, K, V, Grad, Norm, Delta, DK, DV,
    q_sb, q_sh, q_sm, q_sd, k_sb, k_sh, k_sn, k_sd, v_sb, v_sh, v_sn, v_sd,
    g_sb, g_sh, g_sm, g_sd, dk_sb, dk_sh, dk_sn, dk_sd, dv_sb, dv_sh, dv_sn, dv_sd,
    Order, Offsets, Starts, Stops,
    Full_offsets, Full_starts, Full_stops, Part_offsets, Part_starts, Part_stops,
    num_items, num_blocks, copies, copies_h, mask_heads, head_planes, heads, group, q_len, kv_len,
    factor, cap, Distance, distance_sh, distance_zero, num_distances,
    Biases, Grid, grid_sh, grid_height, grid_width, grid_shift,
    scale, seed_low, seed_high, threshold, keep_factor,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONE_INTERVAL: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr,
):  # fmt: skip
    """Computes dK and dV of the items of one program.

    `mask_heads` counts KV heads where the mask varies over heads, else it is 1, and `head_planes` is
    the number of the mask's planes for each: the GQA group or 1. The query heads of a KV head are
    summed one after the other.
    """
    scoring = (
        factor, cap, Distance, distance_sh, distance_zero, num_distances,
        Biases, q_len, kv_len, Grid, grid_sh, grid_height, grid_width, grid_shift,
    )  # fmt: skip
    dropout = (seed_low, seed_high, threshold, keep_factor)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        plane, block, batch, kv_head = read_item(
            item, Order, num_blocks, copies, copies_h, mask_heads
        )
        start_n = block * BLOCK_N
        cols = start_n + tl.arange(0, BLOCK_N)
        col_mask = cols < kv_len
        dk_ptr = head_at(DK, batch, kv_head, dk_sb, dk_sh)
        dv_ptr = head_at(DV, batch, kv_head, dv_sb, dv_sh)
        k_ptr = head_at(K, batch, kv_head, k_sb, k_sh)
        v_ptr = head_at(V, batch, kv_head, v_sb, v_sh)
        k_rows, v_rows = (
            (k_ptr, start_n, kv_len, (k_sn, k_sd)),
            (v_ptr, start_n, kv_len, (v_sn, v_sd)),
        )
        k, v = cols, cols  # not used if they are read in pieces
        if BLOCK_K == 0:
            k = load_rows(k_ptr, start_n, kv_len, (k_sn, k_sd), BLOCK_N, HEAD_DIM, BLOCK_D, True)
            v = load_rows(v_ptr, start_n, kv_len, (v_sn, v_sd), BLOCK_N, V_DIM, BLOCK_DV, True)
        dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
        dv = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
        for member in range(group):
            head = kv_head * group + member
            mask_plane = plane * head_planes + member % head_planes  # the plane of this query head
            q_ptr = head_at(Q, batch, head, q_sb, q_sh)
            g_ptr = head_at(Grad, batch, head, g_sb, g_sh)
            row_at = (batch * heads + head).to(tl.int64) * q_len
            queries = (q_ptr, (q_sm, q_sd), g_ptr, (g_sm, g_sd), Norm + row_at, Delta + row_at)
            first = tl.load(Offsets + mask_plane * kv_len + cols, mask=col_mask, other=0)
            last = tl.load(Offsets + mask_plane * kv_len + cols + 1, mask=col_mask, other=0)
            key = (k, k_rows, v, v_rows, cols, batch, head)
            spans = (first, last, Starts, Stops)
            index = mask_plane * num_blocks + block
            full = read_runs(index, Full_offsets, Full_starts, Full_stops)
            state = (dk, dv, first)
            state = _dkdv_runs(
                state, key, queries, spans, full, scoring, dropout, q_len,
                HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_K, BLOCK_M, BLOCK_N,
                ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, False,
            )  # fmt: skip
            partial = read_runs(index, Part_offsets, Part_starts, Part_stops)
            state = _dkdv_runs(
                state, key, queries, spans, partial, scoring, dropout, q_len,
                HEAD_DIM, V_DIM, BLOCK_D, BLOCK_DV, BLOCK_K, BLOCK_M, BLOCK_N,
                ONE_INTERVAL, DROPOUT, SOFTCAP, INTERPRET, BASE2, True,
            )  # fmt: skip
            dk, dv, _ = state
        store_rows(
            dk * scale, dk_ptr, start_n, kv_len, (dk_sn, dk_sd), BLOCK_N, HEAD_DIM, BLOCK_D,
            INTERPRET,
        )  # fmt: skip
        store_rows(dv, dv_ptr, start_n, kv_len, (dv_sn, dv_sd), BLOCK_N, V_DIM, BLOCK_DV, INTERPRET)
