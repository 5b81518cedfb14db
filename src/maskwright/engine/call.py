"""`Call`: everything that one call of attention depends on, and `read_call`, which constructs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.bias.scores import NO_SCORES, Scores, read_scores
from maskwright.bias.terms import Positions, positions_of
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.frame import Frame
from maskwright.engine.validate import (
    EVERYTHING,
    TensorSpec,
    bind,
    check_inputs,
    check_options,
    default_scale,
    dtype_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class AttentionOptions(NamedTuple):
    """The keyword arguments of `attention`, as the caller passed them."""

    scale: float | None = None
    dropout_p: float = 0.0
    enable_gqa: bool = False
    q_start: int | None = None
    impl: str = "auto"
    return_lse: bool = False
    softcap: float | None = None
    bias: Any = None
    sinks: Any = None


class AttentionShape(NamedTuple):
    """The sizes of q (batch, heads, q_len, head_dim), k and v (batch, kv_heads, kv_len, ...)."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int


class Dtypes(NamedTuple):
    """Names of the dtypes of q, of k and v, and of the output, such as "bfloat16"."""

    q: str
    kv: str
    out: str


class Mode(Enum):
    """How the result of a call is used.

    EAGER: computed at once, and differentiated by autograd.
    GRAPH: recorded in a graph that is traced.
    OPERATOR: computed by the operator of a graph, which differentiates by itself.
    PARTIAL: the result over some of the keys, which the caller merges and differentiates.
    NUMPY: computed at once of arrays, and not differentiated.
    """

    EAGER = "eager"
    GRAPH = "graph"
    OPERATOR = "operator"
    PARTIAL = "partial"
    NUMPY = "numpy"


class GraphMask(NamedTuple):
    """A mask in a graph that is traced: it is bound when the graph runs.

    Attributes:
        mask: The mask, bound or not.
        bound: The bound mask, or None while torch.compile traces.
        handle: A tensor with the handle of a mask that only the running graph knows, or None.
        q_start: Position of the first query, as it was passed.
        frame: Sizes and positions of the call.
    """

    mask: Mask | BoundMask
    bound: BoundMask | None
    handle: Any
    q_start: int | None
    frame: Frame


@dataclass(eq=False)  # not frozen, which takes three times as long to construct
class Call:
    """Everything that one call of attention depends on. `read_call` constructs it.

    It does not change: `changed` returns a copy.

    Attributes:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        mask: The bound mask. It is 1 along batch or heads where it is shared.
        shape: The sizes of q, k and v.
        scale: Factor of the scores q · k.
        scores: Soft cap, bias and sinks.
        dtypes: Names of the dtypes of the tensors.
        device: Type of their device, such as "cpu".
        mode: How the result is used.
        impl: Name of the backend, or "auto".
        return_lse: Whether the caller wants the logsumexp.
        requires_grad: Whether a backward pass may follow.
        dropout_p: Probability with which a softmax weight is dropped.
        seed: Seed of the dropout mask. Not used if `dropout_p` is 0.
        positions: Positions of queries and keys for the bias; those of the mask's frame if None.
    """

    q: Any
    k: Any
    v: Any
    mask: Any  # a BoundMask, or a GraphMask if the mode is GRAPH
    shape: AttentionShape
    scale: float
    scores: Scores
    dtypes: Dtypes
    device: str
    mode: Mode
    impl: str = "auto"
    return_lse: bool = False
    requires_grad: bool = False
    dropout_p: float = 0.0
    seed: int = 0
    positions: Positions | None = None

    @property
    def dtype(self) -> str:
        """Name of the dtype of q."""
        return self.dtypes.q

    @property
    def tensors(self) -> tuple[Any, ...]:
        """q, k, v, the values of each bias term, and the sinks if there are any."""
        return (self.q, self.k, self.v, *self.scores.tensors)

    @property
    def bound(self) -> BoundMask | None:
        """The bound mask; None while torch.compile traces."""
        return self.mask.bound if isinstance(self.mask, GraphMask) else self.mask

    @property
    def calls_backward(self) -> bool:
        """Whether the backward pass is called with saved tensors, not by autograd."""
        return self.mode in (Mode.OPERATOR, Mode.PARTIAL)

    def changed(self, **fields: Any) -> Call:
        """A copy with other values of some fields; `dataclasses.replace` takes longer."""
        copy = object.__new__(Call)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(fields)
        return copy

    def with_tensors(self, tensors: Sequence[Any]) -> Call:
        """The same call of other tensors, in the order of `tensors`."""
        q, k, v, *score_tensors = tensors
        scores = self.scores.with_tensors(score_tensors) if score_tensors else self.scores
        return self.changed(q=q, k=k, v=v, scores=scores)

    def without_tensors(self) -> Call:
        """The same call without its tensors, which autograd saves by itself."""
        scores = self.scores
        if scores.tensors:
            scores = scores.with_tensors([None] * len(scores.terms))
        return self.changed(q=None, k=None, v=None, scores=scores)

    def bias_positions(self) -> Positions:
        """The absolute positions of queries and keys, which a bias depends on."""
        return positions_of(self.mask.frame) if self.positions is None else self.positions


