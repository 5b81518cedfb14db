"""Compiled FlexAttention with a BlockMask made from the spans.

Soft cap and bias are a `score_mod`. Sinks scale the output by the logsumexp, which FlexAttention
returns on CUDA and ROCm only.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from maskwright.bias.scores import sink_factor
from maskwright.engine.support import Support
from maskwright.targets.torch_flex import request_lse

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from maskwright.core.bound import BoundMask
    from maskwright.engine.call import Call


INFERENCE_ONLY: Final = {"cpu": "the CPU", "mps": "MPS"}  # without backward pass and logsumexp
MIN_HEAD_DIM: Final = 16  # on GPUs


def _further(call: Call) -> str | None:
    """What FlexAttention supports on some devices only."""
    device, dims = call.device, (call.shape.head_dim, call.shape.v_head_dim)
    place = INFERENCE_ONLY.get(device)
    if place is None:
        if min(dims) < MIN_HEAD_DIM:
            return (
                f"needs a head_dim of at least {MIN_HEAD_DIM} on {device}, and q and v have "
                f"{dims[0]} and {dims[1]}"
            )
        if "float64" in call.dtypes:
            return f"accumulates in float32 on {device}, and the tensors are float64"
        return None
    if call.requires_grad:
        return f"has no backward pass on {place}, and a tensor requires a gradient"
    if call.return_lse:
        return f"has no logsumexp on {place}, and return_lse is True"
    if call.scores.sinks is not None:
        return f"has no logsumexp on {place}, which sinks need"
    return None


SUPPORT = Support(
    devices=("cpu", "cuda", "xpu", "hpu", "mps"),
    place="CPUs and the GPUs that torch.compile supports",
    dropout=False,
    backward=False,
    further=_further,
)


def forward(call: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output, and the logsumexp if requested; differentiable by PyTorch where it supports that."""
    return run(_run_compiled, call, block_mask(call.mask, call.q.device), call.mask.frame.q_start)


def run(
    flex_attention: Callable[..., Any], call: Call, mask: Any, q_start: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Call FlexAttention, and apply sinks.

    Args:
        flex_attention: The function, compiled or not.
        call: The call.
        mask: The BlockMask.
        q_start: Position of the first query.
    """
    sinks = call.scores.sinks
    needs_lse = call.return_lse or sinks is not None
    result = flex_attention(
        *(call.q, call.k, call.v),
        score_mod=call.scores.score_mod(q_start),
        block_mask=mask,
        scale=call.scale,
        enable_gqa=call.shape.heads != call.shape.kv_heads,
        **(request_lse() if needs_lse else {}),
    )
    if not needs_lse:
        return result, None
    out, aux = result
    lse = getattr(aux, "lse", aux)  # before PyTorch 2.9 the logsumexp itself
    if sinks is not None:
        out = (out * sink_factor(lse, sinks).unsqueeze(-1)).to(out.dtype)
    return out, lse


def block_mask(bound: BoundMask, device: torch.device) -> Any:
    """The BlockMask of a bound mask on a device, made once."""
    from maskwright.targets.lower import lower

    return bound.cached(
        ("block_mask", str(device)), lambda: lower(bound, "torch.flex", device=device)
    )


def _run_compiled(*tensors: torch.Tensor, **options: Any) -> Any:
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
        out = _compiled(dynamic=False)(*tensors, **options)
        _STATIC_DEVICES.add(device)
        warnings.warn(
            f"FlexAttention failed with dynamic shapes on {device}, and is compiled again for each "
            f"new shape: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            UserWarning,
            stacklevel=2,
        )
        return out


_STATIC_DEVICES: set[str] = set()


@lru_cache(maxsize=2)
def _compiled(dynamic: bool) -> Callable[..., Any]:
    """One compiled function for all masks; with `dynamic` one graph per head_dim and dtype."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=dynamic)
    return compiled
