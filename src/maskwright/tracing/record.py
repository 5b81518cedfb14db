"""Recording of the attention calls that a model makes.

No forward hooks are registered: they disable nn's fused fast path.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from maskwright.core.validate import describe_type
from maskwright.engine.api import observe_attention
from maskwright.errors import ArgumentError
from maskwright.tracing.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.tracing.calls import AttentionCall

FLEX: Final = "torch.nn.attention.flex_attention"


@dataclass(eq=False)
class Recorder:
    """What was met so far. `calls` and `outputs` are complete when the recording is over.

    `outputs` holds the output of each call, in the same order; `modules` the name and the first
    output tensor of each module, in the order in which they end.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    modules: list[tuple[str, torch.Tensor]] = field(default_factory=list)


@contextlib.contextmanager
def recording(model: Any, *, outputs: bool = False, modules: bool = False) -> Iterator[Recorder]:
    """Record every attention call that is made inside the `with`, by this thread.

    Modules are named as in `model.named_modules()`, or, if the model is a plain function, as in
    the outermost module that it calls. With `outputs` and `modules` their outputs are kept too.
    Compiled code runs eagerly meanwhile.

    >>> import torch
    >>> from maskwright.tracing.trace import recording
    >>> layer = torch.nn.MultiheadAttention(8, 2)
    >>> with recording(layer, outputs=True) as recorder:
    ...     _ = layer(*[torch.ones(4, 1, 8)] * 3)
    >>> recorder.calls, recorder.outputs[0].shape
    ([(model): mha, everything(), none], torch.Size([1, 2, 4, 4]))
    """
    if not callable(model):
        raise ArgumentError(
            f"recording: the model is {describe_type(model)}. Give a module, or a function that calls one."
        )
    watch = Watch(Recorder(), keep_outputs=outputs, keep_modules=modules)
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        watch.stage.name(owner)
    with contextlib.ExitStack() as stack:
        stack.callback(watch.finish)
        for place, attribute, value in watch.replacements():
            stack.callback(setattr, place, attribute, getattr(place, attribute))
            setattr(place, attribute, value)
        stack.enter_context(observe_attention(watch.observe))
        stack.enter_context(_eagerly())
        stack.enter_context(watch.dispatch)
        stack.enter_context(watch.functions)
        yield watch.recorder


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Compiled code runs as it was written; flex_attention does not complain about that."""
    if not {"torch._dynamo", FLEX} & sys.modules.keys():
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield
