"""The audit's report: what was asked of a model, what it answered, and what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from maskwright.errors import AuditError, TruthError
from maskwright.linting.codes import meaning_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from maskwright.auditing.probes.answer import Answer
    from maskwright.core.validate import BoolArray
    from maskwright.tracing.trace import Trace

VAGUE: Final = (
    *("path-differs", "step-differs", "not-finite", "dtype-differs", "not-through-attention"),
    *("too-narrow", "raises"),
)


@dataclass(frozen=True)
class AuditFinding:
    """One thing that a model does though its mask forbids it, or does not though it should.

    `cause` is one of the codes that the documentation lists, `layer` the module in which it shows
    first, `used` the mask that this layer really had. `output` and `input` are positions.

    >>> import torch, maskwright as mw
    >>> report = mw.audit(lambda x: x.roll(-1, 1), torch.randn(1, 4, 2), expects="causal")
    >>> finding = report.findings[0]
    >>> finding.probe, finding.input - finding.output
    ('leak', 1)
    >>> finding.as_dict()["cause"]
    'future-visible'
    """

    probe: str
    message: str
    cause: str
    fix: str
    layer: str | None = None
    used: str | None = None
    batch: int | None = None
    output: int | None = None
    input: int | None = None
    size: float = 0.0
    reproduce: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data, fit for JSON."""
        return {
            **self.__dict__,
            "size": self.size if abs(self.size) < float("inf") else None,
            "means": meaning_of(self.cause),
        }

    def __str__(self) -> str:
        parts = [self.message]
        if self.layer:
            parts.append(f"first seen in {self.layer}")
        if self.used is not None:
            parts.append(f"its mask there is {self.used}")
        told = "; ".join(parts)
        means = meaning_of(self.cause)
        return f"✗ {told}\n    {self.cause}: {means}. {self.fix}".rstrip()


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What `audit` found. Ask `.ok` whether the model obeys; `assert_ok()` is for tests.

    >>> import torch, maskwright as mw
    >>> report = mw.audit(torch.cumsum, {"input": torch.randn(2, 5, 3), "dim": 1}, expects="causal")
    >>> report.ok, report.cause
    (True, None)
    >>> report.assert_ok()
    >>> later = mw.audit(lambda x: x.flip(1), torch.randn(1, 4, 2), expects="causal")
    >>> later.ok, later.cause, later.layer, len(later.by_cause)
    (False, 'future-visible', None, 1)
    >>> later.verdict
    'model does not obey causal()'
    >>> later.as_dict()["ok"], len(later.to_json()) > 100, "<h1>" in later.to_html()
    (False, True, True)
    """

    findings: tuple[AuditFinding, ...]
    answers: tuple[Answer, ...]
    expects: str
    passes: int
    seconds: float
    subject: str = "the model"
    trace: Trace | None = None
    allowed: BoolArray | None = field(default=None, repr=False)  # (batch, outputs, inputs)
    judged: BoolArray | None = field(default=None, repr=False)  # (batch, outputs)
    measured: npt.NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether the model obeys its mask, as far as it was asked."""
        return not self.findings

    @property
    def verdict(self) -> str:
        """The same in words; where no probe had anything to ask, that is said."""
        asked = not self.answers or any(not answer.skipped for answer in self.answers)
        said = "does not obey" if self.findings else "obeys" if asked else "was not asked to obey"
        return f"{self.subject} {said} {self.expects}"

    @property
    def cause(self) -> str | None:
        """The likeliest cause of all that is wrong."""
        causes = [finding.cause for finding in self.findings]
        return next((c for c in causes if c not in VAGUE), causes[0] if causes else None)

    @property
    def layer(self) -> str | None:
        """The layer in which that shows first."""
        own = [f for f in self.findings if f.cause == self.cause and f.layer]
        return own[0].layer if own else None

    @property
    def by_cause(self) -> tuple[tuple[AuditFinding, ...], ...]:
        """The findings, those of one cause in one layer together."""
        together: dict[tuple[str, str | None], list[AuditFinding]] = {}
        for finding in self.findings:
            together.setdefault((finding.cause, finding.layer), []).append(finding)
        return tuple(map(tuple, together.values()))

    def assert_ok(self) -> None:
        """Raise if anything is wrong, with the whole report as the message."""
        if not self.ok:
            raise AuditError(str(self))

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, fit for JSON."""
        return {
            "ok": self.ok,
            "subject": self.subject,
            "expects": self.expects,
            "cause": self.cause,
            "layer": self.layer,
            "passes": self.passes,
            "seconds": round(self.seconds, 3),
            "findings": [finding.as_dict() for finding in self.findings],
            "probes": [
                {
                    "probe": answer.probe,
                    "tried": answer.tried,
                    "skipped": answer.skipped,
                    "ok": not answer.troubles,
                    "passes": answer.passes,
                    "worst": answer.worst if answer.worst < float("inf") else None,
                    "notes": answer.notes,
                }
                for answer in self.answers
            ],
        }

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def to_html(self) -> str:
        """The report as a page that needs nothing else: findings, and what was measured."""
        from maskwright.auditing.report_html import html_of

        return html_of(self)

    def __bool__(self) -> NoReturn:
        raise TruthError("An audit report is neither true nor false. Ask report.ok.")

    def __str__(self) -> str:
        lines = [f"{self.verdict} ({self.passes} passes, {self.seconds:.1f} s)"]
        for first, *others in self.by_cause:
            lines.append(str(first))
            if others:
                also = dict.fromkeys(other.probe for other in others)
                lines.append(f"    Met {len(others) + 1} times, also by: {', '.join(also)}.")
        for answer in self.answers:
            sign = "–" if answer.skipped else "✗" if answer.troubles else "✓"
            tried = "; ".join(part for part in (answer.tried, *answer.notes) if part)
            lines.append(f"  {sign} {answer.probe}: {tried}")
        return "\n".join(lines)

    __repr__ = __str__
