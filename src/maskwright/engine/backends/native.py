"""The native backend: attention on the CPU by the C kernel, which reads the spans of the mask.

A dilated mask, whose keys in every row are `step` apart, is computed as up to `step` submasks
without gaps, each over every `step`-th row and key. The kernel takes any row stride, so a submask
is one call on views of the same tensors.

PyTorch is imported only by the functions that take tensors.
"""

from __future__ import annotations

import math
from itertools import pairwise
from struct import Struct, pack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.engine.layout import empty_out
from maskwright.engine.native.kernel import borrow_threads, loaded, thread_count
from maskwright.engine.native.score_args import (
    aligned,
    finish_gradients,
    score_args,
    score_gradients,
)
from maskwright.engine.support import Support

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.core.spans import Spans
    from maskwright.core.validate import IntArray
    from maskwright.engine.call import Call

SEED_BITS = 2**64 - 1
MAX_LISTED = 16  # intervals that are checked one by one
PACKED_SPANS = "native.packed"  # key of `BoundMask.cached`
_SPANS = Struct("=7q")  # PackedSpans in csrc/module.c
_ONE_INTERVAL = Struct("=11q")  # the same and the arrays of a step: offsets 0 and 1, start, stop
DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # codes in csrc/maskwright.h
MAX_HEAD_DIM, MAX_TERMS = 256, 4  # likewise


def _missing_kernel(call: Call) -> str | None:  # noqa: ARG001 - the interface of `Support`
    return None if loaded().module is not None else f"is not available: {loaded().reason}"


SUPPORT = Support(
    devices=("cpu",),
    place="the CPU only",
    dtypes=tuple(DTYPES),
    head_dims=(1, MAX_HEAD_DIM),
    max_terms=MAX_TERMS,
    further=_missing_kernel,
)


