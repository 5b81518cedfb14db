"""Functions of one tile that all Triton kernels share: scores, mask test, dropout and products.

A tile has `rows` along axis 0 and `cols` along axis 1. Both are indices that broadcast to its shape:
queries and keys, or keys and queries in the kernel of dK and dV. With `BASE2`, for half precision,
scores are multiplied by log2(e) at once, so that exp2 applies. In float32 they are multiplied after
the maximum is subtracted, where that rounds less.

The interpreter of Triton stores bfloat16 as uint16: a product of such operands is wrong, and a
conversion truncates. With `INTERPRET` operands are rounded here and multiplied in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(2147483647)  # start of the interval after the last one of a row
DROPOUT_ROUNDS = tl.constexpr(7)


@triton.jit
def load_rows(
    matrix, first, num_rows, strides, ROWS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """The rows `first` to `first + ROWS` of a matrix (num_rows, DIM), 0 from column `DIM` on.

    With `CHECK` rows from `num_rows` on are 0; otherwise all rows exist. Only the first row has a
    64-bit offset: 64-bit offsets of all cells would need twice the registers.
    """
    rows, cols = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    at = matrix + (tl.full([], 0, tl.int64) + first) * strides[0]
    at = at + (rows[:, None] * strides[0] + cols[None, :] * strides[1])
    if CHECK and BLOCK_D == DIM:
        found = tl.load(at, mask=(rows < num_rows - first)[:, None], other=0.0)
    elif CHECK:
        inside = (rows < num_rows - first)[:, None] & (cols < DIM)[None, :]
        found = tl.load(at, mask=inside, other=0.0)
    elif BLOCK_D == DIM:
        found = tl.load(at)
    else:
        found = tl.load(at, mask=(cols < DIM)[None, :], other=0.0)
    return found


@triton.jit
def store_rows(
    x, matrix, first, num_rows, strides, ROWS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Stores the rows `first` to `first + ROWS` of a matrix (num_rows, DIM)."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    at = matrix + (tl.full([], 0, tl.int64) + first) * strides[0]
    at = at + (rows[:, None] * strides[0] + cols[None, :] * strides[1])
    inside = (rows < num_rows - first)[:, None] & (cols < DIM)[None, :]
    tl.store(at, round_to(x, matrix.dtype.element_ty, INTERPRET), mask=inside)


@triton.jit
def split_finite(x):
    """X with 0 in place of NaN and infinity, and whether each row has one of them.

    In a partial tile an operand is multiplied by the 0 of masked cells too, and 0 * inf is NaN.
    """
    finite = tl.abs(x.to(tl.float32)) < float("inf")
    return tl.where(finite, x, 0.0), tl.min(finite.to(tl.int32), 1) == 0


@triton.jit
def round_to(x, dtype, INTERPRET: tl.constexpr):
    """float32 values rounded to `dtype`; in float32 for bfloat16 in the interpreter."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 32767 + ((bits >> 16) & 1)) & -65536  # to nearest, ties to even
        found = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    else:
        found = x.to(dtype)
    return found


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    """Returns acc + a @ b, accumulated in float32."""
    if INTERPRET:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def in_base(x, BASE2: tl.constexpr):
    """A score or a logsumexp in the base of the scores, in float32."""
    return x.to(tl.float32) * LOG2E if BASE2 else x.to(tl.float32)


@triton.jit
def exponential(x, BASE2: tl.constexpr):
    """The exponential of a difference of scores, which is at most 0."""
    if BASE2:
        found = tl.exp2(x)
    else:  # x = n ln(2) + r: rounding x log2(e) would cost accuracy in proportion to x
        x = tl.where(x < -200.0, -200.0, x)  # whose exponential is 0
        n = tl.floor(x * LOG2E + 0.5)
        r = (x - n * 0.693359375) + n * 2.12194440e-4
        found = tl.exp2(r * LOG2E) * tl.exp2(n)
    return found


@triton.jit
def logarithm(x, BASE2: tl.constexpr):
    """The logarithm in the base of the scores."""
    return tl.log2(x) if BASE2 else tl.log2(x) * LN2


