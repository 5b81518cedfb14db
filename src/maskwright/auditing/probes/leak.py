"""Leak, reach and gradient: an output must not depend on masked positions, and must on visible ones.

All positions masked from an output are changed at once, so one pass tests a whole row, and every
other row for which they are masked too. A leak is then narrowed down to one position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.measure import argmax2, influence_by_change, output_gradient
from maskwright.auditing.model_under_test import Change
from maskwright.auditing.probes import (
    Failure,
    Location,
    ProbeContext,
    ProbeResult,
    Rerun,
    Status,
    Symptom,
    per_input,
    skip,
)
from maskwright.messages import Reason

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Key
    from maskwright.core.validate import BoolArray

MAX_ROWS: Final = 64  # outputs that are tested with a pass of their own
MAX_FULL: Final = 64  # positions up to which each is changed by itself
NUM_COLUMNS: Final = 24  # positions of longer inputs that are changed by themselves
NUM_CONFIRMED: Final = 8  # of these, in float64
NUM_GRADIENTS: Final = 6


@per_input
def leak(context: ProbeContext) -> ProbeResult:
    """Changes the positions that are masked from an output: the output must not move."""
    meter, expected, name = context.meter, context.expected, context.name
    masked = masked_pairs(meter, expected, name)
    if not masked.any():
        return skip("leak", "audit.leak.nothing_masked")
    result = ProbeResult("leak")
    tested = np.zeros_like(masked)
    passes = 0
    worst: tuple[float, int, int, Change] | None = None
    for n, row in enumerate(_rows(masked)):
        where = masked_from(masked, expected.judged, row)
        unaffected = unaffected_by(expected, where)
        if not (unaffected[:, :, None] & where[:, None] & ~tested).any():
            continue
        tested |= unaffected[:, :, None] & where[:, None]
        change = Change(name, torch.from_numpy(where), ("noise", "other")[n % 2], seed=n)
        moved = np.where(unaffected, meter.movement(change).numpy(), 0.0)
        passes += 1
        result.worst = max(result.worst, float(moved.max()))
        if moved.max() > (worst[0] if worst else 0.0):
            b, i = argmax2(moved)
            worst = (float(moved[b, i]), b, i, change)
    share = float(tested[masked].mean())
    result.add_case(Reason("audit.leak.tried", {"count": passes, "share": share}))
    if worst is not None and not _narrow_down(meter, result, worst):
        result.note("audit.leak.rounding", size=worst[0])
    return result


def masked_pairs(meter: Meter, expected: Expectation, name: Key) -> BoolArray:
    """(batch, outputs, inputs): where an output must not depend on an input that can be changed."""
    changeable = _changeable(meter, expected, name)
    masked: BoolArray = ~expected.closure & changeable[:, None, :] & expected.judged[:, :, None]
    return masked


def unaffected_by(expected: Expectation, where: BoolArray) -> BoolArray:
    """(batch, outputs): the tested outputs that must not depend on any of these positions."""
    visible = np.einsum("bij,bj->bi", expected.closure.astype(np.float32), where.astype(np.float32))
    some = where.sum(axis=1, keepdims=True) > 0
    unaffected: BoolArray = (visible == 0) & expected.judged & some
    return unaffected


def masked_from(masked: BoolArray, judged: BoolArray, row: int) -> BoolArray:
    """What is masked from one row; if that is padding, what is masked from the nearest token."""
    found: BoolArray = masked[:, row].copy()
    for b in np.flatnonzero(~judged[:, row]):
        real = np.flatnonzero(judged[b])
        if real.size:
            found[b] = masked[b, real[np.abs(real - row).argmin()]]
    return found


def _changeable(meter: Meter, expected: Expectation, name: Key) -> BoolArray:
    shape = (meter.tested.batch, meter.tested.length(name))
    padding = torch.from_numpy(np.broadcast_to(expected.padding, shape).copy())
    changeable: BoolArray = meter.tested.changeable(name, padding).numpy()
    return changeable


def _rows(masked: BoolArray) -> list[int]:
    """Rows to test: all if they are few, else the ends, powers of two, and evenly spaced ones."""
    rows = np.flatnonzero(masked.any((0, 2)))
    if rows.size <= MAX_ROWS // 2:
        return [int(row) for row in rows]
    likely = {0, 1, 2, int(rows[-1]), int(rows[-1]) - 1}
    power = 4
    while power <= rows[-1] + 1:
        likely |= {power - 1, power, power - 2}
        power *= 2
    evenly = np.linspace(0, rows.size - 1, MAX_ROWS - min(len(likely), MAX_ROWS // 2))
    spaced = rows[evenly.astype(int)].tolist()
    return sorted((likely & set(rows.tolist())) | set(spaced))[:MAX_ROWS]


def _narrow_down(meter: Meter, result: ProbeResult, worst: tuple[float, int, int, Change]) -> bool:
    """Bisects the changed positions to one that moves the output; False if it was rounding."""
    size, b, i, change = worst
    if not meter.confirmed(size, lambda other: float(other.movement(change)[b, i])):
        return False
    at = torch.nonzero(change.where[b]).flatten().tolist()
    while len(at) > 1:
        half = at[: len(at) // 2] if len(at) > 2 else at[:1]
        moved = float(meter.movement(_only(change, b, half))[b, i])
        if moved > 0:
            at, size = half, moved
        else:
            at = at[len(half) :]
    single = _only(change, b, at)
    size = float(meter.movement(single)[b, i]) or size
    where = Location(b, i, at[0], change.name)
    code = _influence_code(where, "> 0: output {i} depends on input {j}")
    failure = Failure(
        "leak",
        Symptom.LEAK,
        Reason("audit.leak.failure", {"output": i, "input": at[0], "batch": b}),
        size,
        where,
        Rerun(change=single),
        code,
    )
    result.failures.append(failure)
    return True


def _only(change: Change, b: int, positions: list[int]) -> Change:
    where = torch.zeros_like(change.where)
    where[b, positions] = True
    return Change(change.name, where, change.fill, change.seed)


def _influence_code(where: Location, comment: str, options: str = "") -> str:
    """Python code that measures one cell of the influence."""
    b, i, j = where.batch, where.output, where.input
    of = f", of={where.name!r}" if isinstance(where.name, str) else ""
    return (
        "import maskwright as mw\n"
        f"found = mw.influence(model, inputs{of}{options})\n"
        f"print(found.size[{b}, {i}, {j}])  # {comment.format(i=i, j=j)}"
    )


@per_input
def reach(context: ProbeContext) -> ProbeResult:
    """Changes one visible position at a time: the outputs that attend to it must move."""
    meter, expected, name = context.meter, context.expected, context.name
    if not context.has_attention:
        return skip("reach", "audit.reach.no_attention")
    if not bool(torch.isfinite(meter.baseline).all()):
        return skip("reach", "audit.reach.not_finite")
    length = meter.tested.length(name)
    changeable = _changeable(meter, expected, name)
    must = expected.must_reach(meter.epsilon) & expected.judged[:, :, None] & changeable[:, None, :]
    columns = list(range(length)) if length <= MAX_FULL else _columns(length)
    size = influence_by_change(meter, columns, "noise", name)
    result = ProbeResult("reach")
    result.add_case(Reason("audit.reach.tried", {"count": len(columns)}))
    if len(columns) == length:
        result.measured = np.where(size > meter.rounding, size, 0.0)
    _find_leak(context, result, columns, np.where(changeable[:, None, columns], size, 0.0))
    lost = must[:, :, columns] & (size == 0)
    if lost.any():
        # Another change may have an effect where this one had none.
        again = [n for n in range(len(columns)) if lost[:, :, n].any()]
        other = influence_by_change(meter, [columns[n] for n in again], "large", name)
        lost[:, :, again] &= other == 0
    if lost.any() and _lost_in_rounding(meter, columns, lost, name):
        result.note("audit.reach.rounding")
    elif lost.any():
        b, i, n = (int(x) for x in np.argwhere(lost)[0])
        where = Location(b, i, columns[n], name)
        more = int(lost.sum()) - 1
        symptom = Symptom.NO_DEPENDENCE
        message = "audit.reach.failures" if more else "audit.reach.failure"
        if (size == 0).all():
            symptom, message = Symptom.IGNORES_INPUT, "audit.reach.ignored"
        code = _influence_code(where, "0: output {i} does not depend on input {j}")
        result.fail(symptom, message, where, reproduce=code, count=more)
    return result


def _lost_in_rounding(meter: Meter, columns: list[int], lost: BoolArray, name: Key) -> bool:
    """Whether some of these positions have an effect in float64 that they have not otherwise."""
    twin = meter.float64
    if twin is None:
        return meter.epsilon > 1e-4  # half precision: not known
    some = [n for n in range(len(columns)) if lost[:, :, n].any()][:NUM_CONFIRMED]
    size = influence_by_change(twin, [columns[n] for n in some], "noise", name)
    meter.tested.passes += twin.tested.passes
    twin.tested.passes = 0
    moved = size > 1e-4 * meter.epsilon * meter.size
    return bool((moved | ~lost[:, :, some]).all())


def _find_leak(
    context: ProbeContext, result: ProbeResult, columns: list[int], size: np.ndarray
) -> None:
    """Adds a leak that appears when single positions are changed."""
    meter, expected, name = context.meter, context.expected, context.name
    masked = ~expected.closure & expected.judged[:, :, None]
    moved = np.where(masked[:, :, columns] & (size > meter.rounding), size, 0.0)
    if moved.any():
        b, i, n = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
        where = torch.zeros(meter.tested.batch, meter.tested.length(name), dtype=torch.bool)
        where[b, columns[n]] = True
        change = Change(name, where, "noise", seed=columns[n])
        _narrow_down(meter, result, (float(moved[b, i, n]), b, i, change))


def _columns(length: int) -> list[int]:
    ends = {0, 1, 2, length // 2, length - 3, length - 2, length - 1}
    evenly = np.linspace(0, length - 1, NUM_COLUMNS - len(ends)).astype(int)
    return sorted(ends | set(evenly.tolist()))


@per_input
def gradient(context: ProbeContext) -> ProbeResult:
    """Runs backward from an output: the gradient of masked positions must be 0."""
    meter, expected, name = context.meter, context.expected, context.name
    tested = meter.tested
    if tested.has_ids(name):
        return skip("gradient", "audit.gradient.no_embedding")
    if not getattr(tested.model, "has_gradient", True):
        return skip("gradient", "audit.gradient.no_gradient")
    masked = ~expected.closure & expected.judged[:, :, None]
    rows = np.flatnonzero(expected.judged.any(0))
    rows = rows[np.linspace(0, rows.size - 1, min(NUM_GRADIENTS, rows.size)).astype(int)]
    result = ProbeResult("gradient")
    what = Reason("audit.gradient.tried", {"count": rows.size})
    for i in rows.tolist():
        try:
            size = output_gradient(tested, i, name).norm(dim=-1).numpy()
        except Exception as error:
            result.add_case(what, Status.NOT_RUN, "audit.gradient.no_backward", error=error)
            return result
        if not np.isfinite(size[expected.judged[:, i]]).all():
            b = int(np.flatnonzero(~np.isfinite(size).all(1))[0])
            where = Location(b, i, name=name)
            symptom = Symptom.GRADIENT_NOT_FINITE
            result.fail(symptom, "audit.gradient.not_finite", where, math.inf)
            return result
        floor = 32 * meter.epsilon * float(size.max())
        leaking = np.where(masked[:, i] & (size > floor), size, 0.0)
        result.worst = max(result.worst, float(leaking.max()))
        if leaking.any():
            b, j = argmax2(leaking)
            where = Location(b, i, j, name)
            comment = "> 0: output {i} depends on input {j}"
            code = _influence_code(where, comment, ', by="gradient"')
            moved = float(leaking[b, j])
            result.fail(Symptom.LEAK, "audit.gradient.failure", where, moved, reproduce=code)
            return result
    result.add_case(what)
    return result
