"""Diagnosis: maps a failure and the masks that attention used to a layer and a cause.

`DIAGNOSERS` maps symptoms to functions. Most compare the mask of each attention call with the
expected one, and name the mistake that turns the one into the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from maskwright.auditing.expectations import Expectation, own_calls, terms_of
from maskwright.auditing.probes import Failure, Symptom
from maskwright.core.atoms import causal, everything, padding, window
from maskwright.core.atoms.position import Chunks, Window
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.errors import MaskError
from maskwright.linting import lint
from maskwright.messages import Reason
from maskwright.tracing import recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.auditing.model_under_test import Key, ModelUnderTest
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.tracing import AttentionCall

TOO_WEAK: Final = (
    *("zero-one-added", "fill-too-weak", "integer-wrapped", "integer-bias", "positive-value"),
)
TOO_STRONG: Final = ("fill-overflows", "fill-at-limit", "summed-fills")
MAX_TEXT: Final = 60  # characters of a mask


@dataclass(frozen=True)
class Diagnosis:
    """A cause, the layer in which it appears first, and the mask that this layer used."""

    cause: str  # a code of linting.codes
    layer: str | None = None
    used: Reason | None = None


@dataclass
class Evidence:
    """What is known about a model: the expected masks, and the attention calls of one pass."""

    tested: ModelUnderTest
    expected: dict[Key, Expectation]
    calls: list[AttentionCall]

    @property
    def own(self) -> Expectation:
        """The expectation of the main input."""
        return self.expected[self.tested.main]


def diagnose(failure: Failure, evidence: Evidence) -> Diagnosis:
    """Returns the cause of a failure, as far as it follows from the masks that were used."""
    return DIAGNOSERS[failure.symptom](failure, evidence)


# ── by symptom ────────────────────────────────────────────────────────────────────────────────


def _diagnose_error(failure: Failure, evidence: Evidence, cause: str) -> Diagnosis:
    return Diagnosis(cause, _raising_layer(failure, evidence))


def _diagnose_numbers(failure: Failure, evidence: Evidence, cause: str) -> Diagnosis:
    """Non-finite outputs, and outputs in half precision; `cause` if no mask explains them."""
    calls = _calls_of(failure, evidence)
    for call in calls:
        if (code := _value_code(call, TOO_STRONG)) is not None:
            return _in_call(code, call)
    empty = _empty_row(calls)
    if empty is not None and failure.symptom in NAN_SYMPTOMS:
        return _in_call("empty-row-nan", empty)
    if (late := _masked_after_softmax(calls)) is not None:
        return _in_call("after-softmax", late)
    return Diagnosis(cause, _first_non_finite(failure, evidence))


def _diagnose_masks(failure: Failure, evidence: Evidence) -> Diagnosis:
    """A wrong dependence: the first attention call whose mask differs from the expected one."""
    if failure.where.name not in (None, evidence.tested.main):
        return _diagnose_source(failure, evidence)
    own, tested = evidence.own, evidence.tested
    diagnoser = MaskDiagnoser(own, tested.batch, tested.length())
    calls = _calls_of(failure, evidence)
    too_narrow = failure.symptom is Symptom.NO_DEPENDENCE or failure.rerun.run is not None
    wrong = [] if own.whole_model else diagnoser.mismatches(calls, too_narrow=too_narrow)
    if not wrong and failure.rerun.inputs is not None and not own.whole_model:
        diagnoser, wrong, calls = _on_other_inputs(failure, evidence, diagnoser)
    not_finite = failure.symptom is Symptom.PADDING_SIDE and failure.size == np.inf
    if not_finite and (empty := _empty_row(calls)) is not None:
        return _in_call("empty-row-nan", empty)
    if wrong:
        # Of the calls of one layer, the one with the most keys is the most informative.
        layer = wrong[0].call.layer
        worst = max((w for w in wrong if w.call.layer == layer), key=lambda w: w.visible.shape[2])
        return _in_call(diagnoser.name(worst, calls), worst.call)
    if (late := _masked_after_softmax(calls)) is not None:
        return _in_call("after-softmax", late)
    if (across := diagnoser.across_batch(calls)) is not None:
        return _in_call("attends-across-batch", across)
    return Diagnosis(_without_masks(failure, evidence), _first_moved(failure, evidence))


def _diagnose_ignored(failure: Failure, evidence: Evidence) -> Diagnosis:
    if failure.where.name not in (None, evidence.tested.main):
        return Diagnosis("too-narrow")
    return Diagnosis("ignores-input")


def _diagnose_source(failure: Failure, evidence: Evidence) -> Diagnosis:
    """The encoder input of an encoder-decoder model: its padding, in the encoder and across."""
    if failure.symptom is Symptom.NO_DEPENDENCE:
        return Diagnosis("too-narrow")
    showing, masking = _source_calls(failure, evidence)
    if not showing:
        return Diagnosis("not-through-attention", _first_moved(failure, evidence))
    first = showing[0]
    if first.after_softmax:
        return _in_call("after-softmax", first)
    if (code := _value_code(first, TOO_WEAK)) is not None:
        return _in_call(code, first)
    similar = [call for call in masking if call.cross == first.cross]
    return _in_call("missing-in-layer" if similar else "padding-visible", first)


def _source_calls(
    failure: Failure, evidence: Evidence
) -> tuple[list[AttentionCall], list[AttentionCall]]:
    """The calls over the source that attend to its padding, and those that do not."""
    name = failure.where.name
    assert name is not None
    keys, batch = evidence.tested.length(name), evidence.tested.batch
    masked = ~np.logical_or.reduce(evidence.expected[name].direct, axis=1)  # (batch, keys)
    crosses = any(call.cross for call in evidence.calls)
    decoder = {id(call) for call in own_calls(evidence.calls)} if crosses else set()
    showing: list[AttentionCall] = []
    masking: list[AttentionCall] = []
    for call in evidence.calls:
        sequences, *_, length = call.visible.shape
        if id(call) in decoder or length != keys or sequences not in (1, batch):
            continue
        seen = np.broadcast_to(call.visible.any(1), (masked.shape[0], *call.visible.shape[2:]))
        rows = seen if call.cross else seen & ~masked[:, :, None]
        (showing if (rows & masked[:, None, :]).any() else masking).append(call)
    return showing, masking


NAN_SYMPTOMS: Final = (Symptom.NOT_FINITE, Symptom.GRADIENT_NOT_FINITE, Symptom.HALF_NOT_FINITE)

Diagnoser = Callable[[Failure, Evidence], Diagnosis]
DIAGNOSERS: Final[dict[Symptom, Diagnoser]] = {
    **dict.fromkeys(Symptom, _diagnose_masks),  # all but the following
    Symptom.RAISES: partial(_diagnose_error, cause="raises"),
    Symptom.NOT_DETERMINISTIC: partial(_diagnose_error, cause="not-deterministic"),
    Symptom.CACHE_RAISES: partial(_diagnose_error, cause="step-differs"),
    Symptom.DTYPE_OVERFLOW: partial(_diagnose_error, cause="fill-overflows"),
    Symptom.NOT_FINITE: partial(_diagnose_numbers, cause="not-finite"),
    Symptom.GRADIENT_NOT_FINITE: partial(_diagnose_numbers, cause="not-finite"),
    Symptom.HALF_NOT_FINITE: partial(_diagnose_numbers, cause="dtype-differs"),
    Symptom.HALF_DIFFERS: partial(_diagnose_numbers, cause="dtype-differs"),
    Symptom.HALF_LEAK: partial(_diagnose_numbers, cause="dtype-differs"),
    Symptom.IGNORES_INPUT: _diagnose_ignored,
}


# ── without a wrong mask ──────────────────────────────────────────────────────────────────────

# The causes of symptoms if the masks of all calls are right, or no call was recorded.
CAUSES_WITHOUT_MASKS: Final = {
    Symptom.NO_DEPENDENCE: "too-narrow",
    Symptom.PADDING_SIDE: "positions-shifted",
    Symptom.DOCUMENT_ALONE: "positions-shifted",
    Symptom.ACROSS_BATCH: "mixes-sequences",
    Symptom.CACHE_MISMATCH: "step-differs",
    Symptom.PREFIX: "length-dependent",
    Symptom.VARIANT_DIFFERS: "path-differs",
    Symptom.TRAINING_LEAK: "path-differs",
}
AMOUNT_SYMPTOMS: Final = (Symptom.PADDING_ADDED, Symptom.PADDING_REMOVED)
BATCH_SYMPTOMS: Final = (
    Symptom.SEQUENCE_ALONE,
    Symptom.BATCH_ORDER,
    Symptom.BATCH_SIZE,
)


def _without_masks(failure: Failure, evidence: Evidence) -> str:
    if failure.symptom in CAUSES_WITHOUT_MASKS:
        return CAUSES_WITHOUT_MASKS[failure.symptom]
    own = evidence.own
    left = bool(own.padding[:, 0].any())
    if failure.symptom in AMOUNT_SYMPTOMS:  # padding on the right shifts no position
        return "positions-shifted" if left else "length-dependent"
    if failure.symptom in BATCH_SYMPTOMS:
        return "positions-shifted" if left else "mixes-sequences"
    length = evidence.tested.length()
    calls = own_calls(evidence.calls)
    if calls and all(call.visible.shape[-2:] == (length, length) for call in calls):
        return "not-through-attention"
    return _by_positions(failure, own)


def _by_positions(failure: Failure, own: Expectation) -> str:
    """What is missing, from the positions of an output and an input alone."""
    b, i, j = failure.where.batch or 0, failure.where.output, failure.where.input
    if i is None or j is None:
        return "depends-on-masked"
    if own.padding[b, j]:
        return "padding-visible"
    lost = [code_if_missing(term) for term in terms_of(own.mask)]
    if "future-visible" in lost and j > i:
        return "future-visible"
    others = ("padding-visible", "future-visible", "mask-missing")
    return next((code for code in lost if code not in others), "depends-on-masked")


# ── other runs of the model ───────────────────────────────────────────────────────────────────


def _calls_of(failure: Failure, evidence: Evidence) -> list[AttentionCall]:
    """The attention calls of the run in which the failure was observed."""
    tested = failure.rerun.tested or evidence.tested
    if failure.rerun.run is None and tested is evidence.tested:
        return evidence.calls
    try:
        with recording(tested.model) as recorder:
            _repeat(failure, tested)
    except Exception:  # it ran before; the calls of the audit are the best known
        return evidence.calls
    return list(recorder.calls)


def _repeat(failure: Failure, tested: ModelUnderTest) -> None:
    run = failure.rerun.run
    tested.run() if run is None else run(tested)


def _on_other_inputs(
    failure: Failure, evidence: Evidence, diagnoser: MaskDiagnoser
) -> tuple[MaskDiagnoser, list[MaskMismatch], list[AttentionCall]]:
    """The wrong masks on the inputs of the failure, with the expected mask sliced like them."""
    rows, at, order = failure.rerun.rows, failure.rerun.columns, failure.rerun.order
    if rows is None and order is None:
        return diagnoser, [], evidence.calls
    try:
        with recording(evidence.tested.model) as recorder:
            evidence.tested.run(failure.rerun.inputs)
    except Exception:  # it ran before
        return diagnoser, [], evidence.calls
    own = evidence.own
    masks = own.masks
    if order is not None:
        keep = np.stack([~one[o] for one, o in zip(own.padding, order, strict=True)])
        masks = tuple(_with_padding(mask, keep) for mask in masks)
        cells = [
            np.stack([one[o][:, o] for one, o in zip(c, order, strict=True)]) for c in own.cells
        ]
    else:
        cells = [c[rows] if at is None else c[rows][:, at][:, :, at] for c in own.cells]
    part = Expectation(masks, tuple(cells), own.whole_model)
    diagnoser = MaskDiagnoser(part, *cells[0].shape[:2])
    calls = list(recorder.calls)
    return diagnoser, diagnoser.mismatches(calls, too_narrow=True), calls


def _with_padding(mask: Mask, keep: BoolArray) -> Mask:
    """The same mask with other padding."""
    others = [term for term in terms_of(mask) if type(term) is not Padding]
    return reduce(and_, [*others, padding(keep=keep)])


def _first_non_finite(failure: Failure, evidence: Evidence) -> str | None:
    """The first module whose output is not finite."""
    tested = failure.rerun.tested or evidence.tested
    if tested.module is None:
        return None
    with recording(tested.model, modules=True) as recorder:
        tested.run()
    bad = (name for name, x in recorder.modules if not bool(torch.isfinite(x).all()))
    return next((str(name) for name in bad if name), None)


def _raising_layer(failure: Failure, evidence: Evidence) -> str | None:
    """The innermost module that is running when the model raises."""
    tested = failure.rerun.tested or evidence.tested
    module = tested.module
    if module is None:
        return None
    running: list[str] = []
    with ExitStack() as hooks:
        for name, part in module.named_modules():
            enter = part.register_forward_pre_hook(lambda *_, n=name: running.append(n))
            hooks.enter_context(enter)
            hooks.enter_context(part.register_forward_hook(lambda *_: running.pop() and None))
        try:
            _repeat(failure, tested)
        except Exception:  # as it did before
            return running[-1] if running and running[-1] else None
    return None


def _first_moved(failure: Failure, evidence: Evidence) -> str | None:
    """The first module whose output moves at the position of the failure."""
    tested, change, i = evidence.tested, failure.rerun.change, failure.where.output
    if change is None or tested.module is None or i is None:
        return None
    with recording(tested.model, modules=True) as baseline:
        tested.run()
    with recording(tested.model, modules=True) as moved:
        tested.run(change=change)
    b = failure.where.batch or 0
    for (name, one), (_, other) in zip(baseline.modules, moved.modules, strict=False):
        if one.shape != other.shape or one.dim() < 3 or one.shape[1] <= i:
            continue
        if one.shape[0] == tested.batch and not torch.equal(one[b, i], other[b, i]):
            return str(name)
    return None


# ── single calls ──────────────────────────────────────────────────────────────────────────────


def _in_call(cause: str, call: AttentionCall) -> Diagnosis:
    return Diagnosis(cause, call.layer, _mask_of(call))


def _mask_of(call: AttentionCall) -> Reason:
    """The mask that a call used, as an expression if one was recognized."""
    mask = call.mask
    if mask is None:
        return Reason("audit.mask.unrecognized", {"share": float(call.masked_share)})
    text = str(mask)
    short = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "…"
    return Reason("audit.mask", {"mask": short})


def _empty_row(calls: Sequence[AttentionCall]) -> AttentionCall | None:
    """A call with a fully masked row."""
    return next((call for call in calls if not call.visible.any(-1).all()), None)


def _masked_after_softmax(calls: Sequence[AttentionCall]) -> AttentionCall | None:
    return next((call for call in calls if call.after_softmax), None)


def _value_code(call: AttentionCall, among: tuple[str, ...]) -> str | None:
    """A lint code for the values of the mask that was passed."""
    given: Any = call.mask_argument
    if given is None or getattr(given, "dtype", None) is None:
        return None
    dtype = str(given.dtype)
    if "bool" in dtype:
        return None
    try:
        codes = lint(given, to="additive", dtype=given.dtype if "float" in dtype else None).codes
    except Exception:  # a mask that lint refuses has no code
        return None
    return next((code for code in codes if code in among), None)


@dataclass
class MaskMismatch:
    """An attention call whose mask is not the expected one."""

    call: AttentionCall
    visible: BoolArray  # (batch, queries, keys), by any head
    allowed: BoolArray
    judged: BoolArray  # (batch, queries)
    start: int  # the position of the first query

    @property
    def extra(self) -> BoolArray:
        """The cells that are visible and must be masked."""
        return self.visible & ~self.allowed & self.judged[:, :, None]

    @property
    def missing(self) -> BoolArray:
        """The cells that are masked and must be visible."""
        return self.allowed & ~self.visible & self.judged[:, :, None]

    def part_of(self, cells: BoolArray, start: int) -> BoolArray:
        """The cells of the queries and keys of this call, if its first query is at `start`."""
        _, q_len, kv_len = self.visible.shape
        return cells[:, start : start + q_len, :kv_len]

    def is_explained_by(self, cells: BoolArray) -> bool:
        """Whether the call saw these cells in all tested rows; fully masked rows may differ."""
        tested = self.judged & cells.any(-1)
        if 2 * tested.sum() < self.judged.sum():
            return False
        return bool(np.array_equal(cells[tested], self.visible[tested]))


@dataclass
class MaskDiagnoser:
    """Compares the masks of attention calls with the expected one."""

    expected: Expectation
    batch: int
    length: int

    def mismatches(
        self, calls: Sequence[AttentionCall], *, too_narrow: bool = False
    ) -> list[MaskMismatch]:
        """The calls that attend to too much; with `too_narrow`, also those that mask too much."""
        found = []
        for n, call in enumerate(own_calls(calls)):
            compared = self._compare(call, n)
            if compared is not None and (
                compared.extra.any() or (too_narrow and compared.missing.any())
            ):
                found.append(compared)
        return found

    def across_batch(self, calls: Sequence[AttentionCall]) -> AttentionCall | None:
        """A call that attends along the batch: it has as many queries as there are sequences."""
        if self.batch == self.length:
            return None
        own = (self.length,), (self.batch,)
        return next((c for c in calls if (c.q_shape[:1], c.q_shape[-2:-1]) == own), None)

    def _compare(self, call: AttentionCall, n: int) -> MaskMismatch | None:
        """A call with the cells expected of it; None if their shapes do not match."""
        seen = call.visible.any(1)
        _, q_len, kv_len = seen.shape
        if seen.shape[0] not in (1, self.batch) or q_len > kv_len or kv_len > self.length:
            return None
        cells = self.expected.cells
        allowed = cells[min(n, len(cells) - 1) if len(self.expected.masks) > 1 else 0]
        start = kv_len - q_len
        judged = self.expected.judged[:, start:kv_len]
        visible = np.broadcast_to(seen, (self.batch, q_len, kv_len))
        return MaskMismatch(call, visible, allowed[:, start:kv_len, :kv_len], judged, start)

    def name(self, wrong: MaskMismatch, calls: Sequence[AttentionCall]) -> str:
        """The code of the mistake in this mask."""
        call = wrong.call
        if call.after_softmax:
            return "after-softmax"
        if (by_values := _value_code(call, TOO_WEAK)) is not None:
            return by_values
        if call.visible.all():
            return self._without_mask(wrong, calls)
        if (by_axis := self._by_axis(wrong)) is not None:
            return by_axis
        if wrong.start and wrong.is_explained_by(wrong.part_of(self.expected.cells[0], 0)):
            return "aligned-upper-left"
        for code, cells in self._mistakes:
            if wrong.is_explained_by(wrong.part_of(cells, wrong.start)):
                return code
        return self._by_cells(wrong)

    def _without_mask(self, wrong: MaskMismatch, calls: Sequence[AttentionCall]) -> str:
        """A call without a mask: only in this layer, or which term of the mask is missing."""
        masked = {call.layer for call in own_calls(calls) if not call.visible.all()}
        if masked and wrong.call.layer not in masked:
            return "missing-in-layer"
        lost = []
        for term in terms_of(self.expected.mask):
            if (cells := self._dense(term)) is not None:
                part = wrong.part_of(cells, wrong.start)
                if not part[np.broadcast_to(wrong.judged, part.shape[:2])].all():
                    lost.append(code_if_missing(term))
        return lost[0] if len(lost) == 1 else "mask-missing"

    def _dense(self, mask: Mask) -> BoolArray | None:
        shape = (self.batch, self.length, self.length)
        try:
            cells = mask.on(self.length, batch=self.batch).dense().any(1)
        except MaskError:
            return None
        found: BoolArray = np.broadcast_to(cells, shape)
        return found

    @cached_property
    def _mistakes(self) -> list[tuple[str, BoolArray]]:
        found = ((code, self._dense(mask)) for code, mask in mistakes(self.expected.mask))
        return [(code, cells) for code, cells in found if cells is not None]

    def _by_axis(self, wrong: MaskMismatch) -> str | None:
        """The mask of another sequence, or one per head that should be one per sequence."""
        seen, allowed = wrong.call.visible, wrong.allowed
        batch, heads = seen.shape[:2]
        if self.batch == 1:
            return None

        def known(cells: BoolArray) -> bool:
            return any(np.array_equal(cells, other) for other in allowed)

        cells = [(b, h) for b in range(batch) for h in range(heads)]
        differ = any(not np.array_equal(seen[b, 0], seen[b, h]) for b, h in cells)
        # The mask of sequence n for head n, or for the n-th of all heads.
        for step in (0, heads):
            same = [
                np.array_equal(seen[b, h], allowed[(b * step + h) % self.batch]) for b, h in cells
            ]
            if differ and all(same):
                return "batch-on-heads"
        if batch == self.batch and not differ:
            own = all(np.array_equal(seen[b, 0], allowed[b]) for b in range(batch))
            if not own and all(known(seen[b, 0]) for b in range(batch)):
                return "order-of-batch"
        return None

    def _by_cells(self, wrong: MaskMismatch) -> str:
        """The closest code, from the cells alone."""
        extra, missing = wrong.extra, wrong.missing
        if not extra.any():
            return "too-narrow"
        total = wrong.judged.sum() * extra.shape[2]
        if missing.any() and extra.sum() + missing.sum() > 0.9 * total:
            return "inverted"
        padded = self.expected.padding[:, None, : extra.shape[2]]
        future = np.triu(np.ones_like(extra), wrong.start + 1)
        is_causal = not np.triu(self.expected.direct, 1).any()
        if (extra & padded).any() and not (extra & ~padded).any():
            return "padding-visible"
        if is_causal and (extra & future).any():
            return "future-visible"
        codes = [code_if_missing(term) for term in terms_of(self.expected.mask)]
        if "documents-leak" in codes:
            return "documents-leak"
        if "window-missing" in codes:
            edge = extra.sum(-1).max() <= 2
            return "window-off-by-one" if edge else "window-missing"
        return "padding-visible" if (extra & padded).any() else "mask-missing"


# ── usual mistakes ────────────────────────────────────────────────────────────────────────────


def mistakes(mask: Mask) -> Iterator[tuple[str, Mask]]:
    """What a mask becomes by each usual mistake, with its code; the likeliest first."""
    terms = terms_of(mask)
    yield "inverted", ~mask
    for n, term in enumerate(terms):
        others = [other for m, other in enumerate(terms) if m != n]
        for code, wrong in _mistakes_of_term(term):
            yield code, reduce(and_, [*others, wrong])
    if len(terms) > 1:
        yield "queries-and-keys-swapped", mask.T
        yield "mask-missing", everything()


def _mistakes_of_term(term: Mask) -> Iterator[tuple[str, Mask]]:
    yield code_if_missing(term), everything()
    yield "inverted", ~term
    yield "padding-on-queries" if type(term) is Padding else "queries-and-keys-swapped", term.T
    if isinstance(term, Window):
        yield from _mistakes_of_window(term)


def _mistakes_of_window(term: Window) -> Iterator[tuple[str, Mask]]:
    if term.back is not None:
        for back in (term.back + 1, term.back - 1):
            if back >= 0:
                yield "window-off-by-one", window(back=back, ahead=term.ahead)
        if term.ahead == 0:
            yield "window-missing", causal()
        if term.ahead is not None:
            yield "future-visible", window(back=term.back, ahead=None)
            yield "window-off-by-one", window(back=term.back, ahead=term.ahead + 1)
            if term.ahead > 0:
                yield "window-off-by-one", window(back=term.back, ahead=term.ahead - 1)
    elif term.ahead == 0:
        yield "future-visible", window(back=None, ahead=1)
        yield "own-position-hidden", causal() & ~window(0, 0)


CODES_IF_MISSING: Final[dict[type[Mask], str]] = {
    Padding: "padding-visible",
    Documents: "documents-leak",
    Chunks: "documents-leak",
}


def code_if_missing(term: Mask) -> str:
    """The code of a mask that lacks this term."""
    if isinstance(term, Window):
        return "future-visible" if term.back is None else "window-missing"
    return CODES_IF_MISSING.get(type(term), "mask-missing")
