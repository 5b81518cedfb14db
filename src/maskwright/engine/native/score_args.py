"""Soft cap, bias and sinks as the C kernel reads them: `ScoreArgs`, and the buffers of gradients."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine.native import ScoreArgs, Term

if TYPE_CHECKING:
    from maskwright.bias.terms import Term as BiasTerm
    from maskwright.engine.call import Call

MAX_PARTIAL_BYTES: Final = 64 << 20
"""Size up to which each (batch, head) has its own gradient of a tensor that they share."""


class ScoreBuffers(NamedTuple):
    """The structure, and everything that it points to."""

    args: ScoreArgs
    alive: tuple[Any, ...]

    @property
    def address(self) -> int:
        """The address of the structure."""
        return ctypes.addressof(self.args)


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


def score_buffers(
    call: Call, grads: ScoreGradients | None = None, rows: slice = slice(None)
) -> ScoreBuffers:
    """Returns the kernel's arguments for soft cap, bias and sinks.

    Args:
        call: The call.
        grads: The buffers of gradients in a backward pass.
        rows: The query rows of this kernel call; all if there is a bias.
    """
    scores = call.scores
    args = ScoreArgs(softcap=scores.softcap or 0.0, num_terms=len(scores.terms))
    alive: list[Any] = []
    for n, term in enumerate(scores.terms):
        args.terms[n], held = _term(call, term)
        if grads is not None and grads.terms[n] is not None:
            _set_gradient(args.terms[n], grads.terms[n], isinstance(term, TensorTerm))
        alive.append(held)
    if scores.sinks is not None:
        sinks = _float32(scores.sinks, 1)
        args.sinks = _address(sinks)
        alive.append(sinks)
    if grads is not None:
        args.in_order = grads.in_order
        if grads.sinks is not None:
            own = grads.sinks[:, :, rows]
            args.dsinks = (own.data_ptr(), *own.stride())
    return ScoreBuffers(args, tuple(alive))


def _term(call: Call, term: BiasTerm) -> tuple[Term, Any]:
    """The structure of a term, and what it points to."""
    if isinstance(term, TensorTerm):
        value = _float32(term.values)
        strides = [
            stride if size != 1 else 0
            for size, stride in zip(value.shape, _strides(value), strict=True)
        ]
        return Term(_address(value), *strides), value
    value = _float32(term.values, len(term.values.shape) if isinstance(term, GridTerm) else 1)
    head_stride = _strides(value)[0] if value.shape[0] != 1 else 0
    if isinstance(term, DistanceTerm) and call.positions is None:
        origin = term.zero - call.mask.frame.q_start
        return Term(_address(value), 0, head_stride, -1, 1, origin), value
    rows, keys, origin = term.coordinates(call.bias_positions())
    held = [np.require(x, np.int32, ["C", "A"]) for x in (rows, keys)]
    addresses = (x.ctypes.data for x in held)
    return Term(_address(value), 0, head_stride, 0, 0, origin, *addresses), (value, held)


def _set_gradient(term: Term, grad: Any, by_row: bool) -> None:
    strides = [
        stride if size != 1 else 0 for size, stride in zip(grad.shape, grad.stride(), strict=True)
    ]
    term.grad = grad.data_ptr()
    term.grad_batch_stride, term.grad_head_stride = strides[:2]
    if by_row:
        term.grad_row_stride = strides[2]
    else:
        term.grad_length = grad.shape[2]


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


def _strides(x: Any) -> tuple[int, ...]:
    if isinstance(x, np.ndarray):
        return tuple(stride // x.itemsize for stride in x.strides)
    return tuple(x.stride())


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
    found: list[Any] = []
    for term, learnable, grad in zip(scores.terms, scores.learnable, grads.terms, strict=True):
        value = term.values
        if not learnable:
            found.append(value.new_empty(0))
        elif grad is None:
            # A value per row: its gradient is the sum of dS over the keys. That is 0, but for the
            # gradient of the logsumexp and the weight of the sink.
            rows = torch.zeros(lse.shape, dtype=torch.float32)
            if grad_lse is not None:
                rows = rows + grad_lse.to(torch.float32).masked_fill(lse == -torch.inf, 0.0)
            if grads.sinks is not None:
                rows = rows - grads.sinks
            found.append(rows.unsqueeze(-1).sum_to_size(value.shape).to(value.dtype))
        elif isinstance(term, TensorTerm):
            found.append(grad.sum_to_size(value.shape).to(value.dtype))
        else:
            total = grad.sum(0) if value.shape[0] != 1 else grad.sum((0, 1))
            found.append(total.reshape(value.shape).to(value.dtype))
    if grads.sinks is not None:
        found.append(grads.sinks.sum((0, 2)).to(scores.sinks.dtype))
    return tuple(found)
