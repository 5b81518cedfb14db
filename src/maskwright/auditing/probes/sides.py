"""Sides: a batch that is padded on the left gives the same as one that is padded on the right.

Only where a model can be asked: its mask must move along with its tokens, and positions that are
counted from the start of a row must be told it by `position_ids`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.measure import RESHAPED, rerun
from maskwright.auditing.mistakes import terms_of
from maskwright.auditing.model_under_test import Change, takes
from maskwright.auditing.probes.answer import Answer, Trouble, brief
from maskwright.core.atoms.tokens import Padding

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Inputs, Key, Subject
    from maskwright.core.validate import BoolArray

POSITIONS: Final = "position_ids"


def side(meter: Meter, expected: Expectation, name: Key, answer: Answer) -> bool:
    """Move the padding to the other side; False where that can't be asked."""
    subject = meter.subject
    order = _order(expected.padding)
    pooled = expected.whole and name == subject.main
    if order is None or pooled or not _moves_along(expected, order):
        return False
    if not _can_be_moved(subject, name):
        return False
    move = _Move(expected, name, order, meter.rest.shape[1] == order.shape[1])
    inputs = move.inputs(subject)
    try:
        far = move.far(meter, inputs)
        if bool((far > 0).any()):
            _explain(meter, move, inputs, far, answer)
    except Exception as error:
        answer.notes.append(f"padded on the {move.where}: not compared, {brief(error)}")
    return True


@dataclass
class _Move:
    """Padding goes to the other side: what stands where afterwards, for every sequence."""

    expected: Expectation
    name: Key
    order: torch.Tensor  # (batch, positions): where each position's content comes from
    along: bool  # outputs have the positions of this input

    @property
    def where(self) -> str:
        """The side on which padding is afterwards."""
        return "right" if bool(self.expected.padding[:, 0].any()) else "left"

    @property
    def real(self) -> torch.Tensor:
        """(batch, positions): what is no padding, afterwards."""
        return _along_rows(torch.from_numpy(~self.expected.padding), self.order)

    def inputs(self, subject: Subject) -> Inputs:
        """The inputs, moved."""
        length = subject.length(self.name)
        return {
            key: _along_rows(x, self.order) if subject.axes_along(key, x, self.name, length) else x
            for key, x in subject.inputs.items()
        }

    def read(self, found: torch.Tensor) -> torch.Tensor:
        """Outputs of moved inputs, moved back."""
        return _along_rows(found, self.order.argsort(1)) if self.along else found

    def far(self, meter: Meter, inputs: Inputs) -> torch.Tensor:
        """How far outputs of moved inputs are from those at rest."""
        found = self.read(rerun(meter, inputs))
        if found.shape != meter.rest.shape:
            raise ValueError(f"an output of shape {tuple(found.shape)}")
        judged = torch.from_numpy(self.expected.judged)
        return torch.where(judged, meter.apart(found, meter.rest, RESHAPED), 0.0)


def _explain(meter: Meter, move: _Move, inputs: Inputs, far: torch.Tensor, answer: Answer) -> None:
    """The outputs differ: are positions to be told, can they not be told, or is something wrong?"""
    subject = meter.subject
    told = any("position" in str(key) for key in subject.inputs)
    if move.where == "left" and not told and bool(torch.isfinite(far).all()):
        if takes(subject.model, POSITIONS):
            positions = (move.real.cumsum(1) - 1).clip(0)
            inputs = {**inputs, POSITIONS: positions}
            far = move.far(meter, inputs)
            if not bool((far > 0).any()):
                answer.notes.append(f"padded on the left, it must be given {POSITIONS}")
                return
            if not _counts_from_0(meter, move):
                answer.notes.append(f"padded on the left: not compared, its {POSITIONS} are others")
                return
        elif not _knows_of_padding(meter, move, inputs):
            answer.notes.append(
                f"padded on the left, it gives something else, and takes no {POSITIONS}: pad on "
                "the right"
            )
            return
    b, i = (int(x) for x in np.unravel_index(int(far.argmax()), far.shape))
    worst = float(far[b, i])
    if meter.confirmed(worst, lambda other: float(move.far(other, inputs)[b, i])):
        message = f"padded on the {move.where}, position {i} of batch {b} differs by {worst:.2g}"
        answer.troubles.append(
            Trouble(
                "padding",
                "side",
                message,
                worst,
                b,
                i,
                name=move.name,
                inputs=inputs,
                order=move.order.tolist() if move.along else None,
            )
        )


def _counts_from_0(meter: Meter, move: _Move) -> bool:
    """Are its own positions 0, 1, 2, …? Some models begin after the id of padding."""
    subject = meter.subject
    count = torch.arange(subject.length(move.name)).expand(subject.batch, -1)
    found = rerun(meter, {**subject.inputs, POSITIONS: count})
    judged = torch.from_numpy(move.expected.judged)
    return not bool((meter.apart(found, meter.rest, RESHAPED) > 0)[judged].any())


def _knows_of_padding(meter: Meter, move: _Move, inputs: Inputs) -> bool:
    """Does what padding holds matter, once it is on this side?"""
    subject = meter.subject
    padded = ~move.real
    where = padded & subject.can_change(move.name, padded)
    change = Change(move.name, where, "noise", seed=60)
    one, other = rerun(meter, inputs), rerun(meter, inputs, change=change)
    judged = torch.from_numpy(move.expected.judged)
    return bool((meter.apart(move.read(other), move.read(one)) > 0)[judged].any())


# ── moving ────────────────────────────────────────────────────────────────────────────────────


def _order(padded: BoolArray) -> torch.Tensor | None:
    """Where each position's content comes from; None if padding is not all on one side."""
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


def _moves_along(expected: Expectation, order: torch.Tensor) -> bool:
    """Is what a token sees the same wherever its sequence begins? Chunks, for one, are not."""
    batch, length = order.shape
    others = [t for mask in expected.masks for t in terms_of(mask) if not isinstance(t, Padding)]
    if expected.whole:
        return all(bool(t.on(1, length, batch=batch).dense().all()) for t in others)
    for term in set(others):
        cells: BoolArray = np.logical_or.reduce(term.on(length, batch=batch).dense(), axis=1)
        for by in {int(row[0]) for row in order} - {0}:
            if not np.array_equal(cells[:, by:, by:], cells[:, :-by, :-by]):
                return False
            if not np.array_equal(cells[:, -by:, -by:], cells[:, :by, :by]):
                return False
    return True


def _can_be_moved(subject: Subject, name: Key) -> bool:
    """Is everything that runs along these positions told for each sequence, in its second axis?"""
    length = subject.length(name)
    for key, x in subject.inputs.items():
        axes = subject.axes_along(key, x, name, length)
        if axes and (axes != [1] or x.shape[0] != subject.batch):
            return False
    return True


def _along_rows(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """(batch, positions, …), every row in an order of its own."""
    rows = torch.arange(len(order))[:, None]
    return x[rows.to(x.device), order.to(x.device)]
