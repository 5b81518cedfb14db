"""What a check found: findings, and the report that holds them. Plain data, nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from maskwright.errors import TruthError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.expr import Cell


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a mask: what, where it shows first, and what to do.

    `cell` is (batch, head, query, key), counted as in the mask's dense array; None where no single
    cell is meant.

    >>> import maskwright as mw
    >>> [finding] = mw.lint([[1, 1], [1, 1]], causal=True)
    >>> finding.code, finding.cell
    ('future-visible', Cell(batch=0, head=0, query=0, key=1))
    >>> print(finding)
    future-visible: Query 0 may see key 1, which comes later. Combine the mask with causal().
    """

    code: str
    message: str
    fix: str
    cell: Cell | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain data, fit for JSON.

        >>> import maskwright as mw
        >>> mw.lint([[1, 1], [1, 1]], causal=True)[0].as_dict()["cell"]
        {'batch': 0, 'head': 0, 'query': 0, 'key': 1}
        """
        cell = None if self.cell is None else self.cell._asdict()
        return {"code": self.code, "message": self.message, "fix": self.fix, "cell": cell}

    def __str__(self) -> str:
        return f"{self.code}: {self.message} {self.fix}"


@dataclass(frozen=True, repr=False)
class LintReport:
    """What `lint` found: a sequence of findings, the gravest cause first. Ask `.ok` whether there is none.

    A report is neither true nor false, because `if lint(mask)` could be read both ways.

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
        """Whether nothing was found.

        >>> import maskwright as mw
        >>> mw.lint(mw.causal(), q_len=4).ok
        True
        """
        return not self.findings

    @property
    def codes(self) -> tuple[str, ...]:
        """The findings' codes, in order.

        >>> import maskwright as mw
        >>> mw.lint([[0.0, 1.0], [1.0, 1.0]]).codes
        ('zero-one-added',)
        """
        return tuple(finding.code for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data, fit for JSON.

        >>> import json
        >>> import maskwright as mw
        >>> json.dumps(mw.lint(mw.causal(), q_len=4).as_dict())
        '{"ok": true, "findings": []}'
        """
        return {"ok": self.ok, "findings": [finding.as_dict() for finding in self.findings]}

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    def __bool__(self) -> NoReturn:
        raise TruthError("A lint report is neither true nor false. Ask report.ok.")

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no findings"

    __repr__ = __str__
