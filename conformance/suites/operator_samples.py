"""PyTorch's samples of the operator `scaled_dot_product_attention`, with seven checks of each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.runners import Side, run_functions
from conformance.sources import NotRunError, installed
from conformance.suite import Reason, Runs, Suite

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.sources import Sources

REASONS: tuple[Reason, ...] = ()


def run(sources: Sources) -> Runs:  # noqa: ARG001 - the samples are in the installed package
    """Every check of every sample in four dtypes."""
    release = installed("torch")
    try:
        from tests._helpers import sdpa_samples
    except ImportError as error:
        raise NotRunError(f"the checks cannot be imported: {error}") from None
    tests = {}
    for dtype in sdpa_samples.DTYPES:
        for sample in sdpa_samples.samples(dtype):
            for name, check in sdpa_samples.CHECKS.items():
                kind = str(dtype).removeprefix("torch.")
                tests[f"{name}[{kind}, {sample.name}]"] = partial(call, sdpa_samples, check, sample)
    return run_functions(f"torch {release}", tests)


def call(module: Any, check: Callable[[Any], None], sample: Any, side: Side) -> None:
    """Run a check with maskwright, or with the original function in the place of it."""
    if side == "maskwright":
        check(sample)
        return
    ours = module.attend, module.read_mask
    try:
        module.attend, module.read_mask = attend, lambda sample: (sample.attn_mask, None)
        module.compiled.cache_clear()
        check(sample)
    finally:
        module.attend, module.read_mask = ours
        module.compiled.cache_clear()


def attend(sample: Any, attn_mask: Any = None, bias: None = None) -> Any:  # noqa: ARG001
    """The sample by PyTorch."""
    import torch.nn.functional as F  # noqa: N812 - the usual name

    mask = sample.attn_mask if attn_mask is None else attn_mask
    return F.scaled_dot_product_attention(*sample.tensors, attn_mask=mask, **sample.options)


SUITE = Suite(
    "torch.samples",
    "operator samples: forward, backward, noncontiguous, vmap, gradcheck, compiled",
    "`F.scaled_dot_product_attention`",
    run,
    REASONS,
)