def forward(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention of tensors.

    Args:
        call: A call that `SUPPORT` allows, with tensors of any strides.

    Returns:
        The output (batch, heads, q_len, v_head_dim) in the dtype and memory layout of q, and the
        logsumexp (batch, heads, q_len) in float32.
    """
    import torch

    borrow_threads()
    batch, heads, _, q_len, _, _, dim = call.shape
    out = empty_out(call.q, dim)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device="cpu")
    if 0 in call.shape:
        return out.zero_(), lse.fill_(-math.inf)
    q, k, v = _dense_rows(call.q), _dense_rows(call.k), _dense_rows(call.v)
    threads = torch.get_num_threads()
    parts = submasks(call.mask, split=not call.scores.terms)
    if parts[0].step > 1:  # rows of no submask are fully masked
        out.zero_()
        lse.fill_(-math.inf)
    scores, arrays = score_args(call)
    for part in parts:
        rows, keys = part.select((q, out, lse), (k, v))
        arguments = (*_numbers(call, part, threads, rows[0], keys[0]), scores)
        loaded().module.forward(*arguments, *map(_strided, (rows[0], *keys, *rows[1:])))
    del arrays  # kept alive until here
    return out, lse


def _numbers(
    call: Call, part: DilatedSubmask, threads: int, q: Any, k: Any
) -> tuple[tuple[Any, ...], ...]:
    """The first arguments of the extension module: sizes, settings, spans and dropout."""
    shape, step = call.shape, part.step
    lengths = (q.shape[2], k.shape[2])
    return (
        (shape.batch, shape.heads, shape.kv_heads, *lengths, shape.head_dim, shape.v_head_dim),
        (DTYPES[call.dtypes.q], threads, call.scale),
        part.spans.args,
        (call.seed & SEED_BITS, call.dropout_p, part.row, step, part.key, step),
    )


def _strided(x: torch.Tensor | None) -> tuple[int, ...] | None:
    """The address and the strides of a tensor."""
    return None if x is None else (x.data_ptr(), *x.stride())


def backward(
    call: Call,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Computes the gradients of q, k and v, of the values of each bias term, and of the sinks.

    Args:
        call: The call, with the tensors of the forward pass.
        out: The output.
        lse: The logsumexp.
        grad_out: The gradient of the output.
        grad_lse: The gradient of the logsumexp, or None.

    Returns:
        The gradients in the dtype and shape of q, k, v, values and sinks. That of values that
        require none is empty.
    """
    import torch

    borrow_threads()
    q, k, v = _dense_rows(call.q), _dense_rows(call.k), _dense_rows(call.v)
    out, grad_out = _dense_rows(out), _dense_rows(grad_out)
    lse = aligned(lse.resolve_neg())
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    grads = None if call.scores.is_empty else score_gradients(call)
    if 0 in call.shape:
        score_grads = [x.new_zeros(x.shape) for x in call.scores.tensors]
        return dq.zero_(), dk.zero_(), dv.zero_(), *score_grads
    if grad_lse is not None:
        grad_lse = aligned(grad_lse.to(torch.float32).resolve_neg())
    parts = submasks(call.mask, split=not call.scores.terms)
    if parts[0].step > 1:
        for x in (dq, dk, dv):
            x.zero_()
    threads = torch.get_num_threads()
    for part in parts:
        rows, keys = part.select((q, out, lse, grad_out, dq, grad_lse), (k, v, dk, dv))
        scores, arrays = score_args(call, grads, part.rows)
        arguments = (*_numbers(call, part, threads, rows[0], keys[0]), scores)
        q_, out_, lse_, dout_, dq_, dlse_ = map(_strided, rows)
        k_, v_, dk_, dv_ = map(_strided, keys)
        results = (q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_, dlse_)
        loaded().module.backward(*arguments, *results)
        del arrays  # kept alive until here
    if grads is None:
        return dq, dk, dv
    return dq, dk, dv, *finish_gradients(call, grads, lse, grad_lse)


def _dense_rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a last dimension of stride 1, aligned, and without a lazy negation."""
    if x.stride(-1) != 1 and x.shape[-1] != 1:
        return x.contiguous()
    return aligned(x.resolve_neg() if x.is_neg() else x)


def forward_numpy(
    call: Call,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Computes attention of float32 or float16 arrays, without PyTorch.

    Args:
        call: A call that `SUPPORT` allows, with arrays of any strides.

    Returns:
        The output (batch, heads, q_len, v_head_dim) in the dtype of q, and the logsumexp
        (batch, heads, q_len) in float32.
    """
    batch, heads, _, q_len, _, _, v_head_dim = call.shape
    out = np.zeros((batch, heads, q_len, v_head_dim), call.q.dtype.newbyteorder("="))
    lse = np.full((batch, heads, q_len), -math.inf, np.float32)
    if 0 in call.shape:
        return out, lse
    q, k, v = (_native_array(x) for x in (call.q, call.k, call.v))
    scores, arrays = score_args(call)
    for part in submasks(call.mask, split=not call.scores.terms):
        rows, keys = part.select((q, out, lse), (k, v))
        arguments = (*_numbers(call, part, thread_count(), rows[0], keys[0]), scores)
        loaded().module.forward(*arguments, *map(_pointer, (rows[0], *keys, *rows[1:])))
    del arrays  # kept alive until here
    return out, lse


def _native_array(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in native byte order, aligned, with a last dimension of stride 1."""
    aligned = x.flags.aligned and x.dtype.isnative and x.strides[-1] == x.itemsize
    if aligned and not any(stride % x.itemsize for stride in x.strides):
        return x
    return np.require(x, x.dtype.newbyteorder("="), ["C", "A"])  # ascontiguousarray does not align


def _pointer(x: npt.NDArray[Any]) -> tuple[int, ...]:
    return x.ctypes.data, *(stride // x.itemsize for stride in x.strides)


# ── spans ─────────────────────────────────────────────────────────────────────────────────────────


class SpanBuffers(NamedTuple):
    """The arrays of the spans, and the values of the C structure `Spans` that points to them."""

    offsets: IntArray
    starts: IntArray
    stops: IntArray
    args: tuple[int, int, int, int, int]


class DilatedSubmask(NamedTuple):
    """A mask over the rows `row`, `row + step`, ... and the keys `key`, `key + step`, ...

    With `step` 1 it is the whole mask.
    """

    spans: SpanBuffers
    row: int = 0
    key: int = 0
    step: int = 1

    @property
    def rows(self) -> slice:
        """The rows of the whole mask."""
        return slice(self.row, None, self.step)

    @property
    def keys(self) -> slice:
        """The keys of the whole mask."""
        return slice(self.key, None, self.step)

    def select(
        self, row_tensors: tuple[Any, ...], key_tensors: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The rows and keys of the submask in tensors or arrays, which may be None."""
        if self.step == 1:
            return row_tensors, key_tensors
        rows = tuple(x if x is None else x[:, :, self.rows] for x in row_tensors)
        return rows, tuple(x[:, :, self.keys] for x in key_tensors)


def submasks(bound: BoundMask, split: bool = True) -> list[DilatedSubmask]:
    """Returns the submasks that the kernel computes one by one; mostly the mask itself.

    The result is cached with the mask, which keeps the arrays alive.

    Args:
        bound: The mask.
        split: False for the mask itself in any case, as bias terms need it.

    >>> import maskwright as mw
    >>> len(submasks(mw.causal().on(8))), len(submasks(mw.stride(2).on(8)))
    (1, 2)
    """
    parts: list[DilatedSubmask] = bound.cached("native.submasks", lambda: _decompose(bound.spans))
    if split or parts[0].step == 1:
        return parts
    return bound.cached("native.whole", lambda: [DilatedSubmask(span_buffers(bound.spans))])


def packed_spans(bound: BoundMask) -> bytes | None:
    """Returns the spans as the structure that the extension module reads; None for a dilated mask.

    It holds addresses of arrays that are cached with the mask: keep the mask during the call. The
    intervals of a decode step follow the structure instead.

    Args:
        bound: The mask.

    >>> import maskwright as mw
    >>> len(packed_spans(mw.causal().on(8))), packed_spans(mw.stride(2).on(8))
    (56, None)
    """
    if bound._frame.q_len == 1:
        step = _pack_step(bound)
        if step is not None:  # two threads may compute it twice, in less time than a lock takes
            return bound._values.setdefault(PACKED_SPANS, step)  # type: ignore[no-any-return]
    return bound.cached(PACKED_SPANS, lambda: _pack_spans(bound))


def _pack_step(bound: BoundMask) -> bytes | None:
    """The structure and the intervals of a decode step; None if the mask does not have them."""
    row = bound._row_intervals()
    if row is None:
        return None
    offsets, starts, stops = row
    if starts and starts[0] + 1 == stops[0]:  # it may be dilated
        return None
    (batch, heads), kv_len = bound._planes, bound._frame.kv_len
    ints = (1, kv_len, batch, heads, 0, 0, 0, *offsets, *starts, *stops)
    return _ONE_INTERVAL.pack(*ints) if len(ints) == 11 else pack(f"={len(ints)}q", *ints)


def _pack_spans(bound: BoundMask) -> bytes | None:
    first, *rest = submasks(bound)
    if rest or first.step > 1:
        return None
    return _SPANS.pack(*bound.shape[2:], *first.spans.args)


def span_buffers(spans: Spans) -> SpanBuffers:
    """Returns the spans as contiguous int64 arrays, checked once before C reads them.

    Args:
        spans: The spans of all planes.

    Raises:
        ValueError: If an interval is empty or outside the keys, or offsets are not sorted.

    >>> import maskwright as mw
    >>> span_buffers(mw.causal().on(3).spans).stops.tolist()
    [1, 2, 3]
    """
    return _checked(spans.shape, spans.kv_len, *spans.flat)


def _checked(
    shape: tuple[int, int, int], kv_len: int, offsets: IntArray, starts: IntArray, stops: IntArray
) -> SpanBuffers:
    offsets, starts, stops = (np.require(x, np.int64, ["C", "A"]) for x in (offsets, starts, stops))
    batch, heads, rows = shape
    is_small = starts.size <= MAX_LISTED and offsets.size <= MAX_LISTED
    is_valid = _is_valid_list if is_small else _is_valid
    if offsets.size != batch * heads * rows + 1 or not is_valid(kv_len, offsets, starts, stops):
        raise ValueError(f"invalid spans for {rows} rows and {kv_len} keys")
    if not starts.size:  # an address that is not NULL
        starts = stops = np.zeros(1, np.int64)
    args = (batch, heads, _address(offsets), _address(starts), _address(stops))
    return SpanBuffers(offsets, starts, stops, args)


def _is_valid(kv_len: int, offsets: IntArray, starts: IntArray, stops: IntArray) -> bool:
    return bool(
        offsets[0] == 0
        and starts.size == stops.size == offsets[-1]
        and (offsets[1:] >= offsets[:-1]).all()
        and (starts < stops).all()
        and (not starts.size or (starts.min() >= 0 and stops.max() <= kv_len))
    )


def _is_valid_list(kv_len: int, *arrays: IntArray) -> bool:
    """The same for few intervals, for which plain Python is faster than numpy."""
    offsets, starts, stops = (array.tolist() for array in arrays)
    return (
        offsets[0] == 0
        and len(starts) == len(stops) == offsets[-1]
        and all(a <= b for a, b in pairwise(offsets))
        and all(0 <= a < b <= kv_len for a, b in zip(starts, stops, strict=True))
    )


def _address(array: IntArray) -> int:
    address: int = array.__array_interface__["data"][0]  # array.ctypes takes twice as long
    return address


def _decompose(spans: Spans) -> list[DilatedSubmask]:
    whole = [DilatedSubmask(span_buffers(spans))]
    offsets, starts, stops = spans.flat
    batch, heads, rows = spans.shape
    if batch * heads != 1 or not starts.size:
        return whole
    if starts[0] + 1 != stops[0] or starts[-1] + 1 != stops[-1]:  # a dilated interval has one key
        return whole
    step = _dilation(offsets, starts, stops)
    if step == 1:
        return whole
    submasks_by_key: dict[int, DilatedSubmask] = {}
    for row in range(min(step, rows)):
        counts = np.diff(offsets)[row::step]
        visible = counts > 0
        if not visible.any():
            continue
        first = offsets[row:-1:step][visible]
        last = first + counts[visible] - 1
        key = int(starts[first[0]] % step)
        if key in submasks_by_key or bool((starts[first] % step != key).any()):
            return whole  # two submasks would write the same gradients, or a row mixes residues
        kv_len = -(-(spans.kv_len - key) // step)
        buffers = _checked(
            (1, 1, counts.size),
            kv_len,
            np.append(0, np.cumsum(visible)),
            (starts[first] - key) // step,
            (starts[last] - key) // step + 1,
        )
        submasks_by_key[key] = DilatedSubmask(buffers, row, key, step)
    return list(submasks_by_key.values())


def _dilation(offsets: IntArray, starts: IntArray, stops: IntArray) -> int:
    """The distance between neighbouring keys, if it is the same in all rows; otherwise 1."""
    if bool((stops - starts != 1).any()) or starts.size < 2:
        return 1
    same_row = np.ones(starts.size, np.bool_)
    same_row[offsets[:-1][np.diff(offsets) > 0]] = False
    gaps = np.diff(starts)[same_row[1:]]
    if not gaps.size or gaps[0] < 2 or bool((gaps != gaps[0]).any()):
        return 1
    return int(gaps[0])
