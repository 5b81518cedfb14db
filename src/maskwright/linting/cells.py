"""Checks of the cells of a mask: which queries attend to which keys, and which should.

Each property that the caller states (causal, padding, ...) is a mask that contains the given one,
so a leak is a difference of two sets of cells. If another interpretation of the same array, such as
its complement, has all stated properties, that root cause is reported instead of the leaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.core import atoms
from maskwright.core.atoms import causal, window
from maskwright.core.expr import brief
from maskwright.core.nodes import Cell
from maskwright.core.spans import Spans
from maskwright.errors import FrameError
from maskwright.linting.codes import CODES, Checks, Finding, make_finding
from maskwright.messages import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame
    from maskwright.core.validate import BoolArray

Limits = tuple[int | None, int | None]


@dataclass(frozen=True)
class Expected:
    """The properties of a mask that the caller states."""

    causal: bool = False
    padding: Mask | None = None
    documents: Mask | None = None
    window: Limits | None = None  # (back, ahead) without the query itself, None for no limit
    mask: Mask | None = None  # the exact mask

    @property
    def is_self_attention(self) -> bool:
        """Whether queries and keys are the same tokens, so that a query attends to itself."""
        return self.causal or self.documents is not None or self.window is not None

    @property
    def batch(self) -> int:
        """The number of sequences that the properties describe, 1 if any number."""
        return max((dims.batch for mask in self.masks() for dims in mask._dims), default=1)

    def masks(self, *, without: str = "") -> list[Mask]:
        """Returns the properties as masks, except one."""
        properties = {
            "causal": causal() if self.causal else None,
            "window": window(*self.window) if self.window else None,
            "padding": self.padding,
            "documents": self.documents,
            "mask": self.mask,
        }
        return [mask for name, mask in properties.items() if mask is not None and name != without]

    def allowed(self, *, without: str = "") -> Mask:
        """Returns the cells that all properties allow, except one."""
        return reduce(and_, self.masks(without=without) or [atoms.everything()])


class PlacedMask(NamedTuple):
    """The visible cells of a mask, and the frame that attention runs on."""

    spans: Spans
    frame: Frame


class Interpretation(NamedTuple):
    """Another interpretation of the same array, and the finding if it is the intended one.

    A likely one is reported even if the array has the stated properties as it is.
    """

    finding: Finding
    place: Callable[[], PlacedMask]
    likely: bool = False


class CellInput(NamedTuple):
    """The input of a check of cells."""

    placed: PlacedMask
    expected: Expected
    checked: Spans  # the visible cells without rows that the properties mask fully

    @property
    def frame(self) -> Frame:
        """The frame of the mask."""
        return self.placed.frame

    @property
    def spans(self) -> Spans:
        """All visible cells."""
        return self.placed.spans


CELL_CHECKS: Final = Checks[CellInput]()


def check_cells(
    placed: PlacedMask, expected: Expected, others: list[Interpretation]
) -> list[Finding]:
    """Returns the root cause of all leaks if there is one, otherwise the leaks.

    Args:
        placed: The mask.
        expected: Its stated properties.
        others: Other interpretations of the mask, which are possible root causes.

    Raises:
        FrameError: If the properties do not fit the sizes of the mask.
    """
    if (misaligned := _check_alignment(placed, expected)) is not None:
        return [misaligned]
    leaks = list(_leaks(placed, expected))
    if not leaks:
        return []
    complement = PlacedMask(~placed.spans, placed.frame)
    mask = brief(expected.allowed())
    inverted = make_finding("inverted", message="inverted.complement", mask=mask)
    for other in [Interpretation(inverted, lambda: complement), *others]:
        if has_properties(other.place(), expected):
            return [replace(other.finding, cell=leaks[0].cell)]
    causes = [leak for leak in leaks if CODES[leak.code].root_cause]
    # Transposed padding alone is padding of queries; with other leaks, only transposing repairs all.
    if len(leaks) > len(causes) and _is_transposed(placed, expected):
        causes = [make_finding("queries-and-keys-swapped", leaks[0].cell, mask=mask)]
    return causes[:1] or leaks


def has_properties(placed: PlacedMask, expected: Expected) -> bool:
    """Returns whether there is no leak, and no fully masked row that need not be."""
    try:
        if any(True for _ in _leaks(placed, expected)):
            return False
        visible = ~bind(expected.allowed(), placed.frame).empty_rows()
    except FrameError:
        return False
    return not bool((placed.spans.empty_rows() & visible).any())


def check_likely_mistakes(placed: PlacedMask) -> Iterator[Finding]:
    """Checks an array without stated properties for cells that no usual mask has."""
    spans, frame = placed
    if frame.q_len < 2 or frame.kv_len < 2 or not spans.cells():
        return
    empty = spans.empty_rows()
    if bool(empty.any()) and spans.cells() == int((~empty).sum()) * frame.kv_len:
        yield make_finding("padding-on-queries", first(spans), message="padding-on-queries.rows")
        return
    if frame.q_len != frame.kv_len or frame.q_start:
        return
    if first(spans & bind(window(0, 0), frame).spans) is not None:
        return
    past = bind(causal(), frame).spans
    before, after, masked = first(spans & past), first(spans - past), ~spans
    if after is None:
        yield _leak("own-position-hidden", Cell(0, 0, 0, 0), frame)
    elif before is None:
        yield make_finding("inverted", after, message="inverted.future")
    elif frame.q_len > 2 and int(np.diff(masked.offsets).max()) <= 1:
        yield make_finding("inverted", min(before, after), message="inverted.window")


def check_empty_rows(placed: PlacedMask, fill: float, expected: Expected) -> Iterator[Finding]:
    """Checks for fully masked rows; the softmax of one depends on the fill value.

    A finite fill value keeps the row of a padding query finite, which is enough for it.
    """
    empty = placed.spans.empty_rows()
    for tokens in (expected.padding, expected.documents):
        real = None if tokens is None or np.isinf(fill) else _real_queries(placed.frame, tokens)
        empty = empty if real is None else empty & real
    if not bool(empty.any()):
        return
    b, h, row = (int(i) for i in np.unravel_index(int(np.argmax(empty)), empty.shape))
    cell = Cell(b, h, row, 0)
    count = int(empty.sum()) - 1
    yield make_finding(
        "empty-row",
        cell,
        message="empty-row.nan" if np.isinf(fill) else "empty-row.uniform",
        query=row,
        at=_plane(cell, placed.frame),
        more=Reason("lint.more" if count else "lint.no_more", {"count": count}),
        fill=fill,
    )


def bind(mask: Mask, frame: Frame) -> BoundMask:
    """Returns the mask bound to this frame."""
    return mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)


def first(spans: Spans) -> Cell | None:
    """Returns the first cell of the spans, None if they are empty."""
    if not spans.starts.size:
        return None
    row = int(np.searchsorted(spans.offsets, 0, side="right")) - 1
    b, h, r = (int(i) for i in np.unravel_index(row, spans.shape))
    return Cell(b, h, r, int(spans.starts[0]))


# ── root causes ───────────────────────────────────────────────────────────────────────────────────


def _check_alignment(placed: PlacedMask, expected: Expected) -> Finding | None:
    """A causal mask aligned to the other corner, which shows if there are more keys than queries."""
    frame = placed.frame
    lower_right = frame.kv_len - frame.q_len
    if not lower_right or not (expected.causal or expected.window):
        return None
    own = _own_positions(frame, expected)
    if own is None or (first(own - placed.spans) is None and has_properties(placed, expected)):
        return None
    for start, code in ((0, "aligned-upper-left"), (lower_right, "aligned-lower-right")):
        moved = PlacedMask(placed.spans, replace(frame, q_start=start))
        diagonal = _own_positions(moved.frame, expected)
        if start == frame.q_start or diagonal is None or first(diagonal) is None:
            continue
        if first(diagonal - placed.spans) is None and has_properties(moved, expected):
            leak = next(_leaks(placed, expected), None)
            cell = first(own - placed.spans) if leak is None else leak.cell
            return make_finding(code, cell, actual=start, expected=frame.q_start)
    return None


def _is_transposed(placed: PlacedMask, expected: Expected) -> bool:
    if placed.frame.q_len != placed.frame.kv_len:
        return False
    if first(placed.spans - bind(expected.allowed().T, placed.frame).spans) is not None:
        return False  # cheaper than transposing the spans
    return has_properties(PlacedMask(placed.spans.transpose(), placed.frame), expected)


def _own_positions(frame: Frame, expected: Expected) -> Spans | None:
    """The own position of each query where it is visible; None if the properties do not fit."""
    try:
        return bind(window(0, 0) & expected.allowed(without="mask"), frame).spans
    except FrameError:
        return None


# ── leaks: one check per property ─────────────────────────────────────────────────────────────────


def _leaks(placed: PlacedMask, expected: Expected) -> Iterator[Finding]:
    """All differences from the stated properties."""
    # A fully masked row belongs to a padding query. Its output is unused, so any of its cells may
    # be visible to avoid NaN.
    unused = bind(expected.allowed(without="mask"), placed.frame).empty_rows()
    checked = placed.spans - _all_keys(unused, placed.frame)
    yield from CELL_CHECKS.run(CellInput(placed, expected, checked))


@CELL_CHECKS.register("future-visible")
def _check_causal(given: CellInput) -> Iterator[Finding]:
    if given.expected.causal:
        allowed = bind(causal(), given.frame).spans
        if (cell := first(given.checked - allowed)) is not None:
            yield _leak("future-visible", cell, given.frame)


@CELL_CHECKS.register("window-missing", "window-off-by-one", "window-too-wide", "window-too-narrow")
def _check_window(given: CellInput) -> Iterator[Finding]:
    """The largest distance to a visible key, back and ahead, against the stated limits."""
    frame, expected = given.frame, given.expected
    if expected.window is None:
        return
    rows = _all_keys(~given.checked.empty_rows(), frame)
    others = bind(expected.allowed(without="window"), frame).spans & rows
    visible = given.checked & others
    for side, limit in enumerate(expected.window):
        if limit is None or (side == 1 and expected.causal) or first(visible) is None:
            continue
        distance, unlimited = _distances(visible, frame)[side], _distances(others, frame)[side]
        if distance == min(limit, unlimited):
            continue
        wide = distance > limit
        if not wide:
            back, ahead = expected.window
            short = (max(distance, 0), ahead) if side == 0 else (back, max(distance, 0))
            if first((bind(window(*short), frame).spans & others) - visible) is not None:
                continue  # not a window: it masks more cells than a shorter window does
        if wide and distance == unlimited:
            code = "window-missing"
        elif abs(distance - limit) == 1:
            code = "window-off-by-one"
        else:
            code = "window-too-wide" if wide else "window-too-narrow"
        within = bind(window(*expected.window), frame).spans & others
        yield make_finding(
            code,
            first(visible - within if wide else within - visible),
            message="window.back" if side == 0 else "window.ahead",
            window=repr(window(*expected.window)),
            expected=limit + (side == 0),
            actual=distance + (side == 0),
        )


@CELL_CHECKS.register("padding-visible", "inverted", "padding-on-queries")
def _check_padding(given: CellInput) -> Iterator[Finding]:
    if given.expected.padding is None:
        return
    tokens = bind(given.expected.padding, given.frame).spans
    cell = first(given.checked - tokens)
    if cell is None:
        return
    if first(given.spans & tokens) is None:
        yield _leak("inverted", cell, given.frame, message="inverted.padding")
    elif _masks_padding_rows(given):
        yield _leak("padding-on-queries", cell, given.frame)
    else:
        yield _leak("padding-visible", cell, given.frame)


@CELL_CHECKS.register("documents-leak")
def _check_documents(given: CellInput) -> Iterator[Finding]:
    if given.expected.documents is not None:
        documents = bind(given.expected.documents, given.frame)
        if (cell := first(given.checked - documents.spans)) is not None:
            terms = _why(documents, cell).params["terms"]
            yield _leak("documents-leak", cell, given.frame, terms=terms)


@CELL_CHECKS.register("real-key-hidden")
def _check_tokens(given: CellInput) -> Iterator[Finding]:
    """Tokens that are not padding, to which no query attends."""
    frame, expected = given.frame, given.expected
    tokens = [mask for mask in (expected.padding, expected.documents) if mask is not None]
    if not tokens:
        return
    key = np.arange(frame.kv_len)
    is_query = (frame.q_start <= key) & (key < frame.q_stop)
    lost = _unseen_keys(given.spans) & ~bind(reduce(and_, tokens), frame).unseen_keys()
    if expected.is_self_attention:
        lost = lost & is_query
    if bool(lost.any()):
        b, h, k = (int(i) for i in np.unravel_index(int(np.argmax(lost)), lost.shape))
        cell = Cell(b, h, k - frame.q_start if is_query[k] else 0, k)
        yield _leak("real-key-hidden", cell, frame)


@CELL_CHECKS.register("own-position-hidden")
def _check_own_positions(given: CellInput) -> Iterator[Finding]:
    """Queries that do not attend to themselves."""
    frame, expected = given.frame, given.expected
    if not expected.is_self_attention:
        return
    own = bind(window(0, 0) & expected.allowed(without="mask"), frame).spans
    masked = own - given.spans
    if not masked.starts.size:
        return
    # A key to which no query attends may be padding; one to which others attend is not.
    row = np.repeat(np.arange(masked.offsets.size - 1), np.diff(masked.offsets))
    index = np.stack([*np.unravel_index(row, masked.shape), masked.starts])
    unseen = np.broadcast_to(_unseen_keys(given.spans), (*masked.shape[:2], frame.kv_len))
    seen = ~unseen[index[0], index[1], index[3]]
    if bool(seen.any()):
        yield _leak("own-position-hidden", Cell(*index[:, int(np.argmax(seen))].tolist()), frame)


@CELL_CHECKS.register("differs")
def _check_expected_mask(given: CellInput) -> Iterator[Finding]:
    if given.expected.mask is not None:
        bound = bind(given.expected.mask, given.frame)
        if (index := given.spans.first_difference(bound.spans)) is not None:
            cell = Cell(*index)
            mask = brief(given.expected.mask)
            yield make_finding("differs", cell, mask=mask, reason=_why(bound, cell))


# ── helpers ───────────────────────────────────────────────────────────────────────────────────────


def _leak(code: str, cell: Cell, frame: Frame, *, message: str = "", **params: object) -> Finding:
    """A finding about one query and one key."""
    place = {"query": cell.query, "key": cell.key, "at": _plane(cell, frame)}
    return make_finding(code, cell, message=message, **place, **params)


def _plane(cell: Cell, frame: Frame) -> Reason:
    """The batch row and the head of a cell, where there are several."""
    name = "_".join(["batch"] * (frame.batch > 1) + ["head"] * (frame.heads > 1)) or "anywhere"
    return Reason(f"lint.at_{name}", {"batch": cell.batch, "head": cell.head})


def _why(bound: BoundMask, cell: Cell) -> Reason:
    return bound.why(cell.query, cell.key, cell.batch, cell.head).reason


def _masks_padding_rows(given: CellInput) -> bool:
    """Whether the rows of padding queries are masked although the properties allow some cells."""
    frame, expected = given.frame, given.expected
    assert expected.padding is not None
    real = _real_queries(frame, expected.padding)
    same_tokens = expected.is_self_attention or frame.q_len == frame.kv_len
    if real is None or not same_tokens:
        return False
    padded = ~real & ~bind(expected.allowed(), frame).empty_rows()
    return bool(padded.any()) and not bool((padded & ~given.spans.empty_rows()).any())


def _distances(spans: Spans, frame: Frame) -> tuple[int, int]:
    """The largest distances from a query back and ahead to a visible key; some key is visible."""
    row = np.repeat(np.arange(spans.offsets.size - 1), np.diff(spans.offsets)) % frame.q_len
    position = row + frame.q_start
    return int((position - spans.starts).max()), int((spans.stops - 1 - position).max())


def _real_queries(frame: Frame, tokens: Mask) -> BoolArray | None:
    """Queries that are not padding, (batch, heads, query); None if they are not tokens of the keys."""
    try:
        return ~bind(tokens.T, frame).empty_rows()
    except FrameError:
        return None


def _unseen_keys(spans: Spans) -> BoolArray:
    """Keys to which no query attends, (batch, heads, key)."""
    b, h, rows = spans.shape
    size = spans.kv_len + 1
    row = np.repeat(np.arange(spans.offsets.size - 1), np.diff(spans.offsets))
    plane = row // rows * size
    edges = np.bincount(plane + spans.starts, minlength=b * h * size)
    edges -= np.bincount(plane + spans.stops, minlength=b * h * size)
    return np.equal(np.cumsum(edges.reshape(b, h, size), axis=2)[:, :, :-1], 0)


def _all_keys(rows: BoolArray, frame: Frame) -> Spans:
    """All keys of the rows (batch, heads, query) that are True."""
    stops = np.where(rows, np.int64(frame.kv_len), 0)
    return Spans.from_band(np.zeros_like(stops), stops, frame.kv_len, frame.q_len)
