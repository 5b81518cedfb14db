"""Attention calls of a forward pass, and the module calls in which they were made."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.weak import WeakIdKeyDictionary

from maskwright._torch_state import is_in_backward
from maskwright.core.expr import brief
from maskwright.recognition import Recognized, recognize
from maskwright.tracing.provenance import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray

Shape = tuple[int, ...]

MAX_MASK_TEXT: Final = 60  # characters of an expression that is shown in full
MASK_PARAMETERS: Final = ("attn_mask", "src_mask", "key_padding_mask", "src_key_padding_mask")
FUSED_MODULES: Final = {"torch.nn.modules.activation", "torch.nn.modules.transformer"}


@dataclass(frozen=True, eq=False, repr=False)
class AttentionCall:
    """One attention call of a forward pass, and its effective mask.

    Attributes:
        index: Position among the calls of the trace.
        layer: Name of the innermost module around the call; "" for the model itself.
        kernel: "sdpa", "mha", "mha fast path", "encoder fast path", "flex", "maskwright", or
            "softmax" for a manual implementation.
        q_shape: Shape of the queries, (batch, heads, length, head_dim), or () if not known.
            Likewise `k_shape`, `v_shape` and `out_shape`.
        shapes: Shapes of the module's input, the queries, the weights, the attention output and the
            module's output, without those that are not known.
        visible: True where the key is visible to the query: (batch or 1, heads or 1, queries, keys).
        masks: Mask arguments as they were passed, by name.
        convention: How the kernel interprets the mask arguments.
        after_softmax: Whether weights were removed after the softmax, so that the remaining ones
            no longer sum to 1.
        cross: Whether the keys come from another sequence than the queries (cross-attention).
        step: Sequential attention step, counted from 0. Modules that take the same tensor, such as
            separate modules for the heads of one layer, are one step.

    >>> import torch, maskwright as mw
    >>> x = torch.ones(1, 2, 4, 8)
    >>> [call] = mw.trace(torch.nn.functional.scaled_dot_product_attention, x, x, x, is_causal=True)
    >>> call.kernel, call.mask, call.convention, call.masked_share
    ('sdpa', causal(), 'is_causal', 0.375)
    >>> call.visible.shape
    (1, 1, 4, 4)
    >>> call.mask_argument, call.mask_text, call.recognized.frame.q_start, call.as_dict()["masked_share"]
    (None, 'causal()', 0, 0.375)
    """

    index: int
    layer: str
    kernel: str
    q_shape: Shape
    k_shape: Shape
    v_shape: Shape
    out_shape: Shape
    shapes: tuple[Shape, ...]
    visible: BoolArray
    masks: Mapping[str, Any]
    convention: str
    after_softmax: bool
    cross: bool
    step: int

    @property
    def mask_argument(self) -> Any:
        """The first mask argument as it was passed, or None."""
        return next(iter(self.masks.values()), None)

    @property
    def masked_share(self) -> float:
        """Fraction of the cells that are masked."""
        return 1.0 - float(self.visible.mean()) if self.visible.size else 0.0

    @cached_property
    def recognized(self) -> Recognized | None:
        """The visible cells as an expression with its frame, or None if recognition failed."""
        try:
            return recognize(self.visible, polarity="keep", axes="bhqk")
        except Exception:  # a trace is complete also if one of its masks is not recognized
            return None

    @property
    def mask(self) -> Mask | None:
        """The shortest expression for the visible cells, or None."""
        return None if self.recognized is None else self.recognized.mask

    @property
    def mask_text(self) -> str:
        """The expression, abbreviated if it is long, with `q_start` if that is not the default."""
        found = self.recognized
        if found is None:
            return "?"
        text = repr(found.mask)
        if len(text) > MAX_MASK_TEXT:
            text = brief(found.mask)
        frame = found.frame
        if frame.q_start == frame.kv_len - frame.q_len:
            return text
        return f"{text} from q_start={frame.q_start}"

    def as_dict(self) -> dict[str, Any]:
        """The call as JSON-compatible data, without the cells."""
        names = [field.name for field in fields(self) if field.name not in ("visible", "masks")]
        plain = {name: _to_lists(getattr(self, name)) for name in names}
        return {**plain, "mask": self.mask_text, "masked_share": self.masked_share}

    def __str__(self) -> str:
        return f"{self.layer or '(model)'}: {self.kernel}, {self.mask_text}, {self.convention}"

    __repr__ = __str__


@dataclass(eq=False)
class ModuleCall:
    """A running forward of a module, or a call of nn's attention function outside of one."""

    name: str | None
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    input_shape: Shape | None
    output_shape: Shape | None = None
    function: Callable[..., Any] | None = None
    input_id: int | None = None  # the same for calls with the same input tensor
    num_calls: int = 0  # attention calls made in it so far

    @property
    def is_mha(self) -> bool:
        """Whether it is nn.MultiheadAttention or F.multi_head_attention_forward."""
        return self.function is not None or isinstance(self.module, nn.MultiheadAttention)

    def arguments(self) -> dict[str, Any]:
        """Its arguments by name; empty if they do not match the signature."""
        called = self.function or type(self.module).forward
        bound_self = () if self.function else (self.module,)
        try:
            signature = inspect.signature(called)
            return dict(signature.bind(*bound_self, *self.args, **self.kwargs).arguments)
        except (TypeError, ValueError):
            return {}

    def masks(self) -> dict[str, Any]:
        """Its mask arguments by name."""
        arguments = self.arguments()
        return {
            name: arguments[name] for name in MASK_PARAMETERS if arguments.get(name) is not None
        }


