"""Attention of torch tensors: autograd, vmap, and the operator for compiled graphs.

In eager mode an autograd function holds the parameters with the bound mask. A graph of
torch.compile cannot hold a mask, so there attention is the operator `maskwright::attend`, which
takes the mask's handle: a new mask is a new integer, and nothing is compiled again. A mask that is
bound while the graph runs, from data of the graph, has its handle in a tensor: `mask_handle` makes
one. The values of bias terms and the sinks are inputs of both, with gradients.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from maskwright.core import mask_registry
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.frame import Frame
from maskwright.engine import dispatch
from maskwright.engine.batched_grads import is_batched, map_batched
from maskwright.engine.dispatch import backend_module, select_backend, warn_without_kernel
from maskwright.engine.layout import empty_out, laid_out
from maskwright.engine.params import (
    DTYPES,
    AttentionParams,
    AttentionShape,
    Saved,
    ScoreTensors,
    TermIndex,
)
from maskwright.engine.scores import NO_SCORE_TENSORS, read_scores
from maskwright.engine.tangents import (
    forward_mode_unsupported,
    refuse_tangents,
    refuse_tangents_in_operator,
    with_checked_tangents,
)
from maskwright.engine.validate import EVERYTHING, bind, check_storage, default_scale
from maskwright.errors import AttentionError, Unsupported

if TYPE_CHECKING:
    from maskwright.engine.params import AttentionOptions

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
TERM_KINDS = ("distance", "grid", "tensor")
DTYPE_NAMES = {getattr(torch, name): name for name in DTYPES}
GRAPH_IMPLS = ("auto", "native", "blocks", "triton")  # autograd differentiates the others by itself
AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def autocast(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """q, k and v in autocast's dtype where autocast is enabled, as for SDPA."""
    if not isinstance(q, torch.Tensor) or q.is_meta:
        return q, k, v
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    q, k, v = (
        x.to(dtype) if getattr(x, "dtype", None) in AUTOCAST_DTYPES else x for x in (q, k, v)
    )
    return q, k, v


def is_exporting() -> bool:
    """Whether torch.export traces; PyTorch has no function for it before 2.7."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def is_traced(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the call becomes a node of a graph, or has no values to compute with."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if q.is_meta or k.is_meta or v.is_meta:
        return True
    plain = type(q) is type(k) is type(v) is torch.Tensor
    if plain and not torch._C._are_functorch_transforms_active():
        return False  # what is_fake would find after a longer search
    return bool(is_fake(q) or is_fake(k) or is_fake(v))


def make_params(
    tensors: Tensors, shape: AttentionShape, mask: Any, options: AttentionOptions
) -> tuple[AttentionParams, ScoreTensors]:
    """The parameters of an eager call, and its other tensors; the seed of dropout is drawn later."""
    q, k, v = tensors
    bound = bind(mask, (shape.batch, shape.heads, shape.q_len, shape.kv_len), options.q_start)
    terms: tuple[TermIndex, ...] = ()
    scores = NO_SCORE_TENSORS
    if options.bias is not None or options.sinks is not None:
        frame = replace(bound.frame, batch=shape.batch, heads=shape.heads)
        terms, scores = read_scores(options, frame, q)
    params = AttentionParams(
        bound,
        shape,
        default_scale(shape.head_dim) if options.scale is None else float(options.scale),
        DTYPE_NAMES.get(q.dtype) or str(q.dtype).removeprefix("torch."),
        q.device.type,
        options.dropout_p,
        impl=options.impl,
        return_lse=options.return_lse,
        requires_grad=torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad or _any_grad(scores)),
        softcap=None if options.softcap is None else float(options.softcap),
        terms=terms,
        has_sinks=scores.sinks is not None,
    )
    return params, scores


def _any_grad(scores: ScoreTensors) -> bool:
    """Whether a bias term or the sinks require a gradient."""
    return scores is not NO_SCORE_TENSORS and any(
        x.requires_grad for x in (*scores.values, scores.sinks) if x is not None
    )


def attend_tensors(
    tensors: Tensors, shape: AttentionShape, mask: Any, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute a checked call: eagerly, or as a node of a graph."""
    if options.impl in GRAPH_IMPLS:
        if _is_flex_in_graph(tensors, mask, options):
            return _flex_in_graph(tensors, mask, options)
        if is_traced(*tensors):
            out, lse = record(tensors, mask, options)
            return out, lse
    elif torch.compiler.is_compiling() and not is_exporting():
        if options.impl == "flex":
            return _flex_in_graph(tensors, mask, options)
        raise AttentionError(
            f'attention: impl="{options.impl}" is not available in a compiled graph. '
            'Leave impl out, or pass impl="blocks".'
        )
    elif is_exporting():
        dynamic = [name for name, size in shape._asdict().items() if isinstance(size, torch.SymInt)]
        if dynamic:
            raise Unsupported(
                f"attention: {', '.join(dynamic)} cannot be dynamic, because the mask is exported as "
                "a constant tensor. Leave out dynamic_shapes, and export each size by itself.",
                target="torch.export",
            )
    elif options.impl == "flex" and any(map(is_fake, tensors)):
        raise Unsupported(
            'attention: impl="flex" does not run on FakeTensors, which have no values. '
            "Leave impl out to get the shape.",
            target="flex",
        )
    params, scores = make_params(tensors, shape, mask, options)
    return run(params, tensors, scores)


