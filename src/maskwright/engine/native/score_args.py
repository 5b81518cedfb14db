"""Soft cap, bias and sinks as the extension module reads them, and the buffers of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm

if TYPE_CHECKING:
    from maskwright.bias.terms import Term
    from maskwright.engine.call import Call

MAX_PARTIAL_BYTES: Final = 64 << 20
"""Size up to which each (batch, head) has its own gradient of a tensor that they share."""


class ScoreGradients(NamedTuple):
    """The buffers of gradients of a backward pass, float32.

    Attributes:
        terms: For each term a buffer that the kernel adds to, or None.
        sinks: The gradient of the sink by row, (batch, heads, q_len), or None.
        in_order: Whether several (batch, kv_head) add to the same cells.
    """

    terms: tuple[Any, ...]
    sinks: Any
    in_order: bool


def score_args(
    call: Call, grads: ScoreGradients | None = None, rows: slice = slice(None)
) -> tuple[tuple[Any, ...], list[Any]] | tuple[None, None]:
    """Returns soft cap, bias and sinks as `read_scores` in csrc/module.c reads them.

    Args:
        call: The call.
        grads: The buffers of gradients in a backward pass.
        rows: The query rows of this kernel call; all if there is a bias.

    Returns:
        The argument, and the arrays to which it has addresses: keep them during the call. None and
        None if nothing changes the scores.
    """
    scores = call.scores
    if scores.is_empty:
        return None, None
    terms, alive = [], []
    for n, term in enumerate(scores.terms):
        grad = None if grads is None else grads.terms[n]
        values, coordinates, arrays = _term(call, term)
        terms.append((values, coordinates, None if grad is None else _gradient(term, grad)))
        alive.append(arrays)
    sinks = dsinks = None
    if scores.sinks is not None:
        sinks = _float32(scores.sinks, 1)
        alive.append(sinks)
    if grads is not None and grads.sinks is not None:
        part = grads.sinks[:, :, rows]
        dsinks = (part.data_ptr(), *part.stride())
    in_order = grads is not None and grads.in_order
    address = 0 if sinks is None else _address(sinks)
    return (scores.softcap or 0.0, in_order, address, dsinks, tuple(terms)), alive


def _term(call: Call, term: Term) -> tuple[tuple[int, ...], tuple[int, int] | None, Any]:
    """The values of a term, with strides and origin, its coordinates, and their arrays."""
    if isinstance(term, TensorTerm):
        value = _float32(term.values)
        return (_address(value), *_broadcast_strides(value), 0), None, value
    value = _float32(term.values, len(term.values.shape) if isinstance(term, GridTerm) else 1)
    head_stride = _broadcast_strides(value)[0]
    if isinstance(term, DistanceTerm) and call.positions is None:
        origin = term.zero - call.mask.frame.q_start
        return (_address(value), 0, head_stride, -1, 1, origin), None, value
    rows, keys, origin = term.coordinates(call.bias_positions())
    rows, keys = (np.require(x, np.int32, ["C", "A"]) for x in (rows, keys))
    coordinates = (rows.ctypes.data, keys.ctypes.data)
    return (_address(value), 0, head_stride, 0, 0, origin), coordinates, (value, rows, keys)


def _gradient(term: Term, grad: Any) -> tuple[int, ...]:
    """The address of the buffer, its strides, and its length if cells share values."""
    strides = _broadcast_strides(grad)
    if isinstance(term, TensorTerm):
        return (grad.data_ptr(), *strides[:3], 0)
    return (grad.data_ptr(), *strides[:2], 0, grad.shape[2])


def _float32(x: Any, contiguous: int = 0) -> Any:
    """The values in float32, with the last `contiguous` dimensions contiguous."""
    if isinstance(x, np.ndarray):
        x = np.asarray(x, np.float32)
        if contiguous or not x.flags.aligned or any(n % 4 for n in x.strides):
            return np.require(x, requirements=["C", "A"])
        return x
    import torch

    x = aligned(x.detach().to(torch.float32).resolve_neg())
    if contiguous == 1:
        return x if x.shape[-1] == 1 or x.stride(-1) == 1 else x.contiguous()
    return x.contiguous() if contiguous else x


def aligned(x: Any) -> Any:
    """The tensor, copied if its address is not a multiple of the element size, as in a byte buffer."""
    return x.clone() if x.data_ptr() % x.element_size() else x


def _address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def _broadcast_strides(x: Any) -> tuple[int, ...]:
    """The strides in elements; 0 for dimensions of size 1."""
    if isinstance(x, np.ndarray):
        strides = tuple(stride // x.itemsize for stride in x.strides)
    else:
        strides = x.stride()
    return tuple(n if size != 1 else 0 for size, n in zip(x.shape, strides, strict=True))


# ── gradients ─────────────────────────────────────────────────────────────────────────────────────


def score_gradients(call: Call) -> ScoreGradients:
    """Returns zeroed buffers for the gradients that the kernel computes.

    A value that several cells of a (batch, head) share has a gradient for each (batch, head). So
    has a tensor, if that is small; a large tensor that is shared has one of its own size, and the
    kernel computes one (batch, kv_head) after the other.
    """
    import torch

    scores = call.scores
    batch, heads, _, q_len, _, _, _ = call.shape
    buffers: list[Any] = []
    in_order = False
    for term, learnable in zip(scores.terms, scores.learnable, strict=True):
        shape: tuple[int, ...] | None = None
        value = term.values
        if not isinstance(term, TensorTerm):
            shape = (batch, heads, value[0].numel())
        elif value.shape[3] != 1:  # else it is computed from the rows, see `finish_gradients`
            shape = (batch, heads, *value.shape[2:])
            if 4 * int(np.prod(shape)) > MAX_PARTIAL_BYTES:
                in_order |= shape != tuple(value.shape)
                shape = tuple(value.shape)
        if not learnable:
            shape = None
        buffers.append(None if shape is None else torch.zeros(shape, dtype=torch.float32))
    sinks = (
        torch.zeros((batch, heads, q_len), dtype=torch.float32)
        if scores.sinks is not None
        else None
    )
    return ScoreGradients(tuple(buffers), sinks, in_order)


def finish_gradients(call: Call, grads: ScoreGradients, lse: Any, grad_lse: Any) -> tuple[Any, ...]:
    """Returns the gradients of the values of each term, and of the sinks.

    Args:
        call: The call.
        grads: What the kernel computed.
        lse: The logsumexp.
        grad_lse: Its gradient, or None.
    """
    import torch

    scores = call.scores
    results: list[Any] = []
    for term, learnable, grad in zip(scores.terms, scores.learnable, grads.terms, strict=True):
        value = term.values
        if not learnable:
            results.append(value.new_empty(0))
        elif grad is None:
            # A value per row: its gradient is the sum of dS over the keys. That is 0, but for the
            # gradient of the logsumexp and the weight of the sink.
            rows = torch.zeros(lse.shape, dtype=torch.float32)
            if grad_lse is not None:
                rows = rows + grad_lse.to(torch.float32).masked_fill(lse == -torch.inf, 0.0)
            if grads.sinks is not None:
                rows = rows - grads.sinks
            results.append(rows.unsqueeze(-1).sum_to_size(value.shape).to(value.dtype))
        elif isinstance(term, TensorTerm):
            results.append(grad.sum_to_size(value.shape).to(value.dtype))
        else:
            total = grad.sum(0) if value.shape[0] != 1 else grad.sum((0, 1))
            results.append(total.reshape(value.shape).to(value.dtype))
    if grads.sinks is not None:
        results.append(grads.sinks.sum((0, 2)).to(scores.sinks.dtype))
    return tuple(results)
