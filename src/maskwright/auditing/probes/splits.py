"""Batch, prefix and steps: outputs do not depend on how the inputs are split.

A sequence must give the same outputs alone and in a batch of any order and size; a position the
same output whatever follows it, or if nothing does. Decoding with a KV cache, token by token or in
chunks, must give the outputs of one pass.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

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
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Inputs, Key, ModelUnderTest
    from maskwright.auditing.probes import Step

MAX_ALONE: Final = 3  # sequences that are run by themselves
MAX_BATCH: Final = 64  # sequences in a larger batch
MAX_POSITIONS: Final = 4_096  # in a pass of a larger batch, unless twice the inputs are more
MAX_SINGLE: Final = 12  # tokens that are decoded one by one
NUM_UNUSED: Final = 2  # passes with ids that the inputs do not contain
LONG: Final = (64, 128, 160, 256)  # positions to which shorter inputs are extended
SOURCES: Final = ("input_ids", "inputs_embeds", "input_features", "input_values", "pixel_values")


def batch(context: ProbeContext) -> ProbeResult:
    """Runs each sequence alone, in reverse order, and in batches of other sizes."""
    meter, tested = context.meter, context.meter.tested
    result = context.result("batch")
    count = tested.batch

    def compare(symptom: Symptom, rows: list[int], case: Reason) -> bool:
        rerun = Rerun(inputs=tested.select_sequences(rows), rows=rows)
        return compare_run(meter, result, symptom, case, rerun, judged=context.judged[rows])

    if count > 1:
        for name in tested.embeddings:
            if _across_batch(meter, result, context.judged, name):
                break
    if tested.has_mask_input:
        result.note("audit.mask_input")
        return result
    if count > 1:
        for b in range(min(count, meter.plan.count(MAX_ALONE, 1))):
            if compare(Symptom.SEQUENCE_ALONE, [b], Reason("audit.batch.alone", {"batch": b})):
                break
        backward = list(range(count))[::-1]
        compare(Symptom.BATCH_ORDER, backward, Reason("audit.batch.order"))
    sizes = sorted({count + 1, context.num_heads or 0, 2} - {0, 1, count})
    for size in sizes if meter.plan.thorough else sizes[:1]:
        if size <= MAX_BATCH:
            _compare_size(context, result, size)
    return result


def _compare_size(context: ProbeContext, result: ProbeResult, size: int) -> None:
    """Runs a batch of another size: of fewer positions if all of them would take much memory."""
    meter, tested = context.meter, context.meter.tested
    rows = [n % tested.batch for n in range(size)]
    case = Reason("audit.batch.size", {"size": size})
    inputs, columns, judged = tested.select_sequences(rows), None, context.judged[rows]
    length = tested.length()
    others = sum(tested.length(name) for name in tested.embeddings if name != tested.main)
    per_sequence = max(MAX_POSITIONS, 2 * tested.batch * (length + others)) // size - others
    if per_sequence < length:
        whole = context.expected.whole_model or meter.baseline.shape[1] != length
        ends = set() if whole else _ends(context.expected, length)
        cut = max((end for end in ends if end <= per_sequence), default=0)
        if not cut:
            result.add_case(case, Status.NOT_TESTED, "audit.batch.memory", optional=True)
            return
        columns, judged = list(range(cut)), judged[:, :cut]
        inputs = tested.select_positions(tested.main, columns, inputs)
    rerun = Rerun(inputs=inputs, rows=rows, columns=columns)
    compare_run(meter, result, Symptom.BATCH_SIZE, case, rerun, judged=judged)


def _across_batch(meter: Meter, result: ProbeResult, judged: torch.Tensor, name: Key) -> bool:
    """Changes all positions of one sequence; adds a failure if the outputs of others move."""
    tested = meter.tested
    for changed in (0, tested.batch - 1):
        where = torch.zeros(tested.batch, tested.length(name), dtype=torch.bool)
        where[changed] = True
        if tested.has_ids(name):
            where &= judged if judged.shape == where.shape else True
        change = Change(name, where, "noise", seed=90 + changed)

        def measure(other: Meter, change: Change = change, changed: int = changed) -> torch.Tensor:
            moved = torch.where(judged, other.movement(change), 0.0)
            moved[changed] = 0.0
            return moved

        found = meter.judge(measure(meter), measure)
        what = Reason("audit.batch.changed", {"changed": changed})
        if found.status is Status.FAILED:
            symptom, at = Symptom.ACROSS_BATCH, Location(found.batch, found.position, name=name)
            code = "audit.batch.across"
            result.fail(symptom, code, at, found.size, Rerun(change), changed=changed)
            return True
        result.add_case(what, found.status)
    return False


def compare_run(
    meter: Meter,
    result: ProbeResult,
    symptom: Symptom,
    case: Reason,
    rerun: Rerun,
    *,
    judged: torch.Tensor | None = None,
    positions: slice = slice(None),
    optional: bool = False,
) -> bool:
    """Runs other inputs, and compares the outputs with the baseline; shared with padding.

    Args:
        meter: The model and its baseline.
        result: Receives a failure if the outputs differ, and the case in any case.
        symptom: That of the failure.
        case: What is run.
        rerun: The inputs, and the sequences and positions of the baseline to compare with.
        judged: The outputs that are compared, (sequences, positions); all by default.
        positions: The positions of the new output that are compared.
        optional: Whether the model need not support it.

    Returns:
        Whether the outputs differ.
    """
    inputs, rows, columns = rerun.inputs, rerun.rows, rerun.columns
    assert inputs is not None
    assert rows is not None
    optional |= columns is not None or positions != slice(None)  # another length
    if meter.plan.exhausted:
        result.add_case(case, Status.NOT_TESTED, "audit.budget")
        return False

    def difference(one: Meter) -> torch.Tensor:
        baseline = one.baseline[rows] if columns is None else one.baseline[rows][:, columns]
        return one.compare(one.run_inputs(inputs)[:, positions], judged, baseline)

    try:
        moved = difference(meter)
    except Exception as error:
        result.add_case(case, Status.NOT_RUN, "audit.raises", optional=optional, error=error)
        return False
    result.worst = max(result.worst, float(moved.max()) if moved.numel() else 0.0)
    found = meter.judge(moved, difference, reshaped=True)
    if found.status is Status.FAILED:
        n, i = found.batch, found.position
        where = Location(rows[n], i if columns is None else columns[i])
        rerun = rerun if positions == slice(None) else Rerun(inputs=inputs)
        result.fail(symptom, "audit.case_differs", where, found.size, rerun, case=case)
        return True
    result.add_case(case, found.status)
    return False


# ── prefixes ──────────────────────────────────────────────────────────────────────────────────────


def prefix(context: ProbeContext) -> ProbeResult:
    """Cuts the inputs at several places, extends them, and changes later ids: earlier outputs stay."""
    meter, tested = context.meter, context.meter.tested
    length = tested.length()
    if length < 2 or meter.baseline.shape[1] != length:
        return skip("prefix", "audit.steps.not_per_position")
    ends = _ends(context.expected, length) - {length}
    if not ends:
        return skip("prefix", "audit.prefix.not_causal")
    if tested.has_mask_input:
        return skip("prefix", "audit.mask_input")
    if not bool(torch.isfinite(meter.baseline).all()):
        return skip("prefix", "audit.reach.not_finite")
    result = context.result("prefix")
    cuts = [cut for cut in _cuts(length, meter.plan.thorough) if cut in ends]
    for cut in cuts:
        if _cut(context, result, cut):
            return result
    first = min(cuts, default=length)
    unused, size = _unused_ids(tested), length - first  # as many as fit are tried in one pass
    tries: list[tuple[int, list[int]]] = [(cut, []) for cut in cuts[:: max(1, len(cuts) // 2)]]
    tries += [(first, unused[n * size : (n + 1) * size]) for n in range(NUM_UNUSED)]
    for n, (cut, ids) in enumerate(tries):
        if (ids or n < len(tries) - NUM_UNUSED) and _change_ids(context, result, cut, ids):
            return result
    future = np.triu(context.expected.direct, 1) & context.expected.judged[:, :, None]
    for longer in [] if future.any() else _longer(tested, length, meter.plan.thorough):
        if _extend(context, result, longer):
            return result
        if result.cases[-1].status is Status.NOT_RUN:
            break  # too long for the model
    one_input = len(tested.inputs) == 1
    if one_input and result.cases and all(c.status is Status.NOT_RUN for c in result.cases):
        return skip("prefix", "audit.prefix.one_length")
    return result


def _cuts(length: int, thorough: bool) -> list[int]:
    """Numbers of positions to cut the inputs to."""
    likely = [1, length - 1, length // 2, 2, 3, 7, 15, 16, 31, 32, 63, 64, 127, 128]
    found = [cut for cut in dict.fromkeys(likely) if 0 < cut < length]
    return found[: 7 if thorough else 3]


def _cut(context: ProbeContext, result: ProbeResult, cut: int) -> bool:
    """Removes the positions from `cut` on; True if earlier outputs differ."""
    tested = context.meter.tested
    columns = list(range(cut))
    rows = list(range(tested.batch))
    inputs = tested.select_positions(tested.main, columns)
    rerun = Rerun(inputs=inputs, rows=rows, columns=columns)
    case = Reason("audit.prefix.cut", {"count": cut})
    judged = context.judged[:, :cut]
    if not bool(judged.any()):
        return False
    return compare_run(context.meter, result, Symptom.PREFIX, case, rerun, judged=judged)


def _change_ids(context: ProbeContext, result: ProbeResult, cut: int, unused: list[int]) -> bool:
    """Replaces the ids from `cut` on, by unused ones if given; True if earlier outputs differ."""
    meter, tested, name = context.meter, context.meter.tested, context.meter.tested.main
    ids = tested.inputs[name]
    if ids.is_floating_point():
        return False
    where = torch.zeros(ids.shape, dtype=torch.bool)
    where[:, cut:] = True
    where &= context.judged
    if not bool(where.any()):
        return False
    case = Reason("audit.prefix.ids", {"first": cut})
    if meter.plan.exhausted:
        result.add_case(case, Status.NOT_TESTED, "audit.budget")
        return False
    other = tested.changed(ids, Change(name, where, seed=70 + cut))
    if unused:
        more = torch.tensor(unused, dtype=ids.dtype, device=ids.device)
        more = more[(torch.arange(ids.shape[1]) - cut) % len(unused)].expand(ids.shape)
        other = torch.where(where.to(ids.device), more, ids)
    inputs = {**tested.inputs, name: other}
    before = context.judged.clone()
    before[:, cut:] = False

    def measure(other: Meter) -> torch.Tensor:
        return torch.where(before, other.difference(other.run_inputs(inputs), other.baseline), 0.0)

    try:
        found = meter.judge(measure(meter), measure)
    except Exception as error:
        result.add_case(case, Status.NOT_RUN, "audit.raises", optional=True, error=error)
        return False
    if found.status is Status.FAILED:
        where_, rerun = Location(found.batch, found.position), Rerun(inputs=inputs)
        result.fail(Symptom.PREFIX, "audit.case_differs", where_, found.size, rerun, case=case)
        return True
    result.add_case(case, found.status)
    return False


def _unused_ids(tested: ModelUnderTest) -> list[int]:
    """Ids of the vocabulary that the inputs do not contain: special ones first, then by chance."""
    embedding, ids = tested.embeddings.get(tested.main), tested.inputs[tested.main]
    if embedding is None:
        return []
    config = vars(getattr(tested.model, "config", object)) if tested.module is not None else {}
    special = {k: v for k, v in config.items() if k.endswith("_token_id") and isinstance(v, int)}
    media = {v for k, v in special.items() if any(m in k for m in ("image", "audio", "video"))}
    used = {*ids.unique().tolist(), tested.pad_id, special.get("pad_token_id"), *media}
    shuffled = torch.randperm(
        embedding.num_embeddings, generator=torch.Generator().manual_seed(tested.seed)
    ).tolist()
    pad = embedding.padding_idx
    return [n for n in dict.fromkeys([*special.values(), *shuffled]) if n not in {*used, pad}]


def _longer(tested: ModelUnderTest, length: int, thorough: bool) -> list[int]:
    """Numbers of positions to extend the inputs to, within what the config of the model allows."""
    if tested.has_square_mask(tested.main) or tested.has_lengths:
        return []
    config = getattr(tested.model, "config", None)
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    found = [size for size in LONG if size > length] or [(length // LONG[0] + 1) * LONG[0]]
    found = found if thorough else found[-1:]
    if isinstance(limit, int):
        found = sorted({min(size, limit) for size in found})
    return [size for size in found if size > length]


def _extend(context: ProbeContext, result: ProbeResult, longer: int) -> bool:
    """Appends positions; True if the outputs of the given positions differ."""
    tested, name = context.meter.tested, context.meter.tested.main
    length = tested.length()
    count = max(MAX_POSITIONS, 2 * tested.batch * length) // longer  # sequences that are extended
    rows = list(range(min(tested.batch, max(count, 1))))
    some = tested.copy_with(inputs=tested.select_sequences(rows))
    rerun = Rerun(inputs=_extended(some, name, longer), rows=rows)
    case = Reason("audit.prefix.extended", {"count": longer})
    judged, at = context.judged[rows], slice(0, length)
    return compare_run(
        context.meter, result, Symptom.PREFIX, case, rerun, judged=judged, positions=at
    )


def _extended(tested: ModelUnderTest, name: Key, longer: int) -> Inputs:
    """The inputs with more positions: their own content again; masks continue as they end."""
    length = tested.length(name)
    again = torch.arange(longer - length) % length
    inputs: Inputs = {}
    for key, x in tested.inputs.items():
        found = x
        for axis in tested.position_axes(key, x, name, length):
            last = found.narrow(axis, length - 1, 1)
            more = last.repeat_interleave(longer - length, axis)
            if key == name:
                more = found.index_select(axis, again.to(x.device))
            elif "position" in str(key) and not x.is_floating_point():
                count = torch.arange(1, longer - length + 1, device=x.device)
                more = more + count.reshape([-1 if n == axis else 1 for n in range(x.dim())])
            found = torch.cat((found, more), axis)
        inputs[key] = found
    return inputs


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
    result = context.result("steps")
    for code, stops in _splits(length, meter.plan.thorough).items():
        cuts = [stop for stop in stops if stop in ends]
        try:
            if _compare_steps(context, result, Reason(code), step, cuts):
                return result
        except _NoCacheError:
            return skip("steps", "audit.steps.no_cache")
    static = static_step(tested) if context.step is None else None
    if static is not None:
        cuts = [stop for stop in (length // 2, length // 2 + 1, length) if stop in ends]
        _compare_steps(context, result, Reason("audit.steps.case.static"), static, cuts)
    return result


def _compare_steps(
    context: ProbeContext, result: ProbeResult, case: Reason, step: Step, cuts: list[int]
) -> bool:
    """Runs the steps that end at `cuts`; True if they raise or their outputs differ."""
    meter, tested = context.meter, context.meter.tested
    is_static = case.code == "audit.steps.case.static"
    rerun = Rerun(run=partial(run_steps, step=step, cuts=cuts))
    if meter.plan.exhausted:
        result.add_case(case, Status.NOT_TESTED, "audit.budget")
        return False

    def measure(other: Meter) -> torch.Tensor:
        return other.compare(run_steps(other.tested, step, cuts), context.judged)

    try:
        out = run_steps(tested, step, cuts)
    except _NoCacheError:
        raise
    except Exception as error:
        if is_static:  # not every model has one
            result.add_case(case, Status.NOT_RUN, "audit.raises", optional=True, error=error)
            return False
        symptom, code = Symptom.CACHE_RAISES, "audit.steps.raises"
        result.fail(symptom, code, rerun=rerun, case=case, error=error)
        return True
    if out.shape != meter.baseline.shape:
        shape = tuple(out.shape)
        result.add_case(case, Status.NOT_RUN, "audit.shape_differs", shape=shape)
        return False
    moved = meter.compare(out, context.judged)
    result.worst = max(result.worst, float(moved.max()))
    found = meter.judge(moved, measure, reshaped=True)
    if found.status is Status.FAILED:
        b, i = (int(x) for x in np.argwhere((moved > 0.1 * moved.max()).numpy())[0])
        where, size = Location(b, i), float(moved[b, i])
        symptom = Symptom.CACHE_MISMATCH
        result.fail(symptom, "audit.steps.failure", where, size, rerun, case=case)
        return True
    result.add_case(case, found.status)
    return False


def _ends(expected: Expectation, length: int) -> set[int]:
    """Where a step may end: no output before depends on anything after."""
    visible = expected.closure & expected.judged[:, :, None]
    last = np.where(visible.any(-1), length - 1 - visible[:, :, ::-1].argmax(-1), 0).max(0)
    clear = np.maximum.accumulate(last) <= np.arange(length)
    return {int(i) + 1 for i in np.flatnonzero(clear)} | {length}


def _splits(length: int, thorough: bool) -> dict[str, list[int]]:
    """Ways to split the positions into steps, as the ends of the steps."""
    single = [*range(1, min(length, MAX_SINGLE if thorough else 3) + 1), length]
    half = length // 2
    third = sorted({max(1, length // 3), max(1, 2 * length // 3), length})
    after = sorted({half, *range(half, min(half + 3, length) + 1), length} - {0})
    return {
        "audit.steps.case.tokens": sorted(set(single)),
        "audit.steps.case.chunks": third,
        **({"audit.steps.case.half": after} if thorough else {}),
    }


def run_steps(tested: ModelUnderTest, step: Step, cuts: list[int]) -> torch.Tensor:
    """The outputs of all steps, concatenated."""
    state, found, start = None, [], 0
    with torch.no_grad():
        for stop in cuts:
            piece = _piece(tested, start, stop)
            tested.passes += 1
            with tested.casting(), fixed_seed(tested.seed):
                result, state = step(tested.model, piece, state)
            found.append(tested.read_output(result))
            start = stop
    return torch.cat(found, 1)


def _piece(tested: ModelUnderTest, start: int, stop: int) -> Any:
    """The next positions. Masks are given for the next queries, and for all keys up to here."""
    main = tested.inputs[tested.main][:, start:stop]
    if len(tested.inputs) == 1:
        return main if isinstance(tested.main, int) else {tested.main: main}
    length = tested.length()
    given: dict[Any, Any] = {}
    for key, x in tested.inputs.items():
        axes = tested.position_axes(key, x, tested.main, length)
        if key == tested.main:
            given[key] = main
        elif len(axes) > 1:
            given[key] = x.narrow(axes[0], start, stop - start).narrow(axes[-1], 0, stop)
        elif axes and x.dim() > 1:
            first = start if _is_per_position(key, x) else 0
            given[key] = x.narrow(axes[0], first, stop - first)
        else:
            given[key] = x
    return given if isinstance(tested.main, str) else tuple(given.values())


def _is_per_position(key: Key, x: torch.Tensor) -> bool:
    """Whether an input is cut like the ids, and not a mask over all keys so far."""
    names = ("position", "token_type", "bbox", "embeds", "segment")
    return any(name in str(key) for name in names) or (x.is_floating_point() and x.dim() == 3)


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


def static_step(tested: ModelUnderTest) -> Step | None:
    """The same with a static cache of transformers; None if the model does not support one."""
    make = getattr(sys.modules.get("transformers"), "StaticCache", None)
    supported = getattr(tested.model, "_can_compile_fullgraph", False)
    if make is None or not supported or default_step(tested) is not _step:
        return None
    length = tested.length()

    def step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
        new = state is None
        return _step(model, piece, make(model.config, max_cache_len=length) if new else state)

    return step


def _step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
    given = dict(piece) if isinstance(piece, dict) else {"input_ids": piece}
    given |= {"past_key_values": state, "use_cache": True}
    result = model(**given)
    cache = getattr(result, "past_key_values", None)
    if cache is None:
        raise _NoCacheError
    return result, cache


def _decoder_step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
    """Runs the encoder once, and passes its output to all steps."""
    if not isinstance(piece, dict) or not accepts_argument(model, "encoder_outputs"):
        raise _NoCacheError
    given = dict(piece)
    source = {key: given.pop(key) for key in SOURCES if key in given}
    if state is None:
        encoder = model.get_encoder()
        names = ("attention_mask",) if accepts_argument(encoder, "attention_mask") else ()
        mask = {key: given[key] for key in names if key in given}
        state = encoder(**source, **mask, return_dict=True), None
    encoded, before = state
    result, cache = _step(model, {**given, "encoder_outputs": encoded}, before)
    return result, (encoded, cache)