def run(
    params: AttentionParams, tensors: Tensors, scores: ScoreTensors
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute a call eagerly, by the selected backend. After a graph break nothing here is traced."""
    if "torch._dynamo" not in sys.modules:  # which `disable` would import
        return _run(params, tensors, scores)
    if not _untraced:
        _untraced.append(torch.compiler.disable(_run))
    return _untraced[0](params, tensors, scores)  # type: ignore[no-any-return]


_untraced: list[Any] = []  # `_run`, which Dynamo does not trace


def _run(
    params: AttentionParams, tensors: Tensors, scores: ScoreTensors
) -> tuple[torch.Tensor, torch.Tensor | None]:
    backend = _backend(params)
    if not hasattr(backend, "backward"):
        if not torch.compiler.is_compiling():
            check_storage(*tensors, *_flat(scores))
        if params.impl == "flex":  # which drops tangents
            refuse_tangents(*tensors, *_flat(scores))
        return backend.forward(params, *tensors, scores)  # type: ignore[no-any-return]
    if torch.jit.is_tracing():
        raise Unsupported(
            "attention: torch.jit.trace cannot record a mask. "
            'Pass impl="sdpa", or use torch.compile in place of torch.jit.trace.',
            target="torch.jit.trace",
        )
    seed = torch.randint(2**62, (), device="cpu") if params.dropout_p else None
    if params.requires_grad or _is_transformed(params.device):
        out, lse = Attention.apply(seed, params, backend, *tensors, *_flat(scores))
        return out, lse
    return _forward(params, backend, seed, *tensors, *_flat(scores))


def _flat(scores: ScoreTensors) -> tuple[torch.Tensor, ...]:
    """The tensors one after the other; those that there are."""
    return scores.values if scores.sinks is None else (*scores.values, scores.sinks)


def _unflat(params: AttentionParams, tensors: Any) -> ScoreTensors:
    """The inverse of `_flat`."""
    if not tensors:
        return NO_SCORE_TENSORS
    if not params.has_sinks:
        return ScoreTensors(tuple(tensors))
    *values, sinks = tensors
    return ScoreTensors(tuple(values), sinks)


def _backend(params: AttentionParams) -> Any:
    """The module of the selected backend; warns if it only stands in for the C kernel."""
    name = select_backend(params).name
    if name == "blocks" and params.impl == "auto":
        warn_without_kernel()
    return backend_module(name)


def _is_transformed(device: str) -> bool:
    """Whether autocast, functorch or forward-mode AD has to see the call."""
    return bool(
        torch.is_autocast_enabled(device)
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _forward(
    params: AttentionParams, backend: Any, seed: torch.Tensor | None, *tensors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if seed is not None:
        params = replace(params, seed=int(seed))
    q, k, v, *others = tensors
    if q._is_zerotensor() or k._is_zerotensor() or v._is_zerotensor() or others:
        tensors = tuple(_materialized(x) for x in tensors)
        q, k, v, *others = tensors
    check_storage(*tensors)
    if params.dropout_p == 1:  # no weight is left; the logsumexp is that of the scores
        params = replace(params, dropout_p=0.0)
        out, lse = backend.forward(params, q, k, v, _unflat(params, others))
        return torch.zeros_like(out), lse
    return backend.forward(params, q, k, v, _unflat(params, others))  # type: ignore[no-any-return]


def _backward(params: AttentionParams, backend: Any, seed: Any, saved: Saved, *grads: Any) -> Any:
    """Gradients of all tensors, from those of the output and of the logsumexp."""
    if seed is not None:
        params = replace(params, seed=int(seed))
    grad_out, grad_lse = (x if x is None else _materialized(x) for x in grads)
    _check_saved(params, saved)
    check_storage(*_present(grad_out, grad_lse))
    if params.dropout_p == 1:
        params, grad_out = replace(params, dropout_p=0.0), torch.zeros_like(grad_out)
    return backend.backward(params, saved, grad_out, grad_lse)


def _check_saved(params: AttentionParams, saved: Saved) -> None:
    """Raise if the memory or the shape of a saved tensor changed since the forward pass."""
    tensors = (*saved[:5], *_flat(saved.scores))
    check_storage(*tensors)
    sizes = params.shape
    rows = (sizes.batch, sizes.heads, sizes.q_len)
    keys = (sizes.batch, sizes.kv_heads, sizes.kv_len)
    shapes = ((*rows, sizes.head_dim), (*keys, sizes.head_dim), (*keys, sizes.v_head_dim))
    names = ("q", "k", "v", "the output", "the logsumexp")
    for name, x, shape in zip(
        names, saved[:5], (*shapes, (*rows, sizes.v_head_dim), rows), strict=True
    ):
        if tuple(x.shape) != shape:
            raise AttentionError(
                f"attention: {name} had shape {shape} in the forward pass and has "
                f"{tuple(x.shape)} in the backward pass. Do not change saved tensors before it."
            )


def _materialized(x: torch.Tensor) -> torch.Tensor:
    """A tensor with memory of its own, also for the zeros without storage that autograd makes."""
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if x._is_zerotensor() else x


class Attention(torch.autograd.Function):
    """Output and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        seed: Any, params: AttentionParams, backend: Any, *tensors: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute both of q, k, v, the values of bias terms and the sinks."""
        with torch.autocast(params.device, enabled=False):
            return _forward(params, backend, seed, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save what the backward pass reads."""
        seed, ctx.params, ctx.backend, *tensors = inputs
        ctx.save_for_backward(seed, *output, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> tuple[Any, ...]:
        """Gradients of all tensors."""
        seed, *saved = ctx.saved_tensors  # read once: checkpointing recomputes it here
        if grad_out is None and grad_lse is None:
            return (None,) * (1 + len(saved))
        if grad_out is None:
            grad_out = torch.zeros_like(saved[0])
        grads = gradients(seed, ctx.params, ctx.backend, grad_out, grad_lse, *saved)
        return (None, None, None, *_wanted(ctx.params, grads))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004 - torch's signature
        """Refuse forward-mode AD, which would need the softmax weights."""
        raise forward_mode_unsupported()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Fold the mapped dimension into the batch where the mask is shared by the batch."""
        return _vmap(Attention, info.batch_size, in_dims, args), (0, 0)


def gradients(
    seed: Any, params: AttentionParams, backend: Any, grad_out: Any, grad_lse: Any, *saved: Any
) -> tuple[torch.Tensor, ...]:
    """What `AttentionBackward` returns, also of batches of gradients."""
    if not is_batched(grad_out, grad_lse):
        return AttentionBackward.apply(seed, params, backend, grad_out, grad_lse, *saved)  # type: ignore[no-any-return]

    def of_batch(*grads: Any) -> tuple[torch.Tensor, ...]:
        dims = (None, None, None, 0, 0, *(None for _ in saved))
        args = (seed, params, backend, *grads, *saved)
        return _vmap(AttentionBackward, grads[0].shape[0], dims, args)

    grads: Any = map_batched(of_batch, grad_out, grad_lse)
    return grads  # type: ignore[no-any-return]


def _wanted(params: AttentionParams, grads: Any) -> list[Any]:
    """The gradients, with None for terms that do not require one."""
    wanted = [True, True, True, *(index.requires_grad for index in params.terms), True]
    return [grad if want else None for grad, want in zip(grads, wanted, strict=False)]


class AttentionBackward(torch.autograd.Function):
    """The backward pass of `Attention`: a function of its own, so that vmap applies to it too."""

    @staticmethod
    def forward(seed: Any, params: AttentionParams, backend: Any, *tensors: Any) -> Any:
        """Gradients of q, k, v, values and sinks: of grad_out, grad_lse, out, lse, and those."""
        grad_out, grad_lse, out, lse, q, k, v, *others = tensors
        saved = Saved(q, k, v, out, lse, _unflat(params, others))
        with torch.autocast(params.device, enabled=False):
            return tuple(_backward(params, backend, seed, saved, grad_out, grad_lse))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Nothing is saved: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:  # noqa: ARG004 - torch's signature
        """Refuse the second derivative, which a transform would take to be zero."""
        raise _differentiable_once()

    jvp = Attention.jvp

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """As for `Attention`."""
        found = _vmap(AttentionBackward, info.batch_size, in_dims, args)
        return found, (0,) * len(found)


def _differentiable_once() -> Unsupported:
    return Unsupported(
        "attention: this backend is differentiable once. "
        'Pass impl="reference" for second derivatives; load a transformers model with '
        'attn_implementation="eager".',
        target="attention",
    )


def _vmap(function: Any, count: int, in_dims: Any, args: Any) -> tuple[torch.Tensor, ...]:
    """Map a function over one more dimension, which is the first one of the results.

    A seed of dropout that is mapped differs per element; else all elements share it.
    """
    seed, params, backend, *tensors = args
    seeds, *mapped = (
        x if x is None else x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((seed, *tensors), (in_dims[0], *in_dims[3:]), strict=True)
    )
    if count and (
        params.mask.shape[0] != 1 or seed is not None or params.terms or params.has_sinks
    ):
        each = [
            function.apply(
                *(None if seeds is None else seeds[n], params, backend),
                *(x if x is None else x[n] for x in mapped),
            )
            for n in range(count)
        ]
        return tuple(torch.stack(same) for same in zip(*each, strict=True))
    shape = params.shape._replace(batch=count * params.shape.batch)
    mask = params.mask if count else EVERYTHING.on(shape.q_len, shape.kv_len)
    plain = replace(params, shape=shape, mask=mask)
    if not count:  # no value of a bias or sink is read
        plain, extra = replace(plain, terms=(), has_sinks=False), mapped[_num_attention(function) :]
        mapped = mapped[: _num_attention(function)]
    folded = function.apply(
        *(None, plain, backend), *(x if x is None else x.flatten(0, 1) for x in mapped)
    )
    found = tuple(x.unflatten(0, (count, params.shape.batch)) for x in folded)
    return found if count or function is Attention else (*found, *extra)


def _num_attention(function: Any) -> int:
    """Number of tensors before the values of bias terms."""
    return 3 if function is Attention else 7


# ── in graphs ─────────────────────────────────────────────────────────────────────────────────────


def record(
    tensors: Tensors, mask: Any, options: AttentionOptions, handle: torch.Tensor | None = None
) -> Any:
    """Attention as a node of a graph: of torch.compile, make_fx, or another dispatch mode.

    Args:
        tensors: q, k and v.
        mask: The mask; not used if there is a handle.
        options: The options of the call.
        handle: A result of `mask_handle`: the mask is known when the graph runs.
    """
    if is_exporting():
        raise Unsupported(
            "attention: an exported program cannot hold a mask, which lives in this process. "
            'Pass impl="sdpa", which exports the mask as a constant tensor.',
            target="torch.export",
        )
    q, k, _ = tensors
    held = EVERYTHING if mask is None else mask
    if not isinstance(held, (Mask, BoundMask)) or not torch.compiler.is_compiling():
        bind(held, (*q.shape[:3], k.shape[2]), options.q_start)  # raises for invalid masks
    scale = default_scale(q.shape[-1]) if options.scale is None else float(options.scale)
    terms, scores = _scores_in_graph(tensors, held, options)
    args = (
        *tensors,
        torch.randint(2**62, (), device="cpu") if options.dropout_p else None,
        list(_flat(scores)),
        held._handle,
        handle,
    )
    settings = {
        "q_start": options.q_start,
        "scale": scale,
        "softcap": None if options.softcap is None else float(options.softcap),
        "terms": terms,
        "has_sinks": scores.sinks is not None,
        "dropout_p": float(options.dropout_p),
        "impl": options.impl,
    }
    if not torch.compiler.is_compiling():
        return with_checked_tangents(attend, (*tensors, *_flat(scores)), *args, **settings)
    from maskwright.engine.traced_state import is_forward_mode  # loads the compiler

    if is_forward_mode():
        raise forward_mode_unsupported()
    return attend(*args, **settings)


def _is_flex_in_graph(tensors: Tensors, mask: Any, options: AttentionOptions) -> bool:
    """Whether a call without an explicit `impl` is FlexAttention in the graph; see `is_default`."""
    if not torch.compiler.is_dynamo_compiling() or is_exporting():
        return False
    if options.impl != "auto" or tensors[0].device.type not in dispatch.FLEX_GRAPH_DEVICES:
        return False
    from maskwright.engine.backends import flex_graph

    held = EVERYTHING if mask is None else mask.mask if isinstance(mask, BoundMask) else mask
    if not isinstance(held, Mask):
        return False  # the operator refuses it
    return flex_graph.is_default(tensors, held._max_intervals, options)


def _flex_in_graph(
    tensors: Tensors, mask: Any, options: AttentionOptions
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """FlexAttention in the graph itself, not as an operator."""
    from maskwright.engine.backends import flex_graph

    q, k, _ = tensors
    held = EVERYTHING if mask is None else mask
    if not isinstance(held, (Mask, BoundMask)):
        bind(held, (*q.shape[:3], k.shape[2]), options.q_start)  # raises
    q_start = options.q_start
    if isinstance(held, BoundMask):
        q_start = held.frame.q_start
    elif q_start is None:
        q_start = k.shape[2] - q.shape[2]
    flat, scores = _scores_in_graph(tensors, held, options)
    terms = (_terms_from_ints(flat), q_start)
    return flex_graph.attend_in_graph(tensors, held._handle, options, terms, scores)


def _scores_in_graph(
    tensors: Tensors, mask: Any, options: AttentionOptions
) -> tuple[list[int], ScoreTensors]:
    """The terms of the bias as integers, and their tensors."""
    if options.bias is None and options.sinks is None:
        return [], ScoreTensors()
    q, k, _ = tensors
    batch, heads, q_len, _ = q.shape
    kv_len, q_start = k.shape[2], options.q_start
    if isinstance(mask, BoundMask):
        q_start = mask.frame.q_start
    frame = Frame(q_len, kv_len, batch, heads, kv_len - q_len if q_start is None else q_start)
    indices, scores = read_scores(options, frame, q)
    terms: list[int] = []
    for kind, zero, height, width, requires_grad in indices:
        terms += [TERM_KINDS.index(kind), zero, height, width, int(requires_grad)]
    return terms, scores


def mask_handle(bound: BoundMask) -> torch.Tensor:
    """A tensor with the handle of a bound mask, which keeps the mask for as long as it exists.

    >>> import maskwright as mw
    >>> int(mask_handle(mw.causal().on(4))) > 0
    True
    """
    handle = torch.tensor(bound._handle)
    _hold(bound, handle)
    return handle


def _hold(mask: Mask | BoundMask, owner: torch.Tensor) -> None:
    """Keep a mask for as long as the storage of a tensor."""
    storage = StorageWeakRef(owner.untyped_storage())
    mask_registry.hold(mask, lambda: not storage.expired())


def _lookup(mask: int, handle: torch.Tensor | None) -> Mask | BoundMask:
    return mask_registry.lookup(mask if handle is None else int(handle))


_SETTINGS = (
    "SymInt mask, Tensor? handle, *, SymInt? q_start, float scale, float? softcap, "
    "SymInt[] terms, bool has_sinks, float dropout_p, str impl"
)


@torch.library.custom_op(
    "maskwright::attend",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor? seed, Tensor[] scores, "
    f"{_SETTINGS}) -> (Tensor, Tensor)",
)
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seed: Any,
    scores: list[torch.Tensor],
    mask: int,
    handle: Any,
    **settings: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention under the mask with a handle; see `record`.

    `scores` has the values of the bias terms and the sinks, if there are any.
    """
    refuse_tangents_in_operator(q, k, v, *scores)
    found = _lookup(mask, handle)
    params = _params_in_graph((q, k, v), found, settings)
    out, lse = _forward(params, _backend(params), seed, q, k, v, *scores)
    if handle is None:
        _hold(found, lse)  # the backward pass looks the mask up again
    return laid_out(out, q), lse.contiguous()


@torch.library.custom_op(
    "maskwright::attend_backward",
    mutates_args=(),
    schema=f"(Tensor grad_out, Tensor? grad_lse, Tensor[] saved, Tensor? seed, {_SETTINGS}) "
    "-> Tensor[]",
)
def attend_backward(
    grad_out: Any,
    grad_lse: Any,
    saved: list[torch.Tensor],
    seed: Any,
    mask: int,
    handle: Any,
    **settings: Any,
) -> list[torch.Tensor]:
    """Gradients of q, k and v, of the values of each bias term, and of the sinks."""
    refuse_tangents_in_operator(*_present(grad_out, grad_lse), *saved)
    q, k, v, out, lse, *scores = saved
    params = _params_in_graph((q, k, v), _lookup(mask, handle), settings)
    kept = Saved(q, k, v, out, lse, _unflat(params, scores))
    grads = _backward(params, _backend(params), seed, kept, grad_out, grad_lse)
    return [grad.contiguous() for grad in grads]


def _present(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    """The tensors that are not None."""
    return [x for x in tensors if x is not None]


def _params_in_graph(tensors: Tensors, mask: Any, settings: dict[str, Any]) -> AttentionParams:
    q, k, v = tensors
    batch, heads, q_len, head_dim = q.shape
    shape = AttentionShape(batch, heads, k.shape[1], q_len, k.shape[2], head_dim, v.shape[3])
    bound = bind(mask, (shape.batch, shape.heads, shape.q_len, shape.kv_len), settings["q_start"])
    dtype = DTYPE_NAMES.get(q.dtype) or str(q.dtype).removeprefix("torch.")
    options = (settings["scale"], dtype, q.device.type, settings["dropout_p"])
    return AttentionParams(
        *(bound, shape, *options),
        impl=settings["impl"],
        explicit_backward=True,
        softcap=settings["softcap"],
        terms=_terms_from_ints(settings["terms"]),
        has_sinks=settings["has_sinks"],
    )


def _terms_from_ints(flat: Any) -> tuple[TermIndex, ...]:
    """The inverse of the encoding of `_scores_in_graph`."""
    fields = zip(*(iter(flat),) * 5, strict=True)
    return tuple(
        TermIndex(TERM_KINDS[kind], zero, height, width, bool(requires_grad))
        for kind, zero, height, width, requires_grad in fields
    )


@attend.register_fake
def _(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> tuple[Any, Any]:  # noqa: ARG001
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    batch, heads, q_len, _ = q.shape
    return empty_out(q, v.shape[3]), q.new_empty((batch, heads, q_len), dtype=dtype)


@attend_backward.register_fake
def _(grad_out: Any, grad_lse: Any, saved: Any, *_: Any, **settings: Any) -> Any:  # noqa: ARG001
    q, k, v, _, _, *scores = saved
    shapes = [x.shape for x in (q, k, v, *scores)]
    for n, index in enumerate(_terms_from_ints(settings["terms"])):
        if not index.requires_grad:
            shapes[3 + n] = (0,)
    return [x.new_empty(own) for x, own in zip((q, k, v, *scores), shapes, strict=True)]


def _setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    q, k, v, seed, scores, ctx.mask, handle = inputs
    ctx.settings = keyword_only_inputs
    optional = [x for x in (seed, handle) if x is not None]
    ctx.save_for_backward(q, k, v, *output, *scores, *optional)
    ctx.has_seed, ctx.has_handle = seed is not None, handle is not None
    ctx.set_materialize_grads(False)


def _graph_backward(ctx: Any, grad_out: Any, grad_lse: Any) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    handle = saved.pop() if ctx.has_handle else None
    seed = saved.pop() if ctx.has_seed else None
    if grad_out is None and grad_lse is None:
        return (None, None, None, None, [None] * len(saved[5:]), None, None)
    if grad_out is None:
        grad_out = torch.zeros_like(saved[3])

    def gradients_of(*grads: Any) -> Any:
        args = (*grads, saved, seed, ctx.mask, handle)
        inputs = (*_present(*grads), *saved)
        return with_checked_tangents(attend_backward, inputs, *args, **ctx.settings)

    def gradients_of_batch(*grads: Any) -> Any:
        count = len(grads[0])
        each = [gradients_of(*(x if x is None else x[n] for x in grads)) for n in range(count)]
        return tuple(torch.stack(same) for same in zip(*each, strict=True))

    if is_batched(grad_out, grad_lse):
        dq, dk, dv, *scores = map_batched(gradients_of_batch, grad_out, grad_lse)
    else:
        dq, dk, dv, *scores = gradients_of(grad_out, grad_lse)
    for n, index in enumerate(_terms_from_ints(ctx.settings["terms"])):
        if not index.requires_grad:
            scores[n] = None
    return dq, dk, dv, None, scores, None, None


attend.register_autograd(_graph_backward, setup_context=_setup_context)


def _setup_context_of_backward(
    ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any
) -> None:
    """Nothing is saved: there is no second derivative."""


def _refuse_second_derivative(ctx: Any, *grads: Any) -> None:  # noqa: ARG001 - torch's signature
    raise _differentiable_once()


attend_backward.register_autograd(
    _refuse_second_derivative, setup_context=_setup_context_of_backward
)
