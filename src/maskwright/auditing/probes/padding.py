"""Padding and documents: real outputs depend neither on padding nor on other packed documents.

The content of padding is changed, padding is removed, added, and moved to the other side. Moving it
needs a mask that moves along with the tokens, and `position_ids` for models that count positions
from the start of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.expectations import terms_of
from maskwright.auditing.model_under_test import Change, Inputs, accepts_argument
from maskwright.auditing.probes import (
    Location,
    ProbeContext,
    ProbeResult,
    Rerun,
    Status,
    Symptom,
    per_input,
    skip,
)
from maskwright.auditing.probes.splits import MAX_ALONE, compare_run
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.messages import Reason

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Key, ModelUnderTest
    from maskwright.core.validate import BoolArray

NUM_ADDED: Final = 3  # positions of padding
POSITION_IDS: Final = "position_ids"


@per_input
def padding(context: ProbeContext) -> ProbeResult:
    """Changes, removes, adds and moves padding: the outputs of real tokens must not change."""
    meter, expected, name = context.meter, context.expected, context.name
    tested = meter.tested
    if not expected.padding.any():
        return skip("padding", "audit.padding.none")
    result = context.result("padding")
    _change_content(context, result)
    if tested.has_mask_input:
        result.note("audit.mask_input")
    elif expected.whole_model:
        _move(context, result)
    elif tested.length(name) == meter.baseline.shape[1]:
        _remove(context, result)
        if not tested.has_square_mask(name):
            _add(context, result)
        if not result.failures:
            _move(context, result)
    return result


def _change_content(context: ProbeContext, result: ProbeResult) -> None:
    """Changes what padding contains, if it can be changed."""
    meter, expected, name = context.meter, context.expected, context.name
    padded = torch.from_numpy(expected.padding)
    where = padded & meter.tested.changeable(name, padded)
    if not bool(where.any()):
        return
    what = Reason("audit.padding.tried.content")
    unclear = False
    for n, fill in enumerate(("noise", "other", "large")[: meter.plan.count(3, 2)]):
        change = Change(name, where, fill, seed=50 + n)

        def measure(other: Meter, change: Change = change) -> torch.Tensor:
            return torch.where(context.judged, other.movement(change), 0.0)

        found = meter.judge(measure(meter), measure)
        if found.status is Status.FAILED:
            at, rerun = Location(found.batch, found.position, name=name), Rerun(change)
            result.fail(Symptom.PADDING_CONTENT, "audit.padding.content", at, found.size, rerun)
            return
        unclear |= found.status is Status.NOT_TESTED
    result.add_case(what, Status.NOT_TESTED if unclear else Status.PASSED)


def _remove(context: ProbeContext, result: ProbeResult) -> None:
    """Runs each sequence by itself, without its padding."""
    meter, tested, judged = context.meter, context.meter.tested, context.expected.judged
    for b in range(tested.batch):
        if len(result.cases) > MAX_ALONE and not meter.plan.thorough:
            return
        real = np.flatnonzero(judged[b])
        if not real.size or real.size == judged.shape[1]:
            continue
        if real[-1] - real[0] + 1 != real.size:
            continue  # padding between tokens: without it, positions would change
        columns = real.tolist()
        inputs = tested.select_positions(context.name, columns, tested.select_sequences([b]))
        rerun = Rerun(inputs=inputs, rows=[b], columns=columns)
        case = Reason("audit.padding.removed", {"batch": b})
        if compare_run(meter, result, Symptom.PADDING_REMOVED, case, rerun):
            return


def _add(context: ProbeContext, result: ProbeResult) -> None:
    """Adds padding on the side that has some already."""
    tested, name, padded = context.meter.tested, context.name, context.expected.padding
    left = bool(padded[:, 0].any()) and not bool(padded[:, -1].any())
    if left and tested.has_lengths:
        return  # which count from the left
    b, j = (int(x) for x in np.argwhere(padded)[0])
    length = tested.length(name)
    inputs: Inputs = {}
    for key, x in tested.inputs.items():
        longer = x
        for axis in tested.position_axes(key, x, name, length):
            more = longer.index_select(axis, torch.tensor([j]))
            if x.shape[0] == tested.batch and x.dim() > 1:
                more = more[b : b + 1].expand(x.shape[0], *more.shape[1:])
            more = more.repeat_interleave(NUM_ADDED, axis)
            longer = torch.cat((more, longer) if left else (longer, more), axis)
        inputs[key] = longer
    rerun = Rerun(inputs=inputs, rows=list(range(tested.batch)))
    case = Reason("audit.padding.added", {"count": NUM_ADDED})
    first = NUM_ADDED if left else 0
    judged, at = context.judged, slice(first, first + length)
    compare_run(
        context.meter, result, Symptom.PADDING_ADDED, case, rerun, judged=judged, positions=at
    )


def documents(context: ProbeContext) -> ProbeResult:
    """Runs packed documents by themselves: their outputs must not change."""
    meter, expected, name = context.meter, context.expected, context.name
    tested = meter.tested
    packed = [term for term in terms_of(expected.mask) if isinstance(term, Documents)]
    length = tested.length(name)
    if packed and tested.has_mask_input:
        return skip("documents", "audit.mask_input")
    if not packed or expected.whole_model or meter.baseline.shape[1] != length:
        return skip("documents", "audit.documents.none")
    cells = packed[0].on(length, batch=tested.batch).dense()[:, 0]
    if tested.has_lengths:
        return skip("documents", "audit.documents.lengths")
    result = context.result("documents")
    for b in range(tested.batch):
        rows = cells[b % len(cells)]
        first_key = np.where(rows.any(1), rows.argmax(1), -1)
        for first in np.unique(first_key[first_key >= 0])[::-1][:MAX_ALONE]:
            at = np.flatnonzero(first_key == first)
            if at.size == length or at[-1] - at[0] + 1 != at.size:
                continue
            inputs = tested.select_positions(name, at.tolist(), tested.select_sequences([b]))
            rerun = Rerun(inputs=inputs, rows=[b], columns=at.tolist())
            case = Reason("audit.documents.alone", {"first": int(at[0]), "batch": b})
            if compare_run(meter, result, Symptom.DOCUMENT_ALONE, case, rerun):
                return result
    return result


# ── the side of padding ───────────────────────────────────────────────────────────────────────


def _move(context: ProbeContext, result: ProbeResult) -> None:
    """Moves the padding to the other side, if a mask can follow."""
    meter, expected, name = context.meter, context.expected, context.name
    tested = meter.tested
    order = _order(expected.padding)
    pooled = expected.whole_model and name == tested.main
    if order is None or pooled or not _is_shift_invariant(expected, order):
        return
    if not _can_reorder(tested, name) or not _marks_padding(tested, name, expected.padding):
        return
    move = _Move(expected, name, order, meter.baseline.shape[1] == order.shape[1])
    inputs = move.inputs(tested)
    what = Reason("audit.padding.tried.side")
    try:
        moved = move.difference(meter, inputs)
        status = _judge_side(meter, move, inputs, moved, result)
    except Exception as error:
        result.add_case(move.case, Status.NOT_RUN, "audit.raises", error=error)
        return
    result.add_case(what, status)


@dataclass
class _Move:
    """Padding moved to the other side of every sequence."""

    expected: Expectation
    name: Key
    order: torch.Tensor  # (batch, positions): where the content of each position comes from
    moves_outputs: bool  # outputs have the positions of this input

    @property
    def to_left(self) -> bool:
        """Whether padding is on the left afterwards."""
        return not bool(self.expected.padding[:, 0].any())

    @property
    def case(self) -> Reason:
        """What is tested."""
        return Reason("audit.padding.left" if self.to_left else "audit.padding.right")

    @property
    def real(self) -> torch.Tensor:
        """(batch, positions): the positions that are not padding afterwards."""
        return _reordered(torch.from_numpy(~self.expected.padding), self.order)

    def inputs(self, tested: ModelUnderTest) -> Inputs:
        """The inputs, reordered."""
        length = tested.length(self.name)
        return {
            key: _reordered(x, self.order) if tested.position_axes(key, x, self.name, length) else x
            for key, x in tested.inputs.items()
        }

    def undo(self, output: torch.Tensor) -> torch.Tensor:
        """Outputs of reordered inputs, in the original order."""
        return _reordered(output, self.order.argsort(1)) if self.moves_outputs else output

    def difference(self, meter: Meter, inputs: Inputs) -> torch.Tensor:
        """The difference between the outputs of reordered inputs and the baseline."""
        judged = torch.from_numpy(self.expected.judged)
        return meter.compare(self.undo(meter.run_inputs(inputs)), judged)


def _judge_side(
    meter: Meter, move: _Move, inputs: Inputs, moved: torch.Tensor, result: ProbeResult
) -> Status:
    """If the outputs differ, the model needs position_ids, does not accept them, or is wrong."""
    tested = meter.tested
    has_positions = any("position" in str(key) for key in tested.inputs)
    found = meter.judge(moved, lambda other: move.difference(other, inputs), reshaped=True)
    if found.status is not Status.FAILED:
        return found.status
    if move.to_left and not has_positions and bool(torch.isfinite(moved).all()):
        if accepts_argument(tested.model, POSITION_IDS):
            positions = (move.real.cumsum(1) - 1).clip(0)
            inputs = {**inputs, POSITION_IDS: positions}
            moved = move.difference(meter, inputs)
            found = meter.judge(moved, lambda other: move.difference(other, inputs), reshaped=True)
            if found.status is not Status.FAILED:
                result.note("audit.padding.needs_positions")
                return found.status
            if not _counts_from_0(meter, move):
                result.note("audit.padding.other_positions")
                return Status.PASSED
        elif not _depends_on_padding(meter, move, inputs):
            result.note("audit.padding.no_positions")
            return Status.PASSED
    order = move.order.tolist() if move.moves_outputs else None
    where = Location(found.batch, found.position, name=move.name)
    symptom, rerun = Symptom.PADDING_SIDE, Rerun(inputs=inputs, order=order)
    result.fail(symptom, "audit.padding.side", where, found.size, rerun, case=move.case)
    return Status.FAILED


def _counts_from_0(meter: Meter, move: _Move) -> bool:
    """Whether the model's own positions are 0, 1, 2, ...; some start after the padding id."""
    tested = meter.tested
    count = torch.arange(tested.length(move.name)).expand(tested.batch, -1)
    inputs = {**tested.inputs, POSITION_IDS: count}
    judged = torch.from_numpy(move.expected.judged)

    def measure(other: Meter) -> torch.Tensor:
        return other.compare(other.run_inputs(inputs), judged)

    return meter.judge(measure(meter), measure, reshaped=True).status is not Status.FAILED


