"""Soft cap, bias and sinks: what changes the scores inside the mask.

    s = scale * q · k
    s = softcap * tanh(s / softcap)
    s = s + bias, one term after the other
    weights = exp(s) / (sum of exp(s) over the visible keys + exp(sink))

This module reads the arguments `bias` and `sinks`, and has the parts that the backends on PyTorch
operators share. The logsumexp of a call is over the visible keys without the sink, so a sink is a
factor of the output: sigmoid(lse - sink).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.bias.values import MASK_HINT
from maskwright.core.validate import describe_type
from maskwright.engine.params import Positions, ScoreTensors, TermIndex
from maskwright.engine.validate import check_layout, check_storage, check_subclass
from maskwright.errors import AttentionError, FrameError

if TYPE_CHECKING:
    import torch

    from maskwright.core.frame import Frame
    from maskwright.core.validate import IntArray
    from maskwright.engine.params import AttentionOptions, AttentionParams

NO_SCORE_TENSORS = ScoreTensors()


def read_scores(
    options: AttentionOptions, frame: Frame, q: Any
) -> tuple[tuple[TermIndex, ...], ScoreTensors]:
    """The terms of the bias and the sinks of a call, checked against its sizes.

    Args:
        options: The options of the call.
        frame: Sizes and positions of the call, with the batch size and heads of q.
        q: The queries, a tensor or an array; bias and sinks are of the same kind.

    Returns:
        How each term is indexed, and the tensors.

    Raises:
        AttentionError: `bias` or `sinks` has the wrong type, dtype, device or shape.
        FrameError: The bias does not match the sizes.
    """
    if options.bias is None and options.sinks is None:
        return (), NO_SCORE_TENSORS
    indices, values = [], []
    for term in () if options.bias is None else _lower(options.bias, frame, q):
        value = _as_kind_of(q, term.values, "bias")
        index = _term_index(term, _requires_grad(value))
        _check_fit(index, tuple(value.shape), frame)
        indices.append(index)
        values.append(value)
    sinks = options.sinks
    if sinks is not None:
        sinks = _as_kind_of(q, sinks, "sinks")
        if tuple(sinks.shape) != (frame.heads,):
            raise AttentionError(
                f"attention: sinks has shape {tuple(sinks.shape)}. Expected ({frame.heads},): one "
                "logit per head of q."
            )
        _check_sinks(sinks)
    return tuple(indices), ScoreTensors(tuple(values), sinks)


def _lower(bias: Any, frame: Frame, q: Any) -> tuple[Any, ...]:
    """The terms of a bias expression, or of a plain tensor or array."""
    if not isinstance(q, np.ndarray):
        _check_memory(bias, "bias")
    if hasattr(bias, "lower") and hasattr(bias, "dense"):
        return tuple(bias.lower(frame))
    if not hasattr(bias, "shape") or not hasattr(bias, "ndim"):
        raise AttentionError(
            f"attention: bias is {describe_type(bias)}. Pass a bias such as mw.bias.alibi(8), or a "
            "tensor that broadcasts to (batch, heads, q_len, kv_len)."
        )
    if bias.ndim > 4:
        raise AttentionError(
            f"attention: bias has shape {tuple(bias.shape)}. Expected at most four dimensions: "
            "(batch, heads, q_len, kv_len)."
        )
    _check_finite(bias, q)
    return (TensorTerm(bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))),)


def _check_finite(bias: Any, q: Any) -> None:
    """Raise for NaN and infinities, also as float32, where the values can be read at low cost."""
    narrows = bias.dtype.itemsize == 8 and q.dtype.itemsize < 8
    if isinstance(bias, np.ndarray):
        if bias.dtype.kind != "f":
            return
        with np.errstate(over="ignore"):
            values = bias.astype(np.float32) if narrows else bias
        finite = np.isfinite(values)
        is_finite = bool(finite.all())
    else:
        import torch

        if not _is_readable(bias):
            return
        values = bias.detach().to(torch.float32) if narrows else bias.detach()
        # The sum is finite if all values are, except for an overflow.
        is_finite = bool(values.sum().isfinite())
        if not is_finite:
            finite = values.isfinite()
            is_finite = bool(finite.all())
    if not is_finite:
        first = float(values[~finite].flatten()[0])
        dtype = " as float32" if narrows else ""
        raise AttentionError(f"attention: bias contains {first}{dtype}. {MASK_HINT}")


def _check_sinks(sinks: Any) -> None:
    """Raise for NaN where the values can be read at low cost."""
    readable = isinstance(sinks, np.ndarray) or _is_readable(sinks)
    if readable and bool((sinks != sinks).any()):  # only NaN differs from itself
        raise AttentionError(
            "attention: sinks contains NaN. Pass one logit per head; -inf is no sink."
        )


def _is_readable(x: Any) -> bool:
    """Whether the values of a tensor can be read at low cost."""
    import torch

    from maskwright.engine.softmax import is_symbolic

    if torch.compiler.is_compiling():  # before is_symbolic, which it does not trace
        return False
    return x.device.type == "cpu" and x.is_floating_point() and not is_symbolic(x)


def _as_kind_of(q: Any, x: Any, name: str) -> Any:
    """`x` as a floating-point tensor on the device of q, or as an array if q is one."""
    if isinstance(q, np.ndarray):
        if not isinstance(x, np.ndarray):
            raise AttentionError(
                f"attention: {name} is {describe_type(x)} but q is a numpy array. Pass {name} as a "
                "numpy array, or q, k and v as torch tensors."
            )
        if x.dtype.kind != "f":
            raise AttentionError(_wrong_dtype(name, x.dtype))
        return x
    import torch
    from torch._subclasses.fake_tensor import is_fake

    if isinstance(x, np.ndarray):
        if not torch.compiler.is_compiling():
            native = x.dtype.newbyteorder("=")  # torch reads no other; it warns of read-only arrays
            x = np.require(x, native, requirements=["C", "A", "W"])
        x = torch.as_tensor(x).to(q.device)
    if not isinstance(x, torch.Tensor):
        raise AttentionError(
            f"attention: {name} is {describe_type(x)}. Pass a torch tensor or a numpy array."
        )
    _check_memory(x, name)
    if not x.is_floating_point():
        raise AttentionError(_wrong_dtype(name, x.dtype))
    if not torch.compiler.is_compiling() and is_fake(x) and not is_fake(q):
        raise AttentionError(
            f"attention: {name} is a FakeTensor, which has no values, and q is not. "
            f"Pass {name} as a tensor with values, or all tensors as FakeTensors."
        )
    if x.device != q.device:
        raise AttentionError(
            f"attention: {name} is on {x.device} and q on {q.device}. Move both to one device."
        )
    return x


def _check_memory(x: Any, name: str) -> None:
    """Raise for tensors that are sparse, nested, of 8 bits, or wrap others."""
    import torch

    if isinstance(x, torch.Tensor):
        check_layout(name, x)
        check_subclass(name, x)
        if x.is_floating_point() and x.itemsize == 1:
            raise AttentionError(_wrong_dtype(name, x.dtype))
        if not torch.compiler.is_compiling():
            check_storage(x)


def _wrong_dtype(name: str, dtype: Any) -> str:
    fix = "Pass a boolean mask as mask=mw.dense(...)." if name == "bias" else "Pass floats."
    return f"attention: {name} has dtype {dtype}, expected a floating-point one of at least 16 bits. {fix}"


def _requires_grad(value: Any) -> bool:
    """Whether a gradient may be asked for; inside a transform of torch.func it may be."""
    if isinstance(value, np.ndarray):
        return False
    import torch

    if torch.compiler.is_compiling():
        return bool(value.requires_grad)
    return bool(value.requires_grad or torch._C._are_functorch_transforms_active())


def _term_index(term: Any, requires_grad: bool) -> TermIndex:
    if isinstance(term, DistanceTerm):
        return TermIndex("distance", zero=term.zero, requires_grad=requires_grad)
    if isinstance(term, GridTerm):
        return TermIndex("grid", height=term.height, width=term.width, requires_grad=requires_grad)
    return TermIndex("tensor", requires_grad=requires_grad)


def _check_fit(index: TermIndex, shape: tuple[int, ...], frame: Frame) -> None:
    """Raise if values of this shape do not cover every cell of the frame."""
    sizes = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    first, last = 0 - (frame.q_stop - 1), frame.kv_len - 1 - frame.q_start
    if index.kind == "tensor":
        fits = len(shape) == 4 and all(
            own == 1 or own == size for own, size in zip(shape, sizes, strict=True)
        )
        expected = f"shape {sizes}, with 1 where it is shared"
    elif index.kind == "distance":
        low, high = first + index.zero, last + index.zero
        fits = len(shape) == 2 and (shape[0] == 1 or shape[0] == frame.heads)
        fits = fits and (frame.q_len == 0 or frame.kv_len == 0 or (low >= 0 and high < shape[1]))
        expected = f"(heads or 1, distances) with a value for the distances {first} to {last}"
    else:
        size, last_row = index.height * index.width, max(frame.q_stop, frame.kv_len)
        fits = shape[1:] == (2 * index.height - 1, 2 * index.width - 1)
        fits = fits and (shape[0] == 1 or shape[0] == frame.heads)
        fits = fits and frame.q_start >= 0 and last_row <= size
        expected = f"the values of a grid with {last_row} or more positions"
    if not fits:
        raise FrameError(
            f"attention: a bias term of kind {index.kind} has values of shape {shape}. "
            f"q and k need {expected}."
        )


# ── coordinates ───────────────────────────────────────────────────────────────────────────────────


def term_coordinates(params: AttentionParams, index: TermIndex) -> tuple[IntArray, IntArray, int]:
    """Coordinates of rows and keys, and an offset, of a term of kind "distance" or "grid".

    Query row r and key k have the value at `keys[k] - rows[r] + offset` along the flattened axes
    of the values after the heads.
    """
    rows, keys = term_positions(params)
    if index.kind == "distance":
        return rows, keys, index.zero
    pitch = 2 * index.width - 1
    rows, keys = (p // index.width * pitch + p % index.width for p in (rows, keys))
    return rows, keys, (index.height - 1) * pitch + index.width - 1


def term_positions(params: AttentionParams) -> Positions:
    """The absolute positions of the queries and keys of a call."""
    if params.positions is not None:
        return params.positions
    first = params.mask.frame.q_start
    shape = params.shape
    return Positions(np.arange(first, first + shape.q_len), np.arange(shape.kv_len))


class CellIndex:
    """The values of all bias terms in a block of cells, on PyTorch operators.

    Args:
        params: The parameters of the call.
        rows: Indices of the query rows of the block.
        keys: Indices of its keys.
        device: The device of the values.
    """

    def __init__(
        self, params: AttentionParams, rows: IntArray, keys: IntArray, device: Any
    ) -> None:
        import torch

        self.params = params
        self.rows, self.keys = (torch.from_numpy(x).to(device) for x in (rows, keys))
        self.cells: list[Any] = []  # flat indices (rows, keys) of each term that has coordinates
        for index in params.terms:
            found = None
            if index.kind != "tensor":
                row, key, offset = term_coordinates(params, index)
                flat = key[keys][None] - row[rows][:, None] + offset
                found = torch.from_numpy(np.ascontiguousarray(flat, np.int64)).to(device)
            self.cells.append(found)

    def bias(self, values: tuple[Any, ...], dtype: torch.dtype) -> Any:
        """The sum of the terms, broadcastable to (batch, heads, rows, keys); 0.0 without terms."""
        total: Any = 0.0
        for value, cells in zip(values, self.cells, strict=True):
            if cells is None:
                part = value
                if value.shape[2] != 1:
                    part = part.index_select(2, self.rows)
                if value.shape[3] != 1:
                    part = part.index_select(3, self.keys)
            else:
                part = value.flatten(1)[:, cells]
            total = total + part.to(dtype)
        return total

    def add_gradients(self, ds: Any, grads: list[Any]) -> None:
        """Add the gradient of the scores, (batch, heads, rows, keys), to those of the values."""
        for grad, cells, index in zip(grads, self.cells, self.params.terms, strict=True):
            if not index.requires_grad:
                continue
            if cells is None:
                sizes = (
                    *grad.shape[:2],
                    *(ds.shape[n] if grad.shape[n] != 1 else 1 for n in (2, 3)),
                )
                part = ds.sum_to_size(sizes)
                rows = self.rows if grad.shape[2] != 1 else self.rows.new_zeros(1)
                keys = self.keys if grad.shape[3] != 1 else self.keys.new_zeros(1)
                grad[:, :, rows[:, None], keys] += part
            else:
                by_head = ds.sum(0) if grad.shape[0] != 1 else ds.sum((0, 1)).unsqueeze(0)
                grad.flatten(1).index_add_(1, cells.flatten(), by_head.flatten(1))


def sink_factor(lse: Any, sinks: Any) -> Any:
    """The factor of the output that the sinks are: (batch, heads, rows); 1 - p of the sink."""
    import torch

    finite = lse.masked_fill(lse == -math.inf, 0.0)  # the output of these rows is 0
    return torch.sigmoid(finite - sinks.to(lse.dtype).unsqueeze(-1))


def sink_row_gradient(lse: Any, sinks: Any, grad_out: Any, out: Any) -> Any:
    """The gradient of the sinks by row, (batch, heads, rows), in the dtype of lse."""
    weight = 1 - sink_factor(lse, sinks)
    delta = (grad_out * out).sum(-1)
    return -(weight * delta).masked_fill(lse == -math.inf, 0.0)
