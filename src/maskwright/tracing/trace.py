"""`trace`: every attention call of one real forward pass, and the mask that each really had.

What may enter here: running a model once, as it is. How it is watched is for `tracing.record`, what
the kernels hide for `tracing.kernels`, attention that is written by hand for `tracing.flow`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError
from maskwright.tracing.calls import AttentionCall, Trace
from maskwright.tracing.record import Recorder, recording

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AttentionCall", "Recorder", "Trace", "recording", "trace"]


def trace(model: Any, /, *inputs: Any, **kwargs: Any) -> Trace:
    """Run a model once, and say what mask each of its attention calls really had.

    The model is a module or any function; the rest are its arguments. It runs without gradients and
    without dropout, and is left as it was. Found are scaled_dot_product_attention, flex_attention,
    nn.MultiheadAttention and nn.Transformer with their fused paths, maskwright's own attention, and
    attention that is written by hand: a product, a softmax, and a product with values.

    >>> import torch, maskwright as mw
    >>> def attend(x):
    ...     scores = x @ x.transpose(-2, -1)
    ...     later = torch.ones(4, 4).triu(1).bool()
    ...     return scores.masked_fill(later, -1e9).softmax(-1) @ x
    >>> [call] = mw.trace(attend, torch.ones(1, 4, 8))
    >>> call
    (model): softmax, causal(), bool, True drops
    """
    if not callable(model):
        raise ArgumentError(
            f"trace: the model is {describe_type(model)}. Give a module, or a function that calls one."
        )
    with _at_rest(model), torch.no_grad(), _same_randomness(), recording(model) as recorder:
        model(*inputs, **kwargs)
    return Trace(tuple(recorder.calls))


@contextlib.contextmanager
def _at_rest(model: Any) -> Iterator[None]:
    """As in eval mode; afterwards every module trains or rests as before."""
    owner = getattr(model, "__self__", model)
    modules = list(owner.modules()) if isinstance(owner, torch.nn.Module) else []
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


@contextlib.contextmanager
def _same_randomness() -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(devices)):
        yield
