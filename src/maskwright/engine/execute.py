"""Attention of any tensors, by the kernel in C where that serves, else by strips.

What strips ask of their input is seen to here: torch's kernel wants one head_dim for q, k and v, a
last axis without gaps, at least one query, and numbers in every key that it reads. Half precision
is computed in float32 where that is quicker.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import pad

from maskwright.engine import plain, strips
from maskwright.engine.backends import native
from maskwright.engine.native.bindings import MAX_HEAD_DIM, loaded
from maskwright.engine.params import AttentionParams, AttentionShape, Saved
from maskwright.engine.pieces import Steps
from maskwright.engine.plan import plan_of

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.pieces import Piece
    from maskwright.engine.plan import Plan

NATIVE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALVES = (torch.float16, torch.bfloat16)
LEAST_REUSE = 16  # rows a key is read by, from which on it pays to turn halves into float32


class Terms(NamedTuple):
    """How attention is computed, besides the tensors."""

    scale: float
    dropout_p: float = 0.0
    seed: int = 0


def runs_natively(impl: str, q: torch.Tensor, v: torch.Tensor, dropout_p: float) -> bool:
    """Does the kernel in C compute this? Dropout and float64 are for strips."""
    return (
        impl != "strips"
        and not dropout_p
        and q.dtype in NATIVE_DTYPES
        and q.device.type == "cpu"
        and 0 < q.shape[-1] <= MAX_HEAD_DIM
        and 0 < v.shape[-1] <= MAX_HEAD_DIM
        and loaded().library is not None
    )


def kernel_params(
    bound: BoundMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> AttentionParams:
    """The parameters that the native backend takes."""
    batch, heads, q_len, head_dim = q.shape
    shape = AttentionShape(batch, heads, k.shape[1], q_len, k.shape[2], head_dim, v.shape[-1])
    return AttentionParams(bound, shape, scale, str(q.dtype)[6:])


def forward(
    bound: BoundMask,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    terms: Terms,
    impl: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in q's dtype, and logsumexp in float32, or in float64 where q is."""
    if _nothing_to_do(q, k):
        return _blank(q, v)
    if runs_natively(impl, q, v, terms.dropout_p):
        return native.forward(kernel_params(bound, q, k, v, terms.scale), q, k, v)
    if terms.scale <= 0:  # the kernel's causal mode hides keys before it scales, as -inf
        return forward(bound, q * terms.scale, k, v, terms._replace(scale=1.0), impl)
    plan = plan_of(bound, "forward", (q.shape[0], q.shape[1]))
    piece = None if terms.dropout_p else plan.one_strip
    if piece is not None:
        given = _prepared(plan, q, *_read_keys(piece, k, v), late=True)
        out, lse = strips.one_strip(plan, piece, *given, terms.scale)
        return _as_given(out, q, v), lse
    drops = bool(terms.dropout_p)
    late = not drops and plan.reads <= math.prod(plan.shape) // plan.shape[2]
    given = _prepared(plan, q, *(_without_unseen(plan, k, v) if drops else (k, v)), drops, late)
    out, lse = strips.forward(plan, *given, terms.scale)
    if plan.unseen is not None and not drops and _spoilt(plan, out, lse):
        # What no row sees mostly holds plain numbers, and then a weight of 0 hides it; else again.
        given = _prepared(plan, q, *_without_unseen(plan, k, v), late=late)
        out, lse = strips.forward(plan, *given, terms.scale)
    if drops:
        plan = plan_of(bound, "plain", (q.shape[0], q.shape[1]))
        out = plain.forward(plan, *given, lse, *terms)
    return _as_given(out, q, v), lse


def _spoilt(plan: Plan, out: torch.Tensor, lse: torch.Tensor) -> bool:
    """Has a key that no row sees spread into the result, being no number?"""
    row = plan.telling_row
    if row is None:
        return not math.isfinite(out.sum())
    return math.isnan(lse.sum()) or not math.isfinite(out[:, :, row].sum())


