"""Leak and reach: nothing hidden may move an output, and what is seen must.

For an output, all that is hidden from it is changed at once: one pass asks about the whole row, and
about every other row that sees none of it. A leak is then narrowed down to one position.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from maskwright.auditing.model_under_test import Change
from maskwright.auditing.probes.answer import Answer, Trouble, brief, skip
from maskwright.auditing.probes.influence import by_change, gradient_of

if TYPE_CHECKING:
    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Key
    from maskwright.core.validate import BoolArray

MOST_ROWS: Final = 64  # outputs that are asked about by a pass of their own
FULL: Final = 64  # positions up to which every one is changed by itself
COLUMNS: Final = 24  # positions that are changed by themselves, of longer inputs
FINER: Final = 8  # of these, in float64
GRADIENTS: Final = 6


def leak(meter: Meter, expected: Expectation, name: Key) -> Answer:
    """Change what is hidden: no output that must not know of it may move."""
    judged = expected.judged
    hidden = hidden_pairs(meter, expected, name)
    if not hidden.any():
        return skip("leak", "nothing is hidden from any output that could be changed")
    answer = Answer("leak")
    asked = np.zeros_like(hidden)
    passes = 0
    worst: tuple[float, int, int, Change] | None = None
    for n, row in enumerate(_rows(hidden)):
        where = hidden_from(hidden, judged, row)
        clear = clear_of(expected, where)
        if not (clear[:, :, None] & where[:, None] & ~asked).any():
            continue
        asked |= clear[:, :, None] & where[:, None]
        change = Change(name, torch.from_numpy(where), ("noise", "other")[n % 2], seed=n)
        moved = np.where(clear, meter.movement(change).numpy(), 0.0)
        passes += 1
        answer.worst = max(answer.worst, float(moved.max()))
        if moved.max() > (worst[0] if worst else 0.0):
            b, i = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
            worst = (float(moved[b, i]), b, i, change)
    share = asked[hidden].mean()
    answer.tried = f"{passes} sets of hidden positions changed ({share:.0%} of the hidden pairs)"
    if worst is not None:
        trouble = _narrowed(meter, worst)
        if trouble is not None:
            answer.troubles.append(trouble)
        else:
            answer.notes.append(f"a movement of {worst[0]:.2g} is rounding: it is gone in float64")
    return answer


def hidden_pairs(meter: Meter, expected: Expectation, name: Key) -> BoolArray:
    """(batch, outputs, inputs): what must not be known of, and can be changed."""
    padding = torch.from_numpy(padding_of(expected, meter, name))
    possible = meter.subject.can_change(name, padding).numpy()
    hidden: BoolArray = ~expected.closure & possible[:, None, :] & expected.judged[:, :, None]
    return hidden


def clear_of(expected: Expectation, where: BoolArray) -> BoolArray:
    """(batch, outputs): the judged ones that must know of none of these (batch, positions)."""
    seen = np.einsum("bij,bj->bi", expected.closure.astype(np.float32), where.astype(np.float32))
    some = where.sum(axis=1, keepdims=True) > 0
    clear: BoolArray = (seen == 0) & expected.judged & some
    return clear


def hidden_from(hidden: BoolArray, judged: BoolArray, row: int) -> BoolArray:
    """What is hidden from a row; in a sequence where the row is padding, from its last real one."""
    found: BoolArray = hidden[:, row].copy()
    for b in np.flatnonzero(~judged[:, row]):
        real = np.flatnonzero(judged[b])
        if real.size:
            found[b] = hidden[b, real[np.abs(real - row).argmin()]]
    return found


def _rows(hidden: BoolArray) -> list[int]:
    """Rows to ask about: all of a few, else the ends, powers of two and their neighbours, others."""
    rows = np.flatnonzero(hidden.any((0, 2)))
    if rows.size <= MOST_ROWS // 2:
        return [int(row) for row in rows]
    likely = {0, 1, 2, int(rows[-1]), int(rows[-1]) - 1}
    power = 4
    while power <= rows[-1] + 1:
        likely |= {power - 1, power, power - 2}
        power *= 2
    evenly = np.linspace(0, rows.size - 1, MOST_ROWS - min(len(likely), MOST_ROWS // 2))
    drawn = rows[evenly.astype(int)].tolist()
    return sorted((likely & set(rows.tolist())) | set(drawn))[:MOST_ROWS]


def _narrowed(meter: Meter, worst: tuple[float, int, int, Change]) -> Trouble | None:
    """One position of a set that moves the output, by halving; None where it was rounding."""
    far, b, i, change = worst

    def again(other: Meter) -> float:
        return float(other.movement(change)[b, i])

    if not meter.confirmed(far, again):
        return None
    at = torch.nonzero(change.where[b]).flatten().tolist()
    while len(at) > 1:
        half = at[: len(at) // 2] if len(at) > 2 else at[:1]
        part = _only(change, b, half)
        moved = float(meter.movement(part)[b, i])
        if moved > 0:
            at, far = half, moved
        else:
            at = at[len(half) :]
    j = at[0]
    single = _only(change, b, [j])
    far = float(meter.movement(single)[b, i]) or far
    return Trouble(
        probe="leak",
        kind="leak",
        message=f"position {i} depends on position {j} (batch {b})",
        far=far,
        batch=b,
        output=i,
        input=j,
        name=change.name,
        change=single,
        reproduce=_reproduce(change.name, b, i, j),
    )


def _only(change: Change, b: int, positions: list[int]) -> Change:
    where = torch.zeros_like(change.where)
    where[b, positions] = True
    return Change(change.name, where, change.fill, change.seed)


def _reproduce(name: Key, b: int, i: int, j: int) -> str:
    of = f", of={name!r}" if isinstance(name, str) else ""
    return (
        "import maskwright as mw\n"
        f"found = mw.influence(model, inputs{of})\n"
        f"print(found.size[{b}, {i}, {j}])  # not 0: output {i} depends on input {j}"
    )


def reach(meter: Meter, expected: Expectation, name: Key, attends: bool) -> Answer:
    """Change one seen position: the outputs that must know of it have to move."""
    if not attends:
        return skip("reach", "no attention was seen, so how far it must reach is not known")
    subject = meter.subject
    length = subject.length(name)
    padding = torch.from_numpy(padding_of(expected, meter, name))
    possible = subject.can_change(name, padding).numpy()
    if not bool(torch.isfinite(meter.rest).all()):
        return skip("reach", "outputs are not finite")
    must = expected.must_reach(meter.epsilon) & expected.judged[:, :, None] & possible[:, None, :]
    columns = list(range(length)) if length <= FULL else _columns(length)
    size = by_change(meter, columns, "noise", name)
    answer = Answer("reach", tried=f"{len(columns)} positions changed one by one")
    if len(columns) == length:
        answer.measured = np.where(size > meter.rounding, size, 0.0)
    answer.troubles += _leaks_among(meter, expected, name, columns, size, possible)
    lost = must[:, :, columns] & (size == 0)
    if lost.any():
        # Some other change may be felt where this one was not.
        again = [n for n in range(len(columns)) if lost[:, :, n].any()]
        other = by_change(meter, [columns[n] for n in again], "large", name)
        lost[:, :, again] &= other == 0
    if lost.any() and _swallowed(meter, columns, lost, name):
        answer.notes.append("what some outputs know of some positions is lost in rounding")
        return answer
    if not lost.any():
        return answer
    b, i, n = (int(x) for x in np.argwhere(lost)[0])
    j = columns[n]
    count = int(lost.sum())
    what = f"position {i} does not depend on position {j} (batch {b}), which it should see"
    if not size.any():
        what = "no output depends on any input"
    answer.troubles.append(
        Trouble(
            probe="reach",
            kind="over",
            message=what + (f", and {count - 1} more pairs like it" if count > 1 else ""),
            batch=b,
            output=i,
            input=j,
            name=name,
            reproduce=_reproduce(name, b, i, j).replace("not 0", "0").replace("depends", "is deaf"),
        )
    )
    return answer


def _swallowed(meter: Meter, columns: list[int], lost: BoolArray, name: Key) -> bool:
    """Are positions felt in float64 that were not felt before? A few are asked."""
    twin = meter.twin
    if twin is None:
        return meter.epsilon > 1e-4  # halves: nobody knows
    few = [n for n in range(len(columns)) if lost[:, :, n].any()][:FINER]
    size = by_change(twin, [columns[n] for n in few], "noise", name)
    meter.subject.passes += twin.subject.passes
    twin.subject.passes = 0
    felt = size > 1e-4 * meter.epsilon * meter.size
    return bool((felt | ~lost[:, :, few]).all())


def _leaks_among(
    meter: Meter,
    expected: Expectation,
    name: Key,
    columns: list[int],
    size: np.ndarray,
    possible: BoolArray,
) -> list[Trouble]:
    """Leaks that show when single positions are changed."""
    hidden = ~expected.closure & expected.judged[:, :, None] & possible[:, None, :]
    moved = np.where(hidden[:, :, columns] & (size > meter.rounding), size, 0.0)
    if not moved.any():
        return []
    b, i, n = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
    where = torch.zeros(meter.subject.batch, meter.subject.length(name), dtype=torch.bool)
    where[b, columns[n]] = True
    change = Change(name, where, "noise", seed=columns[n])
    trouble = _narrowed(meter, (float(moved[b, i, n]), b, i, change))
    return [] if trouble is None else [trouble]


def _columns(length: int) -> list[int]:
    ends = {0, 1, 2, length // 2, length - 3, length - 2, length - 1}
    evenly = np.linspace(0, length - 1, COLUMNS - len(ends)).astype(int)
    return sorted(ends | set(evenly.tolist()))


def gradient(meter: Meter, expected: Expectation, name: Key) -> Answer:
    """Run backward from an output: nothing may arrive at an input that is hidden from it."""
    subject = meter.subject
    if subject.seats.get(name) is None and not subject.inputs[name].is_floating_point():
        return skip("gradient", "the ids are not read by an nn.Embedding")
    hidden = ~expected.closure & expected.judged[:, :, None]
    rows = np.flatnonzero(expected.judged.any(0))
    rows = rows[np.linspace(0, rows.size - 1, min(GRADIENTS, rows.size)).astype(int)]
    answer = Answer("gradient", tried=f"run backward from {rows.size} outputs")
    for i in rows.tolist():
        try:
            size = gradient_of(subject, {i: 1.0}, name).norm(dim=-1).numpy()
        except Exception as error:
            return skip("gradient", f"the model does not run backward: {brief(error)}")
        if not np.isfinite(size[expected.judged[:, i]]).all():
            b = int(np.flatnonzero(~np.isfinite(size).all(1))[0])
            answer.troubles.append(
                Trouble(
                    "gradient",
                    "nan gradient",
                    f"the gradient of output {i} is not finite (batch {b})",
                    math.inf,
                    b,
                    i,
                    name=name,
                )
            )
            return answer
        floor = 32 * meter.epsilon * float(size.max())
        leaking = np.where(hidden[:, i] & (size > floor), size, 0.0)
        answer.worst = max(answer.worst, float(leaking.max()))
        if leaking.any():
            b, j = (int(x) for x in np.unravel_index(int(leaking.argmax()), leaking.shape))
            answer.troubles.append(
                Trouble(
                    "gradient",
                    "leak",
                    f"the gradient of output {i} reaches position {j} (batch {b})",
                    float(leaking[b, j]),
                    b,
                    i,
                    j,
                    name,
                    reproduce=_reproduce(name, b, i, j).replace(
                        "inputs)", 'inputs, by="gradient")'
                    ),
                )
            )
            return answer
    return answer


def padding_of(expected: Expectation, meter: Meter, name: Key) -> BoolArray:
    """(batch, positions) of an input: which are padding."""
    shape = (meter.subject.batch, meter.subject.length(name))
    found: BoolArray = np.broadcast_to(expected.padding, shape).copy()
    return found
