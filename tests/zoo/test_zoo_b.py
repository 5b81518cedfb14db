"""Every fault of this part shows what it should, and its healthy twin shows nothing at all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch

from tests.thinned import thinned
from tests.zoo import caches, calls, numbers, numbers_half, packing, paths, paths_masks, windows
from tests.zoo.case import FAULTS, Fault
from tests.zoo.symptoms_b import SYMPTOMS, run

if TYPE_CHECKING:
    from collections.abc import Iterator

FAMILIES = (
    *(numbers.EMPTY, numbers.HEAD, numbers.LOWEST, numbers.LEFT, numbers_half.HALF),
    *(numbers_half.TOO_LARGE, numbers_half.TWICE, numbers_half.LAST),
    *(caches.CORNER, caches.STATIC, caches.PIECES),
    *(windows.BACKENDS, windows.TRIU, windows.FAST, windows.IGNORED),
    *(packing.VARLEN, packing.PACKED, packing.RING),
    *(paths.DROPOUT, paths.FLAG, paths.NESTED, paths_masks.KIND, paths_masks.RULE),
    *(calls.DEVICE, calls.LONGER),
)
OURS = [fault for fault in FAULTS if fault.family in FAMILIES]

each = pytest.mark.parametrize("fault", OURS, ids=lambda fault: fault.name)
some = pytest.mark.parametrize("fault", thinned(OURS, 4), ids=lambda fault: fault.name)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small are slower on several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_family_has_at_least_three_variants() -> None:
    counted = Counter(fault.family for fault in OURS)
    assert len(set(FAMILIES)) == 25
    assert set(counted) == set(FAMILIES)
    assert min(counted.values()) >= 3
    assert len({fault.name for fault in OURS}) == len(OURS) >= 75


@each
def test_twins_have_the_same_weights_and_the_layer_is_there(fault: Fault) -> None:
    sick, healthy, again = fault.sick(), fault.healthy(), fault.sick()
    ours = dict(sick.model.named_parameters())
    for twin in (healthy, again):
        theirs = dict(twin.model.named_parameters())
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    if fault.layer is not None:
        assert fault.layer in dict(sick.model.named_modules())
        assert fault.layer in dict(healthy.model.named_modules())


@each
def test_the_fault_shows(fault: Fault) -> None:
    letters = [letter for letter in fault.checks.split() if letter != "L"]
    if not letters:
        subject = fault.sick()
        with pytest.raises((RuntimeError, NotImplementedError)):
            run(subject.model, subject.inputs).sum().item()
    for letter in letters:
        assert SYMPTOMS[letter](fault.sick()), f"{letter} does not see it"


@some
def test_the_twin_shows_nothing(fault: Fault) -> None:
    for letter, shows in SYMPTOMS.items():
        assert not shows(fault.healthy()), f"{letter} sees something"
