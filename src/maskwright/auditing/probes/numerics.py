"""Numbers and dtype: outputs and gradients are finite, and half precision keeps the mask."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.measure import CONFIRM_BELOW, argmax2, deviation, make_meter
from maskwright.auditing.model_under_test import (
    HALF_DTYPES,
    Change,
    eval_mode,
    first_tensor,
    to_dtype,
)
from maskwright.auditing.probes import (
    Location,
    ProbeContext,
    ProbeResult,
    Rerun,
    Status,
    Symptom,
    skip,
)
from maskwright.auditing.probes.leak import masked_from, masked_pairs, unaffected_by
from maskwright.messages import Reason
from maskwright.tracing import recording

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import ModelUnderTest

MAX_HALF_ERROR: Final = 0.25  # of the outputs' size: more than rounding to half precision does


def numbers(context: ProbeContext) -> ProbeResult:
    """Looks for NaN and inf in the outputs, and in the gradients of all tested outputs."""
    meter, expected, name = context.meter, context.expected, context.name
    result = ProbeResult("numbers")
    result.add_case(Reason("audit.numbers.tried"))
    bad = ~torch.isfinite(meter.baseline).all(-1)
    if bool(bad.any()):
        judged = bad & context.judged
        b, i = (int(x) for x in torch.nonzero(judged if bool(judged.any()) else bad)[0])
        where = Location(b, i, name=name)
        result.fail(Symptom.NOT_FINITE, "audit.numbers.not_finite", where, math.inf)
        return result
    _insert_nan(context, result)
    module = meter.tested.module
    if module is not None and any(w.requires_grad for w in module.parameters()):
        weight = _non_finite_gradient(meter, expected)
        if weight is not None:
            where, symptom = Location(name=name), Symptom.GRADIENT_NOT_FINITE
            result.fail(symptom, "audit.numbers.gradient", where, math.inf, weight=weight)
    return result


def _insert_nan(context: ProbeContext, result: ProbeResult) -> None:
    """Notes whether NaN at masked positions reaches the outputs, if that can be tested.

    This is a note and not a failure: a masked key has the weight 0, and 0 · NaN is NaN.
    """
    meter, expected, name = context.meter, context.expected, context.name
    tested = meter.tested
    if tested.has_ids(name):
        return
    where = expected.padding
    if not where.any():
        masked = masked_pairs(meter, expected, name)
        rows = np.flatnonzero(masked.any((0, 2)))
        if not rows.size:
            return
        where = masked_from(masked, expected.judged, int(rows[rows.size // 2]))
    unaffected = torch.from_numpy(unaffected_by(expected, where))
    change = Change(name, torch.from_numpy(where), "nan")
    try:
        with eval_mode(tested.model):  # NaN may stay in a buffer
            bad = ~torch.isfinite(tested.run(change=change)).all(-1) & unaffected
    except Exception as error:
        result.note("audit.numbers.nan_raises", error=error)
        return
    count, total = int(bad.sum()), int(unaffected.sum())
    if count:
        result.note("audit.numbers.nan_passes", count=count, total=total)
    else:
        result.note("audit.numbers.nan_masked")


def _non_finite_gradient(meter: Meter, expected: Expectation) -> str | None:
    """A weight whose gradient, of the sum of all tested outputs, is not finite."""
    tested, module = meter.tested, meter.tested.module
    assert module is not None
    weights = {n: w for n, w in module.named_parameters() if w.requires_grad}
    try:
        with torch.enable_grad():
            out = first_tensor(tested.pick_output(tested.call()))
            assert out is not None
            judged = torch.from_numpy(expected.judged)
            picked = out[judged] if out.shape[:2] == judged.shape else out
            grads = torch.autograd.grad(picked.sum(), list(weights.values()), allow_unused=True)
    except Exception:  # a model that does not run backward has no gradients
        return None
    for name, grad in zip(weights, grads, strict=True):
        if grad is not None and not bool(torch.isfinite(grad).all()):
            return str(name)
    return None


def dtype(context: ProbeContext) -> ProbeResult:
    """Runs in bfloat16 and float16: outputs must be finite, similar, and have the same masks."""
    meter, tested = context.meter, context.meter.tested
    if tested.module is None or not any(True for _ in tested.module.parameters()):
        return skip("dtype", "audit.dtype.no_weights")
    result = ProbeResult("dtype")
    if context.half is not None:
        _run_half(context, result, context.half)
        return result
    if meter.epsilon > 1e-4:
        return skip("dtype", "audit.dtype.half")
    for half_dtype in HALF_DTYPES:
        other = to_dtype(tested, half_dtype)
        if other is None:
            return skip("dtype", "audit.dtype.no_copy")
        _run_half(context, result, other)
    if all(case.status is Status.NOT_RUN for case in result.cases) and not result.failures:
        return skip("dtype", "audit.dtype.not_supported")
    return result


def _run_half(context: ProbeContext, result: ProbeResult, other: ModelUnderTest) -> None:
    """Runs a model in half precision, and compares it with the same model in float32."""
    tested = context.meter.tested
    dtypes = [w.dtype for w in other.module.parameters()] if other.module is not None else []
    short = str(next((d for d in dtypes if d in HALF_DTYPES), "half")).removeprefix("torch.")
    case = Reason("audit.dtype.name", {"dtype": short})
    if context.meter.plan.exhausted:
        result.add_case(case, Status.NOT_TESTED, "audit.budget")
        return
    other.passes = 0
    try:
        half = make_meter(other, repeats=1)
    except Exception as error:
        where, rerun = Location(name=context.name), Rerun(tested=other)
        if "overflow" in str(error):  # PyTorch has no error type for values out of range
            symptom, code = Symptom.DTYPE_OVERFLOW, "audit.dtype.raises"
            result.fail(symptom, code, where, rerun=rerun, dtype=short, error=error)
        else:
            optional = context.half is None
            result.add_case(case, Status.NOT_RUN, "audit.raises", optional=optional, error=error)
        return
    finally:
        tested.count_passes_of(other)
    if half.baseline.shape != context.meter.baseline.shape:
        shape = tuple(half.baseline.shape)
        result.add_case(case, Status.NOT_RUN, "audit.shape_differs", shape=shape)
        return
    found = _compare_half(half, context)
    tested.passes += other.passes
    if found is not None:
        symptom, code, size, (b, i), change = found
        where, rerun = Location(b, i, name=context.name), Rerun(change=change, tested=other)
        result.fail(symptom, code, where, size, rerun, dtype=short)
        result.add_case(case, Status.FAILED)
    elif (context.calls and not context.expected.subset) or not half.unexplained:
        result.add_case(case)
    elif context.expected.subset:
        result.add_case(case, Status.NOT_TESTED, "audit.paths.chosen", optional=True)
    else:  # no masks to compare, and outputs move by less than rounding can
        result.add_case(case, Status.NOT_TESTED, "audit.dtype.coarse", optional=True)


Found = tuple[Symptom, str, float, tuple[int, int], Change | None]


def _compare_half(half: Meter, context: ProbeContext) -> Found | None:
    """The symptom of a model in half precision, its message, size, place and change."""
    meter, expected, name = context.meter, context.expected, context.name
    judged = context.judged
    finite = torch.isfinite(half.baseline).all(-1)
    bad = judged & ~finite & torch.isfinite(meter.baseline).all(-1)
    if bool(bad.any()):
        b, i = torch.nonzero(bad)[0].tolist()
        return Symptom.HALF_NOT_FINITE, "audit.dtype.not_finite", math.inf, (b, i), None
    if not expected.subset:  # else rounding may change which keys are chosen
        moved = torch.where(judged, deviation(half.baseline, meter.baseline), 0.0)
        worst = float(moved.max())
        limit = MAX_HALF_ERROR * meter.size
        if worst > limit and worst > 4 * _weight_rounding(half, meter, judged):
            return Symptom.HALF_DIFFERS, "audit.dtype.differs", worst, argmax2(moved), None
        if (at := _other_masks(half, context)) is not None:
            return Symptom.HALF_LEAK, "audit.dtype.masks", 0.0, at, None
    masked = masked_pairs(half, expected, name)
    rows = np.flatnonzero(masked.any((0, 2)))
    count = meter.plan.count(3, 1)
    for n, row in enumerate(rows[np.linspace(0, rows.size - 1, min(count, rows.size)).astype(int)]):
        where = masked_from(masked, expected.judged, int(row))
        unaffected = torch.from_numpy(unaffected_by(expected, where))
        change = Change(name, torch.from_numpy(where), "noise", seed=n)
        leaking = torch.where(unaffected, half.movement(change), 0.0)
        if float(leaking.max()) > max(half.rounding, CONFIRM_BELOW * half.size):
            size, at = float(leaking.max()), argmax2(leaking)
            return Symptom.HALF_LEAK, "audit.dtype.leak", size, at, change
        half.unexplained = max(half.unexplained, float(leaking.max()))
    return None


def _other_masks(half: Meter, context: ProbeContext) -> tuple[int, int] | None:
    """Where an attention call in half precision sees a key that it does not see in float32."""
    with recording(half.tested.model) as recorder:
        half.tested.run()
    if len(recorder.calls) != len(context.calls):
        return None
    for one, other in zip(context.calls, recorder.calls, strict=True):
        if one.visible.shape != other.visible.shape:
            continue
        extra = (other.visible & ~one.visible).any(1)
        rows = one.visible.any((1, 3))  # a fully masked row may attend to anything
        extra &= np.broadcast_to(rows, extra.shape[:2])[:, :, None]
        judged = context.expected.judged
        if extra.shape[1] == judged.shape[1] and extra.shape[0] in (1, judged.shape[0]):
            extra = extra & (judged[:, :, None] if extra.shape[0] > 1 else True)
        if extra.any():
            b, i, _ = (int(x) for x in np.argwhere(extra)[0])
            return b, i
    return None


def _weight_rounding(half: Meter, meter: Meter, judged: torch.Tensor) -> float:
    """How far outputs move if only the weights are rounded: some models are very sensitive."""
    other = to_dtype(half.tested, torch.float32)
    if other is None or meter.epsilon != torch.finfo(torch.float32).eps:
        return 0.0
    rounded = other.run()
    half.tested.passes += other.passes
    return float(torch.where(judged, deviation(rounded, meter.baseline), 0.0).max())
