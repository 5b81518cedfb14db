"""The cells of a mask against what was stated about it: what leaks, and what is hidden too much.

What may enter here: spans on a frame. Where they came from, and in which form, is not known here.
Every statement is a mask that bounds the given one from above, so a leak is a difference of sets.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core.atoms import causal, window
from maskwright.core.expr import Cell, brief
from maskwright.core.spans import Spans
from maskwright.errors import FrameError
from maskwright.linting.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.core.validate import BoolArray
    from maskwright.linting.facts import Facts

INVERT: Final = "Invert the mask, or say by to='keep' or to='drop' how it is read."
HIDE: Final = "Combine the mask with padding(...)."
ON_KEYS: Final = "Let padding hide keys: (batch, 1, 1, keys), not (batch, 1, queries, 1)."


class View(NamedTuple):
    """A mask as it is read: its spans, and the frame that attention runs on."""

    spans: Spans
    frame: Frame


def leaks(view: View, facts: Facts) -> Iterator[Finding]:
    """Everything in which the cells are not as stated."""
    spans, frame = view
    # A row that may see nothing is that of a padded query. It goes nowhere, so it may be opened
    # against NaN in whatever way.
    open_rows = bind(facts.allowed(but="expects"), frame).empty_rows()
    judged = spans - _whole_rows(open_rows, frame)
    if facts.causal:
        cell = first(judged - bind(causal(), frame).spans)
        if cell is not None:
            message = f"{_sees(cell, frame)}, which comes later."
            yield Finding("future-visible", message, "Combine the mask with causal().", cell)
    if facts.window is not None:
        yield from _judge_window(judged, frame, facts)
    if facts.padding is not None:
        yield from _judge_padding(view, judged, facts)
    if facts.documents is not None:
        cell = first(judged - bind(facts.documents, frame).spans)
        if cell is not None:
            reason = str(
                bind(facts.documents, frame).why(cell.query, cell.key, cell.batch, cell.head)
            )
            message = f"{_sees(cell, frame)}: {reason.partition('stops it ')[2].strip('()')}."
            fix = "Combine the mask with documents(...), the same that packed the row."
            yield Finding("documents-leak", message, fix, cell)
    yield from _judge_reach(view, facts)
    if facts.expects is not None:
        wanted = bind(facts.expects, frame)
        place = spans.first_difference(wanted.spans)
        if place is not None:
            cell = Cell(*place)
            why = wanted.why(cell.query, cell.key, cell.batch, cell.head)
            what = "hides" if why.visible else "shows"
            message = f"The mask {what} a cell that it should not: {why}."
            yield Finding("differs", message, f"Make it {brief(facts.expects)}.", cell)


def empty_rows(view: View, fill: float, facts: Facts) -> Iterator[Finding]:
    """Rows that see nothing; what becomes of them depends on the fill.

    A finite fill keeps such a row finite, which is good enough for a query that is padding.
    """
    empty = view.spans.empty_rows()
    for tokens in (facts.padding, facts.documents):
        real = None if tokens is None or np.isinf(fill) else _real_queries(view.frame, tokens)
        empty = empty if real is None else empty & real
    if not bool(empty.any()):
        return
    b, h, row = (int(i) for i in np.unravel_index(int(np.argmax(empty)), empty.shape))
    cell = Cell(b, h, row, 0)
    more = int(empty.sum()) - 1
    ends = (
        "a plain softmax makes NaN of it"
        if np.isinf(fill)
        else f"softmax spreads it over all keys, hidden ones too ({fill:.3g} everywhere)"
    )
    yield Finding(
        "empty-row",
        f"Query {row}{_plane(cell, view.frame)}{f' and {more} more see' if more else ' sees'} "
        f"no key: {ends}.",
        "Let it see a key, such as itself, or use attention that gives 0 there.",
        cell,
    )


def bind(mask: Mask, frame: Frame) -> BoundMask:
    """The mask on this frame."""
    return mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)


def first(spans: Spans) -> Cell | None:
    """The first cell in these spans."""
    if not spans.starts.size:
        return None
    row = int(np.searchsorted(spans.offsets, 0, side="right")) - 1
    b, h, r = (int(i) for i in np.unravel_index(row, spans.shape))
    return Cell(b, h, r, int(spans.starts[0]))


def own_positions(frame: Frame, facts: Facts) -> Spans | None:
    """Every query's own position, as far as the facts allow it; None where they do not fit."""
    try:
        return bind(window(0, 0) & facts.allowed(but="expects"), frame).spans
    except FrameError:
        return None


