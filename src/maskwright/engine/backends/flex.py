"""Compiled FlexAttention with a BlockMask made from the spans.

Soft cap and bias are a `score_mod`. Sinks scale the output by the logsumexp, which FlexAttention
returns on GPUs only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from maskwright.engine.scores import NO_SCORE_TENSORS, sink_factor, term_coordinates

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionParams, ScoreTensors, TermIndex


def unsupported(params: AttentionParams) -> str | None:
    """The reason why FlexAttention cannot compute this call, or None."""
    if params.dropout_p:
        return f"has no dropout, and dropout_p is {params.dropout_p}"
    if params.device == "cpu" and params.requires_grad:
        return "has no backward pass on the CPU, and q, k or v requires a gradient"
    if params.device == "cpu" and params.return_lse:
        return "has no logsumexp on the CPU, and return_lse is True"
    if params.device == "cpu" and params.has_sinks:
        return "has no logsumexp on the CPU, which sinks need"
    return None


def forward(
    params: AttentionParams,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: ScoreTensors = NO_SCORE_TENSORS,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and the logsumexp if requested; differentiable by PyTorch where it supports that."""
    from torch.nn.attention.flex_attention import AuxRequest

    needs_lse = params.return_lse or params.has_sinks
    found = _compiled()(
        *(q, k, v),
        score_mod=_score_mod(params, q, scores),
        block_mask=block_mask(params.mask, q.device),
        scale=params.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True) if needs_lse else None,
    )
    if not needs_lse:
        return found, None
    out, lse = found[0], found[1].lse
    if scores.sinks is not None:
        out = (out * sink_factor(lse, scores.sinks).unsqueeze(-1)).to(q.dtype)
    return out, lse


def _score_mod(params: AttentionParams, q: torch.Tensor, scores: ScoreTensors) -> Any:
    """Soft cap and bias of one score, or None if there is neither."""
    if params.softcap is None and not params.terms:
        return None
    import torch

    softcap = params.softcap
    lookups = [
        _lookup(params, index, value.to(q.dtype))
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


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., Any]:
    """One compiled function for all masks of one shape."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
