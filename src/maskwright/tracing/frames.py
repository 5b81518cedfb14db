"""Frames: modules at work, and the calls that are met in them before they come to their end."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from maskwright.tracing.calls import AttentionCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.validate import BoolArray
    from maskwright.tracing.calls import Shape

MASKS: Final = ("attn_mask", "src_mask", "key_padding_mask", "src_key_padding_mask")


@dataclass(eq=False)
class Frame:
    """A module at work, or nn's attention function called without one."""

    name: str | None
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entered: Shape | None
    left: Shape | None = None
    function: Callable[..., Any] | None = None
    source: int | None = None  # a number for the tensor that it was given
    met: int = 0  # calls in it so far

    @property
    def is_mha(self) -> bool:
        """Is it nn's attention?"""
        return self.function is not None or isinstance(self.module, nn.MultiheadAttention)

    def given(self) -> dict[str, Any]:
        """Its arguments by name, none if they do not fit."""
        called = self.function or type(self.module).forward
        own = () if self.function else (self.module,)
        try:
            return dict(inspect.signature(called).bind(*own, *self.args, **self.kwargs).arguments)
        except (TypeError, ValueError):
            return {}

    def masks(self) -> dict[str, Any]:
        """Its mask arguments by name."""
        given = self.given()
        return {name: given[name] for name in MASKS if given.get(name) is not None}


@dataclass(eq=False)
class Draft:
    """A call that is met, while the module around it has not come to its end."""

    frame: Frame | None
    layer: str
    kernel: str
    shapes: tuple[Shape, Shape, Shape, Shape]
    seen: BoolArray
    masks: dict[str, Any]
    convention: str
    cross: bool
    after_softmax: bool = False
    turn: int = 0  # which of the calls in its module

    def finish(self, index: int, step: int) -> AttentionCall:
        """The call, with all that is known of it."""
        q, k, v, out = self.shapes
        batch = q[0] if q else out[0] if out else self.seen.shape[0]
        heads = q[1] if q else out[1] if out else self.seen.shape[1]
        ends = (None, None) if self.frame is None else (self.frame.entered, self.frame.left)
        way = (ends[0], q, (batch, heads, *self.seen.shape[2:]), out, ends[1])
        return AttentionCall(
            index,
            self.layer,
            self.kernel,
            q,
            k,
            v,
            out,
            tuple(shape for shape in way if shape),
            self.seen,
            self.masks,
            self.convention,
            self.after_softmax,
            self.cross,
            step,
        )


def steps_of(drafts: list[Draft]) -> list[int]:
    """Which step of attention each call is; what modules do with the same input is done at once."""
    numbers: dict[Any, int] = {}
    found = []
    for index, draft in enumerate(drafts):
        source = None if draft.frame is None else draft.frame.source
        key = ("alone", index) if source is None else (source, draft.turn)
        found.append(numbers.setdefault(key, len(numbers)))
    return found
