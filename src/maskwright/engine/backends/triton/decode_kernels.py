"""The decode kernel: few query rows over many keys, split over programs, and the merge of the splits.

All query rows and heads of a KV head are one tile, so keys and values are read once. Each split
writes its own output and logsumexp; the merge adds them in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from maskwright.engine.backends.triton.forward_kernels import DO_NOT_SPECIALIZE
from maskwright.engine.backends.triton.softmax import (
    LN2,
    add_tile,
    exponential,
    in_base,
    log_sum,
    score_tile,
)
from maskwright.engine.backends.triton.tile import dot, head_at, load_rows, round_to, visible_cells


@triton.jit(
    do_not_specialize=[*DO_NOT_SPECIALIZE, "mask_batch", "span_rows", "num_splits", "kv_heads"]
)
def decode_kernel(
    Q, K, V, Split_out, Split_lse,
    q_sb, q_sh, q_sm, q_sd, k_sb, k_sh, k_sn, k_sd, v_sb, v_sh, v_sn, v_sd,
    Splits, Tiles, Offsets, Starts, Stops,
    num_splits, mask_batch, mask_heads, span_rows, kv_heads, heads, group, q_len, kv_len,
    factor, cap, Distance, distance_sh, distance_zero, num_distances,
    Biases, Grid, grid_sh, grid_height, grid_width, grid_shift,
    seed_low, seed_high, threshold, keep_factor,
    HEAD_DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr, INTERPRET: tl.constexpr,
    BASE2: tl.constexpr,
):  # fmt: skip
    """Output and logsumexp, in the base of the scores, of one split of one KV head.

    Row i of the tile is query i % q_len of head i // q_len of the group. `span_rows` is the number
    of rows of a plane of the mask: those of the group, or q_len where all heads share them.
    """
    scoring = (
        factor, cap, Distance, distance_sh, distance_zero, num_distances,
        Biases, q_len, kv_len, Grid, grid_sh, grid_height, grid_width, grid_shift,
    )  # fmt: skip
    split = tl.program_id(0) % num_splits
    kv_head = tl.program_id(0) // num_splits % kv_heads
    batch = tl.program_id(0) // num_splits // kv_heads
    index = tl.arange(0, BLOCK_M)
    row_mask = index < group * q_len
    rows = index % q_len
    head = kv_head * group + index // q_len  # of each row
    dims, v_dims = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    # Rows of the results: ((batch, head, query), split).
    place = ((batch * heads + head).to(tl.int64) * q_len + rows) * num_splits + split
    out_ptr = Split_out + place[:, None] * V_DIM + v_dims[None, :]
    out_mask = row_mask[:, None] & (v_dims < V_DIM)[None, :]
    q_ptr = Q + batch.to(tl.int64) * q_sb + head.to(tl.int64)[:, None] * q_sh
    q_ptr = q_ptr + rows.to(tl.int64)[:, None] * q_sm + dims[None, :] * q_sd
    q = tl.load(q_ptr, mask=row_mask[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
    k_ptr = head_at(K, batch, kv_head, k_sb, k_sh)
    v_ptr = head_at(V, batch, kv_head, v_sb, v_sh)
    plane = (batch % mask_batch) * mask_heads + kv_head % mask_heads
    span = Offsets + plane * span_rows + index % span_rows
    cursor = tl.load(span, mask=row_mask, other=0)
    spans = (cursor, tl.load(span + 1, mask=row_mask, other=0), Starts, Stops)
    softmax = (
        tl.zeros([BLOCK_M, BLOCK_DV], tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
    )
    share = Splits + plane * (num_splits + 1) + split
    for n in range(tl.load(share), tl.load(share + 1)):
        entry = tl.load(Tiles + n)
        start_n = entry // 2 * BLOCK_N
        cols = start_n + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr, start_n, kv_len, (k_sn, k_sd), BLOCK_N, HEAD_DIM, BLOCK_D, True)
        products = dot(q, k.T, tl.zeros([BLOCK_M, BLOCK_N], tl.float32), INTERPRET)
        scores, _ = score_tile(
            products, rows[:, None], cols[None, :], batch, head[:, None], scoring, SOFTCAP, BASE2
        )
        visible = tl.full([BLOCK_M, BLOCK_N], 1, tl.int1)
        if entry % 2 == 0:
            visible, cursor = visible_cells(
                cols[None, :], start_n + BLOCK_N, cursor, spans, BLOCK_M, BLOCK_N
            )
        softmax = add_tile(
            softmax, scores, visible, (v_ptr, start_n, kv_len, (v_sn, v_sd)),
            (rows[:, None], cols[None, :], batch, head[:, None]),
            (seed_low, seed_high, threshold, keep_factor),
            BLOCK_N, V_DIM, BLOCK_DV, DROPOUT, INTERPRET, BASE2, True,
        )  # fmt: skip
    acc, l_i, m_i = softmax
    empty = l_i == 0  # l_i of a row with NaN is NaN
    out = tl.where(empty[:, None], 0.0, acc / tl.where(empty, 1.0, l_i)[:, None])
    tl.store(out_ptr, out, mask=out_mask)
    tl.store(Split_lse + place, log_sum(l_i, m_i, BASE2), mask=row_mask)


@triton.jit(do_not_specialize=["heads", "q_len", "num_splits"])
def merge_kernel(
    Split_out, Split_lse, Out, Lse, Sinks, o_sb, o_sh, o_sm, heads, q_len, num_splits,
    V_DIM: tl.constexpr, BLOCK_DV: tl.constexpr, INTERPRET: tl.constexpr, BASE2: tl.constexpr,
):  # fmt: skip
    """Output and logsumexp of one row from those of its splits."""
    row = tl.program_id(0).to(tl.int64)  # of (batch, head, query)
    query, head, batch = row % q_len, row // q_len % heads, row // q_len // heads
    dims = tl.arange(0, BLOCK_DV)
    m_i = tl.full([], float("-inf"), tl.float32)
    for split in range(num_splits):
        m_i = tl.maximum(m_i, tl.load(Split_lse + row * num_splits + split))
    shift = tl.where(m_i == float("-inf"), 0.0, m_i)
    acc = tl.zeros([BLOCK_DV], tl.float32)
    l_i = tl.full([], 0.0, tl.float32)
    for split in range(num_splits):
        place = row * num_splits + split
        lse = tl.load(Split_lse + place)
        weight = exponential(lse - shift, BASE2)
        part = tl.load(Split_out + place * V_DIM + dims, mask=dims < V_DIM, other=0.0)
        # A split without visible keys adds nothing, also where another one is not finite.
        acc += tl.where(lse == float("-inf"), 0.0, weight * part)
        l_i += tl.where(lse == float("-inf"), 0.0, weight)
    norm = l_i
    if Sinks is not None:
        sink = in_base(tl.load(Sinks + head), BASE2)
        both = tl.maximum(shift, sink)
        norm = l_i * exponential(shift - both, BASE2) + exponential(sink - both, BASE2)
        acc = acc * exponential(shift - both, BASE2)
    empty = l_i == 0  # l_i of a row with NaN is NaN
    out = tl.where(empty, 0.0, acc / tl.where(empty, 1.0, norm))
    out_ptr = Out + batch * o_sb + head * o_sh + query * o_sm + dims
    tl.store(out_ptr, round_to(out, Out.dtype.element_ty, INTERPRET), mask=dims < V_DIM)
    lse = log_sum(l_i, m_i, BASE2)  # -inf without a visible key
    if BASE2:
        lse = lse * LN2
    tl.store(Lse + row, lse)
