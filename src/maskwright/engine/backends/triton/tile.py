"""Functions of one tile that all Triton kernels share: loads, products, mask test and dropout.

A tile has `rows` along axis 0 and `cols` along axis 1. Both are indices that broadcast to its shape:
queries and keys, or keys and queries in the kernel of dK and dV.

The interpreter of Triton stores bfloat16 as uint16: a product of such operands is wrong, and a
conversion truncates. With `INTERPRET` operands are rounded here and multiplied in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_INTERVAL = tl.constexpr(2147483647)  # start of the interval after the last one of a row
DROPOUT_ROUNDS = tl.constexpr(7)


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
def read_runs(index, Offsets, Starts, Stops):
    """The first and last run of tiles of a block, and the pointers to their bounds."""
    return tl.load(Offsets + index), tl.load(Offsets + index + 1), Starts, Stops


@triton.jit
def head_at(tensor, batch, head, batch_stride, head_stride):
    """The address of a head of a batch row."""
    return tensor + batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride


@triton.jit
def load_piece(
    matrix, first, start_k, num_rows, strides, ROWS: tl.constexpr, DIM: tl.constexpr,
    WIDTH: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """The columns `start_k` to `start_k + WIDTH` of the rows that `load_rows` returns."""
    rows, cols = tl.arange(0, ROWS), start_k + tl.arange(0, WIDTH)
    at = matrix + (tl.full([], 0, tl.int64) + first) * strides[0]
    at = at + (rows[:, None] * strides[0] + cols[None, :] * strides[1])
    if CHECK and DIM % WIDTH == 0:
        piece = tl.load(at, mask=(rows < num_rows - first)[:, None], other=0.0)
    elif CHECK:
        inside = (rows < num_rows - first)[:, None] & (cols < DIM)[None, :]
        piece = tl.load(at, mask=inside, other=0.0)
    elif DIM % WIDTH == 0:
        piece = tl.load(at)
    else:
        piece = tl.load(at, mask=(cols < DIM)[None, :], other=0.0)
    return piece


@triton.jit
def load_rows(
    matrix, first, num_rows, strides, ROWS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """The rows `first` to `first + ROWS` of a matrix (num_rows, DIM), 0 from column `DIM` on.

    With `CHECK` rows from `num_rows` on are 0; otherwise all rows exist. Only the first row has a
    64-bit offset: 64-bit offsets of all cells would need twice the registers.
    """
    return load_piece(matrix, first, 0, num_rows, strides, ROWS, DIM, BLOCK_D, CHECK)


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
        rounded = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    else:
        rounded = x.to(dtype)
    return rounded


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    """Returns acc + a @ b, accumulated in float32."""
    if INTERPRET:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def row_products(
    a, a_rows, b, b_rows, ROWS: tl.constexpr, COLS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_K: tl.constexpr, A_CHECK: tl.constexpr, B_CHECK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Products of the rows of `a` with those of `b`, (ROWS, COLS).

    With `BLOCK_K` they are summed over pieces of the head_dim, and the pieces are loaded from
    `a_rows` and `b_rows`: the matrix, the first row, the number of rows, and the strides. In float32
    on NVIDIA a product keeps entire rows of its operands in registers, more than there are.
    """
    acc = tl.zeros([ROWS, COLS], tl.float32)
    if BLOCK_K == 0:
        acc = dot(a, b.T, acc, INTERPRET)
    else:
        for start_k in range(0, DIM, BLOCK_K):
            a_piece = load_piece(
                a_rows[0], a_rows[1], start_k, a_rows[2], a_rows[3], ROWS, DIM, BLOCK_K, A_CHECK
            )
            b_piece = load_piece(
                b_rows[0], b_rows[1], start_k, b_rows[2], b_rows[3], COLS, DIM, BLOCK_K, B_CHECK
            )
            acc = dot(a_piece, b_piece.T, acc, INTERPRET)
    return acc


@triton.jit
def product_pair(
    scored, weighted, ROWS: tl.constexpr, COLS: tl.constexpr, HEAD_DIM: tl.constexpr,
    V_DIM: tl.constexpr, BLOCK_K: tl.constexpr, B_CHECK: tl.constexpr, INTERPRET: tl.constexpr,
):  # fmt: skip
    """Products q · k and dO · v of a tile, each from the first four arguments of `row_products`."""
    a, a_rows, b, b_rows = scored
    products = row_products(
        a, a_rows, b, b_rows, ROWS, COLS, HEAD_DIM, BLOCK_K, True, B_CHECK, INTERPRET
    )
    a, a_rows, b, b_rows = weighted
    grads = row_products(a, a_rows, b, b_rows, ROWS, COLS, V_DIM, BLOCK_K, True, B_CHECK, INTERPRET)
    return products, grads


@triton.jit
def first_interval(spans):
    """Start and stop of the first interval of each row, both 0 where there is none."""
    first, last, Starts, Stops = spans
    low = tl.load(Starts + first, mask=first < last, other=0)
    return low, tl.load(Stops + first, mask=first < last, other=0)


@triton.jit
def visible_cells(cols, stop, cursor, spans, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The visible cells of a tile whose columns end before `stop`, and the advanced cursors.

    `spans` is the index of the first interval of each row, one past its last interval, and the
    pointers to starts and stops. `cursor` is the index of the first interval that may reach this
    tile. Tiles are visited in ascending order, so the cursor only advances:
    each interval is read once, and once more for each tile that it continues into.
    """
    _, last, Starts, Stops = spans
    visible = tl.zeros([ROWS, COLS], tl.int1)
    start = tl.load(Starts + cursor, mask=cursor < last, other=NO_INTERVAL)
    end = tl.load(Stops + cursor, mask=cursor < last, other=NO_INTERVAL)
    while tl.min(start, 0) < stop:
        visible = visible | ((cols >= start[:, None]) & (cols < end[:, None]))
        ended = end <= stop
        cursor += ended.to(tl.int32)
        more = ended & (cursor < last)
        start = tl.load(Starts + cursor, mask=more, other=NO_INTERVAL)
        end = tl.load(Stops + cursor, mask=more, other=NO_INTERVAL)
    return visible, cursor


@triton.jit
def partial_cells(
    cols, stop, cursor, spans, interval, ROWS: tl.constexpr, COLS: tl.constexpr,
    ONE_INTERVAL: tl.constexpr,
):  # fmt: skip
    """As `visible_cells`; with `ONE_INTERVAL` from the result of `first_interval`."""
    if ONE_INTERVAL:
        low, high = interval
        visible = (cols >= low[:, None]) & (cols < high[:, None])
    else:
        visible, cursor = visible_cells(cols, stop, cursor, spans, ROWS, COLS)
    return visible, cursor


@triton.jit
def seek_interval(first, last, start_n, Stops, num_steps):
    """The index of the first interval of each row that ends after the key `start_n`, or `last`.

    `num_steps` is the number of bits of the largest number of intervals of a row.
    """
    low, high = first, last
    for _ in range(num_steps):
        middle = (low + high) // 2
        is_open = low < high
        ended = tl.load(Stops + middle, mask=is_open, other=0) <= start_n
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
