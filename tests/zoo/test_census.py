"""The audit on the zoo: every fault is found, most are named and placed, and no twin is accused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from maskwright.auditing.probes import PROBES
from tests.thinned import ALL, thinned
from tests.zoo.census import Entry, all_faults, run
from tests.zoo.known import OTHERWISE_NAMED, OTHERWISE_PLACED

if TYPE_CHECKING:
    from tests.zoo.case import Fault

FAULTS = all_faults()
QUICK = tuple(probe for probe in PROBES if probe != "paths")  # which compiles the model


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Models this small are slower on several."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("fault", thinned(FAULTS, 3), ids=lambda fault: fault.name)
def test_a_fault_is_found_named_and_placed(fault: Fault) -> None:
    entry = Entry(fault, run(fault.sick), 0.0)
    assert entry.found
    assert entry.named or fault.name in OTHERWISE_NAMED, entry.report
    assert entry.placed is not False or fault.name in OTHERWISE_PLACED, entry.report
    assert entry.report.passes <= 200


@pytest.mark.parametrize("fault", thinned(FAULTS, 6, first=1), ids=lambda fault: fault.name)
def test_a_healthy_twin_is_not_accused(fault: Fault) -> None:
    """Some are asked all that there is to ask; compiling takes long."""
    report = run(fault.healthy, None if ALL or FAULTS.index(fault) % 30 == 1 else QUICK)
    assert report.ok, report
    assert report.passes <= 200


def test_the_zoo_is_large_and_mostly_understood() -> None:
    names = {fault.name for fault in FAULTS}
    layered = [fault for fault in FAULTS if fault.layer is not None]
    assert len(names) == len(FAULTS) >= 130
    assert names >= OTHERWISE_NAMED | OTHERWISE_PLACED
    assert len(OTHERWISE_NAMED) <= 0.2 * len(FAULTS)
    assert len(OTHERWISE_PLACED) <= 0.2 * len(layered)
