"""Every fault shows what it should, measured by hand, and its healthy twin shows nothing at all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.thinned import thinned
from tests.zoo import axes, beams, padding, positions, slots, softmax, values
from tests.zoo.case import FAULTS, Fault
from tests.zoo.symptoms import SYMPTOMS, given, run

if TYPE_CHECKING:
    from collections.abc import Iterator

FAMILIES = {
    values.INVERTED,
    values.ADDED,
    values.PREPARED,
    values.WRAPPED,
    softmax.MULTIPLIED,
    softmax.AFTER,
    softmax.DROPPED,
    axes.QUERIES,
    axes.ON_HEADS,
    axes.BATCH_FIRST,
    axes.OFFSET,
    positions.SHIFTED,
    positions.SCORING,
    padding.GENERATING,
    padding.SINGLE,
    padding.CROSS,
    padding.ENCODER,
    beams.NOT_ALONG,
    slots.LISTED,
    slots.IGNORED,
}
PLANTED = [fault for fault in FAULTS if fault.family in FAMILIES]
SEEN, CLEAN = 1e-3, 1e-4  # of outputs of size 1


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Several threads only wait for each other over models as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


every_fault = pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.name)
some_faults = pytest.mark.parametrize("fault", thinned(PLANTED, 4), ids=lambda fault: fault.name)


@every_fault
def test_the_fault_shows(fault: Fault) -> None:
    subject = fault.sick()
    found = {letter: SYMPTOMS[letter](subject) for letter in fault.checks.split()}
    assert all(far > SEEN for far in found.values()), found


@some_faults
def test_the_twin_is_healthy(fault: Fault) -> None:
    subject = fault.healthy()
    letters = [letter for letter in SYMPTOMS if letter != "L" or "L" in fault.checks.split()]
    found = {letter: SYMPTOMS[letter](subject) for letter in letters}
    assert all(far < CLEAN for far in found.values()), found


@every_fault
def test_twins_differ_only_in_the_fault(fault: Fault) -> None:
    sick, healthy = fault.sick(), fault.healthy()
    assert repr(sick.expects) == repr(healthy.expects)
    assert {*sick.options} == {*healthy.options}
    mine, its = given(sick), given(healthy)
    assert all(torch.equal(mine[name], its[name]) for name in {*mine, *its})
    if isinstance(sick.model, nn.Module):
        weights = zip(sick.model.parameters(), healthy.model.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in weights)


@some_faults
def test_builds_are_the_same_every_time(fault: Fault) -> None:
    for build in (fault.sick, fault.healthy):
        torch.rand(7)
        one, other = build(), build()
        assert one.model is not other.model
        results: list[Any] = [run(subject, given(subject)) for subject in (one, other)]
        assert torch.equal(results[0].nan_to_num(), results[1].nan_to_num())


@every_fault
def test_the_layer_is_one_of_the_model(fault: Fault) -> None:
    if fault.layer is not None:
        assert fault.layer in dict(fault.sick().model.named_modules())


def test_every_family_has_variants() -> None:
    counts = Counter(fault.family for fault in PLANTED)
    assert {*counts} == FAMILIES
    assert len(FAMILIES) == 20
    assert min(counts.values()) >= 4
    assert len({fault.name for fault in PLANTED}) == len(PLANTED)
