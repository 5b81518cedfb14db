"""Measuring the cost table: every number is there and positive, and the planner can use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.engine import calibrate
from maskwright.engine.costs import Costs, read_costs, write_costs
from maskwright.engine.plan import make_plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Costs]:
    monkeypatch.setattr(calibrate, "HEIGHTS", (1, 8, 32))
    monkeypatch.setattr(calibrate, "CELLS", 2**8)
    return dict(calibrate.measure(rounds=1))


def test_both_directions_are_measured(measured: dict[str, Costs], tmp_path: Path) -> None:
    assert list(measured) == ["forward", "backward"]
    for costs in measured.values():
        assert costs.heights == (1, 8, 32)
        assert all(cell > 0 for cell in (*costs.cell, *costs.masked))
        assert all(row >= 0 for row in costs.row)
        assert min(costs.causal_cell, costs.call, costs.gather, costs.copy, costs.merge) > 0
        assert min(costs.native_cell, costs.native_call) > 0
    path = write_costs(measured, calibrate.machine(), tmp_path / "costs.json")
    assert read_costs(path) == measured


def test_a_taller_strip_is_never_dearer_by_the_cell(measured: dict[str, Costs]) -> None:
    for costs in measured.values():
        assert list(costs.cell) == sorted(costs.cell, reverse=True)


def test_the_planner_takes_it(measured: dict[str, Costs]) -> None:
    bound = mw.window(back=3).on(64)
    plan = make_plan(bound.spans, 1, 1, measured["forward"])
    assert plan.useful == bound.count()
    assert plan.nanoseconds > 0
