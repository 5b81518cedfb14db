"""The frame: numbers and positions of queries and keys. All conventions are defined here.

- True means "attends". A mask has shape (batch, heads, query, key); batch and heads are 1 where
  nothing varies.
- Positions are absolute. Query row r has position `q_start + r`, key column c has position
  `k_start + c`. `k_start` is 0 except inside a transposed mask.
- By default the last query is aligned with the last key: `q_start = kv_len - q_len`, the
  lower-right alignment, which is right for a KV cache. `q_start=0` is the upper-left alignment of
  PyTorch's `is_causal`.
- Data about tokens (padding, documents, trees) describes all positions 0 … k_stop - 1: a frame
  with more or fewer keys does not fit. Masks of positions (windows, prefixes, keys) fit every
  frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from maskwright.core.validate import parse_int
from maskwright.errors import FrameError, SizeError

MAX_SIZE: Final = 2**31 - 1
MAX_BYTES: Final = 2**33  # of one result
_SIZES: Final = ("q_len", "kv_len", "batch", "heads")


class BroadcastDims(NamedTuple):
    """Batch and head counts of a term's data, 1 where it broadcasts, and the term's name."""

    owner: str
    batch: int
    heads: int


@dataclass(frozen=True, init=False)
class Frame:
    """The sizes and positions that a mask is bound to.

    >>> import maskwright as mw
    >>> frame = mw.causal().on(2, kv_len=5).frame
    >>> frame
    Frame(q_len=2, kv_len=5, batch=1, heads=1, q_start=3, k_start=0)
    >>> frame.q_stop, frame.k_stop, frame.tokens, frame.cells
    (5, 5, 5, 10)
    >>> frame.transposed.q_len
    5
    """

    q_len: int
    kv_len: int
    batch: int = 1
    heads: int = 1
    q_start: int = 0
    k_start: int = 0

    def __init__(
        self,
        q_len: int,
        kv_len: int,
        batch: int = 1,
        heads: int = 1,
        q_start: int = 0,
        k_start: int = 0,
    ) -> None:
        state = self.__dict__  # the generated __init__ of a frozen dataclass takes twice as long
        state["q_len"], state["kv_len"], state["batch"] = q_len, kv_len, batch
        state["heads"], state["q_start"], state["k_start"] = heads, q_start, k_start

    @property
    def q_stop(self) -> int:
        """One past the last query's position."""
        return self.q_start + self.q_len

    @property
    def k_stop(self) -> int:
        """One past the last key's position."""
        return self.k_start + self.kv_len

    @property
    def cells(self) -> int:
        """Number of cells over all batch rows and heads."""
        return self.batch * self.heads * self.q_len * self.kv_len

    @property
    def transposed(self) -> Frame:
        """The frame with queries and keys exchanged."""
        return Frame(
            self.kv_len,
            self.q_len,
            self.batch,
            self.heads,
            q_start=self.k_start,
            k_start=self.q_start,
        )

    def check_keys(self, count: int, atom: str, data: str, fix: str) -> None:
        """Raises FrameError unless the keys are exactly the `count` tokens of the data."""
        if self.k_stop != count or self.k_start < 0:
            keys = f"{self.kv_len} keys" if self.k_start == 0 else f"keys up to {self.k_stop - 1}"
            raise FrameError(f"{atom}: {data} but the frame has {keys}. {fix}")

    def check_queries(self, count: int, atom: str, data: str, fix: str) -> None:
        """Raises FrameError unless the queries end at the last of the `count` tokens."""
        if self.q_stop != count or self.q_start < 0:
            where = f"queries at {self.q_start} … {self.q_stop - 1}"
            raise FrameError(f"{atom}: {data} but the frame has {where}. {fix}")

    def check_tokens(self, count: int, atom: str, data: str, fix: str) -> None:
        """Raises FrameError unless the queries and keys are among exactly `count` tokens."""
        first = min(
            [self.q_start] * (self.q_len > 0) + [self.k_start] * (self.kv_len > 0), default=0
        )
        if self.tokens == count and first >= 0:
            return
        if first >= 0 and self.tokens == max(self.k_stop, 0):
            raise FrameError(f"{atom}: {data} but the frame has {self.kv_len} keys. {fix}")
        outside = self.q_start if self.q_start < 0 else self.q_stop - 1
        last = count - self.q_len
        fix = f"Pass a q_start from 0 to {last}." if last >= 0 else f"Pass at most {count} queries."
        raise FrameError(f"{atom}: {data} but a query has position {outside}. {fix}")

    @property
    def tokens(self) -> int:
        """Number of positions up to the last query or key, whichever is later."""
        return max(self.q_stop if self.q_len else 0, self.k_stop if self.kv_len else 0, 0)


