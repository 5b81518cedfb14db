"""Trace: the attention calls that a model makes in one forward pass, and their effective masks."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from maskwright.core.validate import describe_type
from maskwright.engine.api import observe_attention
from maskwright.errors import ArgumentError
from maskwright.messages import Reason, render
from maskwright.tracing.calls import AttentionCall
from maskwright.tracing.tracer import AttentionTracer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AttentionCall", "Recorder", "Trace", "recording", "trace"]

MAX_NAMES: Final = 3  # layers that are listed by name in a difference
COLUMNS: Final = ("layer", "kernel", "shapes", "mask", "convention", "masked")
FLEX: Final = "torch.nn.attention.flex_attention"


def trace(model: Any, /, *inputs: Any, **kwargs: Any) -> Trace:
    """Runs a model once and records the effective mask of each of its attention calls.

    The model runs in eval mode and without gradients; afterwards its modules are in the same mode
    as before. The calls that are found are scaled_dot_product_attention, flex_attention,
    nn.MultiheadAttention and nn.Transformer with their fused paths, `maskwright.attention`, and
    manual implementations: a matmul, a softmax, and a matmul with the values.

    Args:
        model: A module or any other callable.
        inputs: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        The attention calls, in order.

    Raises:
        ArgumentError: If the model is not callable.

    >>> import torch, maskwright as mw
    >>> def attend(x):
    ...     scores = x @ x.transpose(-2, -1)
    ...     future = torch.ones(4, 4).triu(1).bool()
    ...     return scores.masked_fill(future, -1e9).softmax(-1) @ x
    >>> [call] = mw.trace(attend, torch.ones(1, 4, 8))
    >>> call
    (model): softmax, causal(), bool, True masks
    """
    _check_callable(model, "trace")
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    rng = torch.random.fork_rng(devices=list(devices))
    with _eval_mode(model), torch.no_grad(), rng, recording(model) as recorder:
        model(*inputs, **kwargs)
    return Trace(tuple(recorder.calls))


@contextlib.contextmanager
def recording(model: Any, *, outputs: bool = False, modules: bool = False) -> Iterator[Recorder]:
    """Context manager that records all attention calls of the current thread.

    Modules are named as in `model.named_modules()` or, if the model is a plain callable, as in the
    outermost module that it calls. Compiled functions run eagerly. No forward hooks are
    registered, because they disable nn's fused fast path.

    Args:
        model: The module or function that is called in the context.
        outputs: Whether to keep the outputs of the attention calls.
        modules: Whether to keep the outputs of the modules.

    Yields:
        The recorder, which is complete when the context is left.

    Raises:
        ArgumentError: If the model is not callable.

    >>> import torch
    >>> from maskwright.tracing import recording
    >>> layer = torch.nn.MultiheadAttention(8, 2)
    >>> with recording(layer, outputs=True) as recorder:
    ...     _ = layer(*[torch.ones(4, 1, 8)] * 3)
    >>> recorder.calls, recorder.outputs[0].shape
    ([(model): mha, everything(), none], torch.Size([1, 2, 4, 4]))
    """
    _check_callable(model, "recording")
    recorder = Recorder()
    tracer = AttentionTracer(
        outputs=recorder.outputs if outputs else None,
        module_outputs=recorder.modules if modules else None,
    )
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        tracer.modules.add_root(owner)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: recorder.calls.extend(tracer.finish()))
        for target, attribute, value in tracer.patches():
            stack.callback(setattr, target, attribute, getattr(target, attribute))
            setattr(target, attribute, value)
        stack.enter_context(observe_attention(tracer.observe))
        stack.enter_context(_force_eager())
        stack.enter_context(tracer.dispatch_mode)
        stack.enter_context(tracer.function_mode)
        yield recorder


@dataclass(eq=False)
class Recorder:
    """The attention calls of a recording.

    Attributes:
        calls: The calls, in order. Empty until the recording ends.
        outputs: The output of each call, if requested.
        modules: The name and the first output tensor of each module call, if requested, in the
            order in which the calls return.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    modules: list[tuple[str, torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The attention calls of one forward pass, in order. Prints as a table.

    >>> import torch, maskwright as mw
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x, future = torch.ones(1, 4, 8), torch.ones(4, 4).triu(1).bool()
    >>> found = mw.trace(layer, x, x, x, attn_mask=future, need_weights=False)
    >>> len(found), found[0].mask
    (1, causal())
    >>> print(found)
    layer    kernel         shapes    mask      convention        masked
    (model)  mha fast path  (1, 4, 8) → (1, 2, 4, 4) → (1, 2, 4, 4) → (1, 2, 4, 4) → (1, 4, 8)
                                      causal()  bool, True masks  38 %
    >>> found.differences, found.difference_reasons, found.as_dict()["calls"][0]["mask"]
    ((), (), 'causal()')
    """

    calls: tuple[AttentionCall, ...]

    def as_dict(self) -> dict[str, Any]:
        """The trace as JSON-compatible data."""
        return {"calls": [call.as_dict() for call in self.calls]}

    @property
    def differences(self) -> tuple[str, ...]:
        """A sentence for each mask in which corresponding layers differ from the first of them.

        Layers correspond if their names differ only in a number, as `h.0.attn` and `h.1.attn`.
        Where a layer makes several calls, first calls are compared with first calls, and so on.
        """
        return tuple(render(reason) for reason in self.difference_reasons)

    @property
    def difference_reasons(self) -> tuple[Reason, ...]:
        """The differences as data, which `maskwright.messages.render` translates."""
        groups: dict[tuple[object, ...], list[AttentionCall]] = {}
        num_calls: Counter[str] = Counter()
        for call in self.calls:
            pattern = re.sub(r"\d+", "#", call.layer)
            key = (pattern, num_calls[call.layer], call.cross, call.visible.shape[2:])
            groups.setdefault(key, []).append(call)
            num_calls[call.layer] += 1
        return tuple(reason for calls in groups.values() for reason in _differences(calls))

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[AttentionCall]:
        return iter(self.calls)

    def __getitem__(self, index: int) -> AttentionCall:
        return self.calls[index]

    def __str__(self) -> str:
        if not self.calls:
            return "no attention calls"
        rows = [COLUMNS, *(table_row(call) for call in self.calls)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self.differences])

    __repr__ = __str__


def table_row(call: AttentionCall) -> tuple[str, ...]:
    """The row of a call in the table of a trace, as in `COLUMNS`."""
    return (
        call.layer or "(model)",
        call.kernel,
        " → ".join(map(str, call.shapes)),
        call.mask_text,
        call.convention,
        f"{call.masked_share:.0%}".replace("%", " %"),
    )


def _differences(calls: list[AttentionCall]) -> Iterator[Reason]:
    by_mask: dict[object, list[AttentionCall]] = {}
    for call in calls:
        by_mask.setdefault((call.visible.shape, call.visible.tobytes()), []).append(call)
    (first, *_), *others = by_mask.values()
    for other in others:
        names = list(dict.fromkeys(call.layer or "(model)" for call in other))
        layers: str | Reason = ", ".join(names)
        if len(names) > MAX_NAMES:
            params = {"first": names[0], "last": names[-1], "count": len(names)}
            layers = Reason("trace.layer_range", params)
        yield Reason(
            "trace.mask_differs",
            {"layers": layers, "reference": first.layer or "(model)", "mask": other[0].mask_text},
        )


def _check_callable(model: Any, caller: str) -> None:
    if not callable(model):
        raise ArgumentError(
            f"{caller}: the model is {describe_type(model)}. "
            "Pass a module or a function that calls one."
        )


@contextlib.contextmanager
def _eval_mode(model: Any) -> Iterator[None]:
    """Eval mode for all modules of the model; afterwards each is in its previous mode."""
    owner = getattr(model, "__self__", model)
    modules = list(owner.modules()) if isinstance(owner, torch.nn.Module) else []
    before = [(module, module.training) for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, training in before:
            module.training = training


@contextlib.contextmanager
def _force_eager() -> Iterator[None]:
    """Runs compiled functions eagerly, without flex_attention's warning about that."""
    if not {"torch._dynamo", FLEX} & sys.modules.keys():
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield
