"""Attention in graphs: the operator `maskwright::attend`, which takes a mask by its handle.

A graph of torch.compile cannot hold a mask. A new mask is a new integer there, and nothing is compiled
again. A mask that is bound while the graph runs, from data of the graph, has its handle in a tensor:
`mask_handle` makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from maskwright._torch_state import (
    is_batched,
    is_exporting,
    is_traced_in_forward_mode,
    map_batched,
)
from maskwright.bias.scores import Scores
from maskwright.core import mask_registry
from maskwright.engine.call import AttentionOptions, Mode, read_call
from maskwright.engine.layout import empty_out, laid_out
from maskwright.engine.tangents import (
    forward_mode_unsupported,
    refuse_tangents_in_operator,
    with_checked_tangents,
)
from maskwright.engine.torch_op import (
    backend_of,
    backward,
    differentiable_once,
    forward,
    needed_gradients,
)
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.engine.call import Call


def call_custom_op(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention as a node of a graph: of torch.compile, make_fx, or another dispatch mode.

    Args:
        call: A call of mode GRAPH.
    """
    if is_exporting():
        raise Unsupported(
            "attention: an exported program cannot hold a mask, which lives in this process. "
            'Pass impl="sdpa", which exports the mask as a constant tensor.',
            target="torch.export",
        )
    mask, scores = call.mask, call.scores
    seed = torch.randint(2**62, (), device="cpu") if call.dropout_p else None
    args = (call.q, call.k, call.v, seed, list(scores.tensors), mask.mask._handle, mask.handle)
    settings = {
        "q_start": mask.q_start,
        "scale": call.scale,
        "softcap": scores.softcap,
        "terms": scores.layout(),
        "dropout_p": call.dropout_p,
        "impl": call.impl,
    }
    results: tuple[torch.Tensor, torch.Tensor]
    if torch.compiler.is_compiling():
        if is_traced_in_forward_mode():
            raise forward_mode_unsupported()
        results = attend(*args, **settings)
    else:
        results = with_checked_tangents(attend, call.tensors, *args, **settings)
    return results


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


def _call(
    tensors: list[torch.Tensor], mask: int, handle: torch.Tensor | None, settings: dict[str, Any]
) -> Call:
    """The call of an operator, of q, k, v and the tensors of the scores."""
    q, k, v, *score_tensors = tensors
    options = AttentionOptions(
        settings["scale"], settings["dropout_p"], True, settings["q_start"], settings["impl"]
    )
    return read_call(
        (q, k, v),
        mask_registry.lookup(mask if handle is None else int(handle)),
        options,
        mode=Mode.OPERATOR,
        scores=Scores.from_layout(settings["softcap"], settings["terms"], score_tensors),
    )


_SETTINGS = (
    "SymInt mask, Tensor? handle, *, SymInt? q_start, float scale, float? softcap, "
    "SymInt[] terms, float dropout_p, str impl"
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
    """Attention under the mask with a handle; see `call_custom_op`.

    `scores` has the values of the bias terms and the sinks, if there are any.
    """
    tensors = [q, k, v, *scores]
    refuse_tangents_in_operator(*tensors)
    call = _call(tensors, mask, handle, settings)
    out, lse = forward(call, backend_of(call), seed)
    if handle is None:
        _hold(mask_registry.lookup(mask), lse)  # the backward pass looks the mask up again
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
    out, lse, *tensors = saved
    call = _call(tensors, mask, handle, settings)
    grads = backward(call, backend_of(call), seed, (out, lse), (grad_out, grad_lse))
    return [grad.contiguous() for grad in grads]


def _present(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    """The tensors that are not None."""
    return [x for x in tensors if x is not None]


@attend.register_fake
def _(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> tuple[Any, Any]:  # noqa: ARG001
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    batch, heads, q_len, _ = q.shape
    return empty_out(q, v.shape[3]), q.new_empty((batch, heads, q_len), dtype=dtype)


@attend_backward.register_fake
def _(grad_out: Any, grad_lse: Any, saved: Any, *_: Any, **settings: Any) -> Any:  # noqa: ARG001
    _, _, q, k, v, *score_tensors = saved
    learnable = Scores.from_layout(None, settings["terms"], score_tensors).learnable
    values = [
        x.new_empty(x.shape if learns else (0,))
        for x, learns in zip(score_tensors, learnable, strict=False)
    ]
    sinks = [x.new_empty(x.shape) for x in score_tensors[len(values) :]]
    return [*(x.new_empty(x.shape) for x in (q, k, v)), *values, *sinks]


def _setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
    q, k, v, seed, scores, ctx.mask, handle = inputs
    ctx.settings = keyword_only_inputs
    ctx.save_for_backward(*output, q, k, v, *scores, *_present(seed, handle))
    ctx.has_seed, ctx.has_handle = seed is not None, handle is not None
    ctx.set_materialize_grads(False)


def _graph_backward(ctx: Any, grad_out: Any, grad_lse: Any) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    handle = saved.pop() if ctx.has_handle else None
    seed = saved.pop() if ctx.has_seed else None
    if grad_out is None and grad_lse is None:
        return (None, None, None, None, [None] * len(saved[5:]), None, None)
    if grad_out is None:
        grad_out = torch.zeros_like(saved[0])

    def gradients_of(*grads: Any) -> Any:
        args = (*grads, saved, seed, ctx.mask, handle)
        inputs = (*_present(*grads), *saved)
        return with_checked_tangents(attend_backward, inputs, *args, **ctx.settings)

    def gradients_of_batch(*grads: Any) -> Any:
        count = len(grads[0])
        element_grads = [
            gradients_of(*(x if x is None else x[n] for x in grads)) for n in range(count)
        ]
        return tuple(torch.stack(grads) for grads in zip(*element_grads, strict=True))

    if is_batched(grad_out, grad_lse):
        grads = map_batched(gradients_of_batch, grad_out, grad_lse)
    else:
        grads = gradients_of(grad_out, grad_lse)
    scores = Scores.from_layout(None, ctx.settings["terms"], saved[5:])
    dq, dk, dv, *score_grads = needed_gradients(scores, grads)
    return dq, dk, dv, None, score_grads, None, None


attend.register_autograd(_graph_backward, setup_context=_setup_context)


def _setup_context_of_backward(
    ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any
) -> None:
    """Nothing is saved: there is no second derivative."""


def _refuse_second_derivative(ctx: Any, *grads: Any) -> None:  # noqa: ARG001 - torch's signature
    raise differentiable_once()


attend_backward.register_autograd(
    _refuse_second_derivative, setup_context=_setup_context_of_backward
)
