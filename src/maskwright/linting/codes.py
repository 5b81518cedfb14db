"""The codes of all findings, of lint and of the audit: one table.

A code is one entry in `CODES`, a meaning and a fix in `messages/findings_en.py`, and the same in
`messages/findings_zh.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Mapping


class Severity(Enum):
    """How serious a finding is."""

    ERROR = "error"  # attention fails, or its output is wrong
    WARNING = "warning"  # the output is wrong only in some uses of the mask


class Subject(Enum):
    """What a finding is about."""

    VALUES = "values"  # of a mask array: numbers, dtype, device
    SHAPE = "shape"  # of a mask array
    CELLS = "cells"  # which queries attend to which keys
    MODEL = "model"  # how a model uses its mask, or what it does beside attention


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
        # Values of a mask array
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
        # A model
        Code("after-softmax", Subject.MODEL, lint=False, audit=True),
        Code("attends-across-batch", Subject.MODEL, lint=False, audit=True),
        Code("dtype-differs", Subject.MODEL, lint=False, audit=True),
        Code("empty-row-nan", Subject.MODEL, lint=False, audit=True),
        Code("ignores-input", Subject.MODEL, lint=False, audit=True),
        Code("mask-missing", Subject.MODEL, lint=False, audit=True),
        Code("missing-in-layer", Subject.MODEL, lint=False, audit=True),
        Code("not-finite", Subject.MODEL, lint=False, audit=True),
        Code("not-through-attention", Subject.MODEL, lint=False, audit=True),
        Code("order-of-batch", Subject.MODEL, lint=False, audit=True),
        Code("path-differs", Subject.MODEL, lint=False, audit=True),
        Code("positions-shifted", Subject.MODEL, lint=False, audit=True),
        Code("raises", Subject.MODEL, lint=False, audit=True),
        Code("step-differs", Subject.MODEL, lint=False, audit=True),
        Code("too-narrow", Subject.MODEL, lint=False, audit=True),
    )
}


def meaning_of(code: str, lang: str = "en") -> str:
    """Returns what a code means, in English ("en") or Chinese ("zh"); "" for an unknown code."""
    return render(CODES[code].meaning, lang) if code in CODES else ""


def fix_of(code: str, lang: str = "en") -> str:
    """Returns how to fix what a code means, in English or Chinese; "" for an unknown code."""
    return render(CODES[code].fix, lang) if code in CODES else ""
