"""Padding and batch: a sequence gives the same alone, among others, and with padding beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.measure import RESHAPED, rerun
from maskwright.auditing.mistakes import terms_of
from maskwright.auditing.model_under_test import Change, Inputs
from maskwright.auditing.probes.answer import Answer, Trouble, brief, skip
from maskwright.auditing.probes.sides import side
from maskwright.core.atoms.tokens import Documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Key

MORE: Final = 3  # positions of padding that are added
MOST_ALONE: Final = 3  # sequences that are run by themselves
MOST_SEQUENCES: Final = 16  # in a batch that is made larger
UNCUT: Final = "an input is a mask, whose sequences are not cut: give it as an array to try that"


def padding(meter: Meter, expected: Expectation, name: Key) -> Answer:
    """Change what padding holds, take it away, add more: real outputs stay as they are."""
    subject = meter.subject
    padded = expected.padding
    if not padded.any():
        return skip("padding", "no padding is expected")
    answer = Answer("padding")
    judged = torch.from_numpy(expected.judged)
    tried = []
    where = torch.from_numpy(padded) & subject.can_change(name, torch.from_numpy(padded))
    if bool(where.any()):
        for n, fill in enumerate(("noise", "other", "large")):
            change = Change(name, where, fill, seed=50 + n)
            moved = torch.where(judged, meter.movement(change), 0.0)
            trouble = _worst(
                meter,
                moved,
                "padding",
                "an output of batch {b}, position {i}, changes with what padding holds",
                partial(_moved, change),
            )
            if trouble is not None:
                trouble.change, trouble.name = change, name
                answer.troubles.append(trouble)
                break
        tried.append("what it holds")
    if subject.holds_masks:
        answer.notes.append(UNCUT)
    elif expected.whole:
        if side(meter, expected, name, answer):
            tried.append("on the other side")
    elif subject.length(name) == meter.rest.shape[1]:
        _without(meter, expected, name, answer)
        tried.append("taken away")
        if not subject.runs_across(name):
            _with_more(meter, expected, name, answer)
            tried.append(f"{MORE} more of it")
        if not answer.troubles and side(meter, expected, name, answer):
            tried.append("on the other side")
    answer.tried = "padding changed: " + ", ".join(tried)
    return answer


def _without(meter: Meter, expected: Expectation, name: Key, answer: Answer) -> None:
    """Each sequence by itself, without its padding."""
    for b in range(meter.subject.batch):
        real = np.flatnonzero(expected.judged[b])
        if not real.size or real.size == expected.judged.shape[1]:
            continue
        if real[-1] - real[0] + 1 != real.size:
            continue  # holes: without them, positions would change
        inputs = meter.subject.positions(name, real.tolist(), meter.subject.sequences([b]))
        message = f"batch {b} gives something else without its padding"
        trouble = Trouble("padding", "stripped", message, inputs=inputs)
        if _compare(meter, answer, trouble, [b], columns=real.tolist()):
            return


def _with_more(meter: Meter, expected: Expectation, name: Key, answer: Answer) -> None:
    """Some more padding where there is some already."""
    subject, padded = meter.subject, expected.padding
    left = bool(padded[:, 0].any()) and not bool(padded[:, -1].any())
    b, j = (int(x) for x in np.argwhere(padded)[0])
    length = subject.length(name)
    inputs: Inputs = {}
    for key, x in subject.inputs.items():
        longer = x
        for axis in subject.axes_along(key, x, name, length):
            more = longer.index_select(axis, torch.tensor([j]))
            if x.shape[0] == subject.batch and x.dim() > 1:
                more = more[b : b + 1].expand(x.shape[0], *more.shape[1:])
            more = more.repeat_interleave(MORE, axis)
            longer = torch.cat((more, longer) if left else (longer, more), axis)
        inputs[key] = longer
    message = f"{MORE} more positions of padding change outputs"
    trouble = Trouble("padding", "more", message, inputs=inputs)
    first = MORE if left else 0
    _compare(
        meter,
        answer,
        trouble,
        list(range(subject.batch)),
        torch.from_numpy(expected.judged),
        pick=slice(first, first + length),
    )


def documents(meter: Meter, expected: Expectation, name: Key) -> Answer:
    """Each of some packed documents by itself: it gives what it gives among the others."""
    packed = [t for t in terms_of(expected.mask) if isinstance(t, Documents)]
    length = meter.subject.length(name)
    if packed and meter.subject.holds_masks:
        return skip("documents", UNCUT)
    if not packed or expected.whole or meter.rest.shape[1] != length:
        return skip("documents", "no packed documents are expected")
    cells = packed[0].on(length, batch=meter.subject.batch).dense()[:, 0]
    answer = Answer("documents")
    alone = 0
    for b in range(meter.subject.batch):
        rows = cells[b % len(cells)]
        own = np.where(rows.any(1), rows.argmax(1), -1)
        for first in np.unique(own[own >= 0])[::-1][:MOST_ALONE]:
            at = np.flatnonzero(own == first)
            if at.size == length or at[-1] - at[0] + 1 != at.size:
                continue
            inputs = meter.subject.positions(name, at.tolist(), meter.subject.sequences([b]))
            message = f"the document at position {at[0]} (batch {b}) gives something else alone"
            trouble = Trouble("documents", "document", message, inputs=inputs)
            alone += 1
            if _compare(meter, answer, trouble, [b], columns=at.tolist()):
                return answer
    answer.tried = f"{alone} documents by themselves"
    return answer


def batch(meter: Meter, expected: Expectation, heads: int | None) -> Answer:
    """Every sequence alone and among others, in another order, as many as there are heads."""
    subject = meter.subject
    answer = Answer("batch")
    judged = torch.from_numpy(expected.judged)
    count = subject.batch
    tried = []

    def compare(kind: str, rows: list[int], message: str) -> bool:
        trouble = Trouble("batch", kind, message, inputs=subject.sequences(rows))
        return _compare(meter, answer, trouble, rows, judged[rows])

    if count > 1:
        for name in subject.seats:
            trouble = _across(meter, judged, name)
            if trouble is not None:
                answer.troubles.append(trouble)
                break
        tried.append("one sequence changed, the others watched")
    if subject.holds_masks:
        answer.notes.append(UNCUT)
        answer.tried = ", ".join(tried)
        return answer
    if count > 1:
        for b in range(min(count, MOST_ALONE)):
            if compare("alone", [b], f"sequence {b} gives something else alone than in the batch"):
                break
        backward = list(range(count))[::-1]
        compare("order", backward, "another order of the batch gives something else")
        tried += ["each alone", "in reverse"]
    for size in sorted({count + 1, heads or 0, 2} - {0, 1, count}):
        if size <= MOST_SEQUENCES:
            rows = [n % count for n in range(size)]
            compare("size", rows, f"a batch of {size} gives something else")
            tried.append(f"a batch of {size}")
    answer.tried = ", ".join(tried)
    return answer


def _across(meter: Meter, judged: torch.Tensor, name: Key) -> Trouble | None:
    """Change all of one sequence: the others may not move."""
    subject = meter.subject
    for b in (0, subject.batch - 1):
        where = torch.zeros(subject.batch, subject.length(name), dtype=torch.bool)
        where[b] = True
        if subject.seats.get(name) is None and not subject.inputs[name].is_floating_point():
            where &= judged if judged.shape == where.shape else True
        change = Change(name, where, "noise", seed=90 + b)
        moved = torch.where(judged, meter.movement(change), 0.0)
        moved[b] = 0.0
        trouble = _worst(
            meter,
            moved,
            "across",
            f"position {{i}} of batch {{b}} depends on batch {b}",
            partial(_moved, change),
            probe="batch",
        )
        if trouble is not None:
            trouble.change, trouble.name = change, name
            return trouble
    return None


def _moved(change: Change, meter: Meter, b: int, i: int) -> float:
    return float(meter.movement(change)[b, i])


def _worst(
    meter: Meter,
    moved: torch.Tensor,
    kind: str,
    message: str,
    again: Callable[[Meter, int, int], float],
    probe: str = "padding",
) -> Trouble | None:
    if not bool((moved > 0).any()):
        return None
    b, i = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
    far = float(moved[b, i])
    if not meter.confirmed(far, lambda other: again(other, b, i)):
        return None
    return Trouble(probe, kind, message.format(b=b, i=i), far, b, i)


def _compare(
    meter: Meter,
    answer: Answer,
    trouble: Trouble,
    rows: list[int],
    judged: torch.Tensor | None = None,
    columns: list[int] | None = None,
    pick: slice = slice(None),
) -> bool:
    """Run the inputs of a trouble, and compare with the outputs at rest of these rows and columns.

    True, and the trouble is told, if they differ.
    """
    assert trouble.inputs is not None
    inputs = trouble.inputs

    def moved(one: Meter) -> torch.Tensor:
        found = rerun(one, inputs)[:, pick]
        rest = one.rest[rows] if columns is None else one.rest[rows][:, columns]
        if found.shape != rest.shape:
            raise ValueError(f"an output of shape {tuple(found.shape)}")
        far = one.apart(found, rest, RESHAPED)
        return far if judged is None else torch.where(judged, far, 0.0)

    try:
        far = moved(meter)
    except Exception as error:
        answer.notes.append(f"not compared ({trouble.message.split(' gives')[0]}): {brief(error)}")
        return False
    answer.worst = max(answer.worst, float(far.max()) if far.numel() else 0.0)
    if not bool((far > 0).any()):
        return False
    n, i = (int(x) for x in np.unravel_index(int(far.argmax()), far.shape))
    trouble.far = float(far[n, i])
    if not meter.confirmed(trouble.far, lambda other: float(moved(other)[n, i])):
        return False
    trouble.batch, trouble.output = rows[n], i if columns is None else columns[i]
    if pick == slice(None):
        trouble.rows, trouble.columns = rows, columns
    trouble.message += f" (position {trouble.output} moves by {trouble.far:.2g})"
    answer.troubles.append(trouble)
    return True
