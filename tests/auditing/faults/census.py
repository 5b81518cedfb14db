"""Audit all faults, and summarise what the audit says."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, replace

import torch
from torch import nn

import maskwright as mw
from tests.auditing import faults
from tests.auditing.faults.registry import FAULTS, Case, Fault

SURE = {"P", "PI", "BI", "PC", "N"}  # every fault with one of these symptoms must be found
DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def all_faults() -> list[Fault]:
    """Every fault, in the order of the modules."""
    for module in sorted(pkgutil.iter_modules(faults.__path__), key=lambda m: m.name):
        if not module.name.startswith(("test_", "_")):
            importlib.import_module(f"{faults.__name__}.{module.name}")
    return FAULTS


def audit(case: Case, probes: tuple[str, ...] | None = None) -> mw.AuditReport:
    """Audit a case; with these probes only, unless the case names its own."""
    torch.manual_seed(0)
    options = {"probes": probes, **case.options}
    return mw.audit(case.model, case.inputs, expects=case.expects, **options)


def in_dtype(case: Case, dtype: torch.dtype | None) -> Case:
    """The same case with a model in another dtype; its own if None."""
    if dtype is None or not isinstance(case.model, nn.Module):
        return case
    inputs = {
        name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in case.inputs.items()
    } if isinstance(case.inputs, dict) else case.inputs  # fmt: skip
    return replace(case, model=case.model.to(dtype), inputs=inputs)


def shows_symptom(fault: Fault, dtype: torch.dtype | None) -> bool:
    """Whether the fault exists in this dtype: a symptom is larger than that of its healthy twin.

    A fill that overflows float16, for example, is no fault in bfloat16.
    """
    from tests.auditing.faults.run_symptoms import RUN_SYMPTOMS
    from tests.auditing.faults.symptoms import SYMPTOMS

    known = {**SYMPTOMS, **RUN_SYMPTOMS}
    for key in fault.checks:
        faulty, healthy = (known[key](in_dtype(fault.build(x), dtype)) for x in (True, False))
        if faulty > 1e-3 and faulty > 3 * healthy:
            return True
    return False


@dataclass(frozen=True)
class Entry:
    """A fault and its audit."""

    fault: Fault
    report: mw.AuditReport

    @property
    def found(self) -> bool:
        """Whether the audit found anything."""
        return bool(self.report.findings)

    @property
    def named(self) -> bool:
        """Whether the audit named the cause."""
        return self.report.cause in self.fault.causes

    @property
    def placed(self) -> bool | None:
        """Whether the audit named the layer. None if no single layer is at fault."""
        if self.fault.layer is None:
            return None
        said = self.report.layer or ""
        return said.startswith(self.fault.layer) or (
            bool(said) and self.fault.layer.startswith(said)
        )


def summary(entries: list[Entry]) -> dict[str, tuple[int, int]]:
    """Numbers of faults found, named and placed: (count, total)."""
    sure = [e for e in entries if SURE & {*e.fault.checks}]
    layered = [e for e in entries if e.placed is not None]
    return {
        "found": (sum(e.found for e in entries), len(entries)),
        "found, of leaks, padding, batches, steps and NaN": (sum(e.found for e in sure), len(sure)),
        "cause named": (sum(e.named for e in entries), len(entries)),
        "layer named": (sum(bool(e.placed) for e in layered), len(layered)),
    }


def table(entries: list[Entry]) -> str:
    """The audits by family, in Markdown."""
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