class PendingCall(NamedTuple):
    """An attention call whose module call may still be running: its output shape is not known yet."""

    call: AttentionCall
    module_call: ModuleCall | None
    position: int  # among the attention calls of its module call


def finish_calls(pending: list[PendingCall]) -> list[AttentionCall]:
    """The calls, numbered, with all shapes. Calls of modules with the same input share a step."""
    steps: dict[Any, int] = {}
    calls = []
    for index, (call, around, position) in enumerate(pending):
        input_id = None if around is None else around.input_id
        key = ("call", index) if input_id is None else (input_id, position)
        step = steps.setdefault(key, len(steps))
        before, after = (around.input_shape, around.output_shape) if around else (None, None)
        planes = (call.q_shape or call.out_shape or call.visible.shape)[:2]
        weights = (*planes, *call.visible.shape[2:])
        shapes = (before, call.q_shape, weights, call.out_shape, after)
        shown = tuple(shape for shape in shapes if shape)
        calls.append(replace(call, index=index, step=step, shapes=shown))
    return calls


class ModuleStack:
    """The running module calls, innermost last, and whether operations are traced."""

    def __init__(
        self,
        function_mode: Any,
        dispatch_mode: Any,
        add_parameters: Callable[[Any], None],
        outputs: list[tuple[str, torch.Tensor]] | None,
    ) -> None:
        self.calls: list[ModuleCall] = []
        self.entering_mha = False
        self._function_mode, self._dispatch_mode = function_mode, dispatch_mode
        self._add_parameters, self._outputs = add_parameters, outputs
        self._thread = threading.get_ident()
        self._names: dict[int, str] = {}
        self._roots: list[Any] = []  # kept alive, so that no other module gets the same id
        self._pause_depth = 0
        self._num_inputs = 0
        self._input_ids: Any = WeakIdKeyDictionary()  # tensor -> its version and id

    @property
    def current(self) -> ModuleCall | None:
        """The innermost call."""
        return self.calls[-1] if self.calls else None

    @property
    def layer(self) -> str:
        """Name of the innermost named module."""
        return next((call.name for call in reversed(self.calls) if call.name is not None), "")

    def add_root(self, root: Any) -> None:
        """Registers the names and the parameters of a model's modules."""
        for name, module in root.named_modules():
            plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
            self._names.setdefault(id(module), plain)
        self._roots.append(root)
        self._add_parameters(root.parameters())

    def split_batch(self, planes: int, queries: int) -> tuple[int, int]:
        """Batch size and number of heads of `planes` planes, from the modules around them."""
        for call in reversed(self.calls):
            heads = call.arguments().get("num_heads") if call.function else None
            if isinstance(call.module, nn.MultiheadAttention):
                heads = call.module.num_heads
            if heads and not planes % heads:
                return planes // heads, heads
            shape = call.input_shape or ()
            if len(shape) > 1:
                batch = shape[1] if shape[0] == queries and shape[1] != queries else shape[0]
                return (batch, planes // batch) if batch and not planes % batch else (planes, 1)
        return planes, 1

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Operations in this context are not traced."""
        self._pause_depth += 1
        try:
            with contextlib.ExitStack() as stack:
                if _python_dispatch._get_current_dispatch_mode() is self._dispatch_mode:
                    stack.enter_context(_python_dispatch._pop_mode_temporarily())
                if torch.overrides._get_current_function_mode() is self._function_mode:
                    stack.enter_context(torch.overrides._pop_mode_temporarily())
                yield
        finally:
            self._pause_depth -= 1

    def is_other_thread(self) -> bool:
        """Whether the current thread is not the one that is traced."""
        return threading.get_ident() != self._thread

    def is_paused(self) -> bool:
        """Whether operations are not traced. Backward only recomputes what was traced before."""
        return self._pause_depth > 0 or is_in_backward()

    # ── wrappers for functions of torch ───────────────────────────────────────────────────────

    def wrap_module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """nn.Module.__call__ that keeps this stack."""

        def call_module(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self.is_other_thread():
                return original(module, *args, **kwargs)
            with self.paused():
                if id(module) not in self._names and all(c.name is None for c in self.calls):
                    self.add_root(module)
                x = first_tensor((*args, *kwargs.values()))
                call = ModuleCall(self._names.get(id(module)), module, args, kwargs, shape_of(x))
                call.input_id = self._input_id(x)
            self.calls.append(call)
            try:
                out = original(module, *args, **kwargs)
            finally:
                self.calls.pop()
                call.args, call.kwargs = (), {}
            with self.paused():
                first = first_tensor((out,))
                call.output_shape = shape_of(first)
                if self._outputs is not None and call.name is not None and first is not None:
                    self._outputs.append((call.name, snapshot(first)))
            return out

        return call_module

    def wrap_has_torch_function(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """torch.overrides.has_torch_function that does not report the tracer's own function mode.

        nn's modules leave their fused paths if there is a function mode.
        """

        def has_torch_function(args: Any) -> bool:
            caller = sys._getframe(1).f_globals.get("__name__")
            return self._without_mode(original, args) if caller in FUSED_MODULES else original(args)

        return has_torch_function

    def wrap_functional_has_torch_function(
        self, original: Callable[..., bool]
    ) -> Callable[..., bool]:
        """F.has_torch_function that is False once after the tracer entered nn's MHA function.

        The function would otherwise dispatch to the tracer again instead of running its body.
        """

        def has_torch_function(args: Any) -> bool:
            if not self.entering_mha:
                return original(args)
            self.entering_mha = False
            return self._without_mode(original, args)

        return has_torch_function

    def _without_mode(self, original: Callable[..., bool], args: Any) -> bool:
        if torch.overrides._get_current_function_mode() is not self._function_mode:
            return original(args)
        with torch.overrides._pop_mode_temporarily():
            return original(args)

    def _input_id(self, x: Any) -> int | None:
        """The same number for the same tensor, until it is modified in place."""
        if not isinstance(x, torch.Tensor) or x.is_inference():
            return None
        version, number = self._input_ids.get(x, (None, 0))
        if version != x._version:
            self._num_inputs += 1
            number = self._num_inputs
            self._input_ids[x] = (x._version, number)
        return int(number)


# ── tensors ───────────────────────────────────────────────────────────────────────────────────


def first_tensor(values: Any) -> torch.Tensor | None:
    """The first tensor among a module's inputs or outputs, also in nested containers."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (tuple, list, dict)):
            found = first_tensor(value.values() if isinstance(value, dict) else value)
            if found is not None:
                return found
    return None


def _to_lists(value: Any) -> Any:
    """Tuples as lists, as in JSON."""
    return [_to_lists(part) for part in value] if isinstance(value, tuple) else value


def shape_of(x: Any) -> Shape | None:
    """The shape of a tensor; of a nested one, that of its padded form."""
    if x is None:
        return None
    if not x.is_nested:
        return tuple(x.shape)
    parts = [tuple(part.shape) for part in x.unbind()]
    return (len(parts), *(max(sizes) for sizes in zip(*parts, strict=True)))


def has_data(x: Any) -> bool:
    """Whether the values of a tensor can be read."""
    return is_plain(x) or (isinstance(x, torch.Tensor) and x.is_nested)


def snapshot(x: Any) -> Any:
    """A detached copy of a tensor; anything else unchanged."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_nested:
        return x.detach().to_padded_tensor(0.0)
    return x.detach().clone() if is_plain(x) else x.detach()


def shrink(cells: BoolArray) -> BoolArray:
    """Cells (batch, heads, queries, keys) with size 1 along axes on which nothing varies."""
    for axis in (0, 1):
        first = cells.take([0], axis=axis) if cells.shape[axis] else cells
        if cells.shape[axis] > 1 and bool((cells == first).all()):
            cells = first
    frozen = np.ascontiguousarray(cells)
    frozen.setflags(write=False)
    return frozen
