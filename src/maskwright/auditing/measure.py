"""`Meter`: how far the outputs of a model move, against noise and rounding; and `influence`.

A probe that changes only masked positions leaves the outputs of most correct models bit-equal.
Some sort their tokens first (a mixture of experts) and round differently. A movement that rounding
could explain is measured again in float64, where rounding is a billion times smaller and a leak is
not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from maskwright.auditing.model_under_test import (
    Change,
    Inputs,
    Key,
    ModelUnderTest,
    eval_mode,
    find_embeddings,
    has_scalar_outputs,
    make_model_under_test,
    to_dtype,
)
from maskwright.core.validate import read_choice
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from maskwright.core.validate import BoolArray

NUM_REPEATS: Final = 2
ROUNDING: Final = 32  # times the dtype's epsilon: how far rounding can move an output
ROUNDING_RESHAPED: Final = 2_000  # the same, between runs with different shapes
CONFIRM_BELOW: Final = 1e-2  # of the outputs' size: smaller movements are confirmed in float64
METHODS: Final = ("change", "gradient")


# ── influence ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Influence:
    """How far each output moved when an input position was changed, (batch, outputs, inputs).

    With `by="gradient"` it is the norm of the gradient. `noise` is the difference between identical
    runs.

    >>> import torch, maskwright as mw
    >>> mw.influence(lambda x: x.flip(1), torch.randn(1, 4, 2)).moved[0, 0]
    array([False, False, False,  True])
    """

    size: npt.NDArray[np.float64]
    noise: float
    passes: int

    @property
    def moved(self) -> BoolArray:
        """Which output depends on which input.

        >>> import torch, maskwright as mw
        >>> shift = lambda x: torch.roll(x, 1, dims=1)
        >>> mw.influence(shift, torch.randn(1, 3, 4)).moved[0].astype(int)
        array([[0, 0, 1],
               [1, 0, 0],
               [0, 1, 0]])
        """
        moved: BoolArray = self.size > 0
        return moved

    def __str__(self) -> str:
        _, outputs, inputs = self.size.shape
        share = float(self.moved.mean()) if self.size.size else 0.0
        return (
            f"{outputs} outputs × {inputs} inputs: {share:.0%} of the pairs depend, "
            f"noise {self.noise:.2g}, {self.passes} passes"
        )


def influence(
    model: Any,
    inputs: Any,
    *,
    of: Key | None = None,
    output: Callable[[Any], Any] | None = None,
    pad_id: int | None = None,
    by: str = "change",
    seed: int = 0,
) -> Influence:
    """Measures which output of a model depends on which input position.

    Each position is changed by itself, and all outputs are compared with those of the unchanged
    inputs. Dropout is off, and every run uses the same random seed.

    Args:
        model: A module, or any function of tensors.
        inputs: A tensor, a tuple of arguments, or a dict of keyword arguments. Positions are the
            second axis of ids (batch, positions) or floats (batch, positions, features).
        of: The name or index of the input whose positions are changed; by default the first input
            that has positions.
        output: Selects the output from what the model returns.
        pad_id: The id of padding, which does not replace other ids.
        by: "change" runs the model once per position; "gradient" runs it backward once per output,
            which needs floats or an embedding.
        seed: Random seed.

    Returns:
        The measured `Influence`.

    Raises:
        ArgumentError: If no input has positions, or the model returns no tensor (batch, positions,
            ...).

    >>> import torch, maskwright as mw
    >>> double = lambda x: 2 * x
    >>> print(mw.influence(double, torch.randn(1, 4, 2)))
    4 outputs × 4 inputs: 25% of the pairs depend, noise 0, 7 passes
    """
    read_choice(by, "influence: by", METHODS)
    names = () if of is None else (of,)
    tested = make_model_under_test(
        model, inputs, names=names, output=output, pad_id=pad_id, seed=seed, caller="influence"
    )
    with eval_mode(model):
        find_embeddings(tested)
        meter = make_meter(tested)
        size = influence_by_gradient(meter) if by == "gradient" else influence_by_change(meter)
        size = np.where(size > meter.rounding, size, 0.0) if by == "change" else size
    return Influence(size, float(meter.noise.max()), tested.passes)


def influence_by_change(
    meter: Meter, columns: list[int] | None = None, fill: str = "noise", name: Key | None = None
) -> npt.NDArray[np.float64]:
    """(batch, outputs, columns): each column's position changed by itself, in all sequences.

    Movements that rounding could explain are included.
    """
    tested = meter.tested
    name = tested.main if name is None else name
    length = tested.length(name)
    found = []
    for column in range(length) if columns is None else columns:
        where = torch.zeros(tested.batch, length, dtype=torch.bool)
        where[:, column] = True
        found.append(meter.raw_movement(Change(name, where, fill, seed=column)))
    return torch.stack(found, -1).numpy() if found else np.zeros((*meter.baseline.shape[:2], 0))


def influence_by_gradient(
    meter: Meter, rows: list[int] | None = None, name: Key | None = None
) -> npt.NDArray[np.float64]:
    """(batch, rows, inputs): the norm of the gradient of each output with respect to each input."""
    tested = meter.tested
    name = tested.main if name is None else name
    rows = list(range(meter.baseline.shape[1])) if rows is None else rows
    found = [output_gradient(tested, row, name) for row in rows]
    shape = (tested.batch, 0, tested.length(name))
    return torch.stack(found, 1).norm(dim=-1).numpy() if found else np.zeros(shape)


def output_gradient(tested: ModelUnderTest, row: int, name: Key) -> torch.Tensor:
    """(batch, inputs, features): the gradient of a random projection of one output position."""
    if tested.has_ids(name):
        raise ArgumentError(
            "influence: gradients need floats, or ids that an nn.Embedding reads. "
            'Pass by="change", or the embeddings.'
        )
    held: list[torch.Tensor] = []
    inputs = dict(tested.inputs)
    with tested.edited(inputs, name, lambda x: _leaf(x, held)), torch.enable_grad():
        output = tested.pick_output(tested.call(inputs))
    assert output is not None
    out = tested.with_features(output)
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(out.shape[-1], generator=generator, dtype=torch.float64).to(out.dtype)
    total = (out[:, row] @ weights).sum()
    if not total.requires_grad:
        return torch.zeros_like(held[0]).double()
    (grad,) = torch.autograd.grad(total, held[:1], allow_unused=True)
    return torch.zeros_like(held[0]).double() if grad is None else grad.detach().double()


def _leaf(x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
    if held:  # an embedding that is called twice: only the first call counts
        return x
    held.append(x.detach().clone().requires_grad_())
    return held[0]


# ── the meter ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Meter:
    """A model's output on unchanged inputs, and how much that differs between identical runs."""

    tested: ModelUnderTest
    baseline: torch.Tensor
    noise: torch.Tensor  # (batch, positions)
    _float64: list[Meter | None] = field(default_factory=list)

    @property
    def size(self) -> float:
        """The largest finite absolute value of the outputs."""
        finite = self.baseline[self.baseline.isfinite()]
        return float(finite.abs().max()) if finite.numel() else 0.0

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of the dtype that the model computes in."""
        module = self.tested.module
        dtypes = {w.dtype for w in module.parameters()} if module is not None else set()
        dtypes |= {
            x.dtype
            for x in self.tested.inputs.values()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        }
        floats = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point]
        return float(max(floats, default=torch.finfo(torch.float32).eps))

    @property
    def rounding(self) -> float:
        """How far rounding can move an output."""
        return ROUNDING * self.epsilon * self.size

    def movement(self, change: Change) -> torch.Tensor:
        """How far a change moves each output, (batch, positions); 0 where noise could explain it."""
        return self.difference(self.tested.run(change=change), self.baseline)

    def raw_movement(self, change: Change) -> torch.Tensor:
        """How far a change moves each output, (batch, positions), including rounding."""
        moved = (self.tested.run(change=change) - self.baseline).abs()
        moved = moved.nan_to_num(nan=torch.inf).amax(-1)
        return torch.where(moved > 4 * self.noise, moved, 0.0)

    def difference(
        self, one: torch.Tensor, other: torch.Tensor, rounding: float = ROUNDING
    ) -> torch.Tensor:
        """The largest difference per position of two outputs; 0 where noise could explain it."""
        moved = (one - other).abs()
        moved = torch.where(one.isnan() & other.isnan(), 0.0, moved)
        moved = torch.where(one == other, 0.0, moved).nan_to_num(nan=torch.inf).amax(-1)
        noise = self.noise if self.noise.shape == moved.shape else self.noise.max()
        floor = torch.clamp(4 * noise, min=rounding * self.epsilon * self.size)
        return torch.where(moved > floor, moved, 0.0)

    def exceeds_rounding(self, size: float) -> bool:
        """Whether a movement is too large for rounding."""
        return size > CONFIRM_BELOW * self.size or self.epsilon < 1e-12

    @property
    def float64(self) -> Meter | None:
        """The meter of a float64 copy of the model; None if there is none."""
        if not self._float64:
            self._float64.append(self._make_float64())
        return self._float64[0]

    def _make_float64(self) -> Meter | None:
        if self.epsilon < 1e-12:
            return None
        other = to_dtype(self.tested, torch.float64)
        if other is None:
            return None
        try:
            baseline = other.run()
        except Exception:  # a model that runs in its own dtype only
            return None
        self.tested.passes += 1
        difference = (baseline - self.baseline).abs().nan_to_num(nan=torch.inf).max()
        if bool(difference > max(CONFIRM_BELOW, 16 * self.epsilon) * self.size):
            return None  # the mask itself depends on the dtype
        return Meter(other, baseline, torch.zeros_like(self.noise))

    def confirmed(self, size: float, measure: Callable[[Meter], float]) -> bool:
        """Whether a movement is not rounding; `measure` repeats the measurement with a meter."""
        if self.exceeds_rounding(size):
            return True
        twin = self.float64
        if twin is None:
            return size > 1e-3 * self.size
        found = measure(twin)
        self.tested.passes += twin.tested.passes
        twin.tested.passes = 0
        return found > 0

    def compare(
        self,
        output: torch.Tensor,
        judged: torch.Tensor | None = None,
        baseline: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """How far the outputs of another way to run differ from the baseline, or a part of it.

        Raises:
            ValueError: If the shapes differ.
        """
        baseline = self.baseline if baseline is None else baseline
        if output.shape != baseline.shape:
            raise ValueError(f"the output has shape {tuple(output.shape)}")
        moved = self.difference(output, baseline, ROUNDING_RESHAPED)
        return moved if judged is None else torch.where(judged, moved, 0.0)

    def confirmed_worst(
        self, moved: torch.Tensor, measure: Callable[[Meter], torch.Tensor]
    ) -> tuple[float, int, int] | None:
        """The largest movement and its (batch, position); None if there is none but rounding."""
        if not bool((moved > 0).any()):
            return None
        b, i = argmax2(moved)
        size = float(moved[b, i])
        if self.confirmed(size, lambda other: float(measure(other)[b, i])):
            return size, b, i
        return None

    def run_inputs(self, inputs: Inputs, change: Change | None = None) -> torch.Tensor:
        """The output for other inputs, cast to the dtype of this meter's model."""
        own = self.tested.inputs
        cast = {
            name: x.to(own[name].dtype) if _both_floats(x, own.get(name)) else x
            for name, x in inputs.items()
        }
        return self.tested.run(cast, change)


def make_meter(tested: ModelUnderTest) -> Meter:
    """Runs the model several times on its inputs."""
    baseline = tested.run()
    if has_scalar_outputs(tested, baseline):
        tested.scalar_outputs = True
        baseline = baseline.transpose(1, 2)
    noise = torch.zeros(baseline.shape[:2], dtype=torch.float64)
    for _ in range(NUM_REPEATS):
        again = tested.run()
        if again.shape != baseline.shape:
            raise ArgumentError(
                f"audit: the same inputs gave outputs of shapes {tuple(baseline.shape)} and "
                f"{tuple(again.shape)}. Pass a model without state, or a function that builds it."
            )
        noise = torch.maximum(noise, (again - baseline).abs().nan_to_num().amax(-1))
    return Meter(tested, baseline, noise)


def _both_floats(x: Any, other: Any) -> bool:
    tensors = isinstance(x, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and x.is_floating_point() and other.is_floating_point()


def argmax2(values: Any) -> tuple[int, int]:
    """The indices (batch, position) of the largest value."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    return int(row), int(column)
