"""Attention of torch tensors: one forward and one backward function, and their autograd definition.

`Attention` registers both with autograd, and with the transforms of torch.func. The fast path and the
operator of graphs register the same functions in forms that are lighter, or that a graph can hold.
The values of bias terms and the sinks are inputs, with gradients.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from maskwright._torch_state import (
    autocast,
    has_storage,
    is_batched,
    is_exporting,
    is_fake,
    is_recorded,
    is_transformed,
    map_batched,
    without_autocast,
)
from maskwright.bias.scores import Scores
from maskwright.bias.values import check_storage
from maskwright.engine.call import AttentionShape, Mode
from maskwright.engine.select import (
    check_graph_impl,
    refused,
    select_backend,
    warn_without_kernel,
)
from maskwright.engine.tangents import forward_mode_unsupported, refuse_tangents
from maskwright.engine.validate import EVERYTHING
from maskwright.errors import AttentionError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.engine.call import Call
    from maskwright.engine.select import Backend

__all__ = [
    "Attention",
    "AttentionBackward",
    "autocast",
    "backward",
    "forward",
    "mode_of",
    "run",
]

GRAPH_IMPLS = ("auto", "native", "blocks", "triton")  # autograd differentiates the others by itself
Results = tuple[torch.Tensor, torch.Tensor | None]


def mode_of(q: Any, k: Any, v: Any, impl: str) -> Mode:
    """EAGER, or GRAPH for a call that becomes a node of a graph or has no values to compute with."""
    if torch.compiler.is_compiling():
        if not is_exporting():
            check_graph_impl(impl)  # an error is a graph break, after which the mode is EAGER
        elif impl not in GRAPH_IMPLS:
            _refuse_dynamic_sizes(q, k, v)
            return Mode.EAGER
        return Mode.GRAPH
    try:
        return Mode.GRAPH if impl in GRAPH_IMPLS and is_recorded(q, k, v) else Mode.EAGER
    except AttributeError:  # `read_call` refuses what is no tensor
        return Mode.EAGER


def is_compiled() -> bool:
    """Whether torch.compile traces the call; not torch.export, and not another tracer."""
    return torch.compiler.is_dynamo_compiling() and not is_exporting()


def _refuse_dynamic_sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise where torch.export would make a size of the mask, a constant tensor, dynamic."""
    sizes = dict(zip(("batch", "heads", "q_len", "head_dim"), q.shape, strict=False))
    sizes |= {"kv_heads": k.shape[1], "kv_len": k.shape[2], "v_head_dim": v.shape[-1]}
    dynamic = [name for name in AttentionShape._fields if isinstance(sizes[name], torch.SymInt)]
    if dynamic:
        raise Unsupported(
            f"attention: {', '.join(dynamic)} cannot be dynamic, because the mask is exported as "
            "a constant tensor. Leave out dynamic_shapes, and export each size by itself.",
            target="torch.export",
        )


def run(call: Call) -> Results:
    """Compute a call eagerly, by the selected backend. After a graph break nothing here is traced."""
    if "torch._dynamo" not in sys.modules:  # which `disable` would import
        return _run(call)
    if not _untraced:
        _untraced.append(torch.compiler.disable(_run))
    return _untraced[0](call)  # type: ignore[no-any-return]


_untraced: list[Any] = []  # `_run`, which Dynamo does not trace


def _run(call: Call) -> Results:
    backend = backend_of(call)
    if not backend.SUPPORT.backward:
        return _run_differentiable(call, backend)
    if torch.jit.is_tracing():
        raise Unsupported(
            "attention: torch.jit.trace cannot record a mask. "
            'Pass impl="sdpa", or use torch.compile in place of torch.jit.trace.',
            target="torch.jit.trace",
        )
    seed = torch.randint(2**62, (), device="cpu") if call.dropout_p else None
    if call.requires_grad or is_transformed():
        out, lse = Attention.apply(seed, call.without_tensors(), backend, *call.tensors)
        return out, lse
    return forward(call, backend, seed)


