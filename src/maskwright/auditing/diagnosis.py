"""Diagnosis: from a trouble and the masks that were really used, to its layer, cause and fix.

What may enter here: comparing the mask of an attention call with the one that was expected there,
and naming the mistake that turns the one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.auditing.mistakes import missing, mistakes, terms_of
from maskwright.errors import MaskError
from maskwright.linting.codes import fix_of
from maskwright.linting.lint import lint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.auditing.expectations import Expectation
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.tracing.trace import AttentionCall

TOO_WEAK: Final = (
    *("zero-one-added", "fill-too-weak", "integer-wrapped", "integer-bias", "positive-value"),
)
TOO_STRONG: Final = ("fill-overflows", "fill-at-limit", "summed-fills")


@dataclass(frozen=True)
class Diagnosis:
    """Why: a cause by its code, the layer in which it lies, and the mask that was used there."""

    cause: str
    layer: str | None = None
    used: str | None = None
    fix: str = ""


@dataclass
class Wrong:
    """An attention call whose mask is not the expected one."""

    call: AttentionCall
    seen: BoolArray  # (batch, queries, keys), by any head
    allowed: BoolArray
    judged: BoolArray  # (batch, queries)
    start: int  # the first query's position

    @property
    def shows(self) -> BoolArray:
        """What is seen and should not be."""
        return self.seen & ~self.allowed & self.judged[:, :, None]

    @property
    def hides(self) -> BoolArray:
        """What should be seen and is not."""
        return self.allowed & ~self.seen & self.judged[:, :, None]


@dataclass
class Doctor:
    """Compares the attention calls of a run with what was expected of them."""

    expected: Expectation
    batch: int
    length: int
    _known: list[tuple[str, BoolArray]] = field(default_factory=list)

    def wrong(self, calls: Sequence[AttentionCall], *, over: bool = False) -> list[Wrong]:
        """The calls that show too much; with `over`, also those that hide too much."""
        found = []
        for n, call in enumerate(own_calls(calls)):
            placed = self._place(call, n)
            if placed is not None and (placed.shows.any() or (over and placed.hides.any())):
                found.append(placed)
        return found

    def empty(self, calls: Sequence[AttentionCall]) -> AttentionCall | None:
        """A call in which some row sees nothing."""
        return next((call for call in calls if not call.seen.any(-1).all()), None)

    def across_batch(self, calls: Sequence[AttentionCall]) -> AttentionCall | None:
        """A call that runs along the batch: as many positions as there are sequences."""
        if self.batch == self.length:
            return None
        return next(
            (
                call
                for call in calls
                if call.q_shape[-2] == self.batch
                and call.q_shape[0] == self.length
                and call.q_shape[-2] != self.length
            ),
            None,
        )

    def _place(self, call: AttentionCall, n: int) -> Wrong | None:
        """The call beside what was expected of it; None where their shapes do not meet."""
        seen = call.seen.any(1)
        _, q_len, kv_len = seen.shape
        if seen.shape[0] not in (1, self.batch) or q_len > kv_len or kv_len > self.length:
            return None
        cells = self.expected.cells
        allowed = cells[min(n, len(cells) - 1) if len(self.expected.masks) > 1 else 0]
        start = kv_len - q_len
        rows = slice(start, kv_len)
        shape = (self.batch, q_len, kv_len)
        return Wrong(
            call,
            np.broadcast_to(seen, shape),
            allowed[:, rows, :kv_len],
            self.expected.judged[:, rows],
            start,
        )

    def name(self, wrong: Wrong, calls: Sequence[AttentionCall]) -> str:
        """What the mistake in a call is called."""
        call = wrong.call
        if call.after_softmax:
            return "after-softmax"
        by_values = by_numbers(call, TOO_WEAK)
        if by_values is not None:
            return by_values
        if call.seen.all():
            return self._nothing_hidden(wrong, calls)
        by_axis = self._by_axis(wrong)
        if by_axis is not None:
            return by_axis
        if wrong.start:
            upper = self.expected.cells[0][:, : wrong.seen.shape[1], : wrong.seen.shape[2]]
            if _alike(upper, wrong):
                return "aligned-upper-left"
        for code, cells in self._mistakes():
            rows = slice(wrong.start, wrong.start + wrong.seen.shape[1])
            if _alike(cells[:, rows, : wrong.seen.shape[2]], wrong):
                return code
        return self._by_cells(wrong)

    def _nothing_hidden(self, wrong: Wrong, calls: Sequence[AttentionCall]) -> str:
        """A call without a mask: is it this layer's, or which term is it that is missing?"""
        masked = {call.layer for call in own_calls(calls) if not call.seen.all()}
        if masked and wrong.call.layer not in masked:
            return "missing-in-layer"
        rows = slice(wrong.start, wrong.start + wrong.seen.shape[1])
        lost = []
        for term in terms_of(self.expected.mask):
            cells = self._dense(term)
            if cells is not None:
                part = cells[:, rows, : wrong.seen.shape[2]]
                if not part[np.broadcast_to(wrong.judged, part.shape[:2])].all():
                    lost.append(missing(term))
        return lost[0] if len(lost) == 1 else "mask-missing"

    def _dense(self, mask: Mask) -> BoolArray | None:
        shape = (self.batch, self.length, self.length)
        try:
            cells = mask.on(self.length, batch=self.batch).dense().any(1)
        except MaskError:
            return None
        found: BoolArray = np.broadcast_to(cells, shape)
        return found

    def _mistakes(self) -> list[tuple[str, BoolArray]]:
        if not self._known:
            for code, mask in mistakes(self.expected.mask):
                cells = self._dense(mask)
                if cells is not None:
                    self._known.append((code, cells))
        return self._known

    def _by_axis(self, wrong: Wrong) -> str | None:
        """Another sequence's mask, or one for each head where it is one for each sequence."""
        seen, allowed = wrong.call.seen, wrong.allowed
        batch, heads = seen.shape[:2]
        if self.batch == 1:
            return None

        def known(cells: BoolArray) -> bool:
            return any(np.array_equal(cells, other) for other in allowed)

        differ = any(
            not np.array_equal(seen[b, 0], seen[b, h]) for b in range(batch) for h in range(heads)
        )
        if differ and all(known(seen[b, h]) for b in range(batch) for h in range(heads)):
            return "batch-on-heads"
        if batch == self.batch and not differ:
            own = all(np.array_equal(seen[b, 0], allowed[b]) for b in range(batch))
            if not own and all(known(seen[b, 0]) for b in range(batch)):
                return "order-of-batch"
        return None

    def _by_cells(self, wrong: Wrong) -> str:
        """The nearest word, from the cells alone."""
        shows, hides = wrong.shows, wrong.hides
        if not shows.any():
            return "too-narrow"
        if hides.any() and shows.sum() + hides.sum() > 0.9 * wrong.judged.sum() * shows.shape[2]:
            return "inverted"
        padded = self.expected.padding[:, None, : shows.shape[2]]
        future = np.arange(shows.shape[2])[None, :] > (
            wrong.start + np.arange(shows.shape[1])[:, None]
        )
        causal = not (
            self.expected.direct & np.triu(np.ones_like(self.expected.direct[0]), 1)
        ).any()
        if (shows & padded).any() and not (shows & ~padded).any():
            return "padding-visible"
        if causal and (shows & future).any():
            return "future-visible"
        terms = [missing(term) for term in terms_of(self.expected.mask)]
        if "documents-leak" in terms:
            return "documents-leak"
        if "window-missing" in terms:
            edge = shows.sum(-1).max() <= 2
            return "window-off-by-one" if edge else "window-missing"
        return "padding-visible" if (shows & padded).any() else "mask-missing"