def _depends_on_padding(meter: Meter, move: _Move, inputs: Inputs) -> bool:
    """Whether outputs depend on the content of padding once it is on this side."""
    padded = ~move.real
    where = padded & meter.tested.changeable(move.name, padded)
    change = Change(move.name, where, "noise", seed=60)
    judged = torch.from_numpy(move.expected.judged)

    def measure(one: Meter) -> torch.Tensor:
        plain, changed = one.run_inputs(inputs), one.run_inputs(inputs, change)
        return torch.where(judged, one.difference(move.undo(changed), move.undo(plain)), 0.0)

    moved = measure(meter)
    found = meter.judge(moved, measure)
    return found.status is Status.FAILED or (
        found.status is Status.NOT_TESTED and found.size > meter.rounding
    )


def _order(padded: BoolArray) -> torch.Tensor | None:
    """Where the content of each position comes from; None if padding is not all on one side."""
    left, right = bool(padded[:, 0].any()), bool(padded[:, -1].any())
    if left == right:
        return None
    length = padded.shape[1]
    rows = []
    for row in padded:
        real = np.flatnonzero(~row)
        if not real.size or real[-1] - real[0] + 1 != real.size:
            return None
        by = length - real.size
        rows.append(np.roll(np.arange(length), -by if left else by))
    return torch.from_numpy(np.stack(rows))


