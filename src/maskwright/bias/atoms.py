"""The biases of the literature: ALiBi, T5, relative positions, grids, and plain values.

Distances are `k - q`: negative for keys before the query.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from maskwright.bias.expr import BiasAtom
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.bias.values import Values, flip, outer, parse_factor, take
from maskwright.core.frame import BroadcastDims, Frame
from maskwright.core.validate import IntArray, describe_type, parse_bool, parse_int
from maskwright.errors import ArgumentError, FrameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.bias.terms import Term

MAX_HEADS: Final = 2**16  # of alibi(num_heads)
MAX_BUCKETS: Final = 2**12  # of t5
_VARIANTS: Final = ("bloom", "mpt", "geometric")


def alibi(slopes: Any, variant: str = "bloom", max_bias: float = 8.0) -> Alibi:
    """ALiBi: `-slope * abs(k - q)`, with one slope per head (Press et al., 2022).

    For head counts that are powers of two, head h of n has slope `2 ** (-max_bias * (h + 1) / n)`.
    For others there are two conventions. "bloom" is the paper's: the slopes of the next smaller
    power of two, then every other slope of the next larger one; Bloom, Falcon and MPT use it.
    "geometric" applies the formula to every n; attention-gym uses it.

    Models that add `slope * k` (Bloom, flash-attn's causal kernel) or `slope * (k - S + 1)` (MPT)
    compute the same weights under a causal mask: the scores of a row differ by a constant. Their
    logsumexp differs by that constant, and with `sinks` so do their weights.

    Args:
        slopes: The number of heads, or the slopes, (heads,); a torch tensor is learnable.
        variant: "bloom", "mpt" (the same slopes) or "geometric", for a number of heads.
        max_bias: MPT's `alibi_bias_max`, for a number of heads.

    Returns:
        The bias.

    Raises:
        ArgumentError: If an argument is invalid, or slopes are passed with options that make them.

    >>> import maskwright as mw
    >>> mw.bias.alibi(4).on(3).dense()[0, 0].tolist()
    [[0.0, -0.25, -0.5], [-0.25, 0.0, -0.25], [-0.5, -0.25, 0.0]]
    >>> mw.bias.alibi([0.5, 0.25])
    alibi([0.5, 0.25])
    """
    if variant not in _VARIANTS:
        text = repr(variant) if isinstance(variant, str) else describe_type(variant)
        raise ArgumentError(f"bias.alibi: variant is {text}. Pass {', '.join(_VARIANTS)}.")
    if variant == "mpt":  # equal slopes
        variant = "bloom"
    largest = parse_factor(max_bias, "bias.alibi: max_bias")
    if largest <= 0:
        raise ArgumentError(f"bias.alibi: max_bias={largest:g} is not positive. Pass 8.0.")
    if isinstance(slopes, (int, np.integer)) and not isinstance(slopes, bool):
        count = parse_int(slopes, "bias.alibi: slopes", minimum=1)
        if count > MAX_HEADS:
            raise ArgumentError(f"bias.alibi: slopes={count} heads. Pass at most {MAX_HEADS}.")
        return Alibi(count, variant, largest)
    if (variant, largest) != ("bloom", 8.0):
        raise ArgumentError(
            "bias.alibi: variant and max_bias make slopes from a number of heads. "
            "Omit them, or pass the number of heads."
        )
    values = Values(slopes, "bias.alibi: slopes")
    _check_shape(values, 1, "(heads,)")
    return Alibi(values)


def t5(table: Any, bidirectional: bool = True, max_distance: int = 128) -> T5:
    """T5's relative position bias: one value per head and bucket of distances.

    Short distances have a bucket each, longer ones share buckets of logarithmic size, and all from
    `max_distance` on share the last one. `bidirectional=True` (encoders) uses half of the buckets
    for keys after the query; False (decoders) puts those into bucket 0, since a causal mask hides
    them.

    Args:
        table: (num_buckets, heads), as `relative_attention_bias.weight` in transformers; a torch
            tensor is learnable.
        bidirectional: Whether keys after the query have buckets of their own.
        max_distance: The distance from which all distances share one bucket.

    Returns:
        The bias.

    Raises:
        ArgumentError: If an argument is invalid.

    >>> import maskwright as mw
    >>> mw.bias.t5([[0.0], [1.0], [2.0], [3.0]], max_distance=4).on(3).dense()[0, 0].tolist()
    [[0.0, 3.0, 3.0], [1.0, 0.0, 3.0], [1.0, 1.0, 0.0]]
    """
    values = Values(table, "bias.t5: table")
    _check_shape(values, 2, "(num_buckets, heads)")
    both = parse_bool(bidirectional, "bias.t5: bidirectional")
    least = 4 if both else 2
    buckets = values.shape[0]
    if not least <= buckets <= MAX_BUCKETS:
        raise ArgumentError(
            f"bias.t5: table has {buckets} buckets. Pass {least} to {MAX_BUCKETS} rows."
        )
    near = (buckets // 2 if both else buckets) // 2  # distances with a bucket of their own
    return T5(values, both, parse_int(max_distance, "bias.t5: max_distance", minimum=near + 1))


def relative(table: Any) -> Relative:
    """One value per head and distance; distances beyond the table use its ends.

    Args:
        table: (heads, 2 * max_distance + 1), indexed by `k - q + max_distance`; a torch tensor is
            learnable.

    Returns:
        The bias.

    Raises:
        ArgumentError: If the table does not have this shape.

    >>> import maskwright as mw
    >>> mw.bias.relative([[-1.0, 0.0, 1.0]]).on(3).dense()[0, 0].tolist()
    [[0.0, 1.0, 1.0], [-1.0, 0.0, 1.0], [-1.0, -1.0, 0.0]]
    """
    values = Values(table, "bias.relative: table")
    _check_shape(values, 2, "(heads, 2 * max_distance + 1)")
    if values.shape[1] % 2 == 0:
        raise ArgumentError(
            f"bias.relative: table has {values.shape[1]} columns. Pass an odd number: as many for "
            "keys before the query as for keys after it, and one for distance 0."
        )
    return Relative(values)


def grid(table: Any, height: int, width: int) -> Grid:
    """Relative positions in a grid of `height` × `width` tokens, as in Swin.

    Token p is in row `p // width` and column `p % width`. The added score is
    `table[(y_q - y_k + height - 1) * (2 * width - 1) + x_q - x_k + width - 1]`, which is Swin's
    `relative_position_index`: query minus key.

    Args:
        table: ((2 * height - 1) * (2 * width - 1), heads), as `relative_position_bias_table` in
            transformers; a torch tensor is learnable.
        height: Rows of the grid.
        width: Columns of the grid.

    Returns:
        The bias.

    Raises:
        ArgumentError: If the table does not fit the grid.

    >>> import maskwright as mw
    >>> table = [[float(i)] for i in range(3)]
    >>> mw.bias.grid(table, height=1, width=2).on(2).dense()[0, 0].tolist()
    [[1.0, 0.0], [2.0, 1.0]]
    """
    values = Values(table, "bias.grid: table")
    rows = parse_int(height, "bias.grid: height", minimum=1)
    columns = parse_int(width, "bias.grid: width", minimum=1)
    _check_shape(values, 2, "((2 * height - 1) * (2 * width - 1), heads)")
    expected = (2 * rows - 1) * (2 * columns - 1)
    if values.shape[0] != expected:
        raise ArgumentError(
            f"bias.grid: table has {values.shape[0]} rows, expected {expected} for a grid of "
            f"{rows} × {columns}: (2 * height - 1) * (2 * width - 1)."
        )
    return Grid(values, rows, columns)


def per_key(values: Any) -> PerKey:
    """One value per key, the same for all queries.

    Args:
        values: (keys,), (batch, keys) or (batch, heads, keys); a torch tensor is learnable.

    Returns:
        The bias.

    Raises:
        ArgumentError: If the values do not have one of these shapes.

    >>> import maskwright as mw
    >>> mw.bias.per_key([0.0, 2.0]).on(1, 2).dense().tolist()
    [[[[0.0, 2.0]]]]
    """
    parsed = Values(values, "bias.per_key: values")
    if not 1 <= len(parsed.shape) <= 3:
        raise ArgumentError(
            f"bias.per_key: values has shape {parsed.shape}. "
            "Pass (keys,), (batch, keys) or (batch, heads, keys)."
        )
    return PerKey(parsed)


def tensor(values: Any) -> TensorBias:
    """Any values that broadcast to (batch, heads, queries, keys).

    Args:
        values: An array or tensor of up to four axes, aligned at the last one. Axes of size 1 are
            not expanded in memory. A torch tensor is learnable.

    Returns:
        The bias.

    Raises:
        ArgumentError: If there are more than four axes, or a value is not finite.

    >>> import maskwright as mw
    >>> mw.bias.tensor([[1.0], [2.0]]).on(2, 3).dense().tolist()
    [[[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]]]
    >>> mw.bias.tensor([0.0, -float("inf")])
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: bias.tensor: values contains -inf. A bias is finite: express \
which keys are visible as a mask, such as causal(), or split an additive mask with \
from_additive(tensor).
    """
    parsed = Values(values, "bias.tensor: values")
    if len(parsed.shape) > 4:
        raise ArgumentError(
            f"bias.tensor: values has shape {parsed.shape}. Pass up to four axes: "
            "(batch, heads, queries, keys)."
        )
    return TensorBias(parsed)


BIASES: Final[dict[str, Callable[..., BiasAtom]]] = {
    "alibi": alibi,
    "t5": t5,
    "relative": relative,
    "grid": grid,
    "per_key": per_key,
    "tensor": tensor,
}


@dataclass(frozen=True, repr=False)
class Alibi(BiasAtom):
    """What `alibi` returns."""

    slopes: int | Values
    variant: str = "bloom"
    max_bias: float = 8.0
    name: ClassVar[str] = "alibi"

    @property
    def slope_values(self) -> Any:
        """The slope of each head, (heads,).

        >>> import maskwright as mw
        >>> mw.bias.alibi(2).slope_values.tolist()
        [0.0625, 0.00390625]
        """
        if isinstance(self.slopes, Values):
            return self.slopes.data
        return _alibi_slopes(self.slopes, self.variant, self.max_bias)

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        heads = self.slopes.shape[0] if isinstance(self.slopes, Values) else self.slopes
        return (BroadcastDims(self.name, 1, heads),)

    def _lower(self, frame: Frame) -> list[Term]:
        distances, zero = _distances(frame)
        return [DistanceTerm(outer(self.slope_values, -np.abs(distances)), zero)]


@dataclass(frozen=True, repr=False)
class T5(BiasAtom):
    """What `t5` returns."""

    table: Values
    bidirectional: bool = True
    max_distance: int = 128
    name: ClassVar[str] = "t5"

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims(self.name, 1, self.table.shape[1]),)

    def _lower(self, frame: Frame) -> list[Term]:
        distances, zero = _distances(frame)
        bucket = t5_bucket(distances, self.bidirectional, self.table.shape[0], self.max_distance)
        return [DistanceTerm(take(self.table.data.T, bucket), zero)]


@dataclass(frozen=True, repr=False)
class Relative(BiasAtom):
    """What `relative` returns."""

    table: Values
    name: ClassVar[str] = "relative"

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims(self.name, 1, self.table.shape[0]),)

    def _lower(self, frame: Frame) -> list[Term]:
        distances, zero = _distances(frame)
        reach = self.table.shape[1] // 2
        return [DistanceTerm(take(self.table.data, distances.clip(-reach, reach) + reach), zero)]


@dataclass(frozen=True, repr=False)
class Grid(BiasAtom):
    """What `grid` returns."""

    table: Values
    height: int
    width: int
    name: ClassVar[str] = "grid"

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims(self.name, 1, self.table.shape[1]),)

    def _fit(self, frame: Frame) -> None:
        BiasAtom._fit(self, frame)
        cells = self.height * self.width
        queries = (frame.q_start, frame.q_stop) if frame.q_len else (0, 0)
        keys = (frame.k_start, frame.k_stop) if frame.kv_len else (0, 0)
        if min(queries[0], keys[0]) < 0 or max(queries[1], keys[1]) > cells:
            raise FrameError(
                f"bias.grid: the grid has {cells} positions ({self.height} × {self.width}) but the "
                f"frame has queries at {queries[0]} … {queries[1] - 1} and keys at {keys[0]} … "
                f"{keys[1] - 1}. Pass a grid of all tokens, or fewer tokens."
            )

    def _lower(self, frame: Frame) -> list[Term]:  # noqa: ARG002 - a grid fits every part of it
        sides = (2 * self.height - 1, 2 * self.width - 1)
        heads = self.table.shape[1]
        # The table is indexed by query minus key, the term by key minus query.
        values = flip(self.table.data.T.reshape(heads, *sides), (1, 2))
        return [GridTerm(values, self.height, self.width)]


@dataclass(frozen=True, repr=False)
class PerKey(BiasAtom):
    """What `per_key` returns."""

    values: Values
    name: ClassVar[str] = "per_key"

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims(self.name, *self._planes),)

    @property
    def _planes(self) -> tuple[int, ...]:
        """(batch, heads)."""
        return (*self.values.shape[:-1], 1, 1)[:2]

    def _fit(self, frame: Frame) -> None:
        BiasAtom._fit(self, frame)
        count = self.values.shape[-1]
        fix = f"Pass kv_len={count}, or one value per key."
        frame.check_keys(count, "bias.per_key", f"values has {count} keys", fix)

    def _lower(self, frame: Frame) -> list[Term]:
        values = self.values.data.reshape(*self._planes, 1, self.values.shape[-1])
        return [TensorTerm(values[..., frame.k_start : frame.k_stop])]


@dataclass(frozen=True, repr=False)
class TensorBias(BiasAtom):
    """What `tensor` returns."""

    values: Values
    name: ClassVar[str] = "tensor"

    @property
    def _four(self) -> tuple[int, ...]:
        shape = self.values.shape
        return (1,) * (4 - len(shape)) + shape

    @property
    def _dims(self) -> tuple[BroadcastDims, ...]:
        return (BroadcastDims(self.name, *self._four[:2]),)

    def _fit(self, frame: Frame) -> None:
        BiasAtom._fit(self, frame)
        for count, size, name in (
            (self._four[2], frame.q_len, "queries"),
            (self._four[3], frame.kv_len, "keys"),
        ):
            if count not in (1, size):
                raise FrameError(
                    f"bias.tensor: the values have {count} {name}, the frame has {size}. "
                    f"Pass values of shape (…, {frame.q_len}, {frame.kv_len}), or 1 to broadcast."
                )

    def _lower(self, frame: Frame) -> list[Term]:  # noqa: ARG002 - rows and keys by index
        return [TensorTerm(self.values.data.reshape(self._four))]


def t5_bucket(
    distances: IntArray, bidirectional: bool, num_buckets: int, max_distance: int
) -> IntArray:
    """The bucket of each distance `k - q`, as T5 computes it.

    T5 computes `near + floor(log(d / near) / log(max_distance / near) * far)` in float32. Here the
    distances at which a bucket begins are computed exactly.

    >>> import numpy as np
    >>> t5_bucket(np.array([-128, -16, -1, 0, 1, 16, 128]), True, 32, 128).tolist()
    [15, 10, 1, 0, 17, 26, 31]
    """
    if bidirectional:
        num_buckets //= 2
        offset = np.where(distances > 0, num_buckets, 0)
        size = np.abs(distances)
    else:
        offset = np.zeros_like(distances)
        size = np.maximum(-distances, 0)
    near = num_buckets // 2
    begins = np.array(_bucket_begins(near, num_buckets - near, max_distance))
    far = near - 1 + np.searchsorted(begins, size, side="right")
    bucket: IntArray = offset + np.where(size < near, size, far)
    return bucket


def _bucket_begins(near: int, count: int, max_distance: int) -> list[int]:
    """The first distance of each logarithmic bucket: the least d with (d / near) ** count >= ratio ** j."""
    begins = []
    for j in range(count):
        d = max(near, round(near * (max_distance / near) ** (j / count)) - 1)
        goal = max_distance**j * near ** (count - j)
        while d**count < goal:
            d += 1
        while d > near and (d - 1) ** count >= goal:
            d -= 1
        begins.append(d)
    return begins


def _alibi_slopes(heads: int, variant: str, max_bias: float) -> Any:
    """The slope of each head, float64."""

    def geometric(count: int) -> Any:
        return 2.0 ** (-max_bias * np.arange(1, count + 1) / count)

    power = 2 ** int(math.log2(heads))
    if power == heads or variant == "geometric":
        return geometric(heads)
    return np.concatenate([geometric(power), geometric(2 * power)[::2][: heads - power]])


def _distances(frame: Frame) -> tuple[IntArray, int]:
    """All distances k - q of a frame in ascending order, and the index of 0."""
    first = frame.k_start - (frame.q_stop - 1)
    count = max(frame.q_len + frame.kv_len - 1, 0)
    return np.arange(first, first + count), -first


def _check_shape(values: Values, axes: int, expected: str) -> None:
    if len(values.shape) != axes or 0 in values.shape:
        raise ArgumentError(f"{values.what} has shape {values.shape}. Pass {expected}.")
