"""Measuring: has an output moved? Against the noise of identical runs, and against rounding.

A probe that changes only what is hidden leaves clean models bit-equal, but for some, which sort
their tokens first (a mixture of experts), and round otherwise then. A movement that rounding could
explain is looked at again in float64, where rounding is a billion times smaller and a leak is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch

from maskwright.auditing.model_under_test import Change, Inputs, Subject, goes_along, recast
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS: Final = 2
ROUNDING: Final = 32  # times the dtype's epsilon: what rounding otherwise can do to an output
RESHAPED: Final = 2_000  # the same, between runs of different shapes
DOUBT: Final = 1e-2  # of the outputs' size: a smaller movement is confirmed in float64


@dataclass
class Meter:
    """A subject at rest: its output, and how much that moves by itself."""

    subject: Subject
    rest: torch.Tensor
    noise: torch.Tensor  # (batch, positions)
    _twin: list[Meter | None] = field(default_factory=list)

    @property
    def size(self) -> float:
        """How large the outputs are."""
        finite = self.rest[self.rest.isfinite()]
        return float(finite.abs().max()) if finite.numel() else 0.0

    @cached_property
    def epsilon(self) -> float:
        """The rounding of the dtype that the model computes in."""
        module = self.subject.module
        kinds = {w.dtype for w in module.parameters()} if module is not None else set()
        kinds |= {
            x.dtype
            for x in self.subject.inputs.values()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        }
        floats = [torch.finfo(kind).eps for kind in kinds if kind.is_floating_point]
        return float(max(floats, default=torch.finfo(torch.float32).eps))

    @property
    def rounding(self) -> float:
        """How far rounding otherwise can move an output."""
        return ROUNDING * self.epsilon * self.size

    def movement(self, change: Change) -> torch.Tensor:
        """How far each output moves, (batch, positions); 0 where noise could explain it."""
        return self.apart(self.subject.run(change=change), self.rest)

    def felt(self, change: Change) -> torch.Tensor:
        """How far each output moves, (batch, positions), be it as little as rounding."""
        far = (self.subject.run(change=change) - self.rest).abs().nan_to_num(nan=torch.inf).amax(-1)
        return torch.where(far > 4 * self.noise, far, 0.0)

    def apart(
        self, one: torch.Tensor, other: torch.Tensor, times: float = ROUNDING
    ) -> torch.Tensor:
        """How far two outputs are apart, (batch, positions); 0 where noise could explain it."""
        far = (one - other).abs()
        far = torch.where(one.isnan() & other.isnan(), 0.0, far)
        far = torch.where(one == other, 0.0, far).nan_to_num(nan=torch.inf).amax(-1)
        noise = self.noise if self.noise.shape == far.shape else self.noise.max()
        floor = torch.clamp(4 * noise, min=times * self.epsilon * self.size)
        return torch.where(far > floor, far, 0.0)

    def certain(self, far: float) -> bool:
        """Is a movement so large that rounding can't be its cause?"""
        return far > DOUBT * self.size or self.epsilon < 1e-12

    @property
    def twin(self) -> Meter | None:
        """The same subject in float64; None where there is none."""
        if not self._twin:
            self._twin.append(self._make_twin())
        return self._twin[0]

    def _make_twin(self) -> Meter | None:
        if self.epsilon < 1e-12:
            return None
        other = recast(self.subject, torch.float64)
        if other is None:
            return None
        try:
            rest = other.run()
        except Exception:  # a model that runs in its own dtype only
            return None
        self.subject.passes += 1
        apart = (rest - self.rest).abs().nan_to_num(nan=torch.inf).max()
        if bool(apart > max(DOUBT, 16 * self.epsilon) * self.size):
            return None  # the mask itself depends on the dtype
        return Meter(other, rest, torch.zeros_like(self.noise))

    def confirmed(self, far: float, again: Callable[[Meter], float]) -> bool:
        """Is a movement no rounding? `again` measures it by another meter."""
        if self.certain(far):
            return True
        twin = self.twin
        if twin is None:
            return far > 1e-3 * self.size
        found = again(twin)
        self.subject.passes += twin.subject.passes
        twin.subject.passes = 0
        return found > 0


def make_meter(subject: Subject) -> Meter:
    """The subject at rest, run a few times with nothing changed."""
    rest = subject.run()
    if goes_along(subject, rest):
        subject.flat = True
        rest = rest.transpose(1, 2)
    noise = torch.zeros(rest.shape[:2], dtype=torch.float64)
    for _ in range(REPEATS):
        again = subject.run()
        if again.shape != rest.shape:
            raise ArgumentError(
                f"audit: the same inputs gave outputs of shapes {tuple(rest.shape)} and "
                f"{tuple(again.shape)}. Give a model without a state, or build it anew in a function."
            )
        noise = torch.maximum(noise, (again - rest).abs().nan_to_num().amax(-1))
    return Meter(subject, rest, noise)


def rerun(meter: Meter, inputs: Inputs, **options: Any) -> torch.Tensor:
    """The output on other inputs, in the dtype of the meter's subject."""
    fitting = {
        name: x.to(own.dtype)
        if isinstance(x, torch.Tensor)
        and isinstance(own := meter.subject.inputs.get(name), torch.Tensor)
        and own.is_floating_point()
        and x.is_floating_point()
        else x
        for name, x in inputs.items()
    }
    return meter.subject.run(fitting, **options)