def _is_shift_invariant(expected: Expectation, order: torch.Tensor) -> bool:
    """Whether what a token attends to is the same wherever its sequence starts; not for chunks."""
    batch, length = order.shape
    others = [t for mask in expected.masks for t in terms_of(mask) if not isinstance(t, Padding)]
    if expected.whole_model:
        return all(bool(t.on(1, length, batch=batch).dense().all()) for t in others)
    for term in set(others):
        cells: BoolArray = np.logical_or.reduce(term.on(length, batch=batch).dense(), axis=1)
        for by in {int(row[0]) for row in order} - {0}:
            if not np.array_equal(cells[:, by:, by:], cells[:, :-by, :-by]):
                return False
            if not np.array_equal(cells[:, -by:, -by:], cells[:, :by, :by]):
                return False
    return True


def _can_reorder(tested: ModelUnderTest, name: Key) -> bool:
    """Whether every input over these positions has them per sequence, in its second axis."""
    length = tested.length(name)
    for key, x in tested.inputs.items():
        axes = tested.position_axes(key, x, name, length)
        if axes and (axes != [1] or x.shape[0] != tested.batch):
            return False
    return True


def _marks_padding(tested: ModelUnderTest, name: Key, padded: BoolArray) -> bool:
    """Whether padding is recognizable wherever it is: by a mask, or by ids of its own.

    A model that knows it otherwise, by lengths or by itself, cannot follow where it is moved.
    """
    if tested.has_lengths:
        return False
    where = torch.from_numpy(padded)
    for key, x in tested.inputs.items():
        marks = tested.position_axes(key, x, name, tested.length(name)) == [1]
        if marks and not (x.is_floating_point() and x.dim() > 2) and x.shape[:2] == where.shape:
            flat = x.flatten(2) if x.dim() > 2 else x[:, :, None]
            real, own = flat[~where].unique().tolist(), flat[where].unique().tolist()
            if not set(real) & set(own):
                return True
    return False


def _reordered(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """(batch, positions, ...), each row in its own order."""
    rows = torch.arange(len(order))[:, None]
    return x[rows.to(x.device), order.to(x.device)]