def read_call(
    tensors: Sequence[Any],
    mask: Any,
    options: AttentionOptions,
    *,
    mode: Mode,
    lengths: tuple[int, int] | None = None,
    scores: Scores | None = None,
    handle: Any = None,
) -> Call:
    """Read and validate what a caller passed. Nothing else constructs a `Call`.

    Args:
        tensors: q, k and v: tensors, arrays or `TensorSpec`s.
        mask: A mask, bound or not, or None.
        options: The keyword arguments, with numbers as Python numbers.
        mode: How the result is used.
        lengths: q_len and kv_len of the whole sequence, of which the tensors have some rows.
        scores: Soft cap, bias and sinks if they are known; else they are read from the options.
        handle: In a graph, a tensor with the handle of the mask, in place of `mask`.

    Raises:
        AttentionError: An argument is invalid, or tensors do not fit each other.
        FrameError: The mask or the bias does not match the sizes.
        Unsupported: A tensor subclass or storage that no backend reads.
    """
    q, k, v = tensors
    shape = AttentionShape(*check_inputs(q, k, v, options.enable_gqa))
    check_options(options)
    if lengths is not None:
        shape = shape._replace(q_len=lengths[0], kv_len=lengths[1])
    sizes = (shape.batch, shape.heads, shape.q_len, shape.kv_len)
    bound = (
        _graph_mask(mask, sizes, options.q_start, handle)
        if mode is Mode.GRAPH
        else bind(mask, sizes, options.q_start)
    )
    if scores is None:
        scores = NO_SCORES
        if not (options.softcap is options.bias is options.sinks is None):
            frame = bound.frame
            if not options.bias is options.sinks is None:
                frame = replace(frame, batch=shape.batch, heads=shape.heads)
            like = None if isinstance(q, TensorSpec) else q
            scores = read_scores(options.bias, options.softcap, options.sinks, frame, like)
    dtype, device, requires_grad, seed = dtype_name(q.dtype), "cpu", False, 0
    if mode is Mode.NUMPY:
        seed = int(np.random.randint(2**62)) if options.dropout_p else 0
    elif isinstance(q, TensorSpec):
        device, requires_grad = q.device, q.requires_grad
    else:
        device = q.device.type
        if sys.modules["torch"].is_grad_enabled():  # an import takes longer
            requires_grad = q.requires_grad or k.requires_grad or v.requires_grad
            if not requires_grad and scores is not NO_SCORES:
                requires_grad = any(x.requires_grad for x in scores.tensors)
    return Call(
        *(q, k, v, bound, shape),
        default_scale(shape.head_dim) if options.scale is None else float(options.scale),
        scores,
        Dtypes(dtype, dtype, dtype),
        device,
        mode,
        options.impl,
        options.return_lse,
        requires_grad,
        float(options.dropout_p),
        seed,
    )


def _graph_mask(
    mask: Any, sizes: tuple[int, int, int, int], q_start: int | None, handle: Any
) -> GraphMask:
    import torch

    mask = EVERYTHING if mask is None else mask
    bound = None
    if not isinstance(mask, (Mask, BoundMask)) or not torch.compiler.is_compiling():
        bound = bind(mask, sizes, q_start)  # raises for an invalid mask
    batch, heads, q_len, kv_len = sizes
    if isinstance(mask, BoundMask):
        first = mask.frame.q_start
    else:
        first = kv_len - q_len if q_start is None else q_start
    return GraphMask(mask, bound, handle, q_start, Frame(q_len, kv_len, batch, heads, first))
