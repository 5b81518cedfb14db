"""Causes: one mistake that explains all that is wrong with a mask's cells.

What may enter here: other ways to read the same mask. If a mask breaks what was stated and another
reading of it does not, then that reading is what was meant, and is reported instead of the leaks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.atoms import causal, window
from maskwright.core.expr import Cell, brief
from maskwright.errors import FrameError
from maskwright.linting.cells import (
    INVERT,
    ON_KEYS,
    View,
    bind,
    first,
    leaks,
    own_hidden,
    own_positions,
)
from maskwright.linting.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.linting.facts import Facts

CAUSES: Final = (
    "aligned-lower-right",
    "aligned-upper-left",
    "batch-on-heads",
    "batch-on-queries",
    "inverted",
    "padding-on-queries",
    "queries-and-keys-swapped",
)  # with one of these, empty rows are no news


class Reading(NamedTuple):
    """Another way to read the same mask, and the finding if it is the right one.

    A likely one is reported even if the mask breaks no statement as it is read.
    """

    code: str
    view: Callable[[], View]
    message: str
    fix: str
    likely: bool = False


def judge(view: View, facts: Facts, others: list[Reading]) -> list[Finding]:
    """One cause of all leaks, if there is one, else the leaks; `others` are possible causes."""
    cause = _misaligned(view, facts)
    if cause is not None:
        return [cause]
    faults = list(leaks(view, facts))
    if not faults:
        return []
    for other in [_inverted(view, facts), *others]:
        if fits(other.view(), facts):
            return [Finding(other.code, other.message, other.fix, faults[0].cell)]
    causes = [fault for fault in faults if fault.code in CAUSES]
    if not causes and _is_swapped(view, facts):
        message = "The mask would be as stated with queries and keys changed over."
        fix = "Transpose its last two axes."
        causes = [Finding("queries-and-keys-swapped", message, fix, faults[0].cell)]
    return causes[:1] or faults


def fits(view: View, facts: Facts) -> bool:
    """Is this exactly as stated: no leak, and no row that is empty without need?"""
    try:
        if any(True for _ in leaks(view, facts)):
            return False
        needed = ~bind(facts.allowed(), view.frame).empty_rows()
    except FrameError:
        return False
    return not bool((view.spans.empty_rows() & needed).any())


def habits(view: View) -> Iterator[Finding]:
    """What is odd about an array of which nothing was stated, judged by what masks look like."""
    spans, frame = view
    if frame.q_len < 2 or frame.kv_len < 2 or not spans.cells():
        return
    empty = spans.empty_rows()
    if bool(empty.any()) and spans.cells() == int((~empty).sum()) * frame.kv_len:
        yield Finding(
            "padding-on-queries",
            "Every query sees all keys or none: rows are hidden, as padding hides columns.",
            ON_KEYS,
            first(spans),
        )
        return
    if frame.q_len != frame.kv_len or frame.q_start:
        return
    if first(spans & bind(window(0, 0), frame).spans) is not None:
        return
    past = bind(causal(), frame).spans
    before, after, hidden = first(spans & past), first(spans - past), ~spans
    if after is None:
        yield own_hidden(Cell(0, 0, 0, 0), frame)
    elif before is None:
        name = "~causal()" if hidden == past else "a causal mask turned over"
        message = f"Every query sees only what comes later: this reads as {name}."
        yield Finding("inverted", message, INVERT, after)
    elif frame.q_len > 2 and int(np.diff(hidden.offsets).max()) <= 1:
        message = "No query sees itself, and each is hidden from one stretch of keys around it."
        yield Finding("inverted", message, INVERT, min(before, after))


def _inverted(view: View, facts: Facts) -> Reading:
    return Reading(
        "inverted",
        lambda: View(~view.spans, view.frame),
        "The mask hides what should be seen and shows what should be hidden: "
        f"it reads as ~{brief(facts.allowed())}.",
        INVERT,
    )


def _is_swapped(view: View, facts: Facts) -> bool:
    if view.frame.q_len != view.frame.kv_len:
        return False
    if first(view.spans - bind(facts.allowed().T, view.frame).spans) is not None:
        return False  # so that a mask is turned over only where it may help
    return fits(View(view.spans.transpose(), view.frame), facts)


def _misaligned(view: View, facts: Facts) -> Finding | None:
    """A causal mask that begins in the other corner, where there are more keys than queries."""
    frame = view.frame
    lower_right = frame.kv_len - frame.q_len
    if not lower_right or not (facts.causal or facts.window):
        return None
    own = own_positions(frame, facts)
    if own is None or (first(own - view.spans) is None and fits(view, facts)):
        return None
    for start, corner, fix in (
        (0, "upper left", "Align it lower right, for a KV cache: tril(diagonal=kv_len - q_len)."),
        (lower_right, "lower right", "Align it upper left, or pass the q_start that is meant."),
    ):
        moved = View(view.spans, replace(frame, q_start=start))
        theirs = own_positions(moved.frame, facts)
        if start == frame.q_start or theirs is None or first(theirs) is None:
            continue
        if first(theirs - view.spans) is None and fits(moved, facts):
            leak = next(leaks(view, facts), None)
            return Finding(
                f"aligned-{corner.replace(' ', '-')}",
                f"The mask is aligned {corner}, with its first query at position {start}, "
                f"but that one sits at {frame.q_start}.",
                fix,
                first(own - view.spans) if leak is None else leak.cell,
            )
    return None
