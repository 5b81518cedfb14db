"""Numbers: outputs and gradients are finite, and lower precision keeps the same mask."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from maskwright.auditing.measure import make_meter
from maskwright.auditing.model_under_test import Change, recast
from maskwright.auditing.probes.answer import Answer, Trouble, brief, skip
from maskwright.auditing.probes.leaks import clear_of, hidden_from, hidden_pairs
from maskwright.auditing.probes.stillness import still

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Key

HALVES = (torch.bfloat16, torch.float16)
FAR_OFF = 0.25  # of the outputs' size: more than rounding to halves does to a small model


def numbers(meter: Meter, expected: Expectation, name: Key) -> Answer:
    """Look for NaN and inf in the outputs, and in the gradients of all judged ones together."""
    answer = Answer("numbers", tried="outputs and gradients looked through")
    bad = ~torch.isfinite(meter.rest).all(-1)
    if bool(bad.any()):
        judged = bad & torch.from_numpy(expected.judged)
        b, i = (int(x) for x in torch.nonzero(judged if bool(judged.any()) else bad)[0])
        answer.troubles.append(
            Trouble(
                "numbers",
                "nan",
                f"the output at position {i} is not finite (batch {b})",
                math.inf,
                b,
                i,
                name=name,
            )
        )
        return answer
    note = _with_nan(meter, expected, name)
    if note is not None:
        answer.notes.append(note)
    module = meter.subject.module
    if module is not None and any(w.requires_grad for w in module.parameters()):
        found = _bad_weight(meter, expected)
        if found is not None:
            answer.troubles.append(
                Trouble(
                    "numbers",
                    "nan gradient",
                    f"the gradient of {found} is not finite",
                    math.inf,
                    name=name,
                )
            )
    return answer


def _with_nan(meter: Meter, expected: Expectation, name: Key) -> str | None:
    """Whether NaN in what is hidden is kept out; None where there is nothing to put it into.

    This is told and no finding: a hidden key has the weight 0, and 0 · NaN is NaN.
    """
    subject = meter.subject
    if subject.seats.get(name) is None and not subject.inputs[name].is_floating_point():
        return None
    where = expected.padding
    if not where.any():
        hidden = hidden_pairs(meter, expected, name)
        rows = np.flatnonzero(hidden.any((0, 2)))
        if not rows.size:
            return None
        where = hidden_from(hidden, expected.judged, int(rows[rows.size // 2]))
    clear = torch.from_numpy(clear_of(expected, where))
    change = Change(name, torch.from_numpy(where), "nan")
    try:
        with still(subject.model):  # NaN may stay in a buffer
            bad = ~torch.isfinite(subject.run(change=change)).all(-1) & clear
    except Exception as error:
        return f"NaN in what is hidden: not asked, {brief(error)}"
    count, whole = int(bad.sum()), int(clear.sum())
    if count:
        return f"NaN in what is hidden comes through to {count} of {whole} outputs: 0 · NaN is NaN"
    return "NaN in what is hidden is kept out"


def _bad_weight(meter: Meter, expected: Expectation) -> str | None:
    """A weight whose gradient is not finite, when the judged outputs are asked for theirs."""
    subject, module = meter.subject, meter.subject.module
    assert module is not None
    weights = {n: w for n, w in module.named_parameters() if w.requires_grad}
    try:
        with torch.enable_grad():
            result = subject.call()
            out = subject.pick(result) if subject.pick is not None else result
            from maskwright.auditing.model_under_test import first_tensor

            out = first_tensor(out)
            assert out is not None
            judged = torch.from_numpy(expected.judged)
            picked = out[judged] if out.shape[:2] == judged.shape else out
            grads = torch.autograd.grad(picked.sum(), list(weights.values()), allow_unused=True)
    except Exception:  # a model that does not run backward has no gradients to look at
        return None
    for name, grad in zip(weights, grads, strict=True):
        if grad is not None and not bool(torch.isfinite(grad).all()):
            return str(name)
    return None


def dtype(meter: Meter, expected: Expectation, name: Key) -> Answer:
    """Run in halves: finite, near the same, and nothing hidden moves an output."""
    subject = meter.subject
    if subject.module is None or not any(True for _ in subject.module.parameters()):
        return skip("dtype", "a model without weights has no dtype to change")
    if meter.epsilon > 1e-4:
        return skip("dtype", "the model is in half precision already")
    answer = Answer("dtype")
    tried = []
    for kind in HALVES:
        short = str(kind).removeprefix("torch.")
        other = recast(subject, kind)
        if other is None:
            return skip("dtype", "the model can't be copied")
        try:
            half = make_meter(other)
        except Exception as error:
            if "overflow" in str(error):
                answer.troubles.append(
                    Trouble(
                        "dtype",
                        "overflow",
                        f"in {short} the model raises: {brief(error)}",
                        name=name,
                        subject=other,
                    )
                )
            else:
                answer.notes.append(f"{short}: not run, {brief(error)}")
            continue
        finally:
            subject.passes += other.passes
            other.passes = 0
        tried.append(short)
        trouble = _in_halves(half, meter, expected, name, short)
        subject.passes += other.passes
        if trouble is not None:
            trouble.subject = other
            answer.troubles.append(trouble)
    answer.tried = " and ".join(tried)
    return answer


def _by_weights(half: Meter, meter: Meter, judged: torch.Tensor) -> float:
    """How far outputs go when only the weights are rounded: some models turn on very little."""
    other = recast(half.subject, torch.float32)
    if other is None or meter.epsilon != torch.finfo(torch.float32).eps:
        return 0.0
    rounded = other.run()
    half.subject.passes += other.passes
    return float(torch.where(judged, (rounded - meter.rest).abs().amax(-1), 0.0).max())


def _in_halves(
    half: Meter, meter: Meter, expected: Expectation, name: Key, short: str
) -> Trouble | None:
    judged = torch.from_numpy(expected.judged)
    if half.rest.shape != meter.rest.shape:
        return None
    bad = judged & ~torch.isfinite(half.rest).all(-1) & torch.isfinite(meter.rest).all(-1)
    if bool(bad.any()):
        b, i = (int(x) for x in torch.nonzero(bad)[0])
        message = f"in {short} the output at position {i} is not finite (batch {b})"
        return Trouble("dtype", "half nan", message, math.inf, b, i, name=name)
    far = torch.where(judged, (half.rest - meter.rest).abs().amax(-1), 0.0)
    worst = float(far.max())
    if worst > FAR_OFF * meter.size and worst > 4 * _by_weights(half, meter, judged):
        b, i = (int(x) for x in np.unravel_index(int(far.argmax()), far.shape))
        message = f"in {short} the output at position {i} is off by {worst:.2g}"
        return Trouble("dtype", "half differs", message, worst, b, i, name=name)
    hidden = hidden_pairs(half, expected, name)
    rows = np.flatnonzero(hidden.any((0, 2)))
    for n, row in enumerate(rows[np.linspace(0, rows.size - 1, min(3, rows.size)).astype(int)]):
        where = hidden_from(hidden, expected.judged, int(row))
        clear = clear_of(expected, where)
        change = Change(name, torch.from_numpy(where), "noise", seed=n)
        moved = np.where(clear, half.movement(change).numpy(), 0.0)
        if moved.max() > 0 and half.certain(float(moved.max())):
            b, i = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
            message = f"in {short} position {i} depends on what is hidden from it (batch {b})"
            return Trouble(
                "dtype", "half leak", message, float(moved.max()), b, i, name=name, change=change
            )
    return None
