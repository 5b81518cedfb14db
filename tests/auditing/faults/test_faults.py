"""Every fault shows its symptoms, and the audit finds it; its healthy twin shows none."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from docs.generate import HERE, filled
from maskwright.linting.codes import CODES
from tests._helpers.sampling import ALL, subset_of_cases
from tests.auditing.faults.census import (
    DTYPES,
    FAST_PROBES,
    Entry,
    all_faults,
    audit,
    in_dtype,
    page,
    read_records,
    shows_symptom,
)
from tests.auditing.faults.known_misses import MISSED, OTHER_CAUSE, OTHER_LAYER
from tests.auditing.faults.run_symptoms import RUN_SYMPTOMS
from tests.auditing.faults.symptoms import HALF_DTYPES, SYMPTOMS, inputs_of, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.auditing.faults.registry import Case, Fault

FAULTS = all_faults()
RECORDED = read_records()
STALE = "run `make audit-faults`"
ALL_SYMPTOMS = {**SYMPTOMS, **RUN_SYMPTOMS}
VISIBLE, CLEAN, CLEAN_HALF = 1e-3, 1e-4, 0.1  # of outputs of size 1


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Faster for models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def every(step: int, first: int = 0) -> Any:
    cases = subset_of_cases(FAULTS, step, first=first)
    return pytest.mark.parametrize("fault", cases, ids=lambda fault: fault.name)


def weights(case: Case) -> dict[str, torch.Tensor]:
    return dict(case.model.named_parameters()) if isinstance(case.model, nn.Module) else {}


@every(6)
def test_audit_finds_fault_cause_and_layer(fault: Fault) -> None:
    entry = Entry(fault, audit(fault.build(True)))
    assert entry.found != (fault.name in MISSED), entry.report
    if not entry.found:
        return
    assert entry.named != (fault.name in OTHER_CAUSE), entry.report
    assert (entry.placed is False) == (fault.name in OTHER_LAYER), entry.report
    assert entry.report.passes <= 200


@every(8, first=1)
def test_audit_of_healthy_twin_is_ok(fault: Fault) -> None:
    """A few twins run with all probes; compiling is slow."""
    report = audit(
        fault.build(False), None if ALL or FAULTS.index(fault) % 40 == 1 else FAST_PROBES
    )
    assert not report.findings, report
    assert report.passes <= 200


@every(24, first=5)
def test_audit_in_bfloat16(fault: Fault) -> None:
    """All of them, and float16: `make audit-faults`."""
    if shows_symptom(fault, torch.bfloat16):
        report = audit(in_dtype(fault.build(True), torch.bfloat16))
        assert bool(report.findings) != (fault.name in MISSED), report
    twin = audit(in_dtype(fault.build(False), torch.bfloat16), FAST_PROBES)
    assert not twin.findings, twin


@every(2)
def test_symptoms_of_fault(fault: Fault) -> None:
    for key in fault.checks:
        assert ALL_SYMPTOMS[key](fault.build(True)) > VISIBLE, key


@every(8)
def test_healthy_twin_has_no_symptoms(fault: Fault) -> None:
    case = fault.build(False)
    half = {weight.dtype for weight in weights(case).values()} & {*HALF_DTYPES}
    numeric = {"H", "N"} & {*fault.checks}
    skipped = {"L"} - {*fault.checks} | (set() if numeric else {"H"})
    for key in [
        *(key for key in SYMPTOMS if key not in skipped),
        *{*fault.checks} & {*RUN_SYMPTOMS},
    ]:
        assert ALL_SYMPTOMS[key](case) < (CLEAN_HALF if half else CLEAN), key


@every(1)
def test_twins_differ_only_in_the_fault(fault: Fault) -> None:
    faulty, healthy = fault.build(True), fault.build(False)
    assert repr(faulty.expects) == repr(healthy.expects)
    assert {*faulty.options} == {*healthy.options}
    ours, theirs = inputs_of(faulty), inputs_of(healthy)
    assert all(torch.equal(ours[name], theirs[name]) for name in {*ours, *theirs})
    ours, theirs = weights(faulty), weights(healthy)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    if fault.layer is not None:
        assert fault.layer in dict(faulty.model.named_modules())


@every(4)
def test_builds_are_reproducible(fault: Fault) -> None:
    torch.rand(7)
    one, other = fault.build(False), fault.build(False)
    assert one.model is not other.model
    assert torch.equal(run(one).nan_to_num(), run(other).nan_to_num())


def test_numbers_of_faults_and_known_misses() -> None:
    names = {fault.name for fault in FAULTS}
    layered = [fault for fault in FAULTS if fault.layer is not None]
    variants = Counter(fault.family for fault in FAULTS)
    assert len(names) == len(FAULTS) >= 179 + 100
    assert len(variants) >= 45 + 25
    assert names >= MISSED | OTHER_CAUSE | OTHER_LAYER
    assert {cause for fault in FAULTS for cause in fault.causes} <= {*CODES}
    assert len(MISSED) <= 0.03 * len(FAULTS)
    assert len(OTHER_CAUSE) <= 0.2 * len(FAULTS)
    assert len(OTHER_LAYER) <= 0.2 * len(layered)


# ── the recorded census ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES)
def test_census_is_complete_and_has_no_false_positives(dtype: str) -> None:
    own = [record for record in RECORDED if record.dtype == dtype]
    assert [record.fault for record in own] == [fault.name for fault in FAULTS], STALE
    real = [record for record in own if record.exists]
    assert sum(record.found for record in real) >= (0.97 if dtype == "float32" else 0.95) * len(
        real
    )
    assert not [record.fault for record in own if record.alarms]
    assert not [record.fault for record in real if not record.found and record.status == "passed"]


def test_known_misses_are_those_of_the_census() -> None:
    own = [record for record in RECORDED if record.dtype == "float32"]
    assert {r.fault for r in own if not r.found} == MISSED
    assert {r.fault for r in own if r.found and not r.named} == OTHER_CAUSE
    assert {r.fault for r in own if r.found and r.placed is False} == OTHER_LAYER


def test_page_shows_the_census() -> None:
    text = (HERE / "audit.md").read_text()
    assert filled(text, "faults", page(RECORDED), "audit-faults") == text, STALE