def own_calls(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """The calls in which positions of the main input see each other.

    Of an encoder and a decoder, those of the decoder, which is where attention crosses over: the
    smallest part of the model that has all such calls, and others beside them.
    """
    own = [call for call in calls if not call.cross]
    crossing = [str(call.layer).split(".") for call in calls if call.cross]
    if not crossing:
        return own
    stem = crossing[0]
    while stem:
        inside = [call for call in own if str(call.layer).split(".")[: len(stem)] == stem]
        if inside and all(path[: len(stem)] == stem for path in crossing):
            return inside
        stem = stem[:-1]
    return own


def _alike(cells: BoolArray, wrong: Wrong) -> bool:
    """Is this what the call saw, in all judged rows? A row of which it hides all may be anything."""
    asked = wrong.judged & cells.any(-1)
    if 2 * asked.sum() < wrong.judged.sum():
        return False
    return bool(np.array_equal(cells[asked], wrong.seen[asked]))


def by_numbers(call: AttentionCall, among: tuple[str, ...]) -> str | None:
    """A mistake that shows in the numbers of the mask that was given."""
    given: Any = call.given
    if given is None or getattr(given, "dtype", None) is None:
        return None
    kind = str(given.dtype)
    if "bool" in kind:
        return None
    try:
        codes = lint(given, to="additive", dtype=given.dtype if "float" in kind else None).codes
    except Exception:  # whatever was given, it is not this doctor's to refuse
        return None
    return next((code for code in codes if code in among), None)


def shown(call: AttentionCall) -> str:
    """The mask of a call, as an expression where one is known."""
    mask = call.mask
    if mask is None:
        return f"a mask that hides {call.hidden_share:.0%}"
    text = str(mask)
    return text if len(text) <= 60 else text[:57] + "…"


def diagnosis(cause: str, call: AttentionCall | None = None, layer: str | None = None) -> Diagnosis:
    """A diagnosis, with the fix that goes with its cause."""
    if call is not None:
        layer = call.layer
    return Diagnosis(cause, layer, None if call is None else shown(call), fix_of(cause))
