"""The operator: attention under a mask as torch sees it, in eager mode and in compiled graphs.

In eager mode an autograd function holds the bound mask itself. A compiled graph can't hold a mask,
so there it is an operator that takes the mask's number; a new mask is then a new number, and
nothing is compiled again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from maskwright.core.mask_registry import lookup
from maskwright.engine import execute
from maskwright.engine.execute import Terms
from maskwright.engine.inputs import bind
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask


@dataclass(frozen=True)
class Task:
    """A bound mask and how to compute under it; torch passes it through without looking inside."""

    bound: BoundMask
    scale: float
    dropout_p: float
    impl: str = "auto"

    def terms(self, seed: torch.Tensor | None) -> Terms:
        """With the seed that dropout was drawn by."""
        return _terms(self.scale, self.dropout_p, seed)


class Attend(torch.autograd.Function):
    """Attention under a mask: output and logsumexp, both differentiable once."""

    @staticmethod
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seed: torch.Tensor | None, task: Task
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute it."""
        with _full_precision(q.device.type):
            return execute.forward(task.bound, q, k, v, task.terms(seed), task.impl)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep what the backward pass reads."""
        q, k, v, seed, ctx.task = inputs
        ctx.save_for_backward(q, k, v, *output, seed)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_lse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v."""
        saved = ctx.saved_tensors  # asked for once: checkpointing recomputes it at that moment
        if grad is None and grad_lse is None:
            return None, None, None, None, None
        if grad is None:
            grad = torch.zeros_like(saved[3])
        return (*Gradients.apply(grad, grad_lse, *saved, ctx.task), None, None)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        seed: torch.Tensor | None,
        task: Task,
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, int]]:
        """The mapped axis joins the batch; one by one where the mask differs along the batch."""
        return _mapped(Attend, info.batch_size, (q, k, v, seed), in_dims, task), (0, 0)


class Gradients(torch.autograd.Function):
    """The backward pass of `Attend`, as a step of its own so that it can be mapped too."""

    @staticmethod
    def forward(
        grad: torch.Tensor,
        grad_lse: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        seed: torch.Tensor | None,
        task: Task,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute them."""
        terms = task.terms(seed)
        with _full_precision(q.device.type):
            return execute.backward(task.bound, grad, grad_lse, q, k, v, out, lse, terms, task.impl)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:  # noqa: ARG004 - torch's signature
        """Refuse: without this, a transform would take the second derivative for zero."""
        raise Unsupported(
            "attention by strips can be differentiated once only. "
            'Pass impl="reference" for a second derivative.',
            target="strips",
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *args: Any
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """As `Attend` is mapped."""
        *tensors, task = args
        return _mapped(Gradients, info.batch_size, tuple(tensors), in_dims, task), (0, 0, 0)


def _mapped(
    step: Any,
    count: int,
    tensors: tuple[torch.Tensor | None, ...],
    in_dims: tuple[int | None, ...],
    task: Task,
) -> tuple[torch.Tensor, ...]:
    """A step over one axis more; the results have it in front.

    The seed of dropout comes last: mapped it differs from one to the next, else all drop the same.
    """
    given = [
        x if x is None else x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, in_dims, strict=False)
    ]
    if task.bound.shape[0] != 1 or tensors[-1] is not None:
        each = [step.apply(*(x if x is None else x[n] for x in given), task) for n in range(count)]
        return tuple(torch.stack(same) for same in zip(*each, strict=True))
    joined = step.apply(*(x if x is None else x.flatten(0, 1) for x in given), task)
    return tuple(x.unflatten(0, (count, -1)) for x in joined)


def _full_precision(device: str) -> Any:
    """Inside, autocast does not choose dtypes."""
    return torch.autocast(device, enabled=False)


@torch.library.custom_op(
    "maskwright::attend",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, SymInt mask, SymInt? q_start, float scale, "
    "float dropout_p, Tensor? seed, str impl='auto') -> (Tensor, Tensor)",
)
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: int,
    q_start: int | None,
    scale: float,
    dropout_p: float,
    seed: torch.Tensor | None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention under the mask of that number."""
    if q.device.type != "cpu":
        raise Unsupported(
            f"attention: compiled code runs on the CPU only, and q is on {q.device}. "
            'Call attention outside of it, or flex_attention with mw.lower(mask, "torch.flex").',
            target="strips",
        )
    bound = bind(lookup(mask), (*q.shape[:3], k.shape[2]), q_start)
    out, lse = execute.forward(bound, q, k, v, _terms(scale, dropout_p, seed), impl)
    return out.contiguous(), lse.contiguous()


@torch.library.custom_op(
    "maskwright::attend_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "SymInt mask, SymInt? q_start, float scale, float dropout_p, Tensor? seed, str impl='auto') "
    "-> (Tensor, Tensor, Tensor)",
)
def attend_backward(
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    mask: int,
    q_start: int | None,
    scale: float,
    dropout_p: float,
    seed: torch.Tensor | None,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v."""
    bound = bind(lookup(mask), (*q.shape[:3], k.shape[2]), q_start)
    terms = _terms(scale, dropout_p, seed)
    grads = execute.backward(bound, grad, grad_lse, q, k, v, out, lse, terms, impl)
    dq, dk, dv = (x.contiguous() for x in grads)
    return dq, dk, dv


def _terms(scale: float, dropout_p: float, seed: torch.Tensor | None) -> Terms:
    return Terms(scale, dropout_p, 0 if seed is None else int(seed))


@attend.register_fake
def _(q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any]:  # noqa: ARG001 - the op's signature
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=kind)


@attend_backward.register_fake
def _(grad: Any, grad_lse: Any, q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any, Any]:  # noqa: ARG001
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, *ctx.rest, seed, ctx.impl = inputs
    ctx.save_for_backward(q, k, v, *output, *([] if seed is None else [seed]))
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Any, grad_lse: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, *seed = ctx.saved_tensors
    drawn = seed[0] if seed else None
    if grad is None and grad_lse is None:
        return (None,) * 9
    if grad is None:
        grad = torch.zeros_like(out)
    grads = attend_backward(grad, grad_lse, q, k, v, out, lse, *ctx.rest, drawn, ctx.impl)
    return (*grads, None, None, None, None, None, None)


attend.register_autograd(_gradients, setup_context=_keep)


def usual_scale(head_dim: int) -> float:
    """The usual scale of scores."""
    return 1 / math.sqrt(head_dim) if head_dim else 1.0
