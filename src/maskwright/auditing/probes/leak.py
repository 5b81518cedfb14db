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
    Symptom,
    brief,
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
        return skip("leak", notes=[Reason("audit.leak.nothing_masked")])
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
    result.tried = Reason("audit.leak.tried", {"count": passes, "share": share})
    if worst is not None:
        failure = _narrow_down(meter, worst)
        if failure is not None:
            result.failures.append(failure)
        else:
            result.notes.append(Reason("audit.leak.rounding", {"size": worst[0]}))
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


def _narrow_down(meter: Meter, worst: tuple[float, int, int, Change]) -> Failure | None:
    """Bisects the changed positions to one that moves the output; None if it was rounding."""
    size, b, i, change = worst

    def measure(other: Meter) -> float:
        return float(other.movement(change)[b, i])

    if not meter.confirmed(size, measure):
        return None
    at = torch.nonzero(change.where[b]).flatten().tolist()
    while len(at) > 1:
        half = at[: len(at) // 2] if len(at) > 2 else at[:1]
        moved = float(meter.movement(_only(change, b, half))[b, i])
        if moved > 0:
            at, size = half, moved
        else:
            at = at[len(half) :]
    j = at[0]
    single = _only(change, b, [j])
    size = float(meter.movement(single)[b, i]) or size
    return Failure(
        "leak",
        Symptom.LEAK,
        Reason("audit.leak.failure", {"output": i, "input": j, "batch": b}),
        size,
        Location(b, i, j, change.name),
        Rerun(change=single),
        _influence_code(change.name, (b, i, j), "> 0: output {i} depends on input {j}"),
    )


def _only(change: Change, b: int, positions: list[int]) -> Change:
    where = torch.zeros_like(change.where)
    where[b, positions] = True
    return Change(change.name, where, change.fill, change.seed)


def _influence_code(name: Key, cell: tuple[int, int, int], comment: str, options: str = "") -> str:
    """Python code that measures one cell of the influence."""
    b, i, j = cell
    of = f", of={name!r}" if isinstance(name, str) else ""
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
        return skip("reach", notes=[Reason("audit.reach.no_attention")])
    if not bool(torch.isfinite(meter.baseline).all()):
        return skip("reach", notes=[Reason("audit.reach.not_finite")])
    length = meter.tested.length(name)
    changeable = _changeable(meter, expected, name)
    must = expected.must_reach(meter.epsilon) & expected.judged[:, :, None] & changeable[:, None, :]
    columns = list(range(length)) if length <= MAX_FULL else _columns(length)
    size = influence_by_change(meter, columns, "noise", name)
    result = ProbeResult("reach", Reason("audit.reach.tried", {"count": len(columns)}))
    if len(columns) == length:
        result.measured = np.where(size > meter.rounding, size, 0.0)
    result.failures += _leaks_of_columns(context, columns, size, changeable)
    lost = must[:, :, columns] & (size == 0)
    if lost.any():
        # Another change may have an effect where this one had none.
        again = [n for n in range(len(columns)) if lost[:, :, n].any()]
        other = influence_by_change(meter, [columns[n] for n in again], "large", name)
        lost[:, :, again] &= other == 0
    if lost.any() and _lost_in_rounding(meter, columns, lost, name):
        result.notes.append(Reason("audit.reach.rounding"))
        return result
    if lost.any():
        result.failures.append(_no_dependence(name, columns, lost, size))
    return result


def _no_dependence(name: Key, columns: list[int], lost: BoolArray, size: np.ndarray) -> Failure:
    b, i, n = (int(x) for x in np.argwhere(lost)[0])
    j = columns[n]
    count = int(lost.sum())
    params = {"output": i, "input": j, "batch": b, "count": count - 1}
    if (size == 0).all():
        symptom, message = Symptom.IGNORES_INPUT, Reason("audit.reach.ignored")
    elif count > 1:
        symptom, message = Symptom.NO_DEPENDENCE, Reason("audit.reach.failures", params)
    else:
        symptom, message = Symptom.NO_DEPENDENCE, Reason("audit.reach.failure", params)
    comment = "0: output {i} does not depend on input {j}"
    return Failure(
        "reach",
        symptom,
        message,
        where=Location(b, i, j, name),
        reproduce=_influence_code(name, (b, i, j), comment),
    )


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


def _leaks_of_columns(
    context: ProbeContext, columns: list[int], size: np.ndarray, changeable: BoolArray
) -> list[Failure]:
    """Leaks that appear when single positions are changed."""
    meter, expected, name = context.meter, context.expected, context.name
    masked = ~expected.closure & expected.judged[:, :, None] & changeable[:, None, :]
    moved = np.where(masked[:, :, columns] & (size > meter.rounding), size, 0.0)
    if not moved.any():
        return []
    b, i, n = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
    where = torch.zeros(meter.tested.batch, meter.tested.length(name), dtype=torch.bool)
    where[b, columns[n]] = True
    change = Change(name, where, "noise", seed=columns[n])
    failure = _narrow_down(meter, (float(moved[b, i, n]), b, i, change))
    return [] if failure is None else [failure]


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
        return skip("gradient", notes=[Reason("audit.gradient.no_embedding")])
    masked = ~expected.closure & expected.judged[:, :, None]
    rows = np.flatnonzero(expected.judged.any(0))
    rows = rows[np.linspace(0, rows.size - 1, min(NUM_GRADIENTS, rows.size)).astype(int)]
    result = ProbeResult("gradient", Reason("audit.gradient.tried", {"count": rows.size}))
    for i in rows.tolist():
        try:
            size = output_gradient(tested, i, name).norm(dim=-1).numpy()
        except Exception as error:
            note = Reason("audit.gradient.no_backward", {"error": brief(error)})
            return skip("gradient", notes=[note])
        if not np.isfinite(size[expected.judged[:, i]]).all():
            b = int(np.flatnonzero(~np.isfinite(size).all(1))[0])
            result.failures.append(
                Failure(
                    "gradient",
                    Symptom.GRADIENT_NOT_FINITE,
                    Reason("audit.gradient.not_finite", {"output": i, "batch": b}),
                    math.inf,
                    Location(b, i, name=name),
                )
            )
            return result
        floor = 32 * meter.epsilon * float(size.max())
        leaking = np.where(masked[:, i] & (size > floor), size, 0.0)
        result.worst = max(result.worst, float(leaking.max()))
        if leaking.any():
            b, j = argmax2(leaking)
            comment = "> 0: output {i} depends on input {j}"
            result.failures.append(
                Failure(
                    "gradient",
                    Symptom.LEAK,
                    Reason("audit.gradient.failure", {"output": i, "input": j, "batch": b}),
                    float(leaking[b, j]),
                    Location(b, i, j, name),
                    reproduce=_influence_code(name, (b, i, j), comment, ', by="gradient"'),
                )
            )
            return result
    return result