def _run_differentiable(call: Call, backend: Any) -> Results:
    """By a backend that consists of differentiable operators of PyTorch."""
    if not torch.compiler.is_compiling():
        check_storage(*call.tensors)
    if call.impl == "flex":
        if any(is_fake(x) for x in (call.q, call.k, call.v)):
            raise refused(call, "does not run on FakeTensors, which have no values")
        refuse_tangents(*call.tensors)  # which it would drop
    return backend.forward(call)  # type: ignore[no-any-return]


def backend_of(call: Call) -> Any:
    """The module of the selected backend; warns if it only stands in for the C kernel."""
    backend: Backend = select_backend(call)
    if backend.name == "blocks" and call.impl == "auto":
        warn_without_kernel()
    return backend.module


def forward(
    call: Call, backend: Any, seed: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp of a call that is to be computed now.

    Args:
        call: The call.
        backend: The module of its backend.
        seed: The seed of dropout, an integer tensor without dimensions; None without dropout.
    """
    tensors = call.tensors
    if not has_storage(*tensors):
        check_storage(*tensors)  # raises
    for x in tensors:
        if x._is_zerotensor():
            call = call.with_tensors([_materialized(y) for y in tensors])
            break
    if torch.is_autocast_enabled(call.device):
        with torch.autocast(call.device, enabled=False):
            return forward(call, backend, seed)
    if seed is None:
        return backend.forward(call)  # type: ignore[no-any-return]
    if call.dropout_p == 1:  # no weight is left; the logsumexp is that of the scores
        out, lse = backend.forward(call.changed(dropout_p=0.0))
        return torch.zeros_like(out), lse
    return backend.forward(call.changed(seed=int(seed)))  # type: ignore[no-any-return]


def backward(
    call: Call,
    backend: Any,
    seed: torch.Tensor | None,
    results: tuple[torch.Tensor, torch.Tensor],
    grads: tuple[torch.Tensor, torch.Tensor | None],
) -> tuple[torch.Tensor, ...]:
    """Gradients of all tensors of a call; that of a bias term that requires none is empty.

    Args:
        call: The call, with the tensors of the forward pass.
        backend: The module of its backend.
        seed: The seed of dropout, or None.
        results: Output and logsumexp of the forward pass.
        grads: The gradients of both; the second may be None.
    """
    grad_out, grad_lse = (x if x is None else _materialized(x) for x in grads)
    assert grad_out is not None
    _check_saved(call, results, (grad_out,) if grad_lse is None else (grad_out, grad_lse))
    if seed is not None:
        call = call.changed(seed=int(seed))
    if call.dropout_p == 1:
        call, grad_out = call.changed(dropout_p=0.0), torch.zeros_like(grad_out)
    with without_autocast(call.device):
        return tuple(backend.backward(call, *results, grad_out, grad_lse))


def _check_saved(
    call: Call, results: tuple[torch.Tensor, torch.Tensor], grads: tuple[torch.Tensor, ...]
) -> None:
    """Raise if the memory or the shape of a saved tensor changed since the forward pass."""
    if not has_storage(*call.tensors, *results, *grads):
        check_storage(*call.tensors, *results, *grads)  # raises
    sizes = call.shape
    rows = (sizes.batch, sizes.heads, sizes.q_len)
    keys = (sizes.batch, sizes.kv_heads, sizes.kv_len)
    saved = (
        ("q", call.q, (*rows, sizes.head_dim)),
        ("k", call.k, (*keys, sizes.head_dim)),
        ("v", call.v, (*keys, sizes.v_head_dim)),
        ("the output", results[0], (*rows, sizes.v_head_dim)),
        ("the logsumexp", results[1], rows),
    )
    for name, x, shape in saved:
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
    def forward(seed: Any, call: Call, backend: Any, *tensors: Any) -> Any:
        """Compute both of q, k, v, the values of bias terms and the sinks."""
        return forward(call.with_tensors(tensors), backend, seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save what the backward pass reads."""
        seed, ctx.call, ctx.backend, *tensors = inputs
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
        grads = gradients(seed, ctx.call, ctx.backend, grad_out, grad_lse, *saved)
        return (None, None, None, *needed_gradients(ctx.call.scores, grads))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004 - torch's signature
        """Refuse forward-mode AD, which would need the softmax weights."""
        raise forward_mode_unsupported()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Fold the mapped dimension into the batch where the mask is shared by the batch."""
        return _vmap(Attention, info.batch_size, in_dims, args), (0, 0)


class AttentionBackward(torch.autograd.Function):
    """The backward pass of `Attention`: a function of its own, so that vmap applies to it too."""

    @staticmethod
    def forward(seed: Any, call: Call, backend: Any, *tensors: Any) -> Any:
        """Gradients of all tensors, of grad_out, grad_lse, out, lse, and those."""
        grad_out, grad_lse, out, lse, *inputs = tensors
        call = call.with_tensors(inputs)
        return backward(call, backend, seed, (out, lse), (grad_out, grad_lse))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Nothing is saved: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:  # noqa: ARG004 - torch's signature
        """Refuse the second derivative, which a transform would take to be zero."""
        raise differentiable_once()

    jvp = Attention.jvp

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """As for `Attention`."""
        grads = _vmap(AttentionBackward, info.batch_size, in_dims, args)
        return grads, (0,) * len(grads)


def gradients(
    seed: Any, call: Call, backend: Any, grad_out: Any, grad_lse: Any, *saved: Any
) -> tuple[torch.Tensor, ...]:
    """What `AttentionBackward` returns, also of batches of gradients."""
    if not is_batched(grad_out, grad_lse):
        return AttentionBackward.apply(seed, call, backend, grad_out, grad_lse, *saved)  # type: ignore[no-any-return]

    def of_batch(*grads: Any) -> tuple[torch.Tensor, ...]:
        dims = (None, None, None, 0, 0, *(None for _ in saved))
        args = (seed, call, backend, *grads, *saved)
        return _vmap(AttentionBackward, grads[0].shape[0], dims, args)

    grads: Any = map_batched(of_batch, grad_out, grad_lse)
    return grads  # type: ignore[no-any-return]


def needed_gradients(scores: Scores, grads: Sequence[Any]) -> list[Any]:
    """The gradients of all tensors, with None for terms that do not require one."""
    needed = (True, True, True, *scores.learnable, True)
    return [grad if need else None for grad, need in zip(grads, needed, strict=False)]


def differentiable_once() -> Unsupported:
    """The error for second derivatives."""
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
    seed, call, backend, *tensors = args
    seeds, *mapped = (
        x if x is None else x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((seed, *tensors), (in_dims[0], *in_dims[3:]), strict=True)
    )
    num_fixed = 3 if function is Attention else 7  # tensors before the values of bias terms
    if count and (call.mask.shape[0] != 1 or seed is not None or len(mapped) > num_fixed):
        element_results = [
            function.apply(
                *(None if seeds is None else seeds[n], call, backend),
                *(x if x is None else x[n] for x in mapped),
            )
            for n in range(count)
        ]
        return tuple(torch.stack(outputs) for outputs in zip(*element_results, strict=True))
    shape = call.shape._replace(batch=count * call.shape.batch)
    mask = call.mask if count else EVERYTHING.on(shape.q_len, shape.kv_len)
    folded_call = call.changed(shape=shape, mask=mask)
    extra = mapped[num_fixed:]
    if not count:  # no value of a bias or sink is read
        folded_call = folded_call.changed(scores=Scores(call.scores.softcap))
    folded = function.apply(
        *(None, folded_call, backend),
        *(x if x is None else x.flatten(0, 1) for x in mapped[:num_fixed]),
    )
    results = tuple(x.unflatten(0, (count, call.shape.batch)) for x in folded)
    return results if count or function is Attention else (*results, *extra)
