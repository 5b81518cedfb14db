"""Scores and softmax of one tile: soft cap, biases, online softmax, and the gradient of the softmax.

With `BASE2`, for half precision, scores are multiplied by log2(e) at once, so that exp2 applies. In
float32 they are multiplied after the maximum is subtracted, where that rounds less.
"""

from __future__ import annotations

import triton
import triton.language as tl

from maskwright.engine.backends.triton.tile import (
    dot,
    kept_cells,
    load_rows,
    round_to,
    split_finite,
)

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
LN2_HIGH = tl.constexpr(0.693359375)  # ln(2) = LN2_HIGH + LN2_LOW; products of LN2_HIGH with small
LN2_LOW = tl.constexpr(-2.12194440e-4)  # integers are exact


@triton.jit
def in_base(x, BASE2: tl.constexpr):
    """A score or a logsumexp in the base of the scores, in float32."""
    return x.to(tl.float32) * LOG2E if BASE2 else x.to(tl.float32)


@triton.jit
def exponential(x, BASE2: tl.constexpr):
    """The exponential of a difference of scores, which is at most 0."""
    if BASE2:
        y = tl.exp2(x)
    else:  # x = n ln(2) + r: rounding x log2(e) would cost accuracy in proportion to x
        x = tl.where(x < -200.0, -200.0, x)  # whose exponential is 0
        n = tl.floor(x * LOG2E + 0.5)
        r = (x - n * LN2_HIGH) - n * LN2_LOW
        y = tl.exp2(r * LOG2E) * tl.exp2(n)
    return y


@triton.jit
def tanh(x, BASE2: tl.constexpr):
    """The hyperbolic tangent; for half precision with fewer operations and a larger error."""
    if BASE2:
        square = x * x
        series = square * (62.0 / 2835.0) - 17.0 / 315.0
        series = square * (square * (square * series + 2.0 / 15.0) - 1.0 / 3.0) + 1.0
        power = tl.exp2(tl.abs(x) * -2.8853900817779268)  # 2 log2(e)
        large = (1.0 - power) / (1.0 + power)
        y = tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0, -large, large))
    else:  # from exp(2|x|) - 1 = 2^n (exp(r) - 1) + 2^n - 1, with |r| <= ln(2) / 2 and a series in r
        twice = tl.where(tl.abs(x) > 10.0, 20.0, 2.0 * tl.abs(x))
        n = tl.floor(twice * LOG2E + 0.5)
        r = (twice - n * LN2_HIGH) - n * LN2_LOW
        series = r * (r * (r * (r * (1.0 / 5040.0) + 1.0 / 720.0) + 1.0 / 120.0) + 1.0 / 24.0)
        series = r * (series + 1.0 / 6.0) + 0.5
        power = tl.exp2(n)
        rise = power * (r + r * r * series) + (power - 1.0)
        y = rise / (rise + 2.0)
        y = tl.where(x < 0, -y, y)
    return y


@triton.jit
def score_tile(
    products, rows, cols, batch, head, scoring, SOFTCAP: tl.constexpr, BASE2: tl.constexpr
):
    """Scores from the products q · k, with soft cap and biases, and the soft cap's tanh.

    `rows` and `cols` are the queries and the keys, in the orientation of the tile.
    """
    (factor, cap, distance, distance_sh, distance_zero, num_distances) = scoring[:6]
    (biases, q_len, kv_len) = scoring[6:9]
    (grid, grid_sh, grid_height, grid_width, grid_shift) = scoring[9:]
    if SOFTCAP:
        curve = tanh(products * factor, BASE2)
        scores = curve * cap
    else:
        curve = products
        scores = products * factor
    # In float32 the biases are added to each other first, which rounds less than adding each to the
    # scores.
    bias = scores if BASE2 else tl.zeros_like(scores)
    if distance is not None:
        index = cols - rows + distance_zero
        inside = (index >= 0) & (index < num_distances)
        values = tl.load(distance + head * distance_sh + index, mask=inside, other=0.0)
        bias += in_base(values, BASE2)
    if grid is not None:
        queries = rows + grid_shift
        down = cols // grid_width - queries // grid_width + grid_height - 1
        across = cols % grid_width - queries % grid_width + grid_width - 1
        index = down * (2 * grid_width - 1) + across
        inside = (rows < q_len) & (cols < kv_len) & (index >= 0)
        inside = inside & (index < (2 * grid_height - 1) * (2 * grid_width - 1))
        values = tl.load(grid + head * grid_sh + index, mask=inside, other=0.0)
        bias += in_base(values, BASE2)
    for n in tl.static_range(len(biases)):
        tensor, bias_sb, bias_sh, bias_sm, bias_sn = biases[n]
        at = tensor + batch.to(tl.int64) * bias_sb + head.to(tl.int64) * bias_sh
        at = at + rows.to(tl.int64) * bias_sm + cols.to(tl.int64) * bias_sn
        values = tl.load(at, mask=(rows < q_len) & (cols < kv_len), other=0.0)
        bias += in_base(values, BASE2)
    if BASE2:
        scores = bias
    elif distance is not None or grid is not None or len(biases) > 0:
        scores += bias
    return scores, curve


