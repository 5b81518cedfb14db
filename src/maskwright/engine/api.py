"""`attention`: exact attention under any mask. `explain_backend`: how it would be computed.

Both build the same `AttentionParams` and ask the same `select_backend`. Two context variables
extend `attention`: an override replaces it, as context parallelism does, and an observer sees
all calls, as tracing does. Both apply to the current thread and context only.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from maskwright._optional_deps import missing
from maskwright.core.validate import read_choice
from maskwright.engine import validate
from maskwright.engine.cost import WorkEstimate, estimate_work
from maskwright.engine.dispatch import DESCRIPTIONS, backend_module, select_backend
from maskwright.engine.native import loaded
from maskwright.engine.params import (
    DTYPES,
    AttentionOptions,
    AttentionParams,
    AttentionShape,
    ScoreTensors,
)
from maskwright.engine.scores import read_scores
from maskwright.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask


class Override(Protocol):
    """Computes attention in place of the selected backend."""

    def __call__(
        self, q: Any, k: Any, v: Any, mask: Mask | BoundMask | None, options: AttentionOptions
    ) -> Any:
        """Return what `attention` returns."""


class Observer(Protocol):
    """Sees an attention call, and computes it by calling `compute`."""

    def __call__(
        self, params: AttentionParams, tensors: tuple[Any, ...], compute: Callable[[], Any]
    ) -> Any:
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
        observer: Called with the parameters, (q, k, v) and a function that computes the call.
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
            without dimensions. No gradient reaches it.
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
        result = _fast_path().attend((q, k, v), mask, scale, enable_gqa, q_start, return_lse)
        if result is not None:
            return result
    options = validate.read_numbers(
        AttentionOptions(
            scale, dropout_p, enable_gqa, q_start, impl, return_lse, softcap, bias, sinks
        )
    )
    q, k, v = validate.broadcast(q, k, v, enable_gqa)
    if isinstance(q, np.ndarray):
        out, lse = _attention_numpy((q, k, v), mask, options)
        return (out, lse) if return_lse else out
    autograd = _autograd()
    q, k, v = autograd.autocast(q, k, v)
    observers: tuple[Observer, ...] = ()
    if _hooks or not autograd.torch.compiler.is_compiling():
        override, observers = _override.get(), _observers.get()
        if override is not None:
            return override(q, k, v, mask, options)
    shape = validate.check_tensors(q, k, v, enable_gqa)
    validate.check_options(options)
    out, lse = (
        _observed((q, k, v), shape, mask, options)
        if observers
        else autograd.attend_tensors((q, k, v), shape, mask, options)
    )
    return (out, lse) if return_lse else out


def _autograd() -> Any:
    """The module for torch tensors, imported on first use."""
    try:
        from maskwright.engine import autograd
    except ModuleNotFoundError as error:
        raise (missing("attention", error) or error) from error
    return autograd


def _fast_path() -> Any:
    """The module for plain CPU tensors, imported on first use."""
    try:
        from maskwright.engine import fast_path
    except ModuleNotFoundError as error:
        raise (missing("attention", error) or error) from error
    return fast_path


def _observed(tensors: Any, shape: AttentionShape, mask: Any, options: AttentionOptions) -> Any:
    """Compute a call through all observers, the innermost one last."""
    autograd = _autograd()
    params, _ = autograd.make_params(tensors, shape, mask, options)

    def compute(left: tuple[Observer, ...]) -> Any:
        if not left:
            return autograd.attend_tensors(tensors, shape, mask, options)
        return left[0](params, tensors, lambda: compute(left[1:]))

    return compute(_observers.get())


def _attention_numpy(tensors: Any, mask: Any, options: AttentionOptions) -> Any:
    """Attention of numpy arrays, by the C kernel."""
    if options.dropout_p == 1:
        out, lse = _attention_numpy(tensors, mask, options._replace(dropout_p=0.0))
        return np.zeros_like(out), lse
    params, scores = _numpy_params(tensors, mask, options)
    return backend_module("native").forward_numpy(params, *tensors, scores)


def _numpy_params(
    tensors: Any, mask: Any, options: AttentionOptions
) -> tuple[AttentionParams, ScoreTensors]:
    q, k, v = tensors
    shape = validate.check_arrays(q, k, v, options.enable_gqa)
    validate.check_options(options)
    if options.impl not in ("auto", "native"):
        raise Unsupported(
            f'attention: impl="{options.impl}" takes torch tensors, and q is a numpy array. '
            "Leave impl out, or pass torch tensors.",
            target=options.impl,
        )
    bound = validate.bind(mask, (*shape[:2], shape.q_len, shape.kv_len), options.q_start)
    frame = replace(bound.frame, batch=shape.batch, heads=shape.heads)
    terms, scores = read_scores(options, frame, q)
    params = AttentionParams(
        bound,
        shape,
        validate.default_scale(shape.head_dim) if options.scale is None else float(options.scale),
        q.dtype.name,
        dropout_p=options.dropout_p,
        seed=int(np.random.randint(2**62)) if options.dropout_p else 0,
        impl=options.impl,
        return_lse=options.return_lse,
        **_score_params(options, terms, scores),
    )
    problem = backend_module("native").unsupported(params)
    if problem is not None:
        raise Unsupported(
            f"attention: numpy arrays are computed by the C kernel, which {problem}. "
            "Pass torch tensors.",
            target="native",
        )
    return params, scores


def _score_params(options: AttentionOptions, terms: Any, scores: ScoreTensors) -> dict[str, Any]:
    """The fields of `AttentionParams` for soft cap, bias and sinks."""
    softcap = None if options.softcap is None else float(options.softcap)
    return {"softcap": softcap, "terms": terms, "has_sinks": scores.sinks is not None}


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
    if isinstance(q, np.ndarray):
        params, _ = _numpy_params((q, k, v), mask, options)
    elif isinstance(q, tuple):
        params = _shape_params((q, k, v), mask, options)
        dtype = read_choice(dtype, "explain_backend: dtype", DTYPES)
        params = replace(
            params, dtype=dtype, device=_device_type(device), requires_grad=requires_grad
        )
    else:
        autograd = _autograd()
        q, k, v = autograd.autocast(q, k, v)
        shape = validate.check_tensors(q, k, v, enable_gqa)
        validate.check_options(options)
        params, _ = autograd.make_params((q, k, v), shape, mask, options)
    backend = select_backend(params)
    kind = (loaded().isa if backend.name == "native" else None) or backend.name
    return BackendChoice(backend.name, backend.reason, estimate_work(params, kind, backward))


def _shape_params(shapes: Any, mask: Any, options: AttentionOptions) -> AttentionParams:
    for name, shape in zip("qkv", shapes, strict=True):
        sizes = shape if isinstance(shape, tuple) else ()
        if len(sizes) != 4 or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ArgumentError(
                f"explain_backend: {name} has shape {shape}. Expected four sizes of 0 or more: "
                "(batch, heads, length, head_dim)."
            )
    shapes = validate.broadcast_shapes(shapes, options.enable_gqa)
    q, k, v = shapes
    validate.check_shapes(q, k, v, options.enable_gqa)
    validate.check_options(options)
    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _), (*_, v_head_dim) = shapes
    bound = validate.bind(mask, (batch, heads, q_len, kv_len), options.q_start)
    frame = replace(bound.frame, batch=batch, heads=heads)
    terms, scores = read_scores(options, frame, _first_array(options))
    return AttentionParams(
        bound,
        AttentionShape(batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim),
        validate.default_scale(head_dim) if options.scale is None else float(options.scale),
        dropout_p=options.dropout_p,
        impl=options.impl,
        return_lse=options.return_lse,
        **_score_params(options, terms, scores),
    )


def _first_array(options: AttentionOptions) -> Any:
    """An array or tensor of the bias or the sinks, which stands for q where only shapes are given."""
    held = (*getattr(options.bias, "tensors", (options.bias,)), options.sinks)
    tensors = [x for x in held if hasattr(x, "shape")]
    torch_tensors = [x for x in tensors if not isinstance(x, np.ndarray)]
    return next(iter((*torch_tensors, *tensors)), np.zeros(0))


def _device_type(device: str) -> str:
    kind = str(device).partition(":")[0]
    if not kind.isidentifier():
        raise ArgumentError(
            f"explain_backend: device={device!r} is not a device. Pass one such as 'cpu' or 'cuda'."
        )
    return kind
