"""MagiAttention's slices: the dense mask of its tests, and of maskwright's lowering."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import maskwright as mw
from conformance.cells import check_cells
from conformance.runners import run_functions
from conformance.sources import version_in
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

RELEASE = "v1.1.1"
CASES = 300
Slices = list[tuple[int, int, int, int, int]]  # first query, stop, first key, stop, type


def run(sources: Sources) -> Runs:
    """Drawn slices, and maskwright's slices of the same cells, by `make_attn_mask_from_ffa_args`."""
    path = "magi_attention/utils/_utils.py"
    folder = sources.clone("MagiAttention", "SandAI-org/MagiAttention", RELEASE, path)
    release = version_in(folder / "pyproject.toml", r'default-version = "(.+?)"')
    package = ModuleType("magi_attention")  # without what its `__init__` needs of CUDA
    package.__path__ = [str(folder / "magi_attention")]
    sys.modules["magi_attention"] = package
    from magi_attention.utils import make_attn_mask_from_ffa_args as make

    generator = np.random.default_rng(0)
    tests = {}
    for index in range(CASES):
        shape, slices = draw(generator)
        theirs = partial(dense, make, shape, slices)
        name = f"{index}: {shape}, {slices}"
        tests[name] = partial(check_cells, theirs, partial(lower, make, shape, slices))
    return run_functions(f"MagiAttention {release}", tests)


def draw(generator: np.random.Generator) -> tuple[tuple[int, int], Slices]:
    """The numbers of queries and keys, and slices of all four types, one after the other."""
    q_len, kv_len = (int(size) for size in generator.integers(4, 40, 2))
    count = int(generator.integers(1, 5))
    cuts = np.sort(generator.integers(0, q_len + 1, 2 * count)).reshape(-1, 2)
    slices = []
    for first, stop in cuts.tolist():
        left, right = np.sort(generator.integers(0, kv_len + 1, 2)).tolist()
        if first < stop and left < right:
            slices.append((first, stop, left, right, int(generator.integers(4))))
    return (q_len, kv_len), slices


def dense(make: Any, shape: tuple[int, int], slices: Slices) -> np.ndarray:
    """The cells of slices by MagiAttention."""
    ranges = [
        [SimpleNamespace(start=s[at], end=s[at + 1], seqlen=s[at + 1] - s[at]) for s in slices]
        for at in (0, 2)
    ]
    mask = make(*ranges, [s[4] for s in slices], *shape, device="cpu")
    cells: np.ndarray = mask.numpy()
    return cells


def lower(make: Any, shape: tuple[int, int], slices: Slices) -> np.ndarray:
    """The cells of maskwright's slices of the same mask, by MagiAttention."""
    cells = dense(make, shape, slices)
    lowered = mw.lower(mw.dense(cells).on(*shape), "magi")
    columns = (lowered["q_ranges"], lowered["k_ranges"], lowered["attn_type_map"][:, None])
    rows = np.concatenate([column.numpy() for column in columns], 1)
    return dense(make, shape, [tuple(row) for row in rows.tolist()])  # type: ignore[misc]


SUITE = Suite(
    "magi",
    f"{CASES} drawn sets of slices, lowered again, by `make_attn_mask_from_ffa_args` of the tests",
    "the slices",
    run,
)
