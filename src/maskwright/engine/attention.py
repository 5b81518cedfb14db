"""`attention`: exact attention under any mask, and `explain_route`: how it would be computed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import is_fake
from torch.nn.functional import scaled_dot_product_attention

from maskwright.core.bound import BoundMask
from maskwright.core.mask import Mask
from maskwright.engine import execute
from maskwright.engine.arrays import attention as attention_of_arrays
from maskwright.engine.arrays import check_native
from maskwright.engine.inputs import EVERYTHING, bind, check_numbers, check_tensors
from maskwright.engine.op import Attend, Task, attend, usual_scale
from maskwright.engine.routes import Route, choose, read_impl
from maskwright.errors import ArgumentError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

# What answers in place of `attention`, the last one first: where a sequence is shared out over
# processes, models that nobody edited are to compute their share of it.
TAKEN: list[Callable[..., Any]] = []

CAST = (torch.float32, torch.float16, torch.bfloat16)  # what autocast takes for its own


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None = None,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    q_start: int | None = None,
    impl: str = "auto",
    return_lse: bool = False,
) -> Any:
    """Exact attention of q (B, H, T, D) over k (B, Hk, S, D) and v (B, Hk, S, Dv) under a mask.

    Nothing of size T × S is built. A row that sees nothing gives zeros, no gradient, and a
    logsumexp of -inf. Keys that no row sees may hold anything, NaN too. The last query sits at the
    last key, as with a KV cache, unless `q_start` says where the first one sits.

    The output is (B, H, T, Dv); with `return_lse` also the logsumexp of each row's scores,
    (B, H, T). Both are differentiable. `enable_gqa` lets groups of query heads share a key head.
    Numpy arrays give numpy arrays, without gradients. `impl` asks for one way ("native", "strips",
    "sdpa", "dense", "flex", "reference") in place of the cheapest; `explain_route` says which that
    is.

    >>> import torch, maskwright as mw
    >>> q = k = torch.zeros(1, 1, 4, 2)
    >>> v = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4, 1)
    >>> mw.attention(q, k, v, mw.causal()).flatten().tolist()
    [1.0, 1.5, 2.0, 2.5]
    >>> mw.attention(q, k, v, mw.window(back=1)).flatten().tolist()
    [1.0, 1.5, 2.5, 3.5]
    """
    if isinstance(q, np.ndarray):
        return attention_of_arrays(
            *(q, k, v, mask),
            scale=scale,
            dropout_p=dropout_p,
            enable_gqa=enable_gqa,
            q_start=q_start,
            impl=impl,
            return_lse=return_lse,
        )
    q, k, v = _autocast(q, k, v)
    if TAKEN:
        return TAKEN[-1](
            *(q, k, v, mask),
            scale=scale,
            dropout_p=dropout_p,
            enable_gqa=enable_gqa,
            q_start=q_start,
            return_lse=return_lse,
        )
    check_tensors(q, k, v, enable_gqa)
    check_numbers(scale, dropout_p)
    factor = usual_scale(q.shape[-1]) if scale is None else float(scale)
    seed = torch.randint(2**62, ()) if dropout_p else None
    if torch.compiler.is_compiling() or q.is_meta or is_fake(q):
        out, lse = _in_graph(q, k, v, mask, q_start, factor, dropout_p, seed, impl)
    else:
        out, lse = _eagerly(q, k, v, mask, q_start, factor, dropout_p, seed, impl, return_lse)
    return (out, lse) if return_lse else out


def explain_route(
    mask: Mask | BoundMask,
    q_len: int,
    kv_len: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    q_start: int | None = None,
    impl: str = "auto",
    device: str = "cpu",
) -> Route:
    """Which way `attention` would take, why, and its plan.

    >>> import maskwright as mw
    >>> print(mw.explain_route(mw.everything(), 128, heads=8, impl="strips").kind)
    SDPA, no mask
    """
    keys = q_len if kv_len is None else kv_len
    bound = bind(mask, (batch, heads, q_len, keys), q_start)
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ArgumentError(
            f"explain_route: device={device!r} is none of torch's. Give one such as 'cpu' or 'cuda'."
        ) from error
    return choose(bound, read_impl(impl), kind, (batch, heads))


def _autocast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Where autocast is on, attention runs in its dtype, as SDPA does."""
    if not isinstance(q, torch.Tensor) or q.is_meta:
        return q, k, v
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x.to(dtype) if getattr(x, "dtype", None) in CAST else x for x in (q, k, v))


