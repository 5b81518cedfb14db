"""A case: one audit from the model at rest to the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from maskwright.auditing.diagnosis import own_calls
from maskwright.auditing.expectations import Expectation, Some, expect
from maskwright.auditing.explain import Explainer
from maskwright.auditing.measure import Meter, make_meter
from maskwright.auditing.mistakes import terms_of
from maskwright.auditing.model_under_test import Key, Subject, find_seats, first_tensor
from maskwright.auditing.probes import leaks, numbers, paths, sequences, steps
from maskwright.auditing.probes.answer import Answer, Trouble, brief
from maskwright.auditing.report import AuditFinding, AuditReport
from maskwright.core.expr import Mask
from maskwright.core.expr import brief as shorten
from maskwright.errors import ArgumentError
from maskwright.tracing.trace import Trace, recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.tracing.trace import AttentionCall

PROBES: Final = (
    *("leak", "reach", "gradient", "padding", "documents", "batch", "steps", "numbers"),
    *("paths", "dtype"),
)
WILD: Final = 1e-3  # of the outputs' size: more than that between identical runs is no noise


@dataclass
class Case:
    """One audit: the subject, what is expected of it, and what was seen of it at rest."""

    subject: Subject
    expects: Any
    layers: int | None
    made: bool = False  # inputs, which were not given
    meter: Meter | None = None
    calls: list[AttentionCall] = field(default_factory=list)
    expected: dict[Key, Expectation] = field(default_factory=dict)

    def ask(self, wanted: tuple[str, ...], step: Any, other_paths: Any) -> list[Answer]:
        """Run the model at rest, then every probe."""
        failed = self._rest()
        if failed is not None:
            return [failed]
        assert self.meter is not None
        meter, main = self.meter, self.subject.main
        own = self.expected[main]
        heads = max((call.q_shape[1] for call in self.calls if len(call.q_shape) == 4), default=0)
        every = list(self.expected.items())
        answers: list[Answer] = []

        def found() -> bool:
            return any(answer.troubles for answer in answers)

        asked: dict[str, Callable[[], list[Answer]]] = {
            "leak": lambda: [leaks.leak(meter, e, n) for n, e in every],
            "reach": lambda: [leaks.reach(meter, e, n, bool(self.calls)) for n, e in every],
            "gradient": lambda: [leaks.gradient(meter, e, n) for n, e in every],
            "padding": lambda: [sequences.padding(meter, e, n) for n, e in every],
            "documents": lambda: [sequences.documents(meter, own, main)],
            "batch": lambda: [sequences.batch(meter, own, heads or None)],
            "steps": lambda: [steps.steps(meter, own, step)],
            "numbers": lambda: [numbers.numbers(meter, own, main)],
            "paths": lambda: [paths.paths(meter, own, other_paths, sound=not found())],
            "dtype": lambda: [numbers.dtype(meter, own, main)],
        }
        for probe in PROBES:
            if probe in wanted:
                before = self.subject.passes
                answers += asked[probe]()
                answers[-1].passes = self.subject.passes - before
        if "reach" in wanted:
            self._look_at_masks(answers)
        if any(t.kind == "leak" for answer in answers for t in answer.troubles):
            for answer in answers:  # what leaks in float32 too is no matter of the dtype
                answer.troubles = [t for t in answer.troubles if t.kind != "half leak"]
        return answers

    def _rest(self) -> Answer | None:
        """The model at rest: its output, its noise, its attention."""
        try:
            with torch.no_grad():
                given = first_tensor(self.subject.call())
            if given is not None and given.device.type == "meta":
                raise RuntimeError("the output lies on the device meta, which holds no numbers")
            with recording(self.subject.model) as recorder, torch.no_grad():
                self.subject.call()
        except Exception as error:
            message = f"the model raises on these inputs: {brief(error)}"
            if self.made:
                message = f"the model raises on inputs made from its config: {brief(error)}"
                message += "; pass inputs= that it takes"
            return Answer("run", "one pass", [Trouble("run", "raises", message)])
        self.calls = list(recorder.calls)
        find_seats(self.subject)
        self.meter = make_meter(self.subject)
        noise, size = float(self.meter.noise.max()), self.meter.size
        if noise > WILD * max(size, 1e-30) and noise > 0:
            message = (
                f"the same inputs gave outputs {noise:.2g} apart: the model is not deterministic"
            )
            return Answer(
                "run", "the same inputs twice", [Trouble("run", "random", message, noise)]
            )
        self._expect()
        return None

    def _expect(self) -> None:
        assert self.meter is not None
        subject, outputs = self.subject, self.meter.rest.shape[1]
        main = subject.main
        count = self.layers if self.layers is not None else self._count_layers()
        for name in subject.seats:
            mask = self.expects[name] if isinstance(self.expects, dict) else self.expects
            length = subject.length(name)
            if isinstance(self.expects, dict) and (name != main or outputs != length):
                self.expected[name] = expect(mask, outputs, length, subject.batch, whole=True)
            elif outputs == length:
                self.expected[name] = expect(mask, length, length, subject.batch, layers=count)
            elif outputs == 1:
                full = expect(mask, length, length, subject.batch, layers=count)
                seen = (
                    ~full.padding[:, None, :]
                    & np.logical_or.reduce(full.closure, axis=1)[:, None, :]
                )
                self.expected[name] = Expectation(full.masks, (seen,), whole=True, rows=full)
            else:
                raise ArgumentError(
                    f"audit: the output has {outputs} positions, and the input {length}. Pass "
                    "output=, a function that takes one output for each position."
                )

    def _count_layers(self) -> int | None:
        """Steps that see all positions at once; else the modules that see some at a time."""
        length = self.subject.length()
        own = own_calls(self.calls)
        whole = [call for call in own if call.seen.shape[-2:] == (length, length)]
        steps = {call.step for call in whole}
        return len(steps) or len({call.layer for call in own if call.layer}) or None

    def _look_at_masks(self, answers: list[Answer]) -> None:
        """A key that no layer shows, though it should be seen: too little to be felt from outside."""
        reach = next((a for a in answers if a.probe == "reach" and not a.skipped), None)
        own = self.expected[self.subject.main]
        if reach is None or reach.troubles or own.whole or len(own.masks) > 1 or own.chosen:
            return
        length = self.subject.length()
        shape = (self.subject.batch, length, length)
        calls = [c for c in own_calls(self.calls) if c.seen.shape[-2:] == shape[-2:]]
        calls = [c for c in calls if c.seen.shape[0] in (1, shape[0])]
        if not calls:
            return
        seen = np.logical_or.reduce([np.broadcast_to(c.seen.any(1), shape) for c in calls])
        lost = own.direct & ~seen & own.judged[:, :, None]
        if lost.any() and not _reordered(seen, own.direct):
            b, i, j = (int(x) for x in np.argwhere(lost)[0])
            message = f"no layer lets position {i} see position {j} (batch {b}), as it should"
            reach.troubles.append(Trouble("reach", "over", message, 0.0, b, i, j))

    def report(self, answers: list[Answer], seconds: Callable[[], float]) -> AuditReport:
        """The report, with every trouble diagnosed."""
        found = []
        explainer = Explainer(self.subject, self.expected, self.calls)
        for answer in answers:
            for trouble in answer.troubles:
                why = explainer.diagnose(trouble)
                found.append(
                    AuditFinding(
                        trouble.probe,
                        trouble.message,
                        why.cause,
                        why.fix,
                        why.layer,
                        why.used,
                        trouble.batch,
                        trouble.output,
                        trouble.input,
                        trouble.far,
                        trouble.reproduce,
                    )
                )
        own = self.expected.get(self.subject.main)
        return AuditReport(
            tuple(found),
            tuple(answers),
            _said(self.expects),
            self.subject.passes,
            seconds(),
            _called(self.subject.model),
            Trace(tuple(self.calls)) if self.calls else None,
            None if own is None else own.closure,
            None if own is None else own.judged,
            next((a.measured for a in answers[::-1] if a.measured is not None), None),
        )


def _reordered(seen: Any, direct: Any) -> bool:
    """Are these the right masks, of sequences that the model has put into another order?"""
    batch = range(len(seen))
    return all(any(np.array_equal(seen[b], direct[c]) for c in batch) for b in batch)


def _said(expects: Any) -> str:
    if isinstance(expects, dict):
        return ", ".join(f"{name}: {_said(mask)}" for name, mask in expects.items())
    if isinstance(expects, tuple):
        kinds = dict.fromkeys(map(_said, expects))
        return " and ".join(kinds) + f" in {len(expects)} layers"
    if isinstance(expects, Some):
        return f"some of {_said(expects.mask)}"
    if not isinstance(expects, Mask):
        return str(expects)
    text = shorten(expects)
    return text[1:-1] if text.startswith("(") and terms_of(expects) != (expects,) else text


def _called(model: Any) -> str:
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    return str(getattr(model, "__name__", None) or type(model).__name__).replace(
        "<lambda>", "model"
    )
