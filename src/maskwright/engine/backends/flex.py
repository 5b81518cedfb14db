"""Compiled FlexAttention with a BlockMask made from the spans.

Soft cap and bias are a `score_mod`. Sinks scale the output by the logsumexp, which FlexAttention
returns on CUDA and ROCm only.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from maskwright.engine.scores import NO_SCORE_TENSORS, sink_factor, term_coordinates
from maskwright.targets.torch_flex import request_lse

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionParams, ScoreTensors, TermIndex


DEVICES: Final = ("cpu", "cuda", "xpu", "hpu", "mps")
INFERENCE_ONLY: Final = {"cpu": "the CPU", "mps": "MPS"}  # without backward pass and logsumexp
MIN_HEAD_DIM: Final = 16  # on GPUs


def unsupported(params: AttentionParams) -> str | None:
    """The reason why FlexAttention cannot compute this call, or None."""
    return problem_of_tensors(
        params.device, params.dtype, (params.shape.head_dim, params.shape.v_head_dim)
    ) or problem_of(
        params.device,
        params.dropout_p,
        requires_grad=params.requires_grad,
        return_lse=params.return_lse,
        has_sinks=params.has_sinks,
    )


def problem_of_tensors(device: str, dtype: str, dims: tuple[int, int]) -> str | None:
    """What FlexAttention does not support of tensors on a device, or None."""
    if device not in DEVICES:
        return f"does not run on {device}"
    if device in INFERENCE_ONLY:
        return None
    if min(dims) < MIN_HEAD_DIM:
        return (
            f"needs a head_dim of at least {MIN_HEAD_DIM} on {device}, and q and v have "
            f"{dims[0]} and {dims[1]}"
        )
    if dtype == "float64":
        return f"accumulates in float32 on {device}, and the tensors are float64"
    return None


def problem_of(
    device: str, dropout_p: float, *, requires_grad: bool, return_lse: bool, has_sinks: bool
) -> str | None:
    """What FlexAttention does not support of the options of a call on a device, or None."""
    if dropout_p:
        return f"has no dropout, and dropout_p is {dropout_p}"
    place = INFERENCE_ONLY.get(device)
    if place is None:
        return None
    if requires_grad:
        return f"has no backward pass on {place}, and q, k or v requires a gradient"
    if return_lse:
        return f"has no logsumexp on {place}, and return_lse is True"
    if has_sinks:
        return f"has no logsumexp on {place}, which sinks need"
    return None


def forward(
    params: AttentionParams,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: ScoreTensors = NO_SCORE_TENSORS,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and the logsumexp if requested; differentiable by PyTorch where it supports that."""
    needs_lse = params.return_lse or params.has_sinks
    options = {
        "score_mod": _score_mod(params, q, scores),
        "block_mask": block_mask(params.mask, q.device),
        "scale": params.scale,
        "enable_gqa": q.shape[1] != k.shape[1],
        **(request_lse() if needs_lse else {}),
    }
    found = _run_compiled((q, k, v), options)
    return results_of(found, scores.sinks) if needs_lse else (found, None)


def results_of(found: Any, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp from what `flex_attention` returns with `request_lse()`."""
    out, aux = found
    lse = getattr(aux, "lse", aux)  # before PyTorch 2.9 the logsumexp itself
    if sinks is not None:
        out = (out * sink_factor(lse, sinks).unsqueeze(-1)).to(out.dtype)
    return out, lse


def _score_mod(params: AttentionParams, q: torch.Tensor, scores: ScoreTensors) -> Any:
    """Soft cap and bias of one score, or None if there is neither."""
    if params.softcap is None and not params.terms:
        return None
    import torch

    softcap = params.softcap
    lookups = [
        _lookup(params, index, value.to(torch.promote_types(q.dtype, torch.float32)))
        for index, value in zip(params.terms, scores.values, strict=True)
    ]

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        for lookup in lookups:
            score = score + lookup(b, h, q_idx, kv_idx)
        return score

    return score_mod


def _lookup(params: AttentionParams, index: TermIndex, values: torch.Tensor) -> Any:
    """The value of one bias term in a cell, as a function that FlexAttention compiles."""
    import torch

    if index.kind == "tensor":
        factors = [int(size != 1) for size in values.shape]

        def tensor(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            cell = (n * factor for n, factor in zip((b, h, q_idx, kv_idx), factors, strict=True))
            return values[tuple(cell)]

        return tensor
    rows, keys, offset = term_coordinates(params, index)
    row_index, key_index = (torch.from_numpy(x).to(values.device) for x in (rows, keys))
    flat, per_head = values.flatten(1), int(values.shape[0] != 1)

    def indexed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # noqa: ARG001
        return flat[h * per_head, key_index[kv_idx] - row_index[q_idx] + offset]

    return indexed


def block_mask(bound: BoundMask, device: torch.device) -> Any:
    """The BlockMask of a bound mask on a device, made once."""
    from maskwright.targets.lower import lower

    return bound.cached(
        ("block_mask", str(device)), lambda: lower(bound, "torch.flex", device=device)
    )


def _run_compiled(tensors: tuple[torch.Tensor, ...], options: dict[str, Any]) -> Any:
    """FlexAttention compiled for all lengths on GPUs, and for each shape on the CPU.

    PyTorch generates invalid C++ for dynamic shapes on the CPU (torch 2.13). A device on which they
    fail is compiled for each shape from then on, with a warning.
    """
    import torch

    device = tensors[0].device.type
    if device == "cpu" or device in _STATIC_DEVICES:
        return _compiled(dynamic=False)(*tensors, **options)
    try:
        return _compiled(dynamic=True)(*tensors, **options)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of Dynamo or Inductor
        found = _compiled(dynamic=False)(*tensors, **options)
        _STATIC_DEVICES.add(device)
        warnings.warn(
            f"FlexAttention failed with dynamic shapes on {device}, and is compiled again for each "
            f"new shape: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            UserWarning,
            stacklevel=2,
        )
        return found


_STATIC_DEVICES: set[str] = set()


@lru_cache(maxsize=2)
def _compiled(dynamic: bool) -> Callable[..., Any]:
    """One compiled function for all masks; with `dynamic` one graph per head_dim and dtype."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=dynamic)
    return compiled