def _in_graph(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    q_start: int | None,
    scale: float,
    dropout_p: float,
    seed: torch.Tensor | None,
    impl: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inside torch.compile: one operator, which finds the mask by its number."""
    if impl not in ("auto", "native", "strips"):
        raise ArgumentError(
            f'attention: impl="{impl}" is not for compiled code. Leave impl out, or call it eagerly.'
        )
    held = EVERYTHING if mask is None else mask
    if not isinstance(held, (Mask, BoundMask)) or not torch.compiler.is_compiling():
        bind(held, (*q.shape[:3], k.shape[2]), q_start)  # refuses what does not fit
    if impl == "native":
        check_native(q, v, dropout_p)
    out, lse = attend(q, k, v, held._number, q_start, scale, dropout_p, seed, impl)
    return out, lse


def _eagerly(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask | BoundMask | None,
    q_start: int | None,
    scale: float,
    dropout_p: float,
    seed: torch.Tensor | None,
    impl: str,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    bound = bind(mask, (*q.shape[:3], k.shape[2]), q_start)
    if impl == "native":
        check_native(q, v, dropout_p)
    elif impl != "strips" and (impl != "auto" or q.device.type != "cpu"):
        # Where compiled code falls back to eager, masks are not for dynamo. Loading that takes seconds.
        keep_out = torch.compiler.disable if "torch._dynamo" in sys.modules else _as_it_is
        out, lse = keep_out(_by_torch)(impl, bound, q, k, v, scale, dropout_p, return_lse)
        return out, lse
    if q.device.type != "cpu":
        choose(bound, impl, q.device.type, (q.shape[0], q.shape[1]))
    task = Task(bound, scale, dropout_p, impl)
    if _plain_call(q, k, v):
        return execute.forward(bound, q, k, v, task.terms(seed), impl)
    out, lse = Attend.apply(q, k, v, seed, task)
    return out, lse


def _plain_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Is this a call that nothing is recorded of? Then it needs no autograd function."""
    recorded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return not (
        recorded
        or torch.is_autocast_enabled(q.device.type)
        or torch._C._are_functorch_transforms_active()
    )


def _by_torch(
    impl: str,
    bound: BoundMask,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    dropout_p: float,
    return_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The ways that are torch's own, and bring their own gradients."""
    route = choose(bound, read_impl(impl), q.device.type, (q.shape[0], q.shape[1])).impl
    grouped = q.shape[1] != k.shape[1]
    if route == "reference":
        from maskwright.engine.reference import reference

        _refuse(route, "dropout", dropout_p)
        found = reference(q, k, v, bound, scale)
        return found.out.to(q.dtype), found.lse
    if route == "flex":
        from maskwright.engine.flex import flex

        _refuse(route, "dropout", dropout_p)
        return flex(bound, q, k, v, scale, grouped, return_lse)
    _refuse(route, "return_lse", return_lse)
    from maskwright.targets.lowering import lower

    given = lower(bound, "torch.sdpa", device=q.device)
    return (
        scaled_dot_product_attention(
            q, k, v, **given, dropout_p=dropout_p, scale=scale, enable_gqa=grouped
        ),
        None,
    )


def _as_it_is(function: Any) -> Any:
    return function


def _refuse(route: str, what: str, asked: object) -> None:
    if asked:
        raise Unsupported(
            f'attention: impl="{route}" has no {what}. Leave {what} out, or pass impl="strips".',
            target=route,
        )
