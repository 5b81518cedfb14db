"""The truth about biases: plain loops over cells, from the definitions in the papers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from maskwright.bias.atoms import T5, Alibi, Grid, PerKey, Relative, TensorBias
from maskwright.bias.expr import Bias, Multiple, Sum

if TYPE_CHECKING:
    from maskwright import Frame


def truth(bias: Bias, frame: Frame) -> np.ndarray:
    """(batch, heads, queries, keys) in float64, one cell at a time."""
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    out = np.zeros(shape)
    for b, h, r, c in np.ndindex(shape):
        out[b, h, r, c] = cell(bias, b, h, frame.q_start + r, c, r)
    return out


def cell(bias: Bias, b: int, h: int, q: int, k: int, row: int) -> float:
    match bias:
        case Sum(terms):
            return sum(cell(term, b, h, q, k, row) for term in terms)
        case Multiple(factor, term):
            return factor * cell(term, b, h, q, k, row)
        case Alibi(slopes, variant, max_bias):
            if not isinstance(slopes, int):
                values = slopes.tolist()
                return -values[h % len(values)] * abs(q - k)
            return -alibi_slope(h % slopes, slopes, variant, max_bias) * abs(q - k)
        case T5(table, bidirectional, max_distance):
            values = np.array(table.tolist())
            bucket = t5_bucket(k - q, bidirectional, len(values), max_distance)
            return float(values[bucket, h % values.shape[1]])
        case Relative(table):
            values = np.array(table.tolist())
            reach = values.shape[1] // 2
            return float(values[h % len(values), max(-reach, min(reach, k - q)) + reach])
        case Grid(table, height, width):
            values = np.array(table.tolist())
            y, x = q // width - k // width + height - 1, q % width - k % width + width - 1
            return float(values[y * (2 * width - 1) + x, h % values.shape[1]])
        case PerKey(values):
            array = np.array(values.tolist())
            if array.ndim == 1:
                return float(array[k])
            if array.ndim == 2:
                return float(array[b % len(array), k])
            return float(array[b % array.shape[0], h % array.shape[1], k])
        case TensorBias(values):
            array = np.array(values.tolist())
            array = array.reshape((1,) * (4 - array.ndim) + array.shape)
            where = zip((b, h, row, k), array.shape, strict=True)
            return float(array[tuple(at % size for at, size in where)])
    raise AssertionError(f"no rule for {bias!r}")


def alibi_slope(head: int, heads: int, variant: str, max_bias: float) -> float:
    """From the code of the ALiBi paper."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    if variant == "geometric" or power == heads:
        return 2 ** (-max_bias * (head + 1) / heads)
    if head < power:
        return 2 ** (-max_bias * (head + 1) / power)
    return 2 ** (-max_bias * (2 * (head - power) + 1) / (2 * power))


def t5_bucket(distance: int, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """From the code of T5, in double precision with a margin for exact boundaries."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    near = buckets // 2
    if distance < near:
        return first + distance
    share = math.log(distance / near) / math.log(max_distance / near)
    return first + min(near + int(share * (buckets - near) + 1e-9), buckets - 1)