# ── single statements ─────────────────────────────────────────────────────────────────────────────


def _judge_padding(view: View, judged: Spans, facts: Facts) -> Iterator[Finding]:
    frame, padding = view.frame, facts.padding
    assert padding is not None
    cell = first(judged - bind(padding, frame).spans)
    if cell is None:
        return
    code, message, fix = "padding-visible", f"{_sees(cell, frame)}, which is padding", HIDE
    if first(view.spans & bind(padding, frame).spans) is None:
        code, message, fix = "inverted", f"{message}, and no query sees a real token", INVERT
    elif _hides_rows(view, facts):
        code, message = "padding-on-queries", f"{message}, while the rows of padding are hidden"
        fix = ON_KEYS
    yield Finding(code, f"{message}.", fix, cell)


def _hides_rows(view: View, facts: Facts) -> bool:
    """Are the rows of padded queries hidden, although all that was stated would let them see?"""
    assert facts.padding is not None
    real = _real_queries(view.frame, facts.padding)
    if real is None or not _same_tokens(view.frame, facts):
        return False
    padded = ~real & ~bind(facts.allowed(), view.frame).empty_rows()
    return bool(padded.any()) and not bool((padded & ~view.spans.empty_rows()).any())


def _judge_window(judged: Spans, frame: Frame, facts: Facts) -> Iterator[Finding]:
    """How far queries look back and ahead, against what the window and the other facts allow."""
    assert facts.window is not None
    rows = _whole_rows(~judged.empty_rows(), frame)
    others = bind(facts.allowed(but="window"), frame).spans & rows
    seen = judged & others
    for side, limit in enumerate(facts.window):
        if limit is None or (side == 1 and facts.causal) or first(seen) is None:
            continue
        reach, unlimited = _reach(seen, frame)[side], _reach(others, frame)[side]
        if reach == min(limit, unlimited):
            continue
        wide = reach > limit
        stated = bind(window(*facts.window), frame).spans & others
        if not wide:
            short = (
                (max(reach, 0), facts.window[1]) if side == 0 else (facts.window[0], max(reach, 0))
            )
            if first((bind(window(*short), frame).spans & others) - seen) is not None:
                continue  # it hides more than a window does, and that is what keeps it short
        if wide and reach == unlimited:
            code = "window-missing"
        elif abs(reach - limit) == 1:
            code = "window-off-by-one"
        else:
            code = "window-too-wide" if wide else "window-too-narrow"
        counts = [n + (side == 0) for n in (reach, limit)]
        where = "back, itself included" if side == 0 else "ahead"
        back, ahead = facts.window
        call = f"window(back={back})" if ahead == 0 else f"window(back={back}, ahead={ahead})"
        yield Finding(
            code,
            f"A query sees up to {counts[0]} keys {where}, where {counts[1]} were stated.",
            f"Make it {call}, which counts without the query itself.",
            first(seen - stated if wide else stated - seen),
        )


def _reach(spans: Spans, frame: Frame) -> tuple[int, int]:
    """How many keys before its own position a query sees at most, and how many after it.

    Some key must be seen.
    """
    row = np.repeat(np.arange(spans.offsets.size - 1), np.diff(spans.offsets)) % frame.q_len
    position = row + frame.q_start
    return int((position - spans.starts).max()), int((spans.stops - 1 - position).max())