@triton.jit
def tanh(x):
    """The hyperbolic tangent, with a series where the quotient would cancel."""
    square = x * x
    series = square * (62.0 / 2835.0) - 17.0 / 315.0
    series = square * (square * (square * series + 2.0 / 15.0) - 1.0 / 3.0) + 1.0
    power = tl.exp2(tl.abs(x) * -2.8853900817779268)  # 2 log2(e)
    large = (1.0 - power) / (1.0 + power)
    return tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0, -large, large))


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
        curve = tanh(products * factor)
        scores = curve * cap
    else:
        curve = products
        scores = products * factor
    if distance is not None:
        index = cols - rows + distance_zero
        inside = (index >= 0) & (index < num_distances)
        values = tl.load(distance + head * distance_sh + index, mask=inside, other=0.0)
        scores += in_base(values, BASE2)
    if grid is not None:
        queries = rows + grid_shift
        down = cols // grid_width - queries // grid_width + grid_height - 1
        across = cols % grid_width - queries % grid_width + grid_width - 1
        index = down * (2 * grid_width - 1) + across
        inside = (rows < q_len) & (cols < kv_len) & (index >= 0)
        inside = inside & (index < (2 * grid_height - 1) * (2 * grid_width - 1))
        values = tl.load(grid + head * grid_sh + index, mask=inside, other=0.0)
        scores += in_base(values, BASE2)
    for n in tl.static_range(len(biases)):
        bias, bias_sb, bias_sh, bias_sm, bias_sn = biases[n]
        at = bias + batch.to(tl.int64) * bias_sb + head.to(tl.int64) * bias_sh
        at = at + rows.to(tl.int64) * bias_sm + cols.to(tl.int64) * bias_sn
        values = tl.load(at, mask=(rows < q_len) & (cols < kv_len), other=0.0)
        scores += in_base(values, BASE2)
    return scores, curve


@triton.jit
def visible_cells(cols, stop, cursor, last, Starts, Stops, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The visible cells of a tile whose columns end before `stop`, and the advanced cursors.

    `cursor` is the index of the first interval of each row that may reach this tile, and `last` one
    past the row's last interval. Tiles are visited in ascending order, so the cursor only advances:
    each interval is read once, and once more for each tile that it continues into.
    """
    visible = tl.zeros([ROWS, COLS], tl.int1)
    start = tl.load(Starts + cursor, mask=cursor < last, other=NEVER)
    end = tl.load(Stops + cursor, mask=cursor < last, other=NEVER)
    while tl.min(start, 0) < stop:
        visible = visible | ((cols >= start[:, None]) & (cols < end[:, None]))
        ended = end <= stop
        cursor += ended.to(tl.int32)
        more = ended & (cursor < last)
        start = tl.load(Starts + cursor, mask=more, other=NEVER)
        end = tl.load(Stops + cursor, mask=more, other=NEVER)
    return visible, cursor


@triton.jit
def seek_interval(first, last, left, Stops, num_steps):
    """The index of the first interval of each row that ends after the key `left`, or `last`.

    `num_steps` is the number of bits of the largest number of intervals of a row.
    """
    low, high = first, last
    for _ in range(num_steps):
        middle = (low + high) // 2
        is_open = low < high
        ended = tl.load(Stops + middle, mask=is_open, other=0) <= left
        low = tl.where(is_open & ended, middle + 1, low)
        high = tl.where(is_open & ~ended, middle, high)
    return low


@triton.jit
def kept_cells(rows, cols, batch, head, seed_low, seed_high, threshold):
    """Whether dropout keeps each cell: the same cells as in `maskwright.engine.dropout`.

    `rows` and `cols` are the queries and the keys, in the orientation of the tile.
    """
    counter = (cols // 64 * 16 + cols % 16 + 0 * rows).to(tl.uint32)
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox_impl(
        counter,
        zero + rows.to(tl.uint32),
        zero + head.to(tl.uint32),
        zero + batch.to(tl.uint32),
        zero + seed_low.to(tl.uint32, bitcast=True),
        zero + seed_high.to(tl.uint32, bitcast=True),
        DROPOUT_ROUNDS,
    )
    word = cols % 64 // 16
    chosen = tl.where(word < 2, tl.where(word == 0, w0, w1), tl.where(word == 2, w2, w3))
    return chosen >= threshold.to(tl.uint32, bitcast=True)
