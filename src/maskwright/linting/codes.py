"""The codes of all findings, of lint and of the audit, in one table; findings and reports of lint.

A code is one entry in `CODES`, a meaning and a fix in `messages/en.json`, and the same in
`messages/zh.json`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from maskwright.errors import TruthError
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from maskwright.core.nodes import Cell

InputT = TypeVar("InputT")

if TYPE_CHECKING:
    Check = Callable[[InputT], Iterable["Finding"]]


class Severity(Enum):
    """How serious a finding is."""

    ERROR = "error"  # attention fails, or its output is wrong
    WARNING = "warning"  # the output is wrong only in some uses of the mask


class Subject(Enum):
    """What a finding is about."""

    VALUES = "values"  # of a mask array: numbers, dtype, device
    SHAPE = "shape"  # of a mask array
    CELLS = "cells"  # which queries attend to which keys
    MODEL = "model"  # how a model uses its mask, or what it does besides attention


@dataclass(frozen=True)
class Code:
    """A kind of finding.

    Args:
        name: The code.
        subject: What findings with this code are about.
        severity: How serious they are.
        lint: Whether `lint` reports it.
        audit: Whether `audit` reports it.
        root_cause: Whether it explains every other difference from the expected cells, so that it
            is reported alone.

    >>> code = CODES["padding-visible"]
    >>> code.severity
    <Severity.ERROR: 'error'>
    >>> print(code.meaning, "|", code.fix)
    padding is not masked | Combine the mask with padding(...).
    >>> from maskwright.messages import render
    >>> render(code.meaning, "zh")
    '填充没有被屏蔽'
    """

    name: str
    subject: Subject
    severity: Severity = Severity.ERROR
    lint: bool = True
    audit: bool = False
    root_cause: bool = False

    @property
    def meaning(self) -> Reason:
        """What is wrong, as a clause without a full stop."""
        return Reason(f"{self.name}.meaning")

    @property
    def fix(self) -> Reason:
        """What to do about it, as a sentence."""
        return Reason(f"{self.name}.fix")


CODES: Final[Mapping[str, Code]] = {
    code.name: code
    for code in (
        # Values of a mask array or a bias
        Code("bias-hides", Subject.VALUES, Severity.WARNING),
        Code("fill-at-limit", Subject.VALUES, Severity.WARNING, audit=True),
        Code("fill-overflows", Subject.VALUES, audit=True),
        Code("fill-too-weak", Subject.VALUES, audit=True),
        Code("integer-bias", Subject.VALUES, Severity.WARNING, audit=True),
        Code("integer-wrapped", Subject.VALUES, audit=True),
        Code("nan-value", Subject.VALUES),
        Code("no-values", Subject.VALUES, Severity.WARNING),
        Code("odd-values", Subject.VALUES),
        Code("positive-value", Subject.VALUES, audit=True),
        Code("summed-fills", Subject.VALUES, Severity.WARNING, audit=True),
        Code("wrong-dtype", Subject.VALUES),
        Code("wrong-form", Subject.VALUES),
        Code("zero-one-added", Subject.VALUES, audit=True),
        Code("wrong-device", Subject.VALUES),
        # Its shape
        Code("batch-on-heads", Subject.SHAPE, audit=True, root_cause=True),
        Code("batch-on-queries", Subject.SHAPE, root_cause=True),
        Code("does-not-broadcast", Subject.SHAPE),
        Code("does-not-fit", Subject.SHAPE),
        Code("keys-mismatch", Subject.SHAPE),
        Code("queries-mismatch", Subject.SHAPE),
        Code("wrong-rank", Subject.SHAPE),
        # Its cells
        Code("aligned-lower-right", Subject.CELLS, audit=True, root_cause=True),
        Code("aligned-upper-left", Subject.CELLS, audit=True, root_cause=True),
        Code("differs", Subject.CELLS),
        Code("documents-leak", Subject.CELLS, audit=True),
        Code("empty-row", Subject.CELLS),
        Code("future-visible", Subject.CELLS, audit=True),
        Code("inverted", Subject.CELLS, audit=True, root_cause=True),
        Code("own-position-hidden", Subject.CELLS, audit=True),
        Code("padding-on-queries", Subject.CELLS, audit=True, root_cause=True),
        Code("padding-visible", Subject.CELLS, audit=True),
        Code("queries-and-keys-swapped", Subject.CELLS, audit=True, root_cause=True),
        Code("real-key-hidden", Subject.CELLS),
        Code("window-missing", Subject.CELLS, audit=True),
        Code("window-off-by-one", Subject.CELLS, audit=True),
        Code("window-too-narrow", Subject.CELLS),
        Code("window-too-wide", Subject.CELLS),
        # A model: reported by the audit only
        *(
            Code(name, Subject.MODEL, lint=False, audit=True)
            for name in (
                *("after-softmax", "attends-across-batch", "depends-on-masked", "dtype-differs"),
                *("empty-row-nan", "ignores-input", "length-dependent", "mask-missing"),
                *("missing-in-layer", "mixes-sequences", "not-deterministic", "not-finite"),
                *("not-through-attention", "order-of-batch", "path-differs", "positions-shifted"),
                *("raises", "step-differs", "too-narrow"),
            )
        ),
    )
}


def meaning_of(code: str, lang: str = "en") -> str:
    """Returns what a code means, in English ("en") or Chinese ("zh"); "" for an unknown code."""
    return render(CODES[code].meaning, lang) if code in CODES else ""


def fix_of(code: str, lang: str = "en") -> str:
    """Returns how to fix what a code means, in English or Chinese; "" for an unknown code."""
    return render(CODES[code].fix, lang) if code in CODES else ""


@dataclass(frozen=True)
class Finding:
    """One problem of a mask: what it is, the first cell that shows it, and how to fix it.

    A finding is data: a code and a reason. Its texts are rendered in English or Chinese.

    Args:
        code: One of the codes that the documentation lists.
        reason: The problem, as the code of a message and its parameters.
        cell: (batch, head, query, key), indices of the mask's dense array; None if the finding is
            not about a single cell.

    >>> import maskwright as mw
    >>> [finding] = mw.lint([[1, 1], [1, 1]], causal=True)
    >>> finding.code, finding.severity.value, finding.cell
    ('future-visible', 'error', Cell(batch=0, head=0, query=0, key=1))
    >>> print(finding)
    future-visible: Query 0 attends to key 1, a later position. Combine the mask with causal().
    >>> finding.message, finding.fix
    ('Query 0 attends to key 1, a later position.', 'Combine the mask with causal().')
    >>> finding.text("zh")
    'future-visible：查询 0 关注键 1，而它的位置更靠后。将掩码与 causal() 取交集（&）。'
    """

    code: str
    reason: Reason
    cell: Cell | None = None

    @property
    def severity(self) -> Severity:
        """How serious the finding is."""
        return CODES[self.code].severity

    @property
    def message(self) -> str:
        """The problem, as an English sentence."""
        return render(self.reason)

    @property
    def fix(self) -> str:
        """What to do about it, as an English sentence."""
        return render(CODES[self.code].fix)

    def text(self, lang: str = "en") -> str:
        """Returns the finding as one line.

        Args:
            lang: "en" or "zh".

        Raises:
            ArgumentError: If the language is unknown.
        """
        fix = CODES[self.code].fix
        params = {"code": self.code, "reason": self.reason, "fix": fix}
        return render(Reason("lint.finding", params), lang)

    def as_dict(self, lang: str = "en") -> dict[str, Any]:
        """Returns the finding as plain data for JSON, with its texts in this language.

        >>> import maskwright as mw
        >>> finding = mw.lint([[1, 1], [1, 1]], causal=True)[0].as_dict()
        >>> finding["cell"]
        {'batch': 0, 'head': 0, 'query': 0, 'key': 1}
        >>> finding["reason"]["code"], finding["reason"]["params"]["key"]
        ('future-visible.message', 1)
        """
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": render(self.reason, lang),
            "fix": render(CODES[self.code].fix, lang),
            "cell": None if self.cell is None else self.cell._asdict(),
            "reason": _as_plain_data(self.reason),
        }

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, repr=False)
class LintReport:
    """The findings of `lint`, a sequence; root causes come first. `.ok` is True if it is empty.

    A report has no boolean value, because `if lint(mask)` could be read both ways.

    >>> import maskwright as mw
    >>> report = mw.lint([[0, 1], [0, 0]], causal=True)
    >>> report.ok, len(report), report.codes
    (False, 1, ('inverted',))
    >>> mw.lint([[1, 0], [1, 1]], causal=True)
    no findings
    """

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no findings.

        >>> import maskwright as mw
        >>> mw.lint(mw.causal(), q_len=4).ok
        True
        """
        return not self.findings

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, in order.

        >>> import maskwright as mw
        >>> mw.lint([[0.0, 1.0], [1.0, 1.0]]).codes
        ('zero-one-added',)
        """
        return tuple(finding.code for finding in self.findings)

    def text(self, lang: str = "en") -> str:
        """Returns the report as text, one line per finding.

        Args:
            lang: "en" or "zh".

        Raises:
            ArgumentError: If the language is unknown.

        >>> import maskwright as mw
        >>> mw.lint(mw.causal(), q_len=4).text("zh")
        '没有发现问题'
        """
        if not self.findings:
            return render(Reason("lint.no_findings"), lang)
        return "\n".join(finding.text(lang) for finding in self.findings)

    def as_dict(self, lang: str = "en") -> dict[str, Any]:
        """Returns the report as plain data for JSON, with its texts in this language.

        >>> import json
        >>> import maskwright as mw
        >>> json.dumps(mw.lint(mw.causal(), q_len=4).as_dict())
        '{"ok": true, "findings": []}'
        """
        return {"ok": self.ok, "findings": [finding.as_dict(lang) for finding in self.findings]}

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def __bool__(self) -> NoReturn:
        raise TruthError("A lint report has no boolean value. Use report.ok.")

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook displays: a table of the findings."""
        if self.ok:
            return f"<p>{escape(str(self))}</p>"
        rows = "".join(
            f"<tr><td>{finding.severity.value}</td><td><code>{finding.code}</code></td>"
            f"<td>{escape(finding.message)}</td><td>{escape(finding.fix)}</td></tr>"
            for finding in self.findings
        )
        head = "".join(f"<th>{name}</th>" for name in ("severity", "code", "finding", "fix"))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


