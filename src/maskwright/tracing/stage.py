"""The stage: which module is at work, and whether what it does is to be met."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.weak import WeakIdKeyDictionary

from maskwright.tracing.frames import Frame
from maskwright.tracing.tensors import first_of, kept, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NN: Final = {"torch.nn.modules.activation", "torch.nn.modules.transformer"}


class Stage:
    """The modules at work, by their names; and the two modes by which what they do is met."""

    def __init__(
        self,
        functions: Any,
        dispatch: Any,
        learn: Callable[[Any], None],
        outputs: list[tuple[str, torch.Tensor]] | None,
    ) -> None:
        self.functions, self.dispatch = functions, dispatch
        self.frames: list[Frame] = []
        self.entering = False
        self._learn, self._outputs = learn, outputs
        self._thread = threading.get_ident()
        self._names: dict[int, str] = {}
        self._named: list[Any] = []  # kept, so that no other module comes to have the same id
        self._away = 0  # how deep in what is not to be met
        self._given = 0
        self._sources: Any = WeakIdKeyDictionary()  # a version and a number for each tensor given

    def name(self, root: Any) -> None:
        """Learn the names and the parameters of a model."""
        for name, module in root.named_modules():
            self._names.setdefault(id(module), _plain_name(name))
        self._named.append(root)
        self._learn(root.parameters())

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """How a module is called, while this is watched."""

        def call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self.is_elsewhere():
                return original(module, *args, **kwargs)
            with self.aside():
                if id(module) not in self._names and all(f.name is None for f in self.frames):
                    self.name(module)
                given = first_of((*args, *kwargs.values()))
                frame = Frame(self._names.get(id(module)), module, args, kwargs, shape_of(given))
                frame.source = self._number(given)
            self.frames.append(frame)
            try:
                out = original(module, *args, **kwargs)
            finally:
                self.frames.pop()
                frame.args, frame.kwargs = (), {}
            with self.aside():
                first = first_of((out,))
                frame.left = shape_of(first)
                if self._outputs is not None and frame.name is not None and first is not None:
                    self._outputs.append((frame.name, kept(first)))
            return out

        return call

    def _number(self, given: Any) -> int | None:
        """The same for the same tensor, as long as nobody writes into it."""
        if not isinstance(given, torch.Tensor) or given.is_inference():
            return None
        version, number = self._sources.get(given, (None, 0))
        if version != given._version:
            self._given += 1
            number = self._given
            self._sources[given] = (given._version, number)
        return int(number)

    @property
    def frame(self) -> Frame | None:
        """The innermost module at work, if there is one."""
        return self.frames[-1] if self.frames else None

    @property
    def layer(self) -> str:
        """The name of the innermost one that has a name."""
        return next((f.name for f in reversed(self.frames) if f.name is not None), "")

    def split(self, count: int, queries: int) -> tuple[int, int]:
        """How many sequences and heads these planes are of."""
        for frame in reversed(self.frames):
            heads = frame.given().get("num_heads") if frame.function else None
            if isinstance(frame.module, nn.MultiheadAttention):
                heads = frame.module.num_heads
            if heads and not count % heads:
                return count // heads, heads
            shape = frame.entered or ()
            if len(shape) > 1:
                batch = shape[1] if shape[0] == queries and shape[1] != queries else shape[0]
                return (batch, count // batch) if batch and not count % batch else (count, 1)
        return count, 1

    # ── being met, or not ─────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What runs here is not met."""
        self._away += 1
        try:
            with contextlib.ExitStack() as stack:
                if _python_dispatch._get_current_dispatch_mode() is self.dispatch:
                    stack.enter_context(_python_dispatch._pop_mode_temporarily())
                if torch.overrides._get_current_function_mode() is self.functions:
                    stack.enter_context(torch.overrides._pop_mode_temporarily())
                yield
        finally:
            self._away -= 1

    def is_elsewhere(self) -> bool:
        """Is this another thread?"""
        return threading.get_ident() != self._thread

    def is_off(self) -> bool:
        """Is nothing met here? Inside of backward, what was met before is only computed again."""
        return self._away > 0 or torch._C._current_graph_task_id() != -1

    def asked(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """The layers of nn ask whether somebody looks on, and if so leave their fused paths."""

        def has_torch_function(args: Any) -> bool:
            asks = sys._getframe(1).f_globals.get("__name__")
            return self._without_us(original, args) if asks in NN else original(args)

        return has_torch_function

    def asked_once(self, original: Callable[..., bool]) -> Callable[..., bool]:
        """The attention function of nn asks first to be met, then for its inside to run."""

        def has_torch_function(args: Any) -> bool:
            if not self.entering:
                return original(args)
            self.entering = False
            return self._without_us(original, args)

        return has_torch_function

    def _without_us(self, original: Callable[..., bool], args: Any) -> bool:
        if torch.overrides._get_current_function_mode() is not self.functions:
            return original(args)
        with torch.overrides._pop_mode_temporarily():
            return original(args)


def _plain_name(name: str) -> str:
    """The name without what torch.compile puts in front."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
