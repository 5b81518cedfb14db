"""`Meter`: how far the outputs of a model move, against noise and rounding; `Plan`; `influence`.

A probe that changes only masked positions leaves the outputs of most correct models bit-equal.
Some sort their tokens first (a mixture of experts) and round differently. A movement that rounding
could explain is measured again in float64, where rounding is a billion times smaller and a leak is
not. What one visible position causes is measured too: a comparison whose noise is larger could not
have failed, and is not passed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from maskwright.auditing.model_under_test import (
    Change,
    Inputs,
    Key,
    ModelUnderTest,
    cast_while_running,
    eval_mode,
    find_embeddings,
    free_memory,
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

ROUNDING: Final = 32  # times the dtype's epsilon: how far rounding can move an output
ROUNDING_RESHAPED: Final = 2_000  # the same, between runs with different shapes
CONFIRM_BELOW: Final = 1e-2  # of the outputs' size: smaller movements are confirmed in float64
MAX_EPSILONS: Final = 64  # times the dtype's epsilon: larger movements are not rounding
MARGIN: Final = 4  # a planted leak moves outputs this many times further than noise
NUM_PLANTED: Final = 3  # positions that are changed to measure what one visible position does
DEFAULT_SECONDS: Final = 60.0  # in which a thorough audit must be possible to be the default
NUM_THOROUGH: Final = 200  # passes of a thorough audit
NARROW: Final = (torch.float32, torch.bfloat16, torch.float16)
UNITS: Final = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
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
    4 outputs × 4 inputs: 25% of the pairs depend, noise 0, 8 passes
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
    wanted = range(length) if columns is None else columns
    found = [meter.column_movement(name, column, fill) for column in wanted]
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


# ── results ───────────────────────────────────────────────────────────────────────────────────


class Status(Enum):
    """The result of a comparison, of a probe, or of an audit.

    Only `PASSED` says that a mask is respected: the comparison ran, and a leak of the size of one
    visible position would have made it fail.

    >>> Status.NOT_TESTED.value, Status.NOT_TESTED.conclusive
    ('not_tested', False)
    """

    PASSED = "passed"
    FAILED = "failed"
    NOT_TESTED = "not_tested"  # noise is too high to find a leak, or time ran out
    NOT_RUN = "not_run"  # the comparison raised, or gave an output of another shape
    NOT_APPLICABLE = "not_applicable"  # there is nothing to compare, such as no padding

    @property
    def conclusive(self) -> bool:
        """Whether it says anything about the model: passed, failed, or nothing to test."""
        return self in (Status.PASSED, Status.FAILED, Status.NOT_APPLICABLE)

    @property
    def sign(self) -> str:
        """One character for tables."""
        signs = {Status.PASSED: "✓", Status.FAILED: "✗", Status.NOT_APPLICABLE: "–"}
        return signs.get(self, "?")


# ── the plan ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Plan:
    """How much of each probe is done, by the time that one pass takes and the time that is left.

    Args:
        seconds: The time that the audit may take; None for no limit.
        seconds_per_pass: The time of one pass.
        started: When the audit began.
    """

    seconds: float | None = None
    seconds_per_pass: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    @property
    def thorough(self) -> bool:
        """Whether passes are cheap: many positions are tested, and everything is confirmed."""
        allowed = DEFAULT_SECONDS if self.seconds is None else self.seconds
        return self.seconds_per_pass * NUM_THOROUGH <= allowed

    @property
    def seconds_left(self) -> float | None:
        """The time that is left, None without a limit."""
        if self.seconds is None:
            return None
        return self.seconds - (time.perf_counter() - self.started)

    @property
    def exhausted(self) -> bool:
        """Whether another pass would take longer than the time that is left."""
        left = self.seconds_left
        return left is not None and left < self.seconds_per_pass

    def count(self, thorough: int, economical: int) -> int:
        """Of something that costs a pass each: how many are done."""
        return thorough if self.thorough else economical


def read_budget(budget: Any) -> float | None:
    """The time limit in seconds: a number, or text such as "90s", "2min" or "1h".

    Raises:
        ArgumentError: If it is none of these, or not positive.

    >>> read_budget("2min"), read_budget(30), read_budget(None)
    (120.0, 30.0, None)
    """
    if budget is None:
        return None
    found = float(budget) if isinstance(budget, (int, float)) else None
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|m|min|h)?\s*", budget)
        if match:
            found = float(match[1]) * UNITS[match[2] or "s"]
    if found is None or isinstance(budget, bool) or not 0 < found < float("inf"):
        raise ArgumentError(
            f"audit: budget is {budget!r:.40}, expected seconds, or text such as '90s' or '2min'."
        )
    return found


# ── the meter ─────────────────────────────────────────────────────────────────────────────────


class Verdict(NamedTuple):
    """Whether outputs moved where they must not, and the largest movement: (batch, position)."""

    status: Status
    size: float = 0.0
    batch: int = 0
    position: int = 0


@dataclass
class Meter:
    """A model's output on unchanged inputs, and how much that differs between identical runs.

    Args:
        tested: The model.
        baseline: Its output, (batch, positions, features), in the dtype of the output.
        noise: The difference between identical runs, (batch, positions).
        plan: How thorough the probes are.
        planted: How far an output moves if one visible position is changed; None if not measured.
        unexplained: The largest movement that is either rounding or a leak.
        computes_in_float32: Whether a copy in float64 computes parts in a narrower dtype.
    """

    tested: ModelUnderTest
    baseline: torch.Tensor
    noise: torch.Tensor
    plan: Plan = field(default_factory=Plan)
    planted: float | None = None
    unexplained: float = 0.0
    computes_in_float32: bool = False
    _float64: list[Meter | None] = field(default_factory=list)
    _columns: dict[Any, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def size(self) -> float:
        """The largest finite absolute value of the outputs."""
        found = 0.0
        for part in self.baseline:
            finite = part[part.isfinite()]
            found = max(found, float(finite.abs().max()) if finite.numel() else 0.0)
        return found

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of the dtype that the model computes in."""
        module, cast = self.tested.module, self.tested.cast
        dtypes = {w.dtype for w in module.parameters()} if module is not None else set()
        dtypes = dtypes if cast is None else {cast}
        dtypes |= {
            x.dtype
            for x in self.tested.inputs.values()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        }
        if self.baseline.is_floating_point():
            dtypes.add(self.baseline.dtype)
        floats = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point]
        return float(max(floats, default=torch.finfo(torch.float32).eps))

    @property
    def limit(self) -> float:
        """The largest movement that noise, or rounding in a run of the same shape, can cause."""
        noise = 4 * float(self.noise.max()) if self.noise.numel() else 0.0
        return max(noise, 0.0 if self._resolves else self.rounding)

    @property
    def _resolves(self) -> bool:
        """Whether float64, in a copy if necessary, distinguishes every movement from rounding."""
        can_copy = self.tested.module is not None and self._float64 != [None]
        return self.epsilon < 1e-12 or can_copy

    @property
    def rounding(self) -> float:
        """How far rounding can move an output in a run of the same shape."""
        return ROUNDING * self.epsilon * self.size

    # ── movements ─────────────────────────────────────────────────────────────────────────────

    def movement(self, change: Change) -> torch.Tensor:
        """How far a change moves each output, (batch, positions); 0 where noise could explain it."""
        return self.difference(self.tested.run(change=change), self.baseline)

    def column_movement(self, name: Key, column: int, fill: str = "noise") -> torch.Tensor:
        """`movement` if one position of an input is changed in all sequences; measured once."""
        key = (name, column, fill)
        if key not in self._columns:
            where = torch.zeros(self.tested.batch, self.tested.length(name), dtype=torch.bool)
            where[:, column] = True
            self._columns[key] = self.movement(Change(name, where, fill, seed=column))
        return self._columns[key]

    def difference(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The largest difference per position of two outputs; 0 where noise could explain it.

        Raises:
            ValueError: If the shapes differ.
        """
        if one.shape != other.shape:
            raise ValueError(f"the output has shape {tuple(one.shape)}")
        moved = deviation(one, other)
        noise = self.noise if self.noise.shape == moved.shape else self.noise.max()
        return torch.where(moved > 4 * noise, moved, 0.0)

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
        moved = self.difference(output, self.baseline if baseline is None else baseline)
        return moved if judged is None else torch.where(judged, moved, 0.0)

    def run_inputs(self, inputs: Inputs, change: Change | None = None) -> torch.Tensor:
        """The output for other inputs, cast to the dtype of this meter's model."""
        own = self.tested.inputs
        cast = {
            name: x.to(own[name].dtype) if _both_floats(x, own.get(name)) else x
            for name, x in inputs.items()
        }
        return self.tested.run(cast, change)

    # ── what a movement means ─────────────────────────────────────────────────────────────────

    def judge(
        self,
        moved: torch.Tensor,
        measure: Callable[[Meter], torch.Tensor],
        *,
        reshaped: bool = False,
    ) -> Verdict:
        """Whether a movement where there must be none is a failure, rounding, or not known.

        A large movement is a failure. A smaller one is measured again in float64. Without a copy in
        float64, or if the copy moves much further or is not finite, so that it does not behave like
        the model, there is no result unless the movement is much smaller than what one visible
        position causes.

        Args:
            moved: The movement of each output, (batch, positions).
            measure: Repeats the measurement with another meter.
            reshaped: The run had another shape or was computed in another order, which rounds
                differently.
        """
        if not moved.numel() or not bool((moved > 0).any()):
            return Verdict(self._if_still)
        b, i = argmax2(moved)
        size = float(moved[b, i])
        if size > max(CONFIRM_BELOW, MAX_EPSILONS * self.epsilon) * self.size:
            return Verdict(Status.FAILED, size, b, i)
        floor = (ROUNDING_RESHAPED if reshaped else ROUNDING) * self.epsilon * self.size
        if self.epsilon < 1e-12:
            return Verdict(Status.FAILED if size > floor else Status.PASSED, size, b, i)
        small = self.planted is not None and MARGIN * size <= self.planted
        if reshaped and small and size <= floor and not self.plan.thorough:
            return Verdict(Status.PASSED, size, b, i)
        again = self._measure_again(measure)
        if again is not None and float(again.max()) <= 16 * size + floor:
            found = self._judge_again(again, size, reshaped, small)
            tiny = found.size <= ROUNDING * torch.finfo(torch.float32).eps * self.size
            if found.status is Status.FAILED and reshaped and tiny and self._is_narrow(measure):
                return Verdict(Status.PASSED if small else Status.NOT_TESTED, size, b, i)
            return found
        if size > max(1e-3 * self.size, floor):
            return Verdict(Status.FAILED, size, b, i)
        known = reshaped and small and size <= floor
        return Verdict(Status.PASSED if known else Status.NOT_TESTED, size, b, i)

    @property
    def _if_still(self) -> Status:
        """The status if nothing moves: not tested if noise hides what a visible position does."""
        noise = float(self.noise.max()) if self.noise.numel() else 0.0
        hidden = MARGIN * max(noise, self.epsilon * self.size)
        return (
            Status.NOT_TESTED
            if self.planted is not None and self.planted <= hidden
            else Status.PASSED
        )

    def _measure_again(self, measure: Callable[[Meter], torch.Tensor]) -> torch.Tensor | None:
        """The measurement in float64; None if it cannot be repeated there."""
        twin = self.float64
        if twin is None:
            return None
        try:
            return measure(twin)
        except Exception:  # a model may run in float64, but not in this way
            return None
        finally:
            self.tested.count_passes_of(twin.tested)

    def _is_narrow(self, measure: Callable[[Meter], torch.Tensor]) -> bool:
        """Whether a measurement in float64 computes in float32, though the model itself does not.

        Eager attention may compute its softmax in float32, for example.
        """
        with _NarrowFloats() as narrow:
            self._measure_again(measure)
        return bool(narrow.found)

    def _judge_again(
        self, again: torch.Tensor, size: float, reshaped: bool, small: bool
    ) -> Verdict:
        """The verdict by a measurement in float64, of which parts may compute in float32."""
        twin = self.float64
        assert twin is not None
        b, i = argmax2(again)
        found = float(again[b, i])
        if twin.computes_in_float32:
            floor = ROUNDING * torch.finfo(torch.float32).eps * twin.size
        else:
            floor = (ROUNDING_RESHAPED if reshaped else ROUNDING) * twin.epsilon * twin.size
        if found > floor:
            return Verdict(Status.FAILED, found, b, i)
        if not twin.computes_in_float32 or found <= 1e-3 * size or (reshaped and small):
            return Verdict(Status.PASSED, size, b, i)
        return Verdict(Status.NOT_TESTED, size, b, i)

    @property
    def float64(self) -> Meter | None:
        """The meter of a float64 copy of the model; None if there is none."""
        if not self._float64:
            self._float64.append(self._make_float64())
        return self._float64[0]

    def _make_float64(self) -> Meter | None:
        if self.epsilon < 1e-12:
            return None
        makers: list[Callable[..., ModelUnderTest | None]] = [
            to_dtype,
            cast_while_running,
            partial(cast_while_running, by_layer=True),
        ]
        for make in makers if self._copy_fits(torch.float64) else makers[2:]:
            other = make(self.tested, torch.float64)
            if other is None:
                continue
            try:
                with _NarrowFloats() as narrow:
                    baseline = other.run()
            except Exception:  # a model that runs in its own dtype only, or cannot be copied
                continue
            self.tested.passes += 1
            other.passes = 0
            if baseline.shape != self.baseline.shape:
                continue
            difference = float(deviation(baseline, self.baseline).max())
            if difference > max(CONFIRM_BELOW, 16 * self.epsilon) * self.size:
                return None  # the mask itself depends on the dtype
            twin = Meter(other, baseline, torch.zeros_like(self.noise), self.plan)
            twin.computes_in_float32 = narrow.found
            return twin
        return None

    def _copy_fits(self, dtype: torch.dtype) -> bool:
        """Whether the free memory suffices for the weights in another dtype, and as much again."""
        weights = list(self.tested.module.parameters()) if self.tested.module is not None else []
        needed = dtype.itemsize * sum(w.numel() for w in weights if w.is_floating_point())
        return not weights or 2 * needed < free_memory(weights[0].device)


class _NarrowFloats(TorchDispatchMode):  # type: ignore[misc]
    """Notices operations whose outputs are floats narrower than float64."""

    found: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function, and reads the dtype of its output."""
        out = func(*args, **(kwargs or {}))
        if not self.found and isinstance(out, torch.Tensor) and out.dtype in NARROW:
            self.found = True
        return out


def make_meter(tested: ModelUnderTest, plan: Plan | None = None, repeats: int = 2) -> Meter:
    """Runs the model several times on its inputs."""
    plan = Plan() if plan is None else plan
    start = time.perf_counter()
    baseline = tested.run()
    if has_scalar_outputs(tested, baseline):
        tested.scalar_outputs = True
        baseline = baseline.transpose(1, 2)
    noise = torch.zeros(baseline.shape[:2])
    for n in range(repeats):
        if n and not plan.thorough:
            break
        start = time.perf_counter()
        again = tested.run()
        plan.seconds_per_pass = time.perf_counter() - start
        if again.shape != baseline.shape:
            raise ArgumentError(
                f"audit: the same inputs gave outputs of shapes {tuple(baseline.shape)} and "
                f"{tuple(again.shape)}. Pass a model without state, or a function that builds it."
            )
        noise = torch.maximum(noise, deviation(again, baseline).nan_to_num(posinf=0.0))
    return Meter(tested, baseline, noise, plan)


def plant(meter: Meter, visible: BoolArray, judged: BoolArray, name: Key) -> float:
    """How far a tested output moves if one visible position is changed: the median over outputs.

    An output's own position has the largest effect, and counts only if others have none. The
    columns are those that most outputs attend to.

    Args:
        meter: The model.
        visible: (batch, outputs, inputs), what each output depends on.
        judged: (batch, outputs), the tested outputs.
        name: The input that is changed.
    """
    pairs = visible & judged[:, :, None]
    if not pairs.any():
        return float("inf")
    outputs, inputs = visible.shape[1:]
    own = np.eye(outputs, inputs, dtype=np.bool_) if outputs == inputs else np.zeros(1, np.bool_)
    others = pairs & ~own
    left = others if others.any() else pairs
    sizes: list[npt.NDArray[np.float64]] = []
    for _ in range(NUM_PLANTED):
        if not left.any():
            break
        column = int(left.sum((0, 1)).argmax())
        moved = meter.column_movement(name, column).double().numpy()
        sizes.append(moved[left[:, :, column]])
        left = left & ~left[:, :, column][:, :, None]
    found = float(np.median(np.concatenate(sizes)))
    if found == 0:  # these positions have no effect: try others, and the output's own position
        for column in sorted({0, inputs // 2, inputs - 1}):
            moved = meter.column_movement(name, column).double().numpy()
            found = max(found, float(moved[pairs[:, :, column]].max(initial=0.0)))
    return found


def deviation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The largest difference of two outputs per position, (batch, positions); inf for NaN in one.

    Computed for one sequence at a time, in the wider dtype of both.
    """
    rows = []
    for a, b in zip(one, other, strict=True):
        moved = (a - b).abs_() if a.is_floating_point() else (a.double() - b.double()).abs()
        if not bool(moved.isfinite().all()):
            same = (a == b) | (a.isnan() & b.isnan())
            moved = torch.where(same, 0.0, moved).nan_to_num(nan=torch.inf, posinf=torch.inf)
        found = moved.amax(-1) if moved.shape[-1] else moved.new_zeros(moved.shape[:-1])
        rows.append(found.to(torch.float64))
    return torch.stack(rows) if rows else torch.zeros(one.shape[:2], dtype=torch.float64)


def _both_floats(x: Any, other: Any) -> bool:
    tensors = isinstance(x, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and x.is_floating_point() and other.is_floating_point()


def argmax2(values: Any) -> tuple[int, int]:
    """The indices (batch, position) of the largest value."""
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    return int(row), int(column)