def _as_given(out: torch.Tensor, q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The output in the width of v and the dtype of q."""
    if out.shape[-1] != v.shape[-1]:
        out = out[..., : v.shape[-1]]
    return out if out.dtype == q.dtype else out.to(q.dtype)


def _read_keys(piece: Piece, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Only the keys that the strip reads."""
    keys = piece.keys
    if not isinstance(keys, Steps):
        return strips.gathered(piece, k), strips.gathered(piece, v)
    if keys == (0, k.shape[2], 1):
        return k, v
    part = slice(keys.start, keys.stop, keys.step)
    return k[:, :, part], v[:, :, part]


def backward(
    bound: BoundMask,
    grad: torch.Tensor,
    grad_lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    terms: Terms,
    impl: str = "auto",
    alone: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v; without `alone`, output and logsumexp are over other keys too."""
    if _nothing_to_do(q, k):
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if runs_natively(impl, q, v, terms.dropout_p):
        params = kernel_params(bound, q, k, v, terms.scale)
        return native.backward(params, Saved(q, k, v, out, lse), grad, grad_lse)
    if terms.scale <= 0:
        scaled, positive = q * terms.scale, terms._replace(scale=1.0)
        dq, dk, dv = backward(bound, grad, grad_lse, scaled, k, v, out, lse, positive, impl, alone)
        return dq * terms.scale, dk, dv
    plan = plan_of(bound, "plain" if terms.dropout_p else "backward", (q.shape[0], q.shape[1]))
    if grad_lse is not None:
        grad_lse = grad_lse.masked_fill(lse == -math.inf, 0.0)
    args = (bound, plan, (grad, grad_lse, q), (out, lse), terms, alone)
    if plan.unseen is None:
        return _gradients(*args, k, v)
    if not terms.dropout_p:
        # As in the forward pass: a weight of 0 hides plain numbers, so first without clearing.
        dq, dk, dv = _gradients(*args, k, v)
        told = dq if plan.telling_row is None else dq[:, :, plan.telling_row]
        if math.isfinite(told.sum()):
            return dq, dk, dv
    return _gradients(*args, *_without_unseen(plan, k, v))


def _gradients(
    bound: BoundMask,
    plan: Plan,
    rows: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor],
    found: tuple[torch.Tensor, torch.Tensor],
    terms: Terms,
    alone: bool,
    k: torch.Tensor,
    v: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By the backward plan, of keys and values that hold numbers."""
    (grad, grad_lse, q), (out, lse) = rows, found
    spare = grad_lse is not None and not terms.dropout_p
    given = _prepared(plan, q, k, v, bool(terms.dropout_p), spare=spare)
    width = given[0].shape[-1]
    if alone and q.dtype in HALVES and q.shape[-1] != v.shape[-1] and not terms.dropout_p:
        # Torch keeps more digits here than a half has, so the output is had again, unrounded.
        out, _ = strips.forward(
            plan_of(bound, "forward", (q.shape[0], q.shape[1])), *given, terms.scale
        )
    if spare:
        # A value of 1 in a spare column, whose output is taken as 0, carries the gradient of the
        # logsumexp: it comes to every weight of the row, and nothing is taken off it.
        given[2][..., -1] = 1.0
        grad, out = (pad(x.to(lse.dtype), (0, width - x.shape[-1])) for x in (grad, out))
        out[..., -1] = 0.0
        grad[..., -1] = grad_lse
    grad, out = (_fitted(x, given[0].dtype, width) for x in (grad, out))
    args = (plan, grad, *given, out, lse)
    if terms.dropout_p:
        grads = plain.backward(*args, grad_lse, *terms)
    else:
        grads = strips.backward(*args, terms.scale)
    dq, dk, dv = (g[..., : x.shape[-1]].to(x.dtype) for g, x in zip(grads, (q, k, v), strict=True))
    return dq, dk, dv


def _prepared(
    plan: Plan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    drops: bool = False,
    late: bool = False,
    spare: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tensors as the kernel takes them, with a spare column of zeros where one is asked for.

    With `late` keys and values keep their dtype, to be cast where they are read.
    """
    dtype = computing_dtype(q.dtype, plan, even=q.shape[-1] == v.shape[-1] and not drops)
    width = max(q.shape[-1], v.shape[-1], 1) + spare
    own = k.dtype if late else dtype
    return _fitted(q, dtype, width), _fitted(k, own, width), _fitted(v, own, width)


def computing_dtype(dtype: torch.dtype, plan: Plan, even: bool = True) -> torch.dtype:
    """What the kernel computes in: float32 for halves, where keys are read often enough.

    Also where halves would be rounded once more than SDPA does: at merging, or where they are not
    `even`, that is, under dropout, or with another head_dim for values than for keys.
    """
    batch, heads, _, kv_len = plan.shape
    if dtype not in HALVES:
        return dtype
    often = plan.computed >= LEAST_REUSE * batch * heads * kv_len
    return torch.float32 if often or plan.merges or not even or not _quick_halves() else dtype


@lru_cache(maxsize=1)
def _quick_halves() -> bool:
    """Does the processor multiply halves by itself?"""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _fitted(x: torch.Tensor, dtype: torch.dtype, width: int) -> torch.Tensor:
    if x.dtype != dtype:
        x = x.to(dtype)
    if x.shape[-1] != width:
        return pad(x, (0, width - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def _without_unseen(
    plan: Plan, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys that a strip reads though no row sees them, set to 0."""
    if plan.unseen is None:
        return k, v
    unseen = torch.from_numpy(plan.unseen).to(k.device)
    if unseen.shape[1] > 1 and k.shape[1] != unseen.shape[1]:
        # Heads that share a key head: only what none of them sees is surely no one's.
        unseen = unseen.unflatten(1, (k.shape[1], -1)).all(2)
    unseen = unseen.unsqueeze(-1)
    return k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)


def _nothing_to_do(q: torch.Tensor, k: torch.Tensor) -> bool:
    return not (q.shape[:3].numel() and k.shape[2])


def _blank(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """No query or no key: zeros, and no logsumexp."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        q.new_zeros((*q.shape[:3], v.shape[-1])),
        torch.full(q.shape[:3], -math.inf, dtype=dtype, device=q.device),
    )
