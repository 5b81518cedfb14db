"""Batch and steps: outputs do not depend on how the inputs are split.

A sequence must give the same outputs alone and in a batch of any order and size. Decoding with a KV
cache, token by token or in chunks, must give the outputs of one pass.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from maskwright.auditing.measure import Meter
from maskwright.auditing.model_under_test import Change, accepts_argument, fixed_seed
from maskwright.auditing.probes import (
    Location,
    ProbeContext,
    ProbeResult,
    Rerun,
    Status,
    Symptom,
    skip,
)
from maskwright.messages import Reason

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.model_under_test import Key, ModelUnderTest
    from maskwright.auditing.probes import Step

MAX_ALONE: Final = 3  # sequences that are run by themselves
MAX_BATCH: Final = 16  # sequences in a larger batch
MAX_SINGLE: Final = 12  # tokens that are decoded one by one


def batch(context: ProbeContext) -> ProbeResult:
    """Runs each sequence alone, in reverse order, and in batches of other sizes."""
    meter, tested = context.meter, context.meter.tested
    result = ProbeResult("batch")
    count = tested.batch

    def compare(symptom: Symptom, rows: list[int], case: Reason) -> bool:
        rerun = Rerun(inputs=tested.select_sequences(rows), rows=rows)
        return compare_run(meter, result, symptom, case, rerun, context.judged[rows])

    if count > 1:
        for name in tested.embeddings:
            if _across_batch(meter, result, context.judged, name):
                break
        result.add_case(Reason("audit.batch.tried.changed"))
    if tested.has_mask_input:
        result.note("audit.mask_input")
        return result
    if count > 1:
        for b in range(min(count, MAX_ALONE)):
            if compare(Symptom.SEQUENCE_ALONE, [b], Reason("audit.batch.alone", {"batch": b})):
                break
        backward = list(range(count))[::-1]
        compare(Symptom.BATCH_ORDER, backward, Reason("audit.batch.order"))
        result.add_case(Reason("audit.batch.tried.alone"))
        result.add_case(Reason("audit.batch.tried.reversed"))
    for size in sorted({count + 1, context.num_heads or 0, 2} - {0, 1, count}):
        if size <= MAX_BATCH:
            rows = [n % count for n in range(size)]
            compare(Symptom.BATCH_SIZE, rows, Reason("audit.batch.size", {"size": size}))
            result.add_case(Reason("audit.batch.tried.size", {"size": size}))
    return result


def _across_batch(meter: Meter, result: ProbeResult, judged: torch.Tensor, name: Key) -> bool:
    """Changes all positions of one sequence; adds a failure if the outputs of others move."""
    tested = meter.tested
    for changed in (0, tested.batch - 1):
        where = torch.zeros(tested.batch, tested.length(name), dtype=torch.bool)
        where[changed] = True
        if tested.has_ids(name):
            where &= judged if judged.shape == where.shape else True
        change = Change(name, where, "noise", seed=90 + changed)
        moved = torch.where(judged, meter.movement(change), 0.0)
        moved[changed] = 0.0
        found = meter.confirmed_worst(moved, partial(Meter.movement, change=change))
        if found is not None:
            size, b, i = found
            symptom, at = Symptom.ACROSS_BATCH, Location(b, i, name=name)
            result.fail(symptom, "audit.batch.across", at, size, Rerun(change), changed=changed)
            return True
    return False


def compare_run(
    meter: Meter,
    result: ProbeResult,
    symptom: Symptom,
    case: Reason,
    rerun: Rerun,
    judged: torch.Tensor | None = None,
    positions: slice = slice(None),
) -> bool:
    """Runs other inputs, and compares the outputs with the baseline; shared with padding.

    Args:
        meter: The model and its baseline.
        result: Receives a failure if the outputs differ, or a note if the run raises.
        symptom: That of the failure.
        case: What is run.
        rerun: The inputs, and the sequences and positions of the baseline to compare with.
        judged: The outputs that are compared, (sequences, positions); all by default.
        positions: The positions of the new output that are compared.

    Returns:
        Whether the outputs differ.
    """
    inputs, rows, columns = rerun.inputs, rerun.rows, rerun.columns
    assert inputs is not None
    assert rows is not None

    def difference(one: Meter) -> torch.Tensor:
        baseline = one.baseline[rows] if columns is None else one.baseline[rows][:, columns]
        return one.compare(one.run_inputs(inputs)[:, positions], judged, baseline)

    try:
        moved = difference(meter)
    except Exception as error:
        optional = columns is not None or positions != slice(None)  # another length
        result.add_case(case, Status.NOT_RUN, "audit.raises", optional=optional, error=error)
        return False
    result.worst = max(result.worst, float(moved.max()) if moved.numel() else 0.0)
    found = meter.confirmed_worst(moved, difference)
    if found is None:
        return False
    size, n, i = found
    where = Location(rows[n], i if columns is None else columns[i])
    rerun = rerun if positions == slice(None) else Rerun(inputs=inputs)
    result.fail(symptom, "audit.case_differs", where, size, rerun, case=case)
    return True


# ── steps with a KV cache ────────────────────────────────────────────────────────────────────────


class _NoCacheError(Exception):
    """The model returned no cache."""


def steps(context: ProbeContext) -> ProbeResult:
    """Runs the positions in steps with a cache: the outputs must be those of one pass."""
    meter, tested = context.meter, context.meter.tested
    step = context.step or default_step(tested)
    if step is None:
        return skip("steps", "audit.steps.no_step")
    length = tested.length()
    if length < 2 or meter.baseline.shape[1] != length:
        return skip("steps", "audit.steps.not_per_position")
    ends = _ends(context.expected, length)
    if ends == {length}:
        return skip("steps", "audit.steps.not_causal")
    result = ProbeResult("steps")
    for code, stops in _splits(length).items():
        case = Reason(code)
        cuts = [stop for stop in stops if stop in ends]
        rerun = Rerun(run=partial(run_steps, step=step, cuts=cuts))
        try:
            out = run_steps(tested, step, cuts)
        except _NoCacheError:
            return skip("steps", "audit.steps.no_cache")
        except Exception as error:
            symptom, code = Symptom.CACHE_RAISES, "audit.steps.raises"
            result.fail(symptom, code, rerun=rerun, case=case, error=error)
            return result
        if out.shape != meter.baseline.shape:
            result.add_case(case, Status.NOT_RUN, "audit.shape_differs", shape=tuple(out.shape))
            continue
        moved = meter.compare(out, context.judged)
        result.worst = max(result.worst, float(moved.max()))
        if not bool((moved > 0).any()):
            result.add_case(case)
            continue
        b, i = (int(x) for x in np.argwhere((moved > 0).numpy())[0])

        def measure(other: Meter, cuts: list[int] = cuts) -> float:
            return float(other.compare(run_steps(other.tested, step, cuts), context.judged).max())

        if meter.confirmed(float(moved.max()), measure):
            where, size = Location(b, i), float(moved[b, i])
            symptom = Symptom.CACHE_MISMATCH
            result.fail(symptom, "audit.steps.failure", where, size, rerun, case=case)
            return result
        result.add_case(case)
    return result


def _ends(expected: Expectation, length: int) -> set[int]:
    """Where a step may end: no output before depends on anything after."""
    visible = expected.closure & expected.judged[:, :, None]
    last = np.where(visible.any(-1), length - 1 - visible[:, :, ::-1].argmax(-1), 0).max(0)
    clear = np.maximum.accumulate(last) <= np.arange(length)
    return {int(i) + 1 for i in np.flatnonzero(clear)} | {length}


def _splits(length: int) -> dict[str, list[int]]:
    """Ways to split the positions into steps, as the ends of the steps."""
    single = [*range(1, min(length, MAX_SINGLE) + 1), length]
    half = length // 2
    third = sorted({max(1, length // 3), max(1, 2 * length // 3), length})
    after = sorted({half, *range(half, min(half + 3, length) + 1), length} - {0})
    return {
        "audit.steps.case.tokens": sorted(set(single)),
        "audit.steps.case.chunks": third,
        "audit.steps.case.half": after,
    }


def run_steps(tested: ModelUnderTest, step: Step, cuts: list[int]) -> torch.Tensor:
    """The outputs of all steps, concatenated."""
    state, found, start = None, [], 0
    with torch.no_grad():
        for stop in cuts:
            piece = _piece(tested, start, stop)
            tested.passes += 1
            with fixed_seed(tested.seed):
                result, state = step(tested.model, piece, state)
            found.append(tested.read_output(result))
            start = stop
    return torch.cat(found, 1)


def _piece(tested: ModelUnderTest, start: int, stop: int) -> Any:
    """The next positions; masks over the positions are given up to here."""
    main = tested.inputs[tested.main][:, start:stop]
    if len(tested.inputs) == 1:
        return main if isinstance(tested.main, int) else {tested.main: main}
    length = tested.length()
    given: dict[Any, Any] = {}
    for key, x in tested.inputs.items():
        axes = tested.position_axes(key, x, tested.main, length)
        if key == tested.main:
            given[key] = main
        elif 1 in axes and x.dim() > 1:
            given[key] = x[:, start:stop] if "position" in str(key) else x[:, :stop]
        else:
            given[key] = x
    return given if isinstance(tested.main, str) else tuple(given.values())


def default_step(tested: ModelUnderTest) -> Step | None:
    """The step function of models with a cache of transformers; None if the model has none."""
    model = tested.model
    if not accepts_argument(model, "past_key_values"):
        return None
    if not accepts_argument(model, "use_cache", var_keyword=True):
        return None
    config = getattr(model, "config", None)
    if config is None or not getattr(config, "use_cache", True):
        return None
    return _decoder_step if getattr(config, "is_encoder_decoder", False) else _step


def _step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
    given = piece if isinstance(piece, dict) else {"input_ids": piece}
    result = model(**given, past_key_values=state, use_cache=True)
    cache = getattr(result, "past_key_values", None)
    if cache is None:
        raise _NoCacheError
    return result, cache


def _decoder_step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
    """Runs the encoder once, and passes its output to all steps."""
    if not isinstance(piece, dict) or not accepts_argument(model, "encoder_outputs"):
        raise _NoCacheError
    given = dict(piece)
    source = {key: given.pop(key) for key in ("input_ids", "inputs_embeds") if key in given}
    if state is None:
        mask = {key: given[key] for key in ("attention_mask",) if key in given}
        state = model.get_encoder()(**source, **mask, return_dict=True), None
    encoded, before = state
    result, cache = _step(model, {**given, "encoder_outputs": encoded}, before)
    return result, (encoded, cache)