@triton.jit
def add_tile(
    state, scores, visible, values, where, dropout,
    BLOCK_N: tl.constexpr, V_DIM: tl.constexpr, BLOCK_DV: tl.constexpr, DROPOUT: tl.constexpr,
    INTERPRET: tl.constexpr, BASE2: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Accumulator, sum and maximum of the online softmax with the scores and values of one tile.

    `values` is the matrix v, the tile's first key, the number of keys and the strides. `where` is the
    queries and keys in the orientation of the tile, the batch row and the head. The values are loaded
    last, so that they are not held in registers before.
    """
    acc, l_i, m_i = state
    if PARTIAL:
        scores = tl.where(visible, scores, float("-inf"))
    # A row without a visible key so far has the maximum -inf, and is shifted by 0.
    m_new = tl.maximum(m_i, tl.max(scores, 1))
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    alpha = exponential(m_i - shift, BASE2)
    p = exponential(scores - shift[:, None], BASE2)
    l_i = l_i * alpha + tl.sum(p, 1)
    if DROPOUT:
        rows, cols, batch, head = where
        seed_low, seed_high, threshold, keep_factor = dropout
        kept = kept_cells(rows, cols, batch, head, seed_low, seed_high, threshold)
        p = tl.where(kept, p * keep_factor, 0.0)
    V, start_n, kv_len, v_strides = values
    v = load_rows(V, start_n, kv_len, v_strides, BLOCK_N, V_DIM, BLOCK_DV, PARTIAL)
    if PARTIAL:  # a row that attends to NaN or infinity becomes NaN, and no other one
        v, has_nonfinite = split_finite(v)
        p = tl.where(visible & has_nonfinite[None, :], float("nan"), p)
    acc = acc * alpha[:, None]
    acc = dot(round_to(p, v.dtype, INTERPRET), v, acc, INTERPRET)
    return acc, l_i, m_new


@triton.jit
def log_sum(l_i, m_i, BASE2: tl.constexpr):
    """The logsumexp in the base of the scores, from the sum and the maximum of the scores."""
    l_i = tl.where(l_i == 0, 1.0, l_i)
    if BASE2:
        lse = m_i + tl.log2(l_i)
    else:  # l_i = 2^n x with x near 1, whose logarithm is small: it is added last, and rounded once
        bits = l_i.to(tl.int32, bitcast=True)
        n = ((bits >> 23) - 127).to(tl.float32)
        x = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
        n = tl.where(x > 1.41421356, n + 1.0, n)
        x = tl.where(x > 1.41421356, x * 0.5, x)
        small = n * LN2_LOW + tl.log2(x) * LN2 + (l_i - l_i)  # NaN stays NaN
        lse = (m_i + n * LN2_HIGH) + small
    return tl.where(m_i == float("inf"), float("inf"), lse)


@triton.jit
def softmax_gradients(
    products, grads, visible, norm, delta, rows, cols, batch, head, scoring, dropout,
    PARTIAL: tl.constexpr, DROPOUT: tl.constexpr, SOFTCAP: tl.constexpr,
    BASE2: tl.constexpr,
):  # fmt: skip
    """The softmax weights with dropout, and the gradients of the capped scores and of scale q · k.

    `norm`, `delta`, `rows` and `cols` broadcast in the orientation of the tile.
    """
    scores, curve = score_tile(products, rows, cols, batch, head, scoring, SOFTCAP, BASE2)
    p = exponential(scores - norm, BASE2)
    if PARTIAL:
        p = tl.where(visible, p, 0.0)
    dropped = p
    if DROPOUT:
        seed_low, seed_high, threshold, keep_factor = dropout
        kept = kept_cells(rows, cols, batch, head, seed_low, seed_high, threshold)
        dropped = tl.where(kept, p * keep_factor, 0.0)
        grads = tl.where(kept, grads * keep_factor, 0.0)
    capped = p * (grads - delta)
    if PARTIAL:
        capped = tl.where(visible, capped, 0.0)
    ds = capped
    if SOFTCAP:
        ds = ds * (1.0 - curve * curve)
        if PARTIAL:
            ds = tl.where(visible, ds, 0.0)
    return dropped, capped, ds
