"""Triton kernels that read the spans: forward, backward and decode, for CUDA and ROCm.

They were run in Triton's interpreter and compiled for sm_80, sm_90, sm_100 and gfx942. They were not
run on GPU hardware. Triton is imported on first use.

NaN and infinity in masked cells have no influence. A tile without a visible cell is not read. In a
partial tile they are replaced by 0 before the product with the softmax weights, and the rows that
attend to them become NaN.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from maskwright._optional_deps import require
from maskwright.bias.terms import TensorTerm
from maskwright.engine.support import Support

if TYPE_CHECKING:
    import torch

    from maskwright.engine.call import Call

DTYPES: Final = ("float16", "bfloat16", "float32")
MAX_HEAD_DIM: Final = 256


def _further(call: Call) -> str | None:
    """What the kernels support on some devices or with some positions only."""
    if call.device == "cpu" and not _is_interpreted():
        return (
            "runs on CUDA and ROCm, and the tensors are on cpu (TRITON_INTERPRET=1 in the "
            "environment runs the kernels in Triton's interpreter, for tests)"
        )
    if call.positions is not None and any(
        not isinstance(term, TensorTerm) for term in call.scores.terms
    ):
        return "reads the positions of a bias from the mask, and the call has its own"
    return None


SUPPORT = Support(
    devices=("cuda", "cpu"),
    place="CUDA and ROCm",
    dtypes=DTYPES,
    head_dims=(1, MAX_HEAD_DIM),
    further=_further,
)


def _is_interpreted() -> bool:
    """Whether Triton's interpreter is enabled, without importing Triton."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def forward(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in the dtype of q, and the logsumexp in float32, without sinks."""
    launch, score_args = _modules()
    result: tuple[torch.Tensor, torch.Tensor] = launch.run_forward(
        call, score_args.score_terms(call)
    )
    return result


def backward(
    call: Call,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Gradients of q, k and v, of the values of each bias term, and of the sinks.

    That of a bias term that requires none is empty.
    """
    launch, score_args = _modules()
    terms = score_args.score_terms(call)
    grads = launch.run_backward(call, (out, lse), grad_out, grad_lse, terms)
    sinks = [] if grads.sinks is None else [grads.sinks]
    return grads.q, grads.k, grads.v, *grads.values, *sinks


def _modules() -> tuple[Any, Any]:
    """The modules with the launches, which import Triton, and with the arguments of the scores."""
    with require('impl="triton"'):
        from maskwright.engine.backends.triton import launch, score_args
    return launch, score_args
