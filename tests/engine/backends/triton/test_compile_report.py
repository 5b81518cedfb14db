"""Compilation without a GPU: the figures of docs/gpu.md are those of the current kernels."""

from __future__ import annotations

import json

import pytest
import triton

from benchmarks import gpu
from maskwright.engine.backends.triton.compile_report import compile_kernel

DATA = json.loads(gpu.COMPILED.read_text())


def test_figures_are_of_the_current_sources() -> None:
    assert DATA["sources"] == gpu.source_hash(), "run `python -m benchmarks gpu`, then `make docs`"
    listed = [gpu.key_of(row) for row in DATA["kernels"]]
    assert listed == [tuple(options.values()) for options in gpu.combinations()]


def test_no_default_configuration_spills() -> None:
    assert len(DATA["kernels"]) == 92
    assert {row["terms"] for row in DATA["kernels"]} == {False, True}
    assert [row for row in DATA["kernels"] if row["spills"]] == []


@pytest.mark.skipif(triton.__version__ != DATA["triton"], reason="figures of another version")
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_figures_can_be_reproduced(target: str) -> None:
    wanted = ("decode", target, 64, "float16", True, False)
    right = next(row for row in DATA["kernels"] if gpu.key_of(row) == wanted)
    found = compile_kernel(*wanted[:4])
    assert {**found._asdict(), "config": list(found.config)} == right