def on_call(frame: Frame) -> str:
    """The call of `on` that makes a frame, as `repr` of a bound mask shows it."""
    return (
        f"on({frame.q_len}, kv_len={frame.kv_len}, batch={frame.batch}, heads={frame.heads}, "
        f"q_start={frame.q_start})"
    )


def check_size(what: str, size: int, fix: str) -> None:
    """Raises SizeError if a result of `size` bytes is larger than `MAX_BYTES`."""
    if size > MAX_BYTES:
        raise SizeError(
            f"{what} would need {size / 1e9:.1f} GB, more than {MAX_BYTES / 1e9:.1f} GB. Use {fix}."
        )


def make_frame(
    q_len: int,
    kv_len: int | None,
    batch: int | None,
    heads: int | None,
    q_start: int | None,
    planes: tuple[int, int] = (1, 1),
) -> Frame:
    """Returns a checked frame.

    Args:
        q_len: Number of queries.
        kv_len: Number of keys. Default: `q_len`.
        batch: Batch size. Default: that of the mask's data.
        heads: Number of heads. Default: that of the mask's data.
        q_start: Position of the first query. Default: `kv_len - q_len`.
        planes: Batch size and number of heads of the mask's data.
    """
    data = (None, q_len, *planes)
    sizes: list[int] = []
    for name, value, default in zip(_SIZES, (q_len, kv_len, batch, heads), data, strict=True):
        size: Any = default if value is None else value
        plain = type(size) is int and 0 <= size <= MAX_SIZE
        sizes.append(size if plain else _size(size, name))
    queries, keys, batch_size, num_heads = sizes
    for name, size, count in (("batch", batch_size, planes[0]), ("heads", num_heads, planes[1])):
        if count != 1 and count != size:
            raise FrameError(
                f"on: {name}={size} but the mask's data has {count}. Pass {name}={count} or omit it."
            )
    start = keys - queries if q_start is None else parse_int(q_start, "on: q_start")
    if abs(start) > MAX_SIZE:
        raise FrameError(f"on: q_start={start} is beyond {MAX_SIZE}. Pass a smaller position.")
    return Frame(queries, keys, batch_size, num_heads, start)


def merge_dims(dims: tuple[BroadcastDims, ...]) -> tuple[int, int]:
    """The batch and head counts on which all data agrees; 1 broadcasts.

    >>> merge_dims((BroadcastDims("padding", 2, 1), BroadcastDims("dense", 1, 4)))
    (2, 4)
    """
    batch = heads = 1
    for _, b, h in dims:
        if b != batch and b != 1:
            if batch != 1:
                raise _mismatch(dims, 1, "batch")
            batch = b
        if h != heads and h != 1:
            if heads != 1:
                raise _mismatch(dims, 2, "heads")
            heads = h
    return batch, heads


def _mismatch(dims: tuple[BroadcastDims, ...], axis: Literal[1, 2], name: str) -> FrameError:
    """The error that names the first two terms whose sizes along the axis differ."""
    first, *rest = (dim for dim in dims if dim[axis] != 1)
    other = next(dim for dim in rest if dim[axis] != first[axis])
    return FrameError(
        f"{first.owner} has {first[axis]} along {name} but {other.owner} has {other[axis]}. "
        "Both must be the same, or 1."
    )


def _size(value: int, name: str) -> int:
    size = parse_int(value, f"on: {name}", minimum=0)
    if size > MAX_SIZE:
        raise FrameError(f"on: {name}={size} is beyond {MAX_SIZE}. Pass a smaller size.")
    return size
