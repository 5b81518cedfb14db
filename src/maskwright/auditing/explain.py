"""Explaining: a trouble, and the attention that was run, become a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import numpy as np
import torch

from maskwright.auditing.diagnosis import (
    TOO_STRONG,
    TOO_WEAK,
    Diagnosis,
    Doctor,
    by_numbers,
    diagnosis,
    own_calls,
)
from maskwright.auditing.expectations import Expectation
from maskwright.auditing.mistakes import missing, terms_of
from maskwright.core.atoms import padding
from maskwright.core.atoms.tokens import Padding
from maskwright.tracing.trace import recording

if TYPE_CHECKING:
    from maskwright.auditing.diagnosis import Wrong
    from maskwright.auditing.model_under_test import Key, Subject
    from maskwright.auditing.probes.answer import Trouble
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.tracing.trace import AttentionCall


@dataclass
class Explainer:
    """What is known of a subject: what was expected, and the attention of a run at rest."""

    subject: Subject
    expected: dict[Key, Expectation]
    calls: list[AttentionCall]

    def diagnose(self, trouble: Trouble) -> Diagnosis:
        """Why this happens, as far as the masks that were used tell."""
        kind = trouble.kind
        if kind in ("raises", "random", "steps raise"):
            cause = "step-differs" if kind == "steps raise" else "raises"
            return diagnosis(cause, layer=self._where_it_raises(trouble))
        own = self.expected[self.subject.main]
        doctor = Doctor(own, self.subject.batch, self.subject.length())
        if kind in ("nan", "nan gradient", "overflow") or kind.startswith("half"):
            return self._of_numbers(trouble, doctor)
        if trouble.name is not None and trouble.name != self.subject.main:
            return self._of_source(trouble)
        if trouble.message.startswith("no output depends"):
            return diagnosis("ignores-input")
        calls = self._calls_of(trouble)
        over = kind == "over" or trouble.by is not None
        wrong = [] if own.whole else doctor.wrong(calls, over=over)
        if not wrong and trouble.inputs is not None and not own.whole:
            doctor, wrong, calls = self._on_other_inputs(trouble, doctor)
        if kind == "side" and trouble.far == np.inf and doctor.empty(calls) is not None:
            return diagnosis("empty-row-nan", doctor.empty(calls))
        if wrong:
            # Of the calls of one layer the one with the most keys tells most.
            layer = wrong[0].call.layer
            worst = max((w for w in wrong if w.call.layer == layer), key=lambda w: w.seen.shape[2])
            return diagnosis(doctor.name(worst, calls), worst.call)
        late = next((call for call in calls if call.after_softmax), None)
        if late is not None:
            return diagnosis("after-softmax", late)
        across = doctor.across_batch(calls)
        if across is not None:
            return diagnosis("attends-across-batch", across)
        return diagnosis(self._without_masks(trouble, own), layer=self._first_moved(trouble))

    def _calls_of(self, trouble: Trouble) -> list[AttentionCall]:
        """The attention calls of the run that the trouble was met in."""
        subject = trouble.subject or self.subject
        if trouble.by is None and subject is self.subject:
            return self.calls
        try:
            with recording(subject.model) as recorder:
                if trouble.by is not None:
                    trouble.by(subject)
                else:
                    subject.run()
        except Exception:  # it ran before; what was recorded until here is all there is
            return self.calls
        return list(recorder.calls)

    def _on_other_inputs(
        self, trouble: Trouble, doctor: Doctor
    ) -> tuple[Doctor, list[Wrong], list[AttentionCall]]:
        """What is wrong with the masks on the inputs of the trouble, cut as they were."""
        rows, at, order = trouble.rows, trouble.columns, trouble.order
        if rows is None and order is None:
            return doctor, [], self.calls
        try:
            with recording(self.subject.model) as recorder:
                self.subject.run(trouble.inputs)
        except Exception:  # it ran before; there is nothing to look at
            return doctor, [], self.calls
        own = self.expected[self.subject.main]
        masks = own.masks
        if order is not None:
            keep = np.stack([~one[o] for one, o in zip(own.padding, order, strict=True)])
            masks = tuple(_padded_by(mask, keep) for mask in masks)
            cells = [
                np.stack([one[o][:, o] for one, o in zip(c, order, strict=True)]) for c in own.cells
            ]
        else:
            cells = [c[rows] if at is None else c[rows][:, at][:, :, at] for c in own.cells]
        part = Expectation(masks, tuple(cells), own.whole)
        doctor = Doctor(part, *cells[0].shape[:2])
        calls = list(recorder.calls)
        return doctor, doctor.wrong(calls, over=True), calls

    def _of_numbers(self, trouble: Trouble, doctor: Doctor) -> Diagnosis:
        if trouble.kind == "overflow":
            return diagnosis("fill-overflows", layer=self._where_it_raises(trouble))
        calls = self._calls_of(trouble)
        for call in calls:
            code = by_numbers(call, TOO_STRONG)
            if code is not None:
                return diagnosis(code, call)
        empty = doctor.empty(calls)
        if empty is not None and trouble.kind in ("nan", "nan gradient", "half nan"):
            return diagnosis("empty-row-nan", empty)
        late = next((call for call in calls if call.after_softmax), None)
        if late is not None:
            return diagnosis("after-softmax", late)
        if trouble.kind.startswith("half"):
            return diagnosis("dtype-differs", layer=self._first_not_finite(trouble))
        return diagnosis("not-finite", layer=self._first_not_finite(trouble))

    def _first_not_finite(self, trouble: Trouble) -> str | None:
        """The first module that gives something that is not finite."""
        subject = trouble.subject or self.subject
        if subject.module is None:
            return None
        with recording(subject.model, modules=True) as recorder:
            subject.run()
        bad = (name for name, x in recorder.modules if not bool(torch.isfinite(x).all()))
        return next((str(name) for name in bad if name), None)

    def _where_it_raises(self, trouble: Trouble) -> str | None:
        """The innermost module that is entered and not left, when the model raises."""
        subject = trouble.subject or self.subject
        module = subject.module
        if module is None:
            return None
        inside: list[str] = []
        handles = []
        for name, part in module.named_modules():
            handles.append(part.register_forward_pre_hook(lambda *_, n=name: inside.append(n)))
            handles.append(part.register_forward_hook(lambda *_: inside.pop() and None))
        try:
            if trouble.by is not None:
                trouble.by(subject)
            else:
                subject.run()
        except Exception:  # as it did before
            return inside[-1] if inside and inside[-1] else None
        finally:
            for handle in handles:
                handle.remove()
        return None

    def _of_source(self, trouble: Trouble) -> Diagnosis:
        """The other input of a model with two: its padding, in the encoder and across."""
        expected = self.expected[trouble.name]
        keys = self.subject.length(trouble.name)
        hidden = ~np.logical_or.reduce(expected.direct, axis=1)  # (batch, keys)
        seeing: list[AttentionCall] = []
        hiding: list[AttentionCall] = []
        crosses = any(call.cross for call in self.calls)
        targets = {id(call) for call in own_calls(self.calls)} if crosses else set()
        for call in self.calls:
            if id(call) in targets:
                continue
            if call.seen.shape[-1] != keys or call.seen.shape[0] not in (1, self.subject.batch):
                continue
            seen = np.broadcast_to(call.seen.any(1), (hidden.shape[0], *call.seen.shape[2:]))
            rows = seen if call.cross else seen & ~hidden[:, :, None]
            shows = (rows & hidden[:, None, :]).any()
            (seeing if shows else hiding).append(call)
        if trouble.kind == "over":
            return diagnosis("too-narrow")
        if not seeing:
            return diagnosis("not-through-attention", layer=self._first_moved(trouble))
        first = seeing[0]
        if first.after_softmax:
            return diagnosis("after-softmax", first)
        code = by_numbers(first, TOO_WEAK)
        if code is not None:
            return diagnosis(code, first)
        alike = [c for c in hiding if c.cross == first.cross]
        return diagnosis("missing-in-layer" if alike else "padding-visible", first)

    def _without_masks(self, trouble: Trouble, own: Expectation) -> str:
        """A cause, where the masks of all calls are right, or none was seen."""
        kind = trouble.kind
        if kind == "across":
            return "attends-across-batch"
        if kind == "steps":
            return "step-differs"
        if kind.startswith("path"):
            return "path-differs"
        if kind == "over":
            return "too-narrow"
        if kind in ("document", "side"):
            return "positions-shifted"
        if kind in ("stripped", "more", "alone", "size", "order"):
            left = bool(own.padding[:, 0].any())
            return "positions-shifted" if left or kind == "stripped" else "attends-across-batch"
        if self._all_placed():
            return "not-through-attention"
        return self._by_positions(trouble, own)

    def _all_placed(self) -> bool:
        """Was every call seen whole, so that the masks can be said to be right?"""
        length = self.subject.length()
        own = own_calls(self.calls)
        return bool(own) and all(call.seen.shape[-2:] == (length, length) for call in own)

    def _by_positions(self, trouble: Trouble, own: Expectation) -> str:
        """What is missing, told by the two positions alone."""
        b, i, j = trouble.batch or 0, trouble.output, trouble.input
        if i is None or j is None:
            return "mask-missing"
        if own.padding[b, j]:
            return "padding-visible"
        lost = [missing(term) for term in terms_of(own.mask)]
        if "future-visible" in lost and j > i:
            return "future-visible"
        return next(
            (code for code in lost if code not in ("padding-visible", "future-visible")),
            "mask-missing",
        )

    def _first_moved(self, trouble: Trouble) -> str | None:
        """The first module whose output moves where it should not."""
        if trouble.change is None or self.subject.module is None or trouble.output is None:
            return None
        with recording(self.subject.model, modules=True) as rest:
            self.subject.run()
        with recording(self.subject.model, modules=True) as moved:
            self.subject.run(change=trouble.change)
        b, i = trouble.batch or 0, trouble.output
        for (name, one), (_, other) in zip(rest.modules, moved.modules, strict=False):
            if one.shape != other.shape or one.dim() < 3 or one.shape[1] <= i:
                continue
            if one.shape[0] == self.subject.batch and not torch.equal(one[b, i], other[b, i]):
                return str(name)
        return None


def _padded_by(mask: Mask, keep: BoolArray) -> Mask:
    """The same mask, with other padding in it."""
    others = [term for term in terms_of(mask) if not isinstance(term, Padding)]
    return reduce(and_, [*others, padding(keep=keep)])
