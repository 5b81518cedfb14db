"""Leak, reach and gradient: an output must not depend on masked positions, and must on visible ones.

All positions masked from an output are changed at once, so one pass tests a whole row, and every
other row for which they are masked too. A leak is then narrowed down to one position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.measure import (
    ROUNDING,
    argmax2,
    influence_by_change,
    output_gradient,
)
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
    from maskwright.auditing.measure import Meter, Verdict
    from maskwright.auditing.model_under_test import Key
    from maskwright.core.validate import BoolArray

MAX_ROWS: Final = 64  # outputs that are tested with a pass of their own
MIN_ROWS: Final = 12  # the same, if passes are expensive
MAX_FULL: Final = 48  # positions up to which each is changed by itself
NUM_COLUMNS: Final = 24  # positions of longer inputs that are changed by themselves
MIN_COLUMNS: Final = 6  # the same, if passes are expensive
NUM_CONFIRMED: Final = 8  # of these, in float64
NUM_JUDGED: Final = 4  # changes with a movement of unknown cause that are repeated in float64
NUM_GRADIENTS: Final = 6


@per_input
def leak(context: ProbeContext) -> ProbeResult:
    """Changes the positions that are masked from an output: the output must not change."""
    meter, expected, name = context.meter, context.expected, context.name
    masked = masked_pairs(meter, expected, name)
    if not masked.any():
        return skip("leak", "audit.leak.nothing_masked")
    result = context.result("leak")
    tested = np.zeros_like(masked)
    changes: list[tuple[float, Change, torch.Tensor]] = []
    count = 0
    for n, row in enumerate(_rows(masked, meter.plan.count(MAX_ROWS, MIN_ROWS))):
        where = masked_from(masked, expected.judged, row)
        unaffected = unaffected_by(expected, where)
        if not (unaffected[:, :, None] & where[:, None] & ~tested).any():
            continue
        if meter.plan.exhausted:
            break
        tested |= unaffected[:, :, None] & where[:, None]
        change = Change(name, torch.from_numpy(where), ("noise", "other")[n % 2], seed=n)
        still = torch.from_numpy(unaffected)
        moved = torch.where(still, meter.movement(change), 0.0)
        count += 1
        if bool((moved > 0).any()):
            changes.append((float(moved.max()), change, still))
    result.worst = max((size for size, *_ in changes), default=0.0)
    share = float(tested[masked].mean())
    what = Reason("audit.leak.tried", {"count": count, "share": share})
    status = _judge_changes(meter, result, changes)
    if not count:
        result.add_case(what, Status.NOT_TESTED, "audit.budget")
    else:
        result.add_case(what, status)
    return result


def _judge_changes(
    meter: Meter, result: ProbeResult, changes: list[tuple[float, Change, torch.Tensor]]
) -> Status:
    """The status of the changes that moved an output which they must not, the largest first."""
    status = meter.judge(torch.zeros(0), lambda _: torch.zeros(0)).status
    ordered = sorted(changes, key=lambda one: -one[0])
    for size, change, still in ordered[: meter.plan.count(NUM_JUDGED, 2)]:

        def measure(
            other: Meter, change: Change = change, still: torch.Tensor = still
        ) -> torch.Tensor:
            return torch.where(still, other.movement(change), 0.0)

        found = meter.judge(measure(meter), measure)
        if found.status is Status.FAILED:
            _narrow_down(meter, result, change, found)
            return Status.FAILED
        if found.status is Status.NOT_TESTED:
            status = Status.NOT_TESTED
        else:
            result.note("audit.leak.rounding", size=size)
    return status


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


def _rows(masked: BoolArray, count: int) -> list[int]:
    """Rows to test: all if they are few, else the ends, powers of two, and evenly spaced ones."""
    rows = np.flatnonzero(masked.any((0, 2)))
    if rows.size <= count // 2:
        return [int(row) for row in rows]
    likely = [0, int(rows[-1]), 1, int(rows[-1]) - 1, 2]
    power = 4
    while power <= rows[-1] + 1:
        likely += [power - 1, power, power - 2]
        power *= 2
    likely = [row for row in dict.fromkeys(likely) if row in rows][: max(count // 2, 2)]
    evenly = np.linspace(0, rows.size - 1, max(count - len(likely), 2))
    spaced = rows[evenly.astype(int)].tolist()
    return sorted(set(likely) | set(spaced))[:count]


def _narrow_down(meter: Meter, result: ProbeResult, change: Change, found: Verdict) -> None:
    """Bisects the changed positions to one that moves the output."""
    _, size, b, i = found
    twin = meter.float64 if size <= meter.rounding else None
    measured = meter if twin is None else twin
    floor = 0.0 if twin is None else ROUNDING * twin.epsilon * twin.size
    at = torch.nonzero(change.where[b]).flatten().tolist()
    while len(at) > 1:
        half = at[: len(at) // 2] if len(at) > 2 else at[:1]
        moved = float(measured.movement(_only(change, b, half))[b, i])
        at, size = (half, moved) if moved > floor else (at[len(half) :], size)
    single = _only(change, b, at)
    size = float(measured.movement(single)[b, i]) or size
    if twin is not None:
        meter.tested.count_passes_of(twin.tested)
    where = Location(b, i, at[0], change.name)
    code = _influence_code(where, "> 0: output {i} depends on input {j}")
    failure = Failure(
        result.probe,
        Symptom.LEAK,
        Reason("audit.leak.failure", {"output": i, "input": at[0], "batch": b}),
        size,
        where,
        Rerun(change=single),
        code,
    )
    result.failures.append(failure)


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
    """Changes one visible position at a time: the outputs that attend to it must change."""
    meter, expected, name = context.meter, context.expected, context.name
    if not context.has_attention:
        return skip("reach", "audit.reach.no_attention")
    if not bool(torch.isfinite(meter.baseline).all()):
        return skip("reach", "audit.reach.not_finite")
    length = meter.tested.length(name)
    changeable = _changeable(meter, expected, name)
    must = expected.must_reach(meter.epsilon) & expected.judged[:, :, None] & changeable[:, None, :]
    columns = list(range(length))
    if length > meter.plan.count(MAX_FULL, MIN_COLUMNS):
        columns = _columns(length, meter.plan.count(NUM_COLUMNS, MIN_COLUMNS))
    size = influence_by_change(meter, columns, "noise", name)
    result = context.result("reach")
    what = Reason("audit.reach.tried", {"count": len(columns)})
    if len(columns) == length:
        result.measured = np.where(size > meter.rounding, size, 0.0)
    leaking = _find_leak(
        context, result, columns, np.where(changeable[:, None, columns], size, 0.0)
    )
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
    failed = result.failures and leaking is not Status.NOT_TESTED
    result.add_case(what, Status.FAILED if failed else leaking)
    return result


def _lost_in_rounding(meter: Meter, columns: list[int], lost: BoolArray, name: Key) -> bool:
    """Whether some of these positions have an effect in float64 that they have not otherwise."""
    twin = meter.float64
    if twin is None:
        return meter.epsilon > 1e-4  # half precision: not known
    some = [n for n in range(len(columns)) if lost[:, :, n].any()][:NUM_CONFIRMED]
    size = influence_by_change(twin, [columns[n] for n in some], "noise", name)
    meter.tested.count_passes_of(twin.tested)
    moved = size > 1e-4 * meter.epsilon * meter.size
    return bool((moved | ~lost[:, :, some]).all())


def _find_leak(
    context: ProbeContext, result: ProbeResult, columns: list[int], size: np.ndarray
) -> Status:
    """Adds a leak that appears when single positions are changed."""
    meter, expected, name = context.meter, context.expected, context.name
    masked = ~expected.closure & expected.judged[:, :, None]
    moved = np.where(masked[:, :, columns], size, 0.0)
    changes = []
    for n in np.flatnonzero(moved.any((0, 1))).tolist():
        where = torch.zeros(meter.tested.batch, meter.tested.length(name), dtype=torch.bool)
        where[:, columns[n]] = True
        change = Change(name, where, "noise", seed=columns[n])
        still = torch.from_numpy(masked[:, :, columns[n]])
        changes.append((float(moved[:, :, n].max()), change, still))
    return _judge_changes(meter, result, changes)


def _columns(length: int, count: int) -> list[int]:
    ends = [0, length - 1, length // 2, 1, length - 2, 2, length - 3][:count]
    evenly = np.linspace(0, length - 1, max(count - len(ends), 1)).astype(int)
    return sorted(set(ends) | set(evenly.tolist()))


@per_input
def gradient(context: ProbeContext) -> ProbeResult:
    """Runs backward from an output: the gradient of masked positions must be 0."""
    meter, expected, name = context.meter, context.expected, context.name
    tested = meter.tested
    if tested.has_ids(name):
        return skip("gradient", "audit.gradient.no_embedding")
    if tested.cast is not None:
        return skip("gradient", "audit.gradient.cast")
    if not getattr(tested.model, "has_gradient", True):
        return skip("gradient", "audit.gradient.no_gradient")
    masked = ~expected.closure & expected.judged[:, :, None]
    rows = np.flatnonzero(expected.judged.any(0))
    count = min(meter.plan.count(NUM_GRADIENTS, 2), rows.size)
    rows = rows[np.linspace(0, rows.size - 1, count).astype(int)]
    result = context.result("gradient")
    what = Reason("audit.gradient.tried", {"count": rows.size})
    blind = True  # no gradient reaches any visible position
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
        visible = expected.closure[:, i] & expected.judged[:, i, None]
        blind &= not bool((size[visible] > 0).any())
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
    if blind:
        return skip("gradient", "audit.gradient.detached")
    result.add_case(what)
    return result
