"""`attention`: exact attention under any mask. `explain_backend`: how it would be computed.

Both read the same `Call` and ask the same `select_backend`. Two context variables
extend `attention`: an override replaces it, as context parallelism does, and an observer sees
all calls, as tracing does. Both apply to the current thread and context only.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from maskwright._optional_deps import missing
from maskwright.core.validate import read_choice
from maskwright.engine import validate
from maskwright.engine.call import AttentionOptions, Mode, read_call
from maskwright.engine.cost import WorkEstimate, estimate_work
from maskwright.engine.native.kernel import loaded
from maskwright.engine.select import DESCRIPTIONS, is_flex_in_graph, select_backend
from maskwright.engine.validate import DTYPES, TensorSpec
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.engine.call import Call


class Override(Protocol):
    """Computes attention in place of the selected backend."""

    def __call__(
        self, q: Any, k: Any, v: Any, mask: Mask | BoundMask | None, options: AttentionOptions
    ) -> Any:
        """Return what `attention` returns."""


class Observer(Protocol):
    """Sees an attention call, and computes it by calling `compute`."""

    def __call__(self, call: Call, compute: Callable[[], Any]) -> Any:
        """Return what `compute()` returns: output and logsumexp."""


_override: ContextVar[Override | None] = ContextVar("attention_override", default=None)
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("attention_observers", default=())
_hooks_lock = Lock()
_hooks = 0  # overrides and observers of all threads; torch.compile cannot read context variables


@contextmanager
def override_attention(override: Override) -> Iterator[None]:
    """Within the context, `attention` calls `override` instead of a backend.

    Args:
        override: The replacement. It must use or refuse every option.
    """
    with _hook(_override, override):
        yield


@contextmanager
def observe_attention(observer: Observer) -> Iterator[None]:
    """Within the context, every `attention` call goes through `observer`.

    Args:
        observer: Called with the call and a function that computes it.
    """
    with _hook(_observers, (*_observers.get(), observer)):
        yield


@contextmanager
def _hook(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    global _hooks
    token = variable.set(value)
    with _hooks_lock:
        _hooks += 1
    try:
        yield
    finally:
        with _hooks_lock:
            _hooks -= 1
        variable.reset(token)


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | BoundMask | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    q_start: int | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> Any:
    """Exact attention of q over k and v under a mask.

    No tensor of shape (q_len, kv_len) is built, except by `impl="sdpa"` under masks other than causal,
    and by `impl="reference"`. A masked cell has no influence on outputs or gradients, even if it
    holds NaN or infinity; with `impl="sdpa"` and "flex" its values must be finite. A fully
    masked row, and a row whose visible scores are all -inf, returns zeros with gradient 0 and a
    logsumexp of -inf; a visible score of +inf gives NaN and a logsumexp of +inf.

    The order of operations is that of ONNX's Attention and of Gemma 2:

    1. scores = scale * q · k
    2. scores = softcap * tanh(scores / softcap)
    3. scores = scores + bias
    4. masked cells are removed
    5. weights = exp(scores) / (sum of exp(scores) over the visible keys + exp(sink of the head))
    6. dropout of the weights

    Args:
        q: Queries (batch, heads, q_len, head_dim). A torch tensor, or a numpy array in float32 or
            float16, for which numpy arrays are returned, without gradients.
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim). As in `scaled_dot_product_attention`, a batch
            size of 1, a number of heads of 1 without `enable_gqa`, and missing leading dimensions
            broadcast, if one of the three has four dimensions.
        mask: A mask, bound or not. None attends to all keys.
        scale: Factor of the scores, 1 / sqrt(head_dim) by default. A number, also of numpy or a tensor
            without dimensions. No gradient reaches it: a tensor that is differentiated is refused.
            Under torch.compile a tensor breaks the graph.
        softcap: Bound of the scores: they become softcap * tanh(scores / softcap). None for none.
        bias: A bias of `mw.bias`, or a tensor that broadcasts to (batch, heads, q_len, kv_len).
            It is added to the scores after the soft cap. Its values are finite: it changes scores
            inside the mask, never the mask. Learnable values get gradients.
        sinks: Attention sinks: one logit per head, (heads,), learnable. It takes part in the
            softmax of every row like the score of one more key, which has no value. A fully masked
            row stays 0. -inf is no sink.
        dropout_p: Probability with which a softmax weight is dropped. As in
            `scaled_dot_product_attention` it applies whenever it is not 0; pass 0 in evaluation. With
            1 the output is 0.
        enable_gqa: Allow fewer KV heads than query heads: grouped-query attention.
        q_start: Position of the first query. By default the last query is aligned with the last
            key, as with a KV cache; 0 is the alignment of SDPA's `is_causal`.
        impl: The backend: "native", "blocks", "sdpa", "flex", "triton", "reference", or "auto" to select
            one. A backend that is named is used or refused, never replaced.
        return_lse: Return the logsumexp of each row, too: that of the scores of its visible keys
            after soft cap and bias, without the sink, so that partial results can be merged.

    Returns:
        The output (batch, heads, q_len, v_head_dim) in the dtype of q, and for torch tensors in its
        memory layout, as for `scaled_dot_product_attention`. With `return_lse` a tuple with the
        logsumexp (batch, heads, q_len). Both are differentiable.

    Raises:
        AttentionError: An argument is invalid, or tensors do not fit each other. Like the two below,
            a RuntimeError and a ValueError.
        FrameError: The mask does not match the sizes of q and k.
        Unsupported: The named backend, or the transform that is active, does not support the call.

    >>> import torch, maskwright as mw
    >>> q = k = torch.zeros(1, 1, 4, 2)
    >>> v = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4, 1)
    >>> mw.attention(q, k, v, mw.causal()).flatten().tolist()
    [1.0, 1.5, 2.0, 2.5]
    >>> mw.attention(q, k, v, mw.window(back=1)).flatten().tolist()
    [1.0, 1.5, 2.5, 3.5]

    A sink of 0 has the weight of one more key with score 0:

    >>> mw.attention(q, k, v, mw.window(back=1), sinks=torch.zeros(1)).flatten()
    tensor([0.5000, 1.0000, 1.6667, 2.3333])
    """
    if (
        softcap is bias is sinks is None
        and type(dropout_p) is float
        and dropout_p == 0.0
        and impl in ("auto", "native")
        and not (_hooks or isinstance(q, np.ndarray))
    ):
        result = _fast_path().try_native((q, k, v), mask, scale, enable_gqa, q_start, return_lse)
        if result is not None:
            return result
    options = validate.read_numbers(
        AttentionOptions(
            scale, dropout_p, enable_gqa, q_start, impl, return_lse, softcap, bias, sinks
        )
    )
    q, k, v = validate.broadcast(q, k, v, enable_gqa)
    if isinstance(q, np.ndarray):
        out, lse = _attend_numpy(read_call((q, k, v), mask, options, mode=Mode.NUMPY))
        return (out, lse) if return_lse else out
    torch_op = _torch_op()
    q, k, v = torch_op.autocast(q, k, v)
    observers: tuple[Observer, ...] = ()
    if _hooks or not torch_op.torch.compiler.is_compiling():
        override, observers = _override.get(), _observers.get()
        if override is not None:
            return override(q, k, v, mask, options)
    call = read_call((q, k, v), mask, options, mode=torch_op.mode_of(q, k, v, impl))
    if observers:
        out, lse = _observed(call, observers)
    else:
        out, lse = torch_op.run(call) if call.mode is Mode.EAGER else _attend(call)
    return (out, lse) if return_lse else out


def _attend(call: Call) -> Any:
    """Output and logsumexp of a call of tensors: computed now, or as nodes of a graph."""
    if call.mode is not Mode.GRAPH:
        return _torch_op().run(call)
    if _torch_op().is_compiled() and is_flex_in_graph(call):
        from maskwright.engine.backends import flex_graph

        return flex_graph.attend(call)
    from maskwright.engine import graph_op

    return graph_op.call_custom_op(call)


def _torch_op() -> Any:
    """The module for torch tensors, imported on first use."""
    try:
        from maskwright.engine import torch_op
    except ModuleNotFoundError as error:
        raise (missing("attention", error) or error) from error
    return torch_op


def _fast_path() -> Any:
    """The module for plain CPU tensors, imported on first use."""
    try:
        from maskwright.engine import fast_path
    except ModuleNotFoundError as error:
        raise (missing("attention", error) or error) from error
    return fast_path


def _observed(call: Call, observers: tuple[Observer, ...]) -> Any:
    """Compute a call through all observers, the innermost one last."""
    if not observers:
        return _attend(call)
    return observers[0](call, lambda: _observed(call, observers[1:]))


def _attend_numpy(call: Call) -> Any:
    """Attention of numpy arrays, by the C kernel."""
    backend = select_backend(call).module
    if call.dropout_p == 1:
        out, lse = backend.forward_numpy(call.changed(dropout_p=0.0))
        return np.zeros_like(out), lse
    return backend.forward_numpy(call)


# ── explanation ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BackendChoice:
    """The backend of an attention call, the reason, and the work that it does.

    >>> import maskwright as mw
    >>> choice = mw.explain_backend((1, 8, 64, 32), mask=mw.causal(), impl="blocks")
    >>> choice.backend, choice.reason
    ('blocks', 'requested with impl="blocks"')
    """

    backend: str
    reason: str
    work: WorkEstimate

    def __str__(self) -> str:
        return f"{self.backend}: {DESCRIPTIONS[self.backend]}; {self.reason}\n{self.work}"


def explain_backend(
    q: Any,
    k: Any = None,
    v: Any = None,
    mask: Mask | BoundMask | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    q_start: int | None = None,
    impl: str = "auto",
    return_lse: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    requires_grad: bool = False,
    backward: bool = False,
    compiled: bool = False,
) -> BackendChoice:
    """The backend that `attention` selects for the same arguments, and why.

    Args:
        q: Queries, as for `attention`, or their shape (batch, heads, q_len, head_dim).
        k: Keys or their shape; those of q by default.
        v: Values or their shape; those of k by default.
        mask: As for `attention`.
        scale: As for `attention`.
        softcap: As for `attention`.
        bias: As for `attention`.
        sinks: As for `attention`.
        dropout_p: As for `attention`.
        enable_gqa: As for `attention`.
        q_start: As for `attention`.
        impl: As for `attention`.
        return_lse: As for `attention`.
        dtype: Name of the dtype, such as "bfloat16". Only with shapes; tensors have their own.
        device: Name of the device, such as "cuda". Only with shapes.
        requires_grad: Whether a backward pass follows. Only with shapes.
        backward: Estimate the work of the backward pass instead of the forward pass.
        compiled: Explain the call in a function that torch.compile compiles.

    Returns:
        The name of the backend, the reason, and a `WorkEstimate`.

    Raises:
        ArgumentError: An argument is invalid.
        FrameError: The mask does not match the sizes.
        Unsupported: The backend named by `impl` does not support the call.

    >>> import maskwright as mw
    >>> mw.explain_backend((1, 8, 1024, 64), mask=mw.causal(), dtype="float64").backend
    'blocks'
    """
    options = validate.read_numbers(
        AttentionOptions(
            scale, dropout_p, enable_gqa, q_start, impl, return_lse, softcap, bias, sinks
        )
    )
    k = q if k is None else k
    v = k if v is None else v
    q, k, v = validate.broadcast(q, k, v, enable_gqa)
    mode = Mode.EAGER
    if isinstance(q, tuple):
        q, k, v = _specs((q, k, v), dtype, device, requires_grad, options)
    elif isinstance(q, np.ndarray):
        mode = Mode.NUMPY
    else:
        q, k, v = _torch_op().autocast(q, k, v)
    call = read_call((q, k, v), mask, options, mode=mode)
    if compiled:
        if mode is Mode.NUMPY:
            raise ArgumentError(
                "explain_backend: compiled=True, but torch.compile does not compile calls of numpy "
                "arrays. Leave compiled out, or pass torch tensors."
            )
        call = call.changed(mode=Mode.GRAPH)
    backend = select_backend(call)
    kind = (loaded().isa if backend.name == "native" else None) or backend.name
    return BackendChoice(backend.name, backend.reason, estimate_work(call, kind, backward))


def _specs(
    shapes: Any, dtype: str, device: str, requires_grad: bool, options: AttentionOptions
) -> list[TensorSpec]:
    """q, k and v of which only the shapes are given."""
    for name, shape in zip("qkv", shapes, strict=True):
        sizes = shape if isinstance(shape, tuple) else ()
        if len(sizes) != 4 or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ArgumentError(
                f"explain_backend: {name} has shape {shape}. Expected four sizes of 0 or more: "
                "(batch, heads, length, head_dim)."
            )
    dtype = read_choice(dtype, "explain_backend: dtype", DTYPES)
    kind = str(device).partition(":")[0]
    if not kind.isidentifier():
        raise ArgumentError(
            f"explain_backend: device={device!r} is not a device. Pass one such as 'cpu' or 'cuda'."
        )
    shapes = validate.broadcast_shapes(shapes, options.enable_gqa)
    return [TensorSpec(shape, dtype, kind, requires_grad) for shape in shapes]
