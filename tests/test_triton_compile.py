"""Compilation without a GPU: the figures of docs/gpu.md are those of the current kernels."""

from __future__ import annotations

import itertools
import json

import pytest

triton = pytest.importorskip("triton")

from benchmarks import gpu  # noqa: E402
from benchmarks.triton_compile import (  # noqa: E402
    ITEM_SIZES,
    KERNELS,
    TARGETS,
    Variant,
    compile_kernel,
    default_config,
)
from maskwright.engine.backends.triton.config import max_decode_rows  # noqa: E402

DATA = json.loads(gpu.COMPILED.read_text())


def test_figures_are_of_the_current_sources_and_configurations() -> None:
    assert DATA["sources"] == gpu.source_hash(), "run `python -m benchmarks gpu`, then `make docs`"
    listed = [gpu.key_of(row) for row in DATA["kernels"]]
    wanted = gpu.combinations()
    assert listed == [(name, target, tuple(variant)) for name, target, variant in wanted]
    for row, (name, target, variant) in zip(DATA["kernels"], wanted, strict=True):
        assert tuple(row["config"]) == default_config(name, target, variant)


def test_all_kernels_targets_and_dtypes_are_listed() -> None:
    assert {(row["kernel"], row["target"]) for row in DATA["kernels"]} == set(
        itertools.product(KERNELS, TARGETS)
    )
    assert {row["variant"][0] for row in DATA["kernels"]} == set(ITEM_SIZES)


def test_all_default_configurations_are_listed() -> None:
    listed = {(row["kernel"], row["target"], tuple(row["config"])) for row in DATA["kernels"]}
    for target, dtype, dim, is_heavy in itertools.product(
        TARGETS, ("float16", "float32"), gpu.HEAD_DIMS, (False, True)
    ):
        variant = Variant(dtype, dim, dim, terms=is_heavy)
        for name in KERNELS:
            if name != "decode":
                config = default_config(name, target, variant)
                assert (name, target, tuple(config)) in listed
        for rows in (16, 32, 64):
            if rows <= max_decode_rows(ITEM_SIZES[dtype]):
                config = default_config("decode", target, variant._replace(rows=rows))
                assert ("decode", target, tuple(config)) in listed


def test_default_configurations_do_not_spill() -> None:
    assert [row for row in DATA["kernels"] if row["spills"]] == []


def test_half_precision_uses_matrix_instructions() -> None:
    tiled = [row for row in DATA["kernels"] if row["kernel"] not in ("merge", "delta")]
    half = [row for row in tiled if row["variant"][0] != "float32"]
    assert half
    assert all(row["mma_instructions"] > 0 for row in half)


@pytest.mark.skipif(triton.__version__ != DATA["triton"], reason="figures of another version")
@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_figures_can_be_reproduced(target: str) -> None:
    wanted = ("decode", target, Variant())
    right = next(row for row in DATA["kernels"] if gpu.key_of(row) == wanted)
    found = compile_kernel(*wanted)
    assert json.loads(json.dumps(found._asdict())) == right