class Checks(Generic[InputT]):
    """Checks of one kind of input. A check is a function that yields findings.

    `register` adds a check, in the order of the report, and names the codes that it reports.

    >>> checks = Checks[int]()
    >>> @checks.register("window-missing")
    ... def check(size: int):
    ...     if size > 3:
    ...         yield make_finding("window-missing", message="window.back", window="w",
    ...                            expected=3, actual=size)
    >>> [finding.code for finding in checks.run(4)]
    ['window-missing']
    >>> checks.register("no-such-code")
    Traceback (most recent call last):
    LookupError: no-such-code is not in maskwright.linting.codes.CODES
    """

    def __init__(self) -> None:
        self.entries: dict[Check[InputT], tuple[str, ...]] = {}

    def register(self, *codes: str) -> Callable[[Check[InputT]], Check[InputT]]:
        """Returns a decorator that adds a check, which reports these codes."""
        for code in codes:
            if code not in CODES:
                raise LookupError(f"{code} is not in maskwright.linting.codes.CODES")

        def add(check: Check[InputT]) -> Check[InputT]:
            self.entries[check] = codes
            return check

        return add

    def run(self, value: InputT) -> Iterator[Finding]:
        """Yields the findings of all checks."""
        for check in self.entries:
            yield from check(value)


def make_finding(
    code: str, cell: Cell | None = None, *, message: str = "", **params: object
) -> Finding:
    """Returns a finding with the message `<code>.message`, or another one."""
    return Finding(code, Reason(message or f"{code}.message", params), cell)


def _as_plain_data(value: Any) -> Any:
    """Reasons as dicts, tuples as lists, and infinities and NaN as strings: fit for JSON."""
    if isinstance(value, Reason):
        params = {name: _as_plain_data(param) for name, param in value.params.items()}
        return {"code": value.code, "params": params}
    if isinstance(value, (tuple, list)):
        return [_as_plain_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
