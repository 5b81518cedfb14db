"""The census: every fault of the zoo audited, and what the audit said to it."""

from __future__ import annotations

import importlib
import pkgutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

import maskwright as mw
import tests.zoo
from tests.zoo.case import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.zoo.case import Fault, Subject

SURE = ("P", "PI", "BI", "PC", "N")  # kinds of which every fault must be found


def all_faults() -> list[Fault]:
    """Every fault that is planted, in the order of the files."""
    for found in sorted(pkgutil.iter_modules(tests.zoo.__path__), key=lambda m: m.name):
        if not found.name.startswith(("test_", "_")):
            importlib.import_module(f"tests.zoo.{found.name}")
    return FAULTS


def run(build: Callable[[], Subject], probes: tuple[str, ...] | None = None) -> mw.AuditReport:
    """Audit what is built; by these probes alone, where the subject itself does not say by which."""
    torch.manual_seed(0)
    subject = build()
    options = {"probes": probes, **subject.options}
    return mw.audit(subject.model, subject.inputs, expects=subject.expects, **options)


@dataclass(frozen=True)
class Entry:
    """A fault, and what came of auditing it and its twin."""

    fault: Fault
    report: mw.AuditReport
    seconds: float

    @property
    def found(self) -> bool:
        """Did the audit find anything?"""
        return not self.report.ok

    @property
    def named(self) -> bool:
        """Was the right cause named?"""
        return self.report.cause in self.fault.causes

    @property
    def placed(self) -> bool | None:
        """Was the right layer named? None where no single layer is at fault."""
        if self.fault.layer is None:
            return None
        said = self.report.layer or ""
        return said.startswith(self.fault.layer) or (
            bool(said) and self.fault.layer.startswith(said)
        )


def census(faults: Iterable[Fault] | None = None) -> list[Entry]:
    """All faults, audited."""
    entries = []
    for fault in all_faults() if faults is None else faults:
        began = time.perf_counter()
        report = run(fault.sick)
        entries.append(Entry(fault, report, time.perf_counter() - began))
    return entries


def summary(entries: list[Entry]) -> dict[str, tuple[int, int]]:
    """What was found, named and placed: (how many, of how many)."""
    sure = [e for e in entries if any(kind in e.fault.checks.split() for kind in SURE)]
    layered = [e for e in entries if e.placed is not None]
    return {
        "found": (sum(e.found for e in entries), len(entries)),
        "found, of leaks, padding, batches, steps and NaN": (sum(e.found for e in sure), len(sure)),
        "cause named": (sum(e.named for e in entries), len(entries)),
        "layer named": (sum(bool(e.placed) for e in layered), len(layered)),
    }


def table(entries: list[Entry]) -> str:
    """The census by family, in Markdown."""
    lines = ["| fault | seen in | faults | found | cause | layer |", "|---|---|---|---|---|---|"]
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.fault.family, []).append(entry)
    for family, own in families.items():
        layered = [e for e in own if e.placed is not None]
        layer = f"{sum(bool(e.placed) for e in layered)} of {len(layered)}" if layered else ""
        lines.append(
            f"| {family} | {own[0].fault.after} | {len(own)} | {sum(e.found for e in own)} "
            f"| {sum(e.named for e in own)} | {layer} |"
        )
    return "\n".join(lines)
