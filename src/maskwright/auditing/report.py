"""`AuditReport` and `AuditFinding`: the result of an audit, as text, JSON and HTML."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NoReturn

from maskwright.auditing.probes import Status
from maskwright.core.expr import brief
from maskwright.errors import AuditError, TruthError
from maskwright.linting.codes import CODES, fix_of, meaning_of
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from maskwright.auditing.diagnose import Diagnosis
    from maskwright.auditing.probes import Failure, ProbeResult
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.tracing import Trace

# Causes that name a symptom only; another cause in the same report is more likely.
UNSPECIFIC: Final = (
    *("path-differs", "step-differs", "not-finite", "dtype-differs", "not-through-attention"),
    *("too-narrow", "raises", "length-dependent", "mixes-sequences", "depends-on-masked"),
)


@dataclass(frozen=True)
class AuditFinding:
    """One way in which a model does not respect its mask.

    Args:
        probe: The probe that failed.
        message: What it observed.
        cause: A code of the documentation's table of causes.
        fix: What to do about it.
        layer: The module in which the cause appears first.
        used: The mask that this layer used.
        batch: The sequence in which the failure was observed.
        output: Its output position.
        input: Its input position.
        size: How far the output moved.
        reproduce: Python code that shows it again.
        reasons: The texts of this finding as data, by field; used to render other languages.

    >>> import torch, maskwright as mw
    >>> report = mw.audit(lambda x: x.roll(-1, 1), torch.randn(1, 4, 2), expects="causal")
    >>> finding = report.findings[0]
    >>> finding.probe, finding.input - finding.output
    ('leak', 1)
    >>> finding.as_dict()["cause"], finding.rendered("fix", "zh")
    ('future-visible', '将掩码与 causal() 取交集（&）。')
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
    reasons: Mapping[str, Reason] = field(default_factory=dict, repr=False)

    @classmethod
    def from_failure(cls, failure: Failure, diagnosis: Diagnosis) -> AuditFinding:
        """The finding of a failure and its diagnosis."""
        reasons = {"message": failure.message, "fix": CODES[diagnosis.cause].fix}
        if diagnosis.used is not None:
            reasons["used"] = diagnosis.used
        where = failure.where
        return cls(
            failure.probe,
            render(failure.message),
            diagnosis.cause,
            fix_of(diagnosis.cause),
            diagnosis.layer,
            None if diagnosis.used is None else render(diagnosis.used),
            where.batch,
            where.output,
            where.input,
            failure.size,
            failure.reproduce,
            reasons,
        )

    def rendered(self, name: str, lang: str = "en") -> Any:
        """The field `name`, in English ("en") or Chinese ("zh") if it is a text."""
        return render(self.reasons[name], lang) if name in self.reasons else getattr(self, name)

    def as_dict(self, lang: str = "en") -> dict[str, Any]:
        """The finding as plain data, for JSON."""
        names = [one.name for one in fields(self) if one.name != "reasons"]
        return {
            **{name: self.rendered(name, lang) for name in names},
            "size": self.size if abs(self.size) < float("inf") else None,
            "means": meaning_of(self.cause, lang),
        }

    def text(self, lang: str = "en") -> str:
        """The finding as text, in English ("en") or Chinese ("zh").

        >>> import torch, maskwright as mw
        >>> report = mw.audit(lambda x: x.roll(-1, 1), torch.randn(1, 4, 2), expects="causal")
        >>> print(report.findings[0].text("zh"))  # doctest: +ELLIPSIS
        ✗ 位置 ... 依赖于位置 ...
        """
        parts = [self.rendered("message", lang)]
        if self.layer:
            parts.append(render(Reason("audit.finding.layer", {"layer": self.layer}), lang))
        if self.used is not None:
            used = self.rendered("used", lang)
            parts.append(render(Reason("audit.finding.used", {"mask": used}), lang))
        params = {
            "what": render(Reason("list.separator"), lang).join(parts),
            "cause": self.cause,
            "means": meaning_of(self.cause, lang),
            "fix": self.rendered("fix", lang),
        }
        return render(Reason("audit.finding", params), lang).rstrip()

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, eq=False)
class AuditReport:
    """The result of `audit`. `.ok` says whether the model respects its mask; tests call `assert_ok()`.

    `.ok` is True only if every probe that applies to the model was able to fail, and passed.

    Args:
        findings: What is wrong.
        answers: The result of each probe.
        expected: The expected mask, as text or as data.
        passes: Number of times that the model was run.
        seconds: Duration of the audit.
        subject: Name of the model.
        trace: The attention calls of one pass.
        allowed: What each output may depend on, (batch, outputs, inputs).
        judged: The outputs that were tested, (batch, outputs).
        measured: How far each output moved when an input was changed, (batch, outputs, inputs).
        proposed: Without an expectation: the mask that each layer, and the last entry, "outputs",
            behaves like; None if it was not recognized.

    >>> import torch, maskwright as mw
    >>> report = mw.audit(torch.cumsum, {"input": torch.randn(2, 5, 3), "dim": 1}, expects="causal")
    >>> report.ok, report.cause
    (True, None)
    >>> report.assert_ok()
    >>> later = mw.audit(lambda x: x.flip(1), torch.randn(1, 4, 2), expects="causal")
    >>> later.ok, later.cause, later.layer, len(later.by_cause)
    (False, 'future-visible', None, 2)
    >>> later.verdict, later.expects
    ('model does not respect causal()', 'causal()')
    >>> later.verdict_in("zh")
    'model 不遵守 causal()'
    >>> later.text("zh").splitlines()[0].split("（")[0]
    'model 不遵守 causal()'
    >>> later.as_dict()["ok"], len(later.to_json()) > 100, "<h1>" in later.to_html()
    (False, True, True)
    >>> report.exit_code, later.exit_code
    (0, 1)
    >>> "<testcase" in later.to_junit(), '"version": "2.1.0"' in later.to_sarif()
    (True, True)
    """

    findings: tuple[AuditFinding, ...]
    answers: tuple[ProbeResult, ...]
    expected: str | Reason
    passes: int
    seconds: float
    subject: str = "the model"
    trace: Trace | None = None
    allowed: BoolArray | None = field(default=None, repr=False)
    judged: BoolArray | None = field(default=None, repr=False)
    measured: npt.NDArray[np.float64] | None = field(default=None, repr=False)
    proposed: tuple[tuple[str, Mask | None], ...] = ()

    @property
    def expects(self) -> str:
        """The expected mask, as text."""
        return _text(self.expected, "en")

    @property
    def status(self) -> Status:
        """The result of all probes: passed only if every one that applies passed.

        >>> import torch, maskwright as mw
        >>> mw.audit(lambda x: x.cumsum(1), torch.randn(1, 4, 2), expects="causal").status
        <Status.PASSED: 'passed'>
        """
        found = [result.status for result in self.answers]
        if self.findings:
            return Status.FAILED
        order = (Status.NOT_RUN, Status.NOT_TESTED, Status.PASSED)
        return next((status for status in order if status in found), Status.NOT_APPLICABLE)

    @property
    def ok(self) -> bool:
        """Whether every probe that applies to the model was able to fail, and passed."""
        return self.status is Status.PASSED

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0 passed, 1 failed, 3 if there is no result."""
        return {Status.PASSED: 0, Status.FAILED: 1}.get(self.status, 3)

    @property
    def verdict(self) -> str:
        """One sentence in English: whether the model respects the mask, or was not tested."""
        return self.verdict_in("en")

    def verdict_in(self, lang: str) -> str:
        """The verdict in a language."""
        open_probes = [result.probe for result in self.answers if not result.status.conclusive]
        params = {
            "subject": self.subject,
            "expects": self.expected,
            "probes": ", ".join(open_probes),
        }
        proposed = self.proposed and self.status is not Status.FAILED
        code = "proposed" if proposed else self.status.value
        return render(Reason(f"audit.verdict.{code}", params), lang)

    @property
    def cause(self) -> str | None:
        """The most likely cause of all findings."""
        causes = [finding.cause for finding in self.findings]
        return next((c for c in causes if c not in UNSPECIFIC), causes[0] if causes else None)

    @property
    def layer(self) -> str | None:
        """The layer in which this cause appears first."""
        own = [f for f in self.findings if f.cause == self.cause and f.layer]
        return own[0].layer if own else None

    @property
    def by_cause(self) -> tuple[tuple[AuditFinding, ...], ...]:
        """The findings, grouped by cause and layer."""
        groups: dict[tuple[str, str | None], list[AuditFinding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.cause, finding.layer), []).append(finding)
        return tuple(map(tuple, groups.values()))

    def assert_ok(self) -> None:
        """Raises an `AuditError` with the report as its message unless the audit passed."""
        if not self.ok:
            raise AuditError(str(self))

    def text(self, lang: str = "en") -> str:
        """The report as text.

        Args:
            lang: "en" or "zh".

        Raises:
            ArgumentError: If the language is not known.
        """
        params = {"verdict": self.verdict_in(lang), "passes": self.passes, "seconds": self.seconds}
        lines = [render(Reason("audit.report", params), lang)]
        for first, *others in self.by_cause:
            lines.append(first.text(lang))
            if others:
                probes = dict.fromkeys(other.probe for other in others)
                params = {"count": len(others) + 1, "probes": ", ".join(probes)}
                lines.append(render(Reason("audit.report.also", params), lang))
        for name, mask in self.proposed:
            shown = Reason("audit.unrecognized") if mask is None else brief(mask)
            lines.append(
                render(
                    Reason("audit.proposed", {"name": name or self.subject, "mask": shown}), lang
                )
            )
        lines += [f"  {r.status.sign} {r.probe}: {r.describe(lang)}" for r in self.answers]
        return "\n".join(lines)

    def as_dict(self, lang: str = "en") -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return {
            "ok": self.ok,
            "status": self.status.value,
            "subject": self.subject,
            "expects": _text(self.expected, lang),
            "cause": self.cause,
            "layer": self.layer,
            "passes": self.passes,
            "seconds": round(self.seconds, 3),
            "proposed": [
                {"layer": name, "mask": None if mask is None else str(mask)}
                for name, mask in self.proposed
            ],
            "findings": [finding.as_dict(lang) for finding in self.findings],
            "probes": [
                {
                    "probe": result.probe,
                    "status": result.status.value,
                    "tried": "" if result.tried is None else _text(result.tried, lang),
                    "passes": result.passes,
                    "worst": _finite(result.worst),
                    "limit": _finite(result.limit),
                    "sensitivity": _finite(result.sensitivity),
                    "cases": [
                        {
                            "case": _text(case.what, lang),
                            "status": case.status.value,
                            "why": None if case.why is None else _text(case.why, lang),
                        }
                        for case in result.cases
                    ],
                    "notes": [_text(note, lang) for note in result.notes],
                }
                for result in self.answers
            ],
        }

    def to_json(self, lang: str = "en") -> str:
        """The report as JSON."""
        return json.dumps(self.as_dict(lang), indent=2, ensure_ascii=False)

    def to_junit(self, lang: str = "en") -> str:
        """The report as JUnit XML: one test case per probe."""
        from maskwright.auditing.report_ci import junit

        return junit({self.subject: self.as_dict(lang)})

    def to_sarif(self, lang: str = "en") -> str:
        """The report as SARIF 2.1.0: one result per finding."""
        from maskwright.auditing.report_ci import sarif

        return sarif({self.subject: self.as_dict(lang)})

    def to_html(self, lang: str = "en") -> str:
        """The report as a self-contained HTML page."""
        from maskwright.auditing.report_html import report_page

        return report_page(self, lang)

    def __bool__(self) -> NoReturn:
        raise TruthError("An AuditReport has no boolean value. Use report.ok.")

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook displays: the report with its drawings."""
        from maskwright.auditing.report_html import report_section

        return report_section(self.subject, self).body


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return None if value is None or not abs(value) < float("inf") else value


def _text(value: str | Reason, lang: str) -> str:
    return render(value, lang) if isinstance(value, Reason) else str(value)
