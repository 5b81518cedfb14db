"""Share of the floating-point peak that the C kernel reaches under narrow and scattered masks.

A share is the floating-point operations of the visible cells per second, relative to the peak in
float32, also for bfloat16. The peak takes turns of 0.1 s with attention in the same process,
so that other load of the machine affects both. The time of a call is the mean of the best turn. Each
output is compared with SDPA's in float32 before it is timed. Memory that is freed stays with the
process, as in a program that has run for a while: page faults are not part of the times.
"""

from __future__ import annotations

import argparse
import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from benchmarks.attention import FLOPS, Pace, Runner, difference, race
from benchmarks.figures import BOTH, FORWARD
from benchmarks.measure import machine, save, table
from benchmarks.peak import yardstick
from maskwright.engine.native.kernel import loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENS, HEADS, HEAD_DIM = 4_096, 8, 64
SIDE = 64  # of the image
TOLERANCES = {"float32": 1e-3, "bfloat16": 2e-2}  # of the largest number
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h
PACE = Pace(least=7, seconds=0.7, behind=100.0, call=0.1)
ATTENTION, PEAK = "attention", "peak"


def keep_freed_memory() -> None:
    """Lets the C library reuse memory rather than return it to the system, where it is glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_THRESHOLD, 2**30)


def short_documents() -> list[int]:
    """Lengths of 16 to 200 tokens, of which there are `TOKENS` in all."""
    draw = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < TOKENS:
        lengths.append(int(draw.integers(16, 201)))
    lengths[-1] -= sum(lengths) - TOKENS
    return lengths


def draft_tree() -> list[int]:
    """The parent of each token: one of the 64 before it."""
    draw = np.random.default_rng(0)
    return [-1, *(int(draw.integers(max(0, n - 64), n)) for n in range(1, TOKENS))]


def random_blocks() -> np.ndarray:
    """A tenth of the blocks of 64, and the diagonal."""
    count = TOKENS // 64
    return (np.random.default_rng(0).random((count, count)) < 0.1) | np.eye(count, dtype=bool)


MASKS: dict[str, tuple[mw.Mask, float | None]] = {
    "causal": (mw.causal(), None),
    "causal window of 256": (mw.window(back=255), None),
    "causal window of 100": (mw.window(back=99), 0.68),
    "causal documents of 16 to 200": (mw.recipes.packed(lengths=[short_documents()]), 0.62),
    "image, radius 5": (mw.image(SIDE, SIDE, radius=5), 0.40),
    "image, radius 2": (mw.image(SIDE, SIDE, radius=2), 0.30),
    "tree": (mw.tree(draft_tree()), None),
    "blocks of 64": (mw.blocks(random_blocks(), 64), None),
}
"""Each mask, and the goal of the forward pass in float32. With the backward it is 10 points lower."""


def measure(
    name: str, mode: str, dtype: str = "float32", pace: Pace | None = None
) -> dict[str, Any]:
    """Compares attention with SDPA, and returns the best times of attention and of the peak."""
    mask, goal = MASKS[name]
    bound = mask.on(TOKENS, heads=HEADS)
    draw = torch.Generator().manual_seed(0)
    given = [
        torch.randn(1, TOKENS, HEADS, HEAD_DIM, generator=draw)
        .to(getattr(torch, dtype))
        .transpose(1, 2)
        for _ in range(4)
    ]
    inputs, grad = [x.requires_grad_(mode == BOTH) for x in given[:3]], given[3]
    fma = yardstick()

    def attend() -> tuple[torch.Tensor, ...]:
        out = mw.attention(*inputs, bound, impl="native")
        grads = torch.autograd.grad(out, inputs, grad) if mode == BOTH else ()
        return out.detach(), *grads

    runners = [Runner(ATTENTION, attend, prepares=True), Runner(PEAK, lambda: (fma.run(),))]
    outputs, failed = race(runners, pace or PACE)
    if failed:
        raise RuntimeError(f"paths_kernel: {failed}")
    with torch.no_grad():
        dense = torch.from_numpy(bound.dense())
        exact = scaled_dot_product_attention(*(x.float() for x in inputs), attn_mask=dense)
    if (gap := difference(outputs[ATTENTION][:1], (exact,))) > TOLERANCES[dtype]:
        raise RuntimeError(f"paths_kernel: {name} in {dtype} differs from SDPA by {gap:.1g}")
    if dtype != "float32":
        goal = None
    seconds = {runner.name: runner.best for runner in runners}
    peak = fma.flops / seconds[PEAK]
    work = FLOPS[mode] * HEAD_DIM * bound.count()
    return {
        "mask": name,
        "mode": mode,
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "tokens": TOKENS,
        "yardstick": fma.name,
        "peak": peak,
        "seconds": seconds,
        "share": work / seconds[ATTENTION] / peak,
        "goal": goal if goal is None or mode == FORWARD else goal - 0.1,
    }


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paths_kernel", description=__doc__)
    parser.add_argument("--masks", nargs="+", choices=list(MASKS), default=list(MASKS))
    parser.add_argument("--dtypes", nargs="+", choices=list(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--rounds", type=int, default=7, help="rounds at least (default: 7)")
    options = parser.parse_args(given)
    if not loaded().isas:
        print(f"There is no C kernel to measure: {loaded().reason}.")
        return 1
    keep_freed_memory()
    pace = replace(PACE, least=options.rounds)
    cells = [
        measure(name, mode, dtype, pace)
        for dtype in options.dtypes
        for mode in (FORWARD, BOTH)
        for name in options.masks
    ]
    rows = [
        [
            cell["mask"],
            cell["mode"],
            cell["dtype"],
            f"{cell['seconds'][ATTENTION] * 1e3:.1f} ms",
            f"{cell['share']:.0%}",
            "" if cell["goal"] is None else f"{cell['goal']:.0%}",
        ]
        for cell in cells
    ]
    best = max(cell["peak"] for cell in cells)
    print(f"\n{machine()}\n\npeak {best / 1e9:.0f} GFLOP/s, {cells[0]['threads']} threads\n")
    head = [f"{TOKENS:,} tokens", "mode", "dtype", "time", "share of peak", "goal, at least"]
    print(table(head, rows))
    whole = options.masks == list(MASKS) and options.dtypes == list(TOLERANCES)
    name = "paths_kernel" if whole else "paths_kernel-part"
    print(f"\nwritten to {save(name, {'cells': cells})}")
    return 0
