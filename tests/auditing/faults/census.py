"""Audit all faults, record what the audit says, and summarise it."""

from __future__ import annotations

import importlib
import json
import pkgutil
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import maskwright as mw
from maskwright.auditing.probes import PROBES, variants
from tests.auditing import faults
from tests.auditing.faults.registry import FAULTS, Case, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.auditing.model_under_test import ModelUnderTest
    from maskwright.messages import Reason

SURE = {"P", "PI", "BI", "PC", "N"}  # every fault with one of these symptoms must be found
FAST_PROBES = tuple(probe for probe in PROBES if probe != "paths")  # which compiles the model
RECORDS = Path(__file__).with_name("census.jsonl")
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
    from tests.auditing.faults.symptoms import SYMPTOMS, half_precision_differs

    known = {**SYMPTOMS, **RUN_SYMPTOMS}
    if dtype is not None:
        known["H"] = partial(half_precision_differs, dtypes=(dtype,))
    for key in fault.checks:
        faulty, healthy = (
            _size(known[key], in_dtype(fault.build(x), dtype)) for x in (True, False)
        )
        if faulty > 1e-3 and faulty > 3 * healthy:
            return True
    return False


def _size(symptom: Callable[[Case], float], case: Case) -> float:
    """The size of a symptom; infinite if the model raises, as one whose fill overflows does."""
    try:
        return symptom(case)
    except RuntimeError:
        return float("inf")


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


# ── the record of a census ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Record:
    """The audits of a fault and of its twin in one dtype.

    Args:
        dtype: The dtype.
        fault: The name of the fault.
        exists: Whether the fault shows a symptom in this dtype; if not, only the twin is audited.
        found: Whether there is a finding.
        named: Whether the cause is one of the expected ones.
        placed: Whether the layer is the expected one; None if no single layer is at fault.
        cause: The cause that is named.
        status: The status of the report.
        passes: Number of times that the model was run.
        twin_status: The status of the report on the twin.
        twin_passes: Number of times that the twin was run.
        alarms: The findings on the twin.
    """

    dtype: str
    fault: str
    exists: bool
    found: bool
    named: bool
    placed: bool | None
    cause: str | None
    status: str
    passes: int
    twin_status: str
    twin_passes: int
    alarms: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Whether the fault is found, with its cause and its layer, and the twin has no finding."""
        found = self.found and self.named and self.placed is not False
        return (found or not self.exists) and not self.alarms


def examine(fault: Fault, dtype: str) -> Record:
    """Audits a fault and its twin. Every third twin is compiled as well, which takes longest."""
    other = DTYPES[dtype]
    every = all_faults().index(fault) % 3 == 0
    with nullcontext() if every else without_compiling():
        twin = audit(in_dtype(fault.build(False), other))
    quiet = (twin.status.value, twin.passes, tuple(str(one) for one in twin.findings))
    if dtype != "float32" and not shows_symptom(fault, other):
        return Record(dtype, fault.name, False, False, False, None, None, "", 0, *quiet)
    one = Entry(fault, audit(in_dtype(fault.build(True), other)))
    said = (one.found, one.named, one.placed, one.report.cause)
    status = one.report.status.value
    return Record(dtype, fault.name, True, *said, status, one.report.passes, *quiet)


@contextmanager
def without_compiling() -> Iterator[None]:
    """Leaves torch.compile out of the probe paths."""
    real = variants.default_variants

    def fewer(tested: ModelUnderTest) -> list[tuple[Reason, variants.Variant]]:
        return [(case, run) for case, run in real(tested) if run is not variants.compiled]

    variants.default_variants = fewer
    try:
        yield
    finally:
        variants.default_variants = real


def read_records(path: Path = RECORDS) -> list[Record]:
    """The records of the last census."""
    lines = path.read_text().splitlines()[1:]
    return [
        Record(**{**json.loads(line), "alarms": tuple(json.loads(line)["alarms"])})
        for line in lines
    ]


def summary(records: list[Record]) -> dict[str, str]:
    """Numbers of faults found, named and placed, and of alarms, in one dtype."""
    faults = {fault.name: fault for fault in all_faults()}
    real = [r for r in records if r.exists]
    sure = [r for r in real if SURE & {*faults[r.fault].checks}]
    layered = [r for r in real if r.placed is not None]
    silent = sum(r.status == "passed" for r in real)
    return {
        "found": _share(sum(r.found for r in real), len(real)),
        "found, of leaks, padding, batches, steps and NaN": _share(
            sum(r.found for r in sure), len(sure)
        ),
        "cause named": _share(sum(r.named for r in real), len(real)),
        "layer named": _share(sum(bool(r.placed) for r in layered), len(layered)),
        "not found, and reported as passed": str(silent),
        "false positives on healthy twins": f"{sum(bool(r.alarms) for r in records)} of {len(records)}",
        "healthy twins reported as passed": _share(
            sum(r.twin_status == "passed" for r in records), len(records)
        ),
        "largest number of passes": str(max(max(r.passes, r.twin_passes) for r in records)),
    }


def _share(some: int, whole: int) -> str:
    return f"{some} of {whole} ({some / max(whole, 1):.1%})"


def table(records: list[Record]) -> str:
    """The audits in one dtype by family, in Markdown."""
    faults = {fault.name: fault for fault in all_faults()}
    lines = ["| fault | seen in | faults | found | cause | layer |", "|---|---|---|---|---|---|"]
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(faults[record.fault].family, []).append(record)
    for family, own in families.items():
        layered = [r for r in own if r.placed is not None]
        layer = f"{sum(bool(r.placed) for r in layered)} of {len(layered)}" if layered else ""
        lines.append(
            f"| {family} | {faults[own[0].fault].after} | {len(own)} | {sum(r.found for r in own)} "
            f"| {sum(r.named for r in own)} | {layer} |"
        )
    return "\n".join(lines)


def page(records: list[Record]) -> str:
    """The table of faults in docs/audit.md: by family in float32, and the numbers of each dtype."""
    parts = []
    for dtype in DTYPES:
        own = [r for r in records if r.dtype == dtype]
        parts += [table(own)] if not parts else []
        counts = "\n".join(f"- {what}: {count}" for what, count in summary(own).items())
        parts.append(f"**{dtype}**\n\n{counts}")
    return "\n\n".join(parts)
