"""Cycles of the phases of the kernel."""

from __future__ import annotations

import pytest

import maskwright as mw
from maskwright.engine.doctor import phase_cycles
from tests._helpers.native_kernel import call_of, inputs, isa, needs_kernel, run_native

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

TILES = {
    *("pack K and V", "scores", "softmax", "P V", "write results"),
    *("backward: prepare rows", "backward: P and dS", "backward: dQ", "backward: dK and dV"),
}
ROWS = {"pack K and V", "rows of scattered masks", "write results"}


@pytest.mark.parametrize(
    ("mask", "phases"),
    [(mw.causal(), TILES), (mw.image(12, 12, radius=2), ROWS)],
    ids=["tiles", "rows"],
)
def test_phases_that_run_are_counted(mask: mw.Mask, phases: set[str]) -> None:
    x = inputs(q_len=144)
    found = phase_cycles(lambda: run_native(call_of(mask, x), x))
    assert {name for name, cycles in found.items() if cycles > 0} == phases


def test_counting_starts_at_zero_and_stops() -> None:
    x = inputs(q_len=144)
    call = call_of(mw.causal(), x)
    phase_cycles(lambda: run_native(call, x))
    run_native(call, x)
    assert not any(phase_cycles(lambda: None).values())


def test_results_do_not_depend_on_profiling() -> None:
    x = inputs(q_len=144)
    call = call_of(mw.window(back=40), x)
    found = []
    phase_cycles(lambda: found.append(run_native(call, x)))
    plain = run_native(call, x)
    assert all(mine.equal(other) for mine, other in zip(found[0], plain, strict=True))