def _judge_reach(view: View, facts: Facts) -> Iterator[Finding]:
    """Real keys that nobody sees, and queries that do not see themselves."""
    spans, frame = view
    if facts.padding is None and not facts.local:
        return
    unseen = _unseen(spans)  # (batch, heads, keys)
    key = np.arange(frame.kv_len)
    here = (frame.q_start <= key) & (key < frame.q_stop)
    tokens = [mask for mask in (facts.padding, facts.documents) if mask is not None]
    if tokens:
        real = ~bind(reduce(and_, tokens), frame).unseen_keys()
        lost = unseen & real & (here if facts.local else True)
        if bool(lost.any()):
            b, h, k = (int(i) for i in np.unravel_index(int(np.argmax(lost)), lost.shape))
            cell = Cell(b, h, k - frame.q_start if here[k] else 0, k)
            message = f"Key {k}{_plane(cell, frame)} is a real token, but no query sees it."
            yield Finding("real-key-hidden", message, "Hide only what is padding.", cell)
    if not facts.local:
        return
    own = bind(window(0, 0) & facts.allowed(but="expects"), frame).spans
    hidden = own - spans
    if not hidden.starts.size:
        return
    # A key that nobody sees is padding, for all that is known here; one that others see is not.
    row = np.repeat(np.arange(hidden.offsets.size - 1), np.diff(hidden.offsets))
    place = np.stack([*np.unravel_index(row, hidden.shape), hidden.starts])
    seen = ~np.broadcast_to(unseen, (*hidden.shape[:2], frame.kv_len))[place[0], place[1], place[3]]
    if bool(seen.any()):
        yield own_hidden(Cell(*place[:, int(np.argmax(seen))].tolist()), frame)


def own_hidden(cell: Cell, frame: Frame) -> Finding:
    """A query that does not see itself."""
    return Finding(
        "own-position-hidden",
        f"Query {cell.query}{_plane(cell, frame)} does not see key {cell.key}, its own position.",
        "Keep the diagonal: tril() where True keeps, triu(diagonal=1) where True hides.",
        cell,
    )


def _same_tokens(frame: Frame, facts: Facts) -> bool:
    """Are queries and keys likely the same tokens, and not those of two sequences?"""
    return facts.local or frame.q_len == frame.kv_len


def _real_queries(frame: Frame, tokens: Mask) -> BoolArray | None:
    """Which queries are real tokens, (batch, heads, queries); None if they are not of the keys."""
    try:
        return ~bind(tokens.T, frame).empty_rows()
    except FrameError:
        return None


def _unseen(spans: Spans) -> BoolArray:
    """Which keys no query sees, (batch, heads, keys)."""
    b, h, rows = spans.shape
    size = spans.kv_len + 1
    row = np.repeat(np.arange(spans.offsets.size - 1), np.diff(spans.offsets))
    plane = row // rows * size
    edges = np.bincount(plane + spans.starts, minlength=b * h * size)
    edges -= np.bincount(plane + spans.stops, minlength=b * h * size)
    return np.equal(np.cumsum(edges.reshape(b, h, size), axis=2)[:, :, :-1], 0)


def _whole_rows(rows: BoolArray, frame: Frame) -> Spans:
    """All keys, for the rows (batch, heads, queries) where this is True."""
    stops = np.where(rows, np.int64(frame.kv_len), 0)
    return Spans.from_band(np.zeros_like(stops), stops, frame.kv_len, frame.q_len)


def _sees(cell: Cell, frame: Frame) -> str:
    return f"Query {cell.query}{_plane(cell, frame)} may see key {cell.key}"


def _plane(cell: Cell, frame: Frame) -> str:
    parts = [f"batch row {cell.batch}"] * (frame.batch > 1) + [f"head {cell.head}"] * (
        frame.heads > 1
    )
    return f" ({', '.join(parts)})" if parts else ""
