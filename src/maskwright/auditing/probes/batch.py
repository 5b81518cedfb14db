"""Batch: a sequence gives the same outputs alone, in any order, and in a batch of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from maskwright.auditing.measure import ROUNDING_RESHAPED, argmax2
from maskwright.auditing.model_under_test import Change
from maskwright.auditing.probes import (
    Failure,
    Location,
    ProbeContext,
    ProbeResult,
    Rerun,
    Symptom,
    brief,
)
from maskwright.messages import Reason

if TYPE_CHECKING:
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Inputs, Key

MAX_ALONE: Final = 3  # sequences that are run by themselves
MAX_BATCH: Final = 16  # sequences in a larger batch


def batch(context: ProbeContext) -> ProbeResult:
    """Runs each sequence alone, in reverse order, and in batches of other sizes."""
    meter, tested = context.meter, context.meter.tested
    result = ProbeResult("batch")
    judged = torch.from_numpy(context.expected.judged)
    count = tested.batch
    tried = []

    def compare(symptom: Symptom, rows: list[int], case: Reason) -> bool:
        rerun = Rerun(inputs=tested.select_sequences(rows), rows=rows)
        failure = Failure("batch", symptom, case, rerun=rerun)
        return compare_run(meter, result, failure, judged[rows])

    if count > 1:
        for name in tested.embeddings:
            failure = _across_batch(meter, judged, name)
            if failure is not None:
                result.failures.append(failure)
                break
        tried.append(Reason("audit.batch.tried.changed"))
    if tested.has_mask_input:
        result.notes.append(Reason("audit.mask_input"))
        result.tried = Reason("audit.tried", {"parts": tuple(tried)}) if tried else None
        return result
    if count > 1:
        for b in range(min(count, MAX_ALONE)):
            if compare(Symptom.SEQUENCE_ALONE, [b], Reason("audit.batch.alone", {"batch": b})):
                break
        backward = list(range(count))[::-1]
        compare(Symptom.BATCH_ORDER, backward, Reason("audit.batch.order"))
        tried += [Reason("audit.batch.tried.alone"), Reason("audit.batch.tried.reversed")]
    for size in sorted({count + 1, context.num_heads or 0, 2} - {0, 1, count}):
        if size <= MAX_BATCH:
            rows = [n % count for n in range(size)]
            compare(Symptom.BATCH_SIZE, rows, Reason("audit.batch.size", {"size": size}))
            tried.append(Reason("audit.batch.tried.size", {"size": size}))
    result.tried = Reason("audit.tried", {"parts": tuple(tried)})
    return result


def _across_batch(meter: Meter, judged: torch.Tensor, name: Key) -> Failure | None:
    """Changes all positions of one sequence: the outputs of the others must not move."""
    tested = meter.tested
    for changed in (0, tested.batch - 1):
        where = torch.zeros(tested.batch, tested.length(name), dtype=torch.bool)
        where[changed] = True
        if tested.has_ids(name):
            where &= judged if judged.shape == where.shape else True
        change = Change(name, where, "noise", seed=90 + changed)
        moved = torch.where(judged, meter.movement(change), 0.0)
        moved[changed] = 0.0
        found = confirmed_worst(meter, moved, change)
        if found is not None:
            size, b, i = found
            params = {"output": i, "batch": b, "changed": changed}
            return Failure(
                "batch",
                Symptom.ACROSS_BATCH,
                Reason("audit.batch.across", params),
                size,
                Location(b, i, name=name),
                Rerun(change=change),
            )
    return None


# ── shared with the probes of padding ─────────────────────────────────────────────────────────


def confirmed_worst(
    meter: Meter, moved: torch.Tensor, change: Change
) -> tuple[float, int, int] | None:
    """The largest movement and its (batch, position); None if there is none but rounding."""
    if not bool((moved > 0).any()):
        return None
    b, i = argmax2(moved)
    size = float(moved[b, i])
    if not meter.confirmed(size, lambda other: float(other.movement(change)[b, i])):
        return None
    return size, b, i


def compare_run(
    meter: Meter,
    result: ProbeResult,
    failure: Failure,
    judged: torch.Tensor | None = None,
    positions: slice = slice(None),
) -> bool:
    """Runs the inputs of a possible failure, and compares with the baseline.

    Args:
        meter: The model and its baseline.
        result: Receives the failure, or a note if the run raises.
        failure: What it is if the outputs differ. Its rerun has the inputs, and the sequences and
            positions of the baseline that they are compared with.
        judged: The outputs that are compared, (sequences, positions); all by default.
        positions: The positions of the new output that are compared.

    Returns:
        Whether the outputs differ.
    """
    rerun = failure.rerun
    inputs, rows, columns = rerun.inputs, rerun.rows, rerun.columns
    assert inputs is not None
    assert rows is not None

    def difference(one: Meter, inputs: Inputs = inputs) -> torch.Tensor:
        found = one.run_inputs(inputs)[:, positions]
        baseline = one.baseline[rows] if columns is None else one.baseline[rows][:, columns]
        if found.shape != baseline.shape:
            raise ValueError(f"the output has shape {tuple(found.shape)}")
        moved = one.difference(found, baseline, ROUNDING_RESHAPED)
        return moved if judged is None else torch.where(judged, moved, 0.0)

    try:
        moved = difference(meter)
    except Exception as error:
        params = {"case": failure.message, "error": brief(error)}
        result.notes.append(Reason("audit.not_compared", params))
        return False
    result.worst = max(result.worst, float(moved.max()) if moved.numel() else 0.0)
    if not bool((moved > 0).any()):
        return False
    n, i = argmax2(moved)
    size = float(moved[n, i])
    if not meter.confirmed(size, lambda other: float(difference(other)[n, i])):
        return False
    output = i if columns is None else columns[i]
    params = {"case": failure.message, "output": output, "size": size}
    whole = positions == slice(None)
    result.failures.append(
        Failure(
            failure.probe,
            failure.symptom,
            Reason("audit.case_differs", params),
            size,
            Location(rows[n], output),
            Rerun(inputs=inputs, rows=rows, columns=columns) if whole else Rerun(inputs=inputs),
        )
    )
    return True
